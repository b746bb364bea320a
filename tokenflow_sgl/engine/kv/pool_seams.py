"""The ledger's rows for what is asked of SGLang's pools."""

from __future__ import annotations

from tokenflow_sgl.engine.sglang.seam import Seam

_CACHE = "sglang.srt.mem_cache.unified_radix_cache:UnifiedRadixCache"
_TWO_POOLS = "sglang.srt.mem_cache.allocator.swa:SWATokenToKVPoolAllocator"
_FREE = "what is free of KV and of windows, each for itself"

POOLS: tuple[Seam, ...] = (
    Seam(_TWO_POOLS, "call", "the pools of a model with sliding windows"),
    Seam(f"{_TWO_POOLS}.full_available_size", "call", _FREE),
    Seam(f"{_TWO_POOLS}.swa_available_size", "call", _FREE),
    Seam(f"{_CACHE}.full_evictable_size", "call", _FREE),
    Seam(f"{_CACHE}.swa_evictable_size", "call", _FREE),
    Seam(f"{_CACHE}.supports_swa", "call", "whether there are windows"),
    Seam(f"{_CACHE}.supports_mamba", "call", "whether there are recurrent states"),
    Seam(
        "sglang.srt.mem_cache.kv_cache_configurator:MAMBA_CACHE_SIZE_MAX_RUNNING_REQUESTS_RATIO",
        "call",
        "states that a running stream takes",
    ),
    Seam("sglang.srt.mem_cache.allocator.mamba:MambaSlotAllocator", "call", "how many there are"),
    Seam(
        f"{_CACHE}.evict_for_alloc",
        "hook",
        "waits for copies to the host that hold all places for states; makes room for the copies "
        "of a tail",
        ("params",),
    ),
    Seam(f"{_CACHE}.swa_retain_window", "call", "how many tokens a window has"),
    Seam(
        "sglang.srt.mem_cache.unified_cache.unified_tree_core_interface:"
        "UnifiedTreeCoreInterface.build_backup_spec",
        "call",
        "whether SGLang has left out a state that it should have copied to the host",
    ),
    Seam(
        f"{_CACHE}.backup_node_for_write_back",
        "call",
        "copies a state to the host that SGLang has left out",
    ),
)
