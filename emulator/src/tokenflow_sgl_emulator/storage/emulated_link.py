"""One direction of an emulated link: a server with a queue, on the device's clock."""

import random
import threading

from tokenflow_sgl_emulator.timed.clock import Clock


class EmulatedLink:
    """Transfers one after the other, each at the link's full rate, in the order in which they come.

    So callers that come together share the rate, and how late one of them wakes up does not matter
    to the next.

    Args:
        clock: The device's; its seconds are those of the clock.
        dilation: Seconds of the clock per emulated second.
        seed: Of the jitter: the same calls in the same order get the same.
    """

    def __init__(self, clock: Clock, dilation: float, seed: str) -> None:
        self._clock, self._dilation = clock, dilation
        self._draws = random.Random(seed)
        self._lock = threading.Lock()
        self._free_at = 0.0

    def reserve(self, n_bytes: float, rate: float, latency_s: float, jitter_s: float) -> float:
        """Take a place in the queue.

        Args:
            n_bytes: Of the transfer; 0 does not wait for the link.
            rate: Bytes per emulated second.
            latency_s: Emulated seconds after the last byte was sent, until it is there.
            jitter_s: At most so much is added.

        Returns:
            The moment on the clock at which all of it is there.
        """
        with self._lock:
            moment = self._clock.now()
            if n_bytes:
                moment = max(moment, self._free_at) + n_bytes / rate * self._dilation
                self._free_at = moment
            return moment + (latency_s + self._draws.random() * jitter_s) * self._dilation
