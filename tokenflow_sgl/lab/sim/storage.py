"""A storage tier below the simulated host pool: what it holds, and how it comes back.

Its capacity is endless: what was once on the host stays in it. Stock as SGLang 0.5.23: the prefetch
starts when a request enters the queue, head first, into the host pool; admission skips the request
until the prefetch policy says that it has waited enough, and the load to the device starts after
that. With `restore` the tail comes first, and the head is computed meanwhile (CacheFlow,
token-wise), by the planner that runs live: `tokenflow_sgl.restoration`.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

from tokenflow_sgl.choices import PrefetchPolicy, Restoring, StorageWrites
from tokenflow_sgl.costs import attention_work
from tokenflow_sgl.lab.sim.storage_link import StorageLink, StorageTransfer
from tokenflow_sgl.restoration import Known, MeetingPoint, in_chunks, next_head

if TYPE_CHECKING:
    from tokenflow_sgl.lab.profiles import DeviceProfile
    from tokenflow_sgl.lab.sim.engine_options import EngineOptions
    from tokenflow_sgl.lab.sim.kv_memory import KVMemory
    from tokenflow_sgl.lab.sim.prefixes import Prefixes

THRESHOLD = 256
"""Tokens below which SGLang does not prefetch (`prefetch_threshold`)."""
TIMEOUT_SECONDS, TIMEOUT_PER_TOKEN = 1.0, 0.25 / 1024
"""How long the policy `timeout` waits for a prefetch: SGLang's defaults."""
RETRY_PASSES, MOST_RETRIES = 8, 8
"""After how many looks at a request SGLang asks again for what the host had no room for, and how
often: its defaults."""
GBIT = 8e-9
"""Gbit of a byte."""


@dataclass(slots=True)
class StorageCounts:
    """What came from the storage.

    Attributes:
        fetched: Tokens that arrived and were used.
        unused: Tokens that arrived and were not.
        heads: Tokens that were computed while the tails of their prefixes came.
        both: Requests of which a part was computed and a part fetched at the same time.
    """

    fetched: int = 0
    unused: int = 0
    heads: int = 0
    both: int = 0

    def __add__(self, other: StorageCounts) -> StorageCounts:
        pairs = zip(astuple(self), astuple(other), strict=True)
        return StorageCounts(*(mine + theirs for mine, theirs in pairs))


@dataclass(slots=True)
class _Prefix:
    """What is fetched of a prompt, from `start` to `end`. `begun`: where its head begins."""

    fetch: StorageTransfer
    start: int
    end: int
    begun: int


