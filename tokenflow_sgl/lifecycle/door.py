"""Who is let in: a request whose first token lies too far away is told so at once.

The engine's front end and the simulator ask the same object. It is shown a `WaitOutlook` now and
then, and counts the requests that it has let in since.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tokenflow_sgl.policy.outlook import AHEAD, Usual, WaitOutlook, nothing_waits

LOOK_EVERY = 0.25
"""Seconds between two outlooks where requests may be refused."""


class Door:
    """What is known of the wait, and who has passed since.

    Attributes:
        outlook: The last one; None: none was seen, and all pass.
    """

    def __init__(self) -> None:
        self.outlook: WaitOutlook | None = None
        self._passed = 0

    @property
    def usual(self) -> Usual | None:
        """What requests were like at the last look."""
        return None if self.outlook is None else self.outlook.usual

    def look(self, outlook: WaitOutlook) -> None:
        """A new outlook is there, which knows of all that have passed."""
        self.outlook = outlook
        self._passed = 0

    def expected(self, now: float, prompt: int | None = None) -> float:
        """Seconds until the first token of a request that comes now; 0.0 while nothing is known.

        Args:
            now: Seconds on the outlook's clock.
            prompt: Its tokens; None: a usual one.
        """
        if self.outlook is None:
            return 0.0
        return self.outlook.expected(now, prompt, self._passed)

    def present(self, now: float) -> WaitOutlook:
        """The outlook as it is now, with all that has passed since."""
        if self.outlook is None:
            return nothing_waits(now)
        seen = self.outlook
        wait = [
            [seen.expected(now, prompt, self._passed + more) for more in AHEAD.tolist()]
            for prompt in seen.prompt.tolist()
        ]
        return replace(seen, at=now, wait=np.array(wait))

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
