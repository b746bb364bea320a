"""An answer as it comes, word by word, and what its reader has seen of it at any moment."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from dataclasses import dataclass
from enum import StrEnum

from tokenflow_sgl.lab.demo.dialogue import ReaderOfWords
from tokenflow_sgl.qos import NOTICEABLE_STALL


class Doing(StrEnum):
    """What a reader does."""

    absent = "has not asked"
    waiting = "waits"
    reading = "reads"
    stalled = "stalled"
    done = "has read all"


@dataclass(frozen=True, slots=True)
class SeenWords:
    """A reader at one moment.

    Attributes:
        doing: What they do.
        text: What they have read.
        unread: Tokens that have come, and that they have not read yet.
        seconds: For how long they have waited or stalled; 0: they do not.
    """

    doing: Doing
    text: str = ""
    unread: int = 0
    seconds: float = 0.0


class Spoken:
    """One answer. Times are seconds on the server's clock.

    Args:
        asking: Whose it is.
        asked_s: When they ask.

    Attributes:
        ids: Its tokens.
        times: When each came.
        read_at: When its reader begins each.
        complete: Whether it has ended.
    """

    def __init__(self, asking: ReaderOfWords, asked_s: float) -> None:
        self.asking, self.asked_s = asking, asked_s
        self.ids: list[int] = []
        self.times, self.read_at = array("d"), array("d")
        self.complete = False
        self._ends = array("q")  # how long the text is behind each token
        self._text = ""

    def take(self, ids: list[int], stamps: list[float], text: str) -> None:
        """More has come. The text of several tokens is seen with the first of them.

        Raises:
            ValueError: Another number of moments than of tokens.
        """
        self._text += text
        for token, stamp in zip(ids, stamps, strict=True):
            self.ids.append(token)
            self.times.append(stamp)
            after = self.read_at[-1] + 1 / self.asking.rate if self.read_at else stamp
            self.read_at.append(max(after, stamp))
            self._ends.append(len(self._text))

    @property
    def text(self) -> str:
        """All of it."""
        return self._text

    @property
    def first_after_s(self) -> float:
        """Seconds from asking to the first token."""
        return self.times[0] - self.asked_s

    @property
    def stalled_s(self) -> float:
        """Seconds for which its reader had read all that had come, stalls not noticed left out."""
        pauses = (
            read - before - 1 / self.asking.rate
            for before, read in zip(self.read_at, self.read_at[1:], strict=False)
        )
        return sum(each for each in pauses if each > NOTICEABLE_STALL)

    @property
    def read_until_s(self) -> float:
        """When its reader has read all."""
        return self.read_at[-1] + 1 / self.asking.rate if self.read_at else self.asked_s

    def at(self, now_s: float) -> SeenWords:
        """Its reader at a moment up to which all that came is known."""
        if now_s < self.asked_s:
            return SeenWords(Doing.absent)
        come = bisect_right(self.times, now_s)
        if not come:
            return SeenWords(Doing.waiting, seconds=now_s - self.asked_s)
        read = bisect_right(self.read_at, now_s)
        text = self._text[: self._ends[read - 1]]
        if read < come:
            return SeenWords(Doing.reading, text, come - read)
        over = now_s - self.read_at[read - 1] - 1 / self.asking.rate
        if self.complete and come == len(self.times):
            return SeenWords(Doing.done if over >= 0.0 else Doing.reading, text)
        if over > NOTICEABLE_STALL:
            return SeenWords(Doing.stalled, text, seconds=over)
        return SeenWords(Doing.reading, text)
