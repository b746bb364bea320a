"""The readers of all live streams: which are about to stall, and which have tokens to spare.

Input: deliveries (slots, token counts, time). Output: stalls, buffers and slack. One number per
stream is enough, `next_due`: the time at which its next token must be there. For k tokens that
arrive together at time t,

    first delivery:  next_due = t + k / rate
    later:           late = t - next_due, a stall if late > 0;
                     next_due = max(next_due, t) + k / rate

which is the reader of `playback` in O(1). Only the first of the k tokens can be late.

A reader may look away for a while: it rests, `next_due` is infinite, and `unread` keeps what lies
before it. It goes on with that.

Fractions. `x = max(next_due - now, 0) * rate` is the buffer in tokens: the token being read counts
with the fraction that is left of it. Whole tokens not yet begun: `max(ceil(x) - 1, 0)`; not yet
read to their end: `ceil(x)`. Right after its first token a reader has x = 1, that token itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tokenflow_sgl.qos.checks import FloatArray, decay_band, finite, non_negative, positive, whole
from tokenflow_sgl.qos.playback import NOTICEABLE_STALL, noticed
from tokenflow_sgl.qos.weights import TAU1, TAU2, together_weight

LOWEST_RATE, HIGHEST_RATE = 0.1, 1000.0
"""Tokens per second that a reader may consume: servers refuse others, clients do not send them.

