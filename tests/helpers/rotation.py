"""Which of the slow tests a landing runs: a part of them, in turn.

A landing has the time for one of `PARTS` parts. `.ci/turn` counts the landings, so that what comes
when is the same for everybody and can be looked up in git: who lands adds one to it. What has no
time left in its landing comes first when its part comes again, because then the part is run from
its other end.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

PARTS = 2
ONE_BY_ONE = ("tests/live/test_identity", "tests/attacks/test_random")
"""Files whose tests share no server, so that each may be in another part. Others stay whole."""
SALT = "0"
"""With this one the parts take about the same time."""


@dataclass(frozen=True)
class Turn:
    """One landing.

    Attributes:
        number: Of the landing, from `.ci/turn`.
    """

    number: int

    @property
    def part(self) -> int:
        """Of the slow tests, from 0 on."""
        return self.number % PARTS

    def order(self, files: Iterable[str]) -> list[str]:
        """The files of this part as they come: from the other end than in the turn before."""
        reverse = bool(self.number // PARTS % 2)
        return sorted(files, key=_number, reverse=reverse)

    def said(self, begun: int, not_begun: Sequence[str], others: int) -> list[str]:
        """What the end of a run says.

        Args:
            begun: Slow tests that this landing began.
            not_begun: Those of its part for which there was no time.
            others: Slow tests of the other parts.
        """
        lines = [
            f"landing {self.number} had part {self.part + 1} of {PARTS} of the slow tests: "
            f"{begun} begun, {len(not_begun)} not begun, {others} in other parts.",
            f"The other parts come in landing {self.number + 1}, and came in landing "
            f"{self.number - 1}.",
        ]
        if not_begun:
            lines.append(
                f"Not begun, so last begun in landing {self.number - PARTS} or before; they come "
                f"first in landing {self.number + PARTS}:"
            )
        return [*lines, *(f"  {each}" for each in not_begun)]


def part_of(test: str) -> int:
    """Of a slow test, by its id."""
    return _number(test if test.startswith(ONE_BY_ONE) else test.partition("::")[0]) % PARTS


def _number(name: str) -> int:
    return zlib.crc32(f"{SALT}{name}".encode())
