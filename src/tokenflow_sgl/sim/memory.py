"""KV memory of device and host: what is held, what is cached, what was written back.

Running streams hold their KV. That of paused streams stays on the device as long as nobody needs
the room, as SGLang's prefix tree keeps it, and goes the longest unused first. Finished streams
leave theirs behind in the same way. With HiCache every such KV is copied to the host as soon as it
becomes cached (write-through); before the copy has ended it cannot be evicted.
"""

from __future__ import annotations

from collections import OrderedDict, deque


class Memory:
    """Token counts only; who they belong to is the index of a stream.

    Attributes:
        held: Tokens of running streams, and those being prefilled.
        evicted, lost: Tokens that left the device with a copy on the host, and without one.
    """

    def __init__(self, device: int, host: int) -> None:
        self.device = device
        self.host = host
        self.held = 0
        self.evicted = self.lost = 0
        self._cached: OrderedDict[int, int] = OrderedDict()
        self._cached_sum = 0
        self._leaving: deque[tuple[float, int, int]] = deque()  # until it may be evicted
        self._leaving_sum = 0
        self._on_host: OrderedDict[int, int] = OrderedDict()
        self._on_host_sum = 0

    @property
    def free(self) -> int:
        """Tokens that can be allocated: empty, or cached by nobody who runs."""
        return self.device - self.held - self._leaving_sum

    def resident(self, stream: int) -> int:
        """Tokens of a paused stream that are on the device still."""
        if stream in self._cached:
            return self._cached[stream]
        return sum(tokens for _, owner, tokens in self._leaving if owner == stream)

    def on_host(self, stream: int) -> int:
        """Tokens of a stream that the host holds."""
        return self._on_host.get(stream, 0)

    def allocate(self, tokens: int) -> None:
        """Running streams take `tokens`, which are free; cached ones make room."""
        self.held += tokens
        missing = self.held + self._leaving_sum + self._cached_sum - self.device
        while missing > 0 and self._cached:
            stream, cached = next(iter(self._cached.items()))
            gone = min(cached, missing)
            self._evict(stream, cached, gone)
            missing -= gone

    def release(self, tokens: int) -> None:
        """Held tokens are gone for good."""
        self.held -= tokens

    def cache(self, stream: int, tokens: int, *, ready: float) -> None:
        """A running stream's held tokens become cached, evictable from `ready` on."""
        self.held -= tokens
        if self.host:
            self._write(stream, tokens)
        self._leaving.append((ready, stream, tokens))
        self._leaving_sum += tokens

    def settle(self, now: float) -> None:
        """Copies that have ended by `now` make their tokens evictable."""
        while self._leaving and self._leaving[0][0] <= now:
            _, stream, tokens = self._leaving.popleft()
            self._leaving_sum -= tokens
            self._cached[stream] = tokens
            self._cached_sum += tokens

    def settles_at(self) -> float | None:
        """When the next copy ends; None: none is under way."""
        return self._leaving[0][0] if self._leaving else None

    def take_back(self, stream: int) -> int:
        """A paused stream runs again: its resident tokens become held. Returns how many."""
        if stream in self._cached:
            tokens = self._cached.pop(stream)
            self._cached_sum -= tokens
        else:
            tokens = self.resident(stream)
            kept = [entry for entry in self._leaving if entry[1] != stream]
            self._leaving = deque(kept)
            self._leaving_sum -= tokens
        self.held += tokens
        return tokens

    def unwritten(self, stream: int, tokens: int) -> int:
        """How many of a stream's tokens are still to be copied to the host."""
        return max(tokens - self.on_host(stream), 0) if self.host else 0

    def _write(self, stream: int, tokens: int) -> None:
        self._on_host_sum += max(tokens - self._on_host.pop(stream, 0), 0)
        self._on_host[stream] = tokens  # now the most recently used
        while self._on_host_sum > self.host:
            oldest, size = self._on_host.popitem(last=False)
            self._on_host_sum -= size
            if oldest == stream:
                break

    def _evict(self, stream: int, cached: int, gone: int) -> None:
        if gone == cached:
            del self._cached[stream]
        else:
            self._cached[stream] = cached - gone
        self._cached_sum -= gone
        if self.on_host(stream) >= cached:
            self.evicted += gone
        else:
            self.lost += gone