Below, a stream lasts for hours; above, no one reads.
"""

# Each array and what a slot holds before its first use. Numbers that are safe to compute with, so
# that a delivery to a slot that is not open needs no branch.
_FIELDS: dict[str, tuple[DTypeLike, float]] = {
    "is_open": (np.bool_, False),
    "started": (np.bool_, False),
    "rate": (np.float64, 1.0),
    "arrival": (np.float64, math.nan),
    "expected_tokens": (np.int64, 1),
    "next_due": (np.float64, math.inf),
    "resting": (np.bool_, False),
    "unread": (np.float64, 0.0),
    "delivered": (np.int64, 0),
    "first_token": (np.float64, math.nan),
    "stall_seconds": (np.float64, 0.0),
    "stall_count": (np.int64, 0),
    "threshold": (np.float64, NOTICEABLE_STALL),
    "given_up": (np.float64, 0.0),
}


@dataclass(frozen=True, slots=True, eq=False)
class Delivery:
    """What one call of `ReaderBank.deliver` did to each of its slots, in the order of the call.

    Attributes:
        stalled: Seconds that playback stood still until this delivery, or since the last one until
            the reader looked away; 0 where no token came and the reader did not.
        was_stall: Whether that counts as a stall (longer than the reader's `threshold`).
        buffer_tokens: Buffer met by the first token, in tokens; 0 where the reader had not started.
        effective: Summed effective weight (7.1.3) of the tokens, with `expected_tokens` as L.
    """

    stalled: FloatArray
    was_stall: NDArray[np.bool_]
    buffer_tokens: FloatArray
    effective: FloatArray


class ReaderBank:
    """Readers by integer slot, as numpy arrays, for the scheduler's hot path.

    The arrays below are indexed by slot and meant to be read; `expected_tokens` may also be written
    when the estimate improves (`change_rate` and `take_back` write the others). They are *replaced*
    when the bank grows, so read them through the bank each time. The figures of a closed slot stay
    readable until the slot is opened again.

    Time is in seconds on one clock that the caller chooses, and never runs backwards: a `now`
    before the last delivery (or NaN) is read as the time of that delivery. Prefer a clock near 0
    (monotonic): one that counts from 1970 resolves 0.24 us, which adds up over long streams.

    `deliver`, `slack` and the buffers never raise for the sake of time or state; slots outside the
    capacity (never opened) are the caller's error and raise IndexError.

    Attributes:
        is_open: Whether the slot has a live stream.
        started: Whether its reader is reading: from the first token until `close`.
        rate: Reading speed, tokens/s.
        arrival: Arrival of the request, seconds.
        expected_tokens: Expected total output length L, the scale of the effective weight.
        next_due: When the next token must be there, seconds. Before the first token this is the
            arrival; while the reader rests, and after `close`, it is infinite.
        resting: Whether its reader has looked away and reads nothing.
        unread: Of a resting reader: tokens that it has not read, fractions as above.
        delivered: Tokens delivered.
        first_token: Time of the first delivery, NaN until then.
        stall_seconds: Time stalled so far. A stall in progress is not in it yet: it is `-slack`.
        stall_count: Stalls so far that were longer than `threshold`, likewise.
        threshold: Seconds beyond which a stall is counted: what the reader tolerates, at least
            `NOTICEABLE_STALL`.
        given_up: Seconds of a stall that ended because the reader looked away, until a call of
            `deliver` has reported them; in `stall_seconds` they are at once.
    """

    is_open: NDArray[np.bool_]
    started: NDArray[np.bool_]
    rate: FloatArray
    arrival: FloatArray
    expected_tokens: NDArray[np.int64]
    next_due: FloatArray
    resting: NDArray[np.bool_]
    unread: FloatArray
    delivered: NDArray[np.int64]
    first_token: FloatArray
    stall_seconds: FloatArray
    stall_count: NDArray[np.int64]
    threshold: FloatArray
    given_up: FloatArray

    def __init__(self, capacity: int = 256, *, tau1: float = TAU1, tau2: float = TAU2) -> None:
        self._tau1, self._tau2 = decay_band(tau1, tau2)
        self._clock = -math.inf
        for name, (dtype, blank) in _FIELDS.items():
            setattr(self, name, np.full(whole("capacity", capacity, minimum=1), blank, dtype))

    @property
    def capacity(self) -> int:
        """Slots that fit before the arrays are replaced by larger ones."""
        return int(self.rate.size)

    @property
    def clock(self) -> float:
        """Time of the latest delivery, in seconds; minus infinity before the first."""
        return self._clock

    def open(
        self,
        slot: int,
        *,
        rate: float,
        arrival: float,
        expected_tokens: int,
        tolerance: float = 0.0,
    ) -> None:
        """Begin a stream in a slot that is new or closed; all its figures start afresh.

        Args:
            slot: Index >= 0. The bank doubles until it fits.
            rate: Reading speed in tokens/s.
            arrival: When the request arrived, in seconds.
            expected_tokens: Expected total output length, >= 1.
            tolerance: Seconds of a stall that its reader does not mind, >= 0.

        Raises:
            ValueError: A value outside these limits, or the slot is open.
        """
        slot = whole("slot", slot, minimum=0)
        fresh = {
            "rate": float(positive("rate", rate)),
            "arrival": float(finite("arrival", arrival)),
            "expected_tokens": whole("expected_tokens", expected_tokens, minimum=1),
            "next_due": float(arrival),
            "threshold": max(float(non_negative("tolerance", tolerance)), NOTICEABLE_STALL),
            "is_open": True,
        }
        self._fit(slot)
        if self.is_open[slot]:
            raise ValueError(f"slot must be closed before it is opened again, got open slot {slot}")
        for name, (_, blank) in _FIELDS.items():
            getattr(self, name)[slot] = fresh.get(name, blank)

    def redate(self, slot: int, arrival: float) -> None:
        """The stream arrived at another time than was said; nothing happens once it has started.

        Args:
            slot: Index of an open slot.
            arrival: When the request arrived, in seconds.

        Raises:
            ValueError: A time that is none.
        """
        arrival = float(finite("arrival", arrival))
        if self.is_open[slot] and not self.started[slot]:
            self.arrival[slot] = arrival
            if not self.resting[slot]:
                self.next_due[slot] = arrival

    def close(self, slot: int) -> None:
        """End a stream: a finished request never stalls. Nothing happens if it is not open."""
        if 0 <= slot < self.capacity:
            self.is_open[slot] = self.started[slot] = self.resting[slot] = False
            self.next_due[slot], self.given_up[slot] = math.inf, 0.0

    def deliver(self, slots: NDArray[np.int64], counts: NDArray[np.int64], now: float) -> Delivery:
        """Hand new tokens to the readers of these streams.

        Args:
            slots: Slots, each at most once per call, shape (n,).
            counts: Tokens for each, delivered together, shape (n,). A count of 0 (or less) and any
                count for a slot that is not open change nothing.
            now: Time in seconds; read as `clock` if earlier, NaN or infinite.

        Returns:
            Stall, buffer and weight of each delivery, arrays of shape (n,).
        """
        now = self.at(now)
        reading = self.started.take(slots)
        rate = self.rate.take(slots)
        length = self.expected_tokens.take(slots).astype(np.float64)
        due = self.next_due.take(slots)

        tokens = np.maximum(counts, 0) * self.is_open.take(slots)
        resting = self.resting.take(slots)
        some_rest = bool(resting.any())
        if some_rest:
            # As with a reader that it reaches just in time: no stall, and `unread` keeps the books.
            due = np.where(resting, now, due)
        got = tokens > 0
        ahead = np.where(reading, due, now) - now
        spare = np.maximum(ahead, 0.0)
        stalled = np.maximum(-ahead, 0.0) * got
        was_stall = noticed(stalled, self.threshold.take(slots))
        buffer = spare * rate
        if some_rest:
            buffer = np.where(resting, self.unread.take(slots), buffer)
        size = tokens.astype(np.float64)
        effective = together_weight(buffer, size, self._tau1 * length, self._tau2 * length)

        base = np.where(ahead > 0.0, due, now)  # not now + spare, which would round at each token
        self.next_due[slots] = np.where(got, base + size / rate, due)
        if some_rest:
            self.next_due[slots[resting]] = math.inf
            self.unread[slots[resting]] += size[resting]
        self.delivered[slots] += tokens
        if stalled.any():
            self.stall_seconds[slots] += stalled
            self.stall_count[slots] += was_stall
        given_up = self.given_up.take(slots)
        if given_up.any():
            stalled = stalled + given_up
            was_stall = was_stall | noticed(given_up, self.threshold.take(slots))
            self.given_up[slots] = 0.0
        first = got & ~reading
        if first.any():
            fresh = slots[first]
            self.started[fresh] = True
            self.first_token[fresh] = now
        return Delivery(stalled, was_stall, buffer, effective)

    def slack(self, slots: NDArray[np.int64], now: float) -> FloatArray:
        """Return the seconds until each reader would stall, shape (n,).

        Negative: stalling now, for that long, while output is due. Before its first token a stream
        counts as due since its arrival, so its slack is minus the time waited; once closed it is
        infinite.
        Asking about a time ahead does not move the clock.
        """
        return self.next_due.take(slots) - (now if now > self._clock else self._clock)

    def buffer_seconds(self, slots: NDArray[np.int64], now: float) -> FloatArray:
        """Return how long each reader can read on without a delivery, in seconds, shape (n,).

        0 for a stream that has not started, stalls, or is closed.
        """
        return np.where(self.started.take(slots), np.maximum(self.slack(slots, now), 0.0), 0.0)

    def buffer_tokens(self, slots: NDArray[np.int64], now: float) -> FloatArray:
        """Return the unread tokens of each reader, fractions as in the module's docstring."""
        resting = self.resting.take(slots)
        if not resting.any():
            return self.buffer_seconds(slots, now) * self.rate.take(slots)
        seconds = np.where(resting, 0.0, self.buffer_seconds(slots, now))
        return np.where(resting, self.unread.take(slots), seconds * self.rate.take(slots))

    def at(self, now: float) -> float:
        """The time to reckon with, as the class says; the clock moves along."""
        if self._clock < now < math.inf:
            self._clock = now
        return self._clock if self._clock > -math.inf else 0.0

    def _fit(self, slot: int) -> None:
        capacity = self.capacity
        while capacity <= slot:
            capacity *= 2
        extra = capacity - self.capacity
        if extra:
            for name, (dtype, blank) in _FIELDS.items():
                grown = np.concatenate((getattr(self, name), np.full(extra, blank, dtype)))
                setattr(self, name, grown)