class Storage:
    """The tier of one engine.

    Args:
        memory: Of device and host; what it keeps on the host is backed up.
        prefixes: Which prompts start alike.
        profile: Step times, for the planner.
        options: Of the engine.

    Attributes:
        counts: What was done so far.
        moment: When what the host keeps next is there.
    """

    def __init__(
        self,
        memory: KVMemory,
        prefixes: Prefixes,
        profile: DeviceProfile,
        options: EngineOptions,
    ) -> None:
        self.counts = StorageCounts()
        self.moment = 0.0
        self._memory = memory
        self._prefixes = prefixes
        self._options = options
        rate = options.storage_gbps / GBIT / profile.kv_bytes_per_token
        self._link = StorageLink(rate, options.storage_latency_us * 1e-6)
        self._stored: dict[int, int] = {}
        self._coming: dict[int, _Prefix] = {}
        self._refused: dict[int, int] = {}  # looks since the host had no room
        self._looked_at = -math.inf
        self._occupied = 0
        self._both = options.restore == Restoring.auto
        self._compute = in_chunks(
            lambda tokens, prefix: profile.prefill_seconds(
                tokens, attention_work(float(tokens), float(prefix))
            ),
            options.chunked_prefill_size,
        )
        memory.host.backup = self._keep

    def arrive(self, stream: int, prompt: int, now: float) -> None:
        """A request with so many tokens enters the queue: what of them is stored is asked for."""
        _, reach = self._memory.match(stream)
        most = (prompt - 1) // self._options.page_size * self._options.page_size
        gap = min(self._reach(stream), most) - reach
        if gap < THRESHOLD:
            return
        # SGLang lets prefetches take half of the host pool.
        ample = self._occupied + gap <= self._memory.host.size // 2
        # Without room for all of it SGLang fetches as much as fits.
        room = self._memory.host.reserve(gap) if ample else 0
        if room < THRESHOLD:
            self._memory.host.free(room)
            self._refused.setdefault(stream, 0)
            return
        self._occupied += room
        end = reach + (gap if self._both else room)
        self._coming[stream] = _Prefix(self._link.ask(room, now), end - room, end, reach)

    def ready(self, stream: int, prompt: int, now: float, lead: float) -> bool:
        """Whether admission looks at a waiting request now; else it is skipped in this pass."""
        first, self._looked_at = now > self._looked_at, now
        if stream in self._refused:
            self._ask_again(stream, prompt, now, first)
        if stream not in self._coming:
            return True
        self._link.advance(now)
        one = self._coming[stream]
        if self._landed(one) >= one.end - one.start:
            self._take(stream)
        elif self._both:
            _, one.begun = self._memory.match(stream)
            return self._head(stream, one.begun, prompt, now, lead) != 0
        elif not self._waits(one, now):
            self._link.give_up(one.fetch, now)
            self._take(stream)
        else:
            return False
        return True

    def head(self, stream: int, computed: int, prompt: int, now: float, lead: float) -> int | None:
        """Tokens behind the computed ones that the next chunk may take; None: as many as it likes.

        Args:
            stream: The request.
            computed: Its tokens whose KV is on device or host.
            prompt: All that it needs before it decodes.
            now: The present.
            lead: Seconds that the step under way still runs.
        """
        head = self._head(stream, computed, prompt, now, lead)
        if head is not None and head <= self._options.chunked_prefill_size:
            # What is left belongs to the tail; then the link is free.
            one = self._coming[stream]
            one.fetch.tokens = min(one.fetch.tokens, max(one.end - computed - head, 0))
        return head

    def tail(self, stream: int, computed: int, now: float) -> int:
        """Tokens behind the computed ones that have landed, up to the end of what is stored."""
        one = self._coming.get(stream)
        if one is None or not self._both:
            return 0
        self._link.advance(now)
        gap = one.end - computed
        return gap if self._landed(one) >= gap else 0

    def joined(self, stream: int, computed: int, now: float) -> None:
        """A request has taken its tail; the head was computed up to there."""
        one = self._coming[stream]
        self._link.give_up(one.fetch, now)
        used = one.end - computed
        self.counts.fetched += used
        self.counts.unused += self._landed(one) - used
        self.counts.heads += computed - one.begun
        self.counts.both += 1
        self._forget(stream)

    def wakes_at(self, now: float) -> float:
        """When a request that waits for the storage may go on; infinite: none does."""
        if not self._coming:
            return math.inf
        self._link.advance(now)
        times = [self._link.lands_at]
        if self._options.hicache_storage_prefetch_policy == PrefetchPolicy.timeout:
            times += [self._deadline(one) for one in self._coming.values()]
        return min(time for time in (*times, math.inf) if time > now)

    def _ask_again(self, stream: int, prompt: int, now: float, first: bool) -> None:
        """For what the host had no room for. Stock does so now and then, and not for the first."""
        looks = self._refused.pop(stream) + 1
        if self._both:
            self.arrive(stream, prompt, now)
        elif not first and looks < RETRY_PASSES * MOST_RETRIES:
            self._refused[stream] = looks
            if looks % RETRY_PASSES == 0:
                self.arrive(stream, prompt, now)
                if stream in self._coming:
                    del self._refused[stream]

    def _head(self, stream: int, computed: int, prompt: int, now: float, lead: float) -> int | None:
        one = self._coming.get(stream)
        if one is None or not self._both:
            return None
        self._link.advance(now)
        known: Known = {
            "compute": self._compute,
            "fetch": lambda tokens: self._link.seconds(one.fetch, tokens, now),
            "page": self._options.page_size,
            "lead": lead,
        }
        landed, suffix = self._landed(one), prompt - one.end
        head = next_head(MeetingPoint(), computed, one.end, landed, suffix, known)
        if head is None:
            self._link.give_up(one.fetch, now)
            self.counts.unused += landed
            self._forget(stream)
            return None
        return max(head, one.start - computed)

    def _keep(self, node: int, tokens: int) -> None:
        """The host has so many tokens of a node: what is new goes to the storage."""
        new = tokens - self._stored.get(node, 0)
        if new > 0:
            self._stored[node] = tokens
            if self._options.storage_writes == StorageWrites.shared:
                self._link.ask(new, self.moment)

    def _reach(self, stream: int) -> int:
        """Leading tokens of a stream that are on device, host or in the storage."""
        reach = 0
        for node in (*self._prefixes.paths[stream], stream):
            there = max(self._memory.there(node), self._stored.get(node, 0))
            reach += there
            if there < self._prefixes.tokens[node]:
                break
        return reach

    def _waits(self, one: _Prefix, now: float) -> bool:
        policy = self._options.hicache_storage_prefetch_policy
        if policy == PrefetchPolicy.timeout:
            return now < self._deadline(one)
        return policy == PrefetchPolicy.wait_complete

    def _deadline(self, one: _Prefix) -> float:
        gap = one.end - one.start
        return one.fetch.asked + TIMEOUT_SECONDS + TIMEOUT_PER_TOKEN * gap

    def _landed(self, one: _Prefix) -> int:
        """Tokens of whole pages that are there."""
        page = self._options.page_size
        return int(one.fetch.landed) // page * page

    def _take(self, stream: int) -> None:
        """What has landed, head first, is on the host now."""
        one = self._coming[stream]
        end = one.start + self._landed(one)
        self._forget(stream)
        at = 0
        for node in (*self._prefixes.paths[stream], stream):
            length = self._prefixes.tokens[node]
            if at + length > one.start and end > at:
                self._memory.host.keep(node, min(end - at, length))
            at += length
        self.counts.fetched += end - one.start

    def _forget(self, stream: int) -> None:
        one = self._coming.pop(stream)
        self._occupied -= one.end - one.start
        self._memory.host.free(one.end - one.start)
