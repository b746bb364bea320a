"""The ledger's rows for block groups, which replace SGLang's allocators."""

from __future__ import annotations

from tokenflow_sgl.engine.sglang.seam import Seam

_CACHE = "sglang.srt.mem_cache.unified_radix_cache:UnifiedRadixCache"
_ALLOCATION = "sglang.srt.mem_cache.allocation"
_ALLOCATOR = "sglang.srt.mem_cache.allocator"

GROUPS: tuple[Seam, ...] = (
    Seam(
        "sglang.srt.mem_cache.kv_cache_configurator:KVCacheConfigurator"
        "._build_token_to_kv_pool_allocator",
        "hook",
        "puts an allocator with block groups, or one that tells which pages are free, in place",
    ),
    Seam(f"{_ALLOCATION}:alloc_for_extend", "hook", "whose pages a prefill asks for", ("batch",)),
    Seam(
        f"{_ALLOCATION}:alloc_for_decode",
        "hook",
        "whose pages a decode step asks for",
        ("batch", "token_per_req"),
    ),
    Seam(f"{_CACHE}.on_release", "hook", "gives the rest of a group back", ("req", "checkpointed")),
    Seam(f"{_ALLOCATOR}.token:TokenToKVPoolAllocator.alloc", "override", "which places serve"),
    Seam(f"{_ALLOCATOR}.token:TokenToKVPoolAllocator.free", "override", "merges them"),
    Seam(
        f"{_ALLOCATOR}.paged:PagedTokenToKVPoolAllocator.alloc_extend",
        "override",
        "which pages serve",
        ("prefix_lens_cpu", "seq_lens_cpu", "last_loc", "extend_num_tokens", "num_new_pages"),
    ),
    Seam(
        f"{_ALLOCATOR}.paged:PagedTokenToKVPoolAllocator.alloc_decode",
        "override",
        "the same in a decode step",
        ("seq_lens", "seq_lens_cpu", "last_loc"),
    ),
    Seam(
        f"{_ALLOCATOR}.paged:PagedTokenToKVPoolAllocator._release_page_ids",
        "override",
        "merges the pages that are freed",
    ),
)
