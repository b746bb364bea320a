"""What waits for streams to end: new weights, an adapter that is unloaded, a flush, a server's end.

No stream rests while something waits for its end, and for a policy its reader has had nothing left
to read since the wait began. So it runs, however far it is ahead.
"""

from __future__ import annotations

import collections
import math
from dataclasses import dataclass

LIMIT, AWAITED = "limit", "awaited"
"""Why the server ends a rest: the stream has rested long enough, or something waits for its end."""
REASONS = (LIMIT, AWAITED)


@dataclass(frozen=True, slots=True)
class _Wait:
    adapter: str | None
    since: float
    until: float


class RestRules:
    """For how long streams may rest, and what they may not rest through.

    Waits have names that whoever waits has made up.

    Attributes:
        longest: Seconds for which a stream may rest, all its rests together.
        ended: Rests that the server has ended since this was last looked at, by reason.
    """

    def __init__(self) -> None:
        self.longest = math.inf
        self._waits: dict[str, _Wait] = {}
        self._adapters: dict[int, str] = {}
        self.ended: collections.Counter[str] = collections.Counter()

    def take_ended(self) -> collections.Counter[str]:
        """`ended`, which is empty from then on."""
        ended, self.ended = self.ended, collections.Counter()
        return ended

    @property
    def awaited(self) -> bool:
        """Whether anything waits for streams to end, so that none may rest."""
        return bool(self._waits)

    def begin(
        self, name: str, now: float, *, adapter: str | None = None, until: float = math.inf
    ) -> None:
        """A wait has begun; nothing happens if it had before.

        Args:
            name: Of the wait.
            now: Seconds.
            adapter: It waits for the streams that use this adapter; None: for all.
            until: When it gives up, seconds.
        """
        self._waits.setdefault(name, _Wait(adapter, now, until))

    def over(self, name: str) -> None:
        """A wait is over, whether it was known or not."""
        self._waits.pop(name, None)

    def give_up(self, now: float, streams: int) -> bool:
        """End the waits whose time is over.

        Args:
            now: Seconds.
            streams: That are here. Without any, whatever may give up has got what it waited for.

        Returns:
            Whether there was one.
        """
        waits = [(name, each.until) for name, each in self._waits.items()]
        late = [n for n, until in waits if until <= now or (not streams and until < math.inf)]
        for name in late:
            del self._waits[name]
        return bool(late)

    def arrive(self, slot: int, adapter: str) -> float:
        """A stream that uses this adapter is in a slot; returns `since` of it."""
        self._adapters[slot] = adapter
        return self.since(slot)

    def leave(self, slot: int) -> None:
        """Forget the adapter of a stream that has ended."""
        self._adapters.pop(slot, None)

    def since(self, slot: int) -> float:
        """Since when something has waited for this stream's end, seconds; inf: nothing does."""
        adapter = self._adapters.get(slot)
        waits = self._waits.values()
        return min(
            (each.since for each in waits if each.adapter is None or each.adapter == adapter),
            default=math.inf,
        )
