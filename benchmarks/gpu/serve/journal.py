"""What has been done of a benchmark that may end at any time: a file for each part, kept at once.

A part is done once; what failed or came out wrong is repeated in the next call, and what it left is
kept beside. A part that the time does not suffice for is left out, and said.
"""

from __future__ import annotations

import json
import math
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

Figures = dict[str, Any]
"""What a part found, as JSON has it."""


class State(StrEnum):
    """What has become of a part."""

    DONE = "done"
    WRONG = "wrong"
    """It ran, and what it found should not be."""
    FAILED = "failed"
    """It broke off."""
    UNFIT = "does not apply"
    LEFT_OUT = "left out"


class WrongError(Exception):
    """What a part found should not be.

    Args:
        why: A sentence.
        figures: What it found all the same.
    """

    def __init__(self, why: str, figures: Figures) -> None:
        super().__init__(why)
        self.figures = figures


class UnfitError(Exception):
    """A part has no meaning here; the message says why."""


@dataclass(frozen=True, slots=True)
class Part:
    """One thing to do.

    Attributes:
        name: `STEP/WHAT`; the folder of its raw files, and its file in the journal.
        minutes: That it takes, about.
        run: Does it, in the folder it is given; returns what it found.
    """

    name: str
    minutes: float
    run: Callable[[Path], Figures]


@dataclass(frozen=True, slots=True)
class Entry:
    """What has become of one part.

    Attributes:
        name: Of the part.
        state: What has become of it.
        why: A sentence, where it is not done.
        seconds: That it took.
        figures: What it found.
    """

    name: str
    state: State
    why: str = ""
    seconds: float = 0.0
    figures: Mapping[str, Any] = field(default_factory=dict)

    @property
    def step(self) -> str:
        """The step that it belongs to."""
        return step_of(self.name)


def step_of(name: str) -> str:
    """The step of a part of that name."""
    return name.partition("/")[0]


class Journal:
    """The parts of one folder.

    Args:
        folder: Where all is kept; made if missing.
        minutes: For this call; None: as long as it takes.
        clock: Seconds, of any zero.
    """

    def __init__(
        self,
        folder: Path,
        minutes: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder = folder
        self._clock, self._began = clock, clock()
        self._minutes = minutes
        (folder / "parts").mkdir(parents=True, exist_ok=True)

    @property
    def minutes_left(self) -> float:
        """Of this call; infinite without a limit."""
        if self._minutes is None:
            return float("inf")
        return self._minutes - (self._clock() - self._began) / 60.0

    def entries(self) -> list[Entry]:
        """What has become of each part so far, in the order of their names."""
        read = [json.loads(path.read_text()) for path in sorted(self._files())]
        return [Entry(**{**each, "state": State(each["state"])}) for each in read]

    def entry(self, name: str) -> Entry | None:
        """What has become of a part; None: nothing yet."""
        return next((each for each in self.entries() if each.name == name), None)

    def do(self, part: Part) -> Entry:
        """Run a part, unless it is done already or the time does not suffice; keep what came."""
        before = self.entry(part.name)
        if before is not None and before.state is State.DONE:
            return before
        if part.minutes > self.minutes_left:
            left = f"takes about {part.minutes:g} minutes, {max(self.minutes_left, 0):.0f} are left"
            entry = Entry(part.name, State.LEFT_OUT, left)
            # What an earlier call found of it tells more.
            return entry if before is not None else self._keep(entry)
        return self._keep(self._run(part))

    def _run(self, part: Part) -> Entry:
        folder, began = self._fresh(part.name), self._clock()
        figures: Mapping[str, Any] = {}
        state, why = State.DONE, ""
        try:
            figures = part.run(folder)
        except WrongError as error:
            state, why, figures = State.WRONG, str(error), error.figures
        except UnfitError as error:
            state, why = State.UNFIT, str(error)
        except (Exception, SystemExit) as error:
            # A part that breaks never takes the others with it.
            state, why = State.FAILED, f"{type(error).__name__}: {error}"[:3000]
            (folder / "error.txt").write_text(traceback.format_exc())
        return Entry(part.name, state, why, self._clock() - began, figures)

    def _fresh(self, name: str) -> Path:
        """An empty folder for raw files; that of an earlier try is renamed."""
        folder = self.folder / name
        if folder.exists():
            number = 1
            while (old := folder.with_name(f"{folder.name}.before-{number}")).exists():
                number += 1
            folder.rename(old)
        folder.mkdir(parents=True)
        return folder

    def _keep(self, entry: Entry) -> Entry:
        entry = replace(entry, figures=finite(entry.figures))
        path = self.folder / "parts" / f"{entry.name.replace('/', '.')}.json"
        scratch = path.with_suffix(".scratch")
        told = json.dumps(asdict(entry), indent=1, default=str, allow_nan=False)
        scratch.write_text(told + "\n")
        scratch.replace(path)  # a call that is killed meanwhile leaves the old one
        return entry

    def _files(self) -> list[Path]:
        return [*(self.folder / "parts").glob("*.json")]


def finite(value: Any) -> Any:
    """The same without what JSON cannot say, NaN and infinity, which become None."""
    if isinstance(value, Mapping):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def exit_code(entries: Sequence[Entry]) -> int:
    """0: all that applies is done; 1: something failed or is wrong; 3: something is still to do."""
    states = {entry.state for entry in entries}
    if states & {State.WRONG, State.FAILED}:
        return 1
    return 3 if State.LEFT_OUT in states else 0
