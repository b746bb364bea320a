"""What is simulated: the engine's settings, and the errors of this package."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tokenflow_sgl.choices import (
    IoBackend,
    MemLayout,
    PrefetchPolicy,
    Restoring,
    StorageWrites,
    WritePolicy,
)
from tokenflow_sgl.errors import InputError
from tokenflow_sgl.lab.profiles.pieces import LAYOUTS, host_layout


class SimulationError(InputError):
    """A simulation cannot run; the message names the field, its value and what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """SGLang's settings that decide its schedule, under SGLang's names where it has them.

    Attributes:
        max_total_tokens: KV tokens of the device pool; the last page may not be whole.
        sliding_window: Tokens of the window of some of the layers, which have a pool of their own;
            0: all layers have all tokens.
        swa_full_tokens_ratio: Tokens of that pool over `max_total_tokens`.
        page_size: Tokens of a page: memory is taken, cached, loaded and evicted by pages.
        host_tokens: KV tokens of HiCache's host pool; 0: no HiCache, evicted KV is recomputed.
        hicache_write_policy: When KV is copied to the host: write_through, as soon as it is
            cached; write_back, when it is evicted.
        hicache_io_backend: What copies KV to and from the host. Matters where the profile says what
            pieces cost (`profiles.pieces`).
        hicache_mem_layout: How it lies on the host. With `direct`, `layer_first` takes no two pages
            as neighbours: the simulator has no addresses.
        keep_copies: The host keeps the copy of a stream that was loaded, as in HiCache, so that its
            next preemption copies only what is new. Else it copies all, as vLLM's swapping.
        load_evict_overlap: Loads and copies to the host go on at the same time.
        storage_gbps: Gbit per second from a storage below the host pool; 0.0: no storage. Without a
            host pool there is none either.
        storage_latency_us: Microseconds between asking it and the first byte.
        storage_writes: What copies to it cost: free, or shared, the time of the same link.
        hicache_storage_prefetch_policy: How long a request waits for it: wait_complete, timeout or
            best_effort.
        restore: How stored KV comes back: off, as SGLang does; auto, the head computed while the
            tail comes, where that is sooner.
        chunked_prefill_size: Tokens of a prefill step at most.
        max_prefill_tokens: New tokens that one prefill batch may hold at most.
        max_running_requests: Streams that hold a row at once.
        max_queued_requests: Requests that may wait; what comes beyond that is refused. 0: any
            number.
        schedule_conservativeness: Scales what SGLang reserves for running streams.
        clip_max_new_tokens: Output tokens that SGLang reserves for one request at most, whatever
            its limit: SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION.
        enable_mixed_chunk: Running streams decode in the prefill's step, always.
        prefill_decode_interval: Decode steps between two prefill steps, while any stream runs; 0:
            none. Without effect under a policy.
        speculative_num_draft_tokens: Tokens of a stream that a decode step verifies, its own and
            its drafts; 1: there is no speculation. Drafting itself takes no time.
        acceptance: Tokens that a decode step gives a stream, on average.
        overlap: The next step is planned while the present one runs (SGLang's default).

    Raises:
        SimulationError: A value is outside its range.
    """

    max_total_tokens: int
    sliding_window: int = 0
    swa_full_tokens_ratio: float = 0.8
    page_size: int = 1
    host_tokens: int = 0
    hicache_write_policy: str = "write_through"
    hicache_io_backend: str = "kernel"
    hicache_mem_layout: str = "page_first"
    keep_copies: bool = True
    load_evict_overlap: bool = True
    storage_gbps: float = 0.0
    storage_latency_us: float = 1000.0
    storage_writes: str = "free"
    hicache_storage_prefetch_policy: str = "timeout"
    restore: str = "off"
    chunked_prefill_size: int = 8192
    max_prefill_tokens: int = 16384
    max_running_requests: int = 4096
    max_queued_requests: int = 0
    schedule_conservativeness: float = 1.0
    clip_max_new_tokens: int = 4096
    enable_mixed_chunk: bool = False
    prefill_decode_interval: int = 0
    speculative_num_draft_tokens: int = 1
    acceptance: float = 1.0
    overlap: bool = True

    def __post_init__(self) -> None:
        for name, least in (
            ("max_total_tokens", 1),
            ("page_size", 1),
            ("host_tokens", 0),
            ("sliding_window", 0),
            ("chunked_prefill_size", 1),
            ("max_prefill_tokens", 1),
            ("max_running_requests", 1),
            ("max_queued_requests", 0),
            ("clip_max_new_tokens", 1),
            ("prefill_decode_interval", 0),
            ("speculative_num_draft_tokens", 1),
        ):
            if getattr(self, name) < least:
                raise SimulationError(
                    f"{name} is {getattr(self, name)!r}; allowed is {least} or more"
                )
        for name, allowed in (
            ("hicache_write_policy", WritePolicy),
            ("hicache_io_backend", IoBackend),
            ("hicache_mem_layout", MemLayout),
            ("storage_writes", StorageWrites),
            ("hicache_storage_prefetch_policy", PrefetchPolicy),
            ("restore", Restoring),
        ):
            if getattr(self, name) not in list(allowed):
                raise SimulationError(
                    f"{name} is {getattr(self, name)!r}; allowed is " + " or ".join(allowed)
                )
        for name in ("storage_gbps", "storage_latency_us"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0.0):
                raise SimulationError(f"{name} is {value!r}; allowed is 0 or more")
        if not 0.0 < self.swa_full_tokens_ratio <= 1.0:
            raise SimulationError(
                f"swa_full_tokens_ratio is {self.swa_full_tokens_ratio!r}; allowed is above 0 and "
                "at most 1"
            )
        if self.sliding_window and self.speculates:
            raise SimulationError(
                f"sliding_window is {self.sliding_window}; allowed with speculation is 0, because "
                "drafts in a pool of windows are not simulated"
            )
        if self.restore != Restoring.off and not self.storage_gbps:
            raise SimulationError(
                f"restore is {self.restore!r}; allowed without a storage (storage_gbps) is 'off'"
            )
        backend = IoBackend(self.hicache_io_backend)
        layout = MemLayout(self.hicache_mem_layout)
        if host_layout(backend, layout) not in LAYOUTS[backend]:
            raise SimulationError(
                f"hicache_mem_layout is {layout.value!r}; allowed with the I/O backend "
                f"{backend} is {' or '.join(LAYOUTS[backend])}"
            )
        if not 1.0 <= self.acceptance <= self.speculative_num_draft_tokens:
            raise SimulationError(
                f"acceptance is {self.acceptance!r}; allowed is 1 to "
                f"{self.speculative_num_draft_tokens} (speculative_num_draft_tokens)"
            )
        if self.speculates and self.enable_mixed_chunk:
            raise SimulationError(
                "enable_mixed_chunk is True; allowed with speculation "
                f"(speculative_num_draft_tokens {self.speculative_num_draft_tokens}) is False"
            )
        if not 0.0 < self.schedule_conservativeness <= 10.0:
            raise SimulationError(
                f"schedule_conservativeness is {self.schedule_conservativeness!r}; "
                "allowed is above 0 and at most 10"
            )

    @property
    def speculates(self) -> bool:
        """Whether decode steps verify drafts."""
        return self.speculative_num_draft_tokens > 1

    @property
    def ahead(self) -> int:
        """KV tokens beyond its own that a stream holds while it decodes.

        SGLang allocates for the step under way and for the next one (`allocation_sizing`).
        """
        return 2 * self.speculative_num_draft_tokens if self.speculates else 0
