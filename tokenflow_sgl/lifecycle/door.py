"""Who is let in: a request whose first token lies too far away is told so at once.

The engine's front end and the simulator ask the same object. It is shown a `WaitOutlook` now and
then, and counts the requests that it has let in since.
"""

from __future__ import annotations

import math

from tokenflow_sgl.policy.outlook import Usual, WaitOutlook

LOOK_EVERY = 0.25
"""Seconds between two outlooks where requests may be refused."""


def retry_after(likely: float, most: float) -> int:
    """What HTTP's `Retry-After` says: whole seconds, 1 at least, after which to ask again.

    Args:
        likely: Seconds after which the way is likely free.
        most: Seconds that the request may wait.
    """
    return max(math.ceil(likely - most), 1)


class Door:
    """What is known of the wait, and who has passed since.

    Attributes:
        outlook: The last one; None: none was seen, and all pass.
    """

    def __init__(self) -> None:
        self.outlook: WaitOutlook | None = None
        self._passed = 0
        self._before, self._replicas = 0.0, 1

    @property
    def usual(self) -> Usual | None:
        """What requests were like at the last look."""
        return None if self.outlook is None else self.outlook.usual

    def look(self, outlook: WaitOutlook, ahead: float = 0.0, replicas: int = 1) -> None:
        """A new outlook is there.

        Args:
            outlook: Of one engine.
            ahead: Requests that have come there since it was found.
            replicas: Engines among which those that pass from now on are spread.
        """
        self.outlook = outlook
        self._before, self._replicas = ahead, replicas
        self._passed = 0

    @property
    def _ahead(self) -> float:
        return self._before + self._passed / self._replicas

    def expected(self, now: float, prompt: int | None = None) -> float:
        """Seconds until the first token of a request that comes now; 0.0 while nothing is known.

        Args:
            now: Seconds on the outlook's clock.
            prompt: Its tokens; None: a usual one.
        """
        if self.outlook is None:
            return 0.0
        return self.outlook.expected(now, prompt, self._ahead)

    def likely(self, wait: float) -> float:
        """Seconds after which the way is likely free, of a wait that is expected."""
        return wait if self.outlook is None else wait * self.outlook.lasted

    def since(self, now: float) -> tuple[float, float, float]:
        """Seconds since the outlook was found, requests that came since, and its `lasted`."""
        assert self.outlook is not None, "one was seen"
        return now - self.outlook.at, self._ahead, self.outlook.lasted

    def let_in(self, requests: int = 1) -> None:
        """Requests pass, whatever the wait: those that come now wait behind them."""
        self._passed += requests

    def refuses(self, now: float, prompt: int | None, most: float) -> float | None:
        """The expected wait of a request that is refused; None: it passes, and is counted.

        Args:
            now: Seconds on the outlook's clock.
            prompt: Its tokens; None: a usual one.
            most: Seconds that it may wait; 0.0: as long as it takes.
        """
        if most:
            wait = self.expected(now, prompt)
            if wait > most:
                return wait
        self.let_in()
        return None
