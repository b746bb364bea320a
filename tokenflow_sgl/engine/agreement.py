"""Debugging: whether all tensor-parallel ranks do the same in every pass.

Ranks decide each for itself, by the same figures. One that sees or does something else than the
leader hangs or crashes in a collective some passes later, or gives wrong tokens, and nothing tells
where it began. With `TOKENFLOW_CHECK_RANKS=1` every rank keeps digests of all that it decided and
did; the leader's ride on its clock tick, and a rank that has others says which, and in which pass.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from tokenflow_sgl.contract import Decision

Digests = Mapping[str, int]
"""CRC-32 of all passes so far, by what it is of."""


class RanksDisagreeError(RuntimeError):
    """A rank did something else than its leader."""


class Agreement:
    """What one rank has decided and done.

    Args:
        rank: Of this one among those that must agree; the leader is 0.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._passes = 0
        self._digests: dict[str, int] = {}

    def decided(self, decision: Decision) -> None:
        """The policy has answered in this pass."""
        said = (
            decision.mode.value,
            decision.admit,
            decision.preempt,
            decision.run,
            decision.restore,
            decision.write,
            decision.prefill,
            decision.until,
        )
        self._add("decision", said)

    def passed(self, facts: Mapping[str, object]) -> None:
        """A pass is over; facts: what this rank has done in it, under names for the sentence."""
        for name, fact in facts.items():
            self._add(name, fact)
        self._passes += 1

    def report(self) -> tuple[int, Digests]:
        """How many passes this rank has done, and their digests."""
        return self._passes, dict(self._digests)

    def compare(self, leaders: tuple[int, Digests]) -> None:
        """Compare with the leader's report at the same moment; raises `RanksDisagreeError`."""
        passes, digests = leaders
        wrong = [name for name in digests if digests[name] != self._digests.get(name)]
        if passes == self._passes and not wrong:
            return
        raise RanksDisagreeError(
            f"tokenflow: ranks disagree in pass {passes}: rank {self._rank}, in its pass "
            f"{self._passes}, has another {' and '.join(wrong) or 'number of passes'} than rank 0"
        )

    def _add(self, name: str, fact: object) -> None:
        self._digests[name] = zlib.crc32(repr(fact).encode(), self._digests.get(name, 0))
