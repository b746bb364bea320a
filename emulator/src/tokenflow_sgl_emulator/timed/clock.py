"""The clock of an emulated device: the wall's, or a virtual one that only the device's work moves.

On the wall clock a step really takes its time, and whatever else the machine does shows in the
figures. On the virtual clock nothing sleeps: waiting for the device *is* moving the clock to the
moment when the device is done. Work of the CPU takes no virtual time, so a run gives the same
figures on every machine.
"""

import os
import time
from functools import cache

VIRTUAL_VARIABLE = "TOKENFLOW_EMU_VIRTUAL_TIME"
"""Set to 1: the device runs on a virtual clock."""
IDLE_PASS_S = 2.5e-4
"""Virtual seconds that a pass of SGLang's loop takes in which it starts no step, though requests
are there: about what such a pass takes on a real server."""
_SPIN_S = 1e-4
"""The last stretch of a wait is spun: Linux wakes a sleeper some 60 microseconds late."""


class WallClock:
    """SGLang's own clock for request time stamps."""

    def now(self) -> float:
        """Seconds, from an unknown zero."""
        return time.perf_counter()

    def wait_until(self, moment: float) -> None:
        """Return at `moment`, or at once if it has passed."""
        while (left := moment - self.now()) > 0:
            if left > _SPIN_S:
                time.sleep(left - _SPIN_S)

    def sleep_until(self, moment: float) -> None:
        """Return at `moment`, on a thread beside the scheduler's, which must not be held up."""
        while (left := moment - self.now()) > 0:
            time.sleep(left)

    def expect(self, moment: float) -> None:
        """Something will be done at `moment`; the wall clock gets there by itself."""


class VirtualClock:
    """Seconds that pass when the scheduler waits for the device, and at no other time.

    Only the thread of SGLang's scheduler may move it.
    """

    def __init__(self) -> None:
        self._now = self._expected = 0.0

    def now(self) -> float:
        """Seconds since the server was started, as far as its device worked."""
        return self._now

    def wait_until(self, moment: float) -> None:
        """Move to `moment`, or stay if it has passed."""
        self._now = max(self._now, moment)

    def expect(self, moment: float) -> None:
        """Something will be done at `moment`."""
        self._expected = max(self._expected, moment)

    def settle(self) -> None:
        """Let the device do all that it has to do: no request is there any more."""
        self.wait_until(self._expected)


Clock = WallClock | VirtualClock


def virtual_time() -> bool:
    """Whether this process is told to run on a virtual clock.

    Raises:
        ValueError: The environment variable is neither 0 nor 1.
    """
    text = os.environ.get(VIRTUAL_VARIABLE, "0")
    if text not in ("0", "1"):
        raise ValueError(f"{VIRTUAL_VARIABLE} is {text!r}; allowed is 0 or 1")
    return text == "1"


@cache
def the_clock() -> Clock:
    """The clock of this process, made of its environment on first use."""
    return VirtualClock() if virtual_time() else WallClock()


def now() -> float:
    """Seconds on the clock of this process."""
    return the_clock().now()
