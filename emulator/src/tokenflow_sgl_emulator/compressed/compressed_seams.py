"""The ledger's rows for DeepSeek V4."""

from tokenflow_sgl_emulator.emulator_seam import KERNEL, POOL_COPIES, Seam

_HOST_POOLS = "sglang.srt.mem_cache.memory_pool_host."
ROWS = Seam("sglang.srt.mem_cache.deepseek_v4_memory_pool.fused_store_cache", "replace", KERNEL)
NO_PLATFORM = Seam(
    "sglang.srt.mem_cache.kv_cache_configurator.reject_out_of_tree_path",
    "replace",
    "SGLang builds V4's pools on platforms of its own only.",
)
HOST_MEMORY_OF_ROWS = tuple(
    Seam(f"{_HOST_POOLS}{name}.__init__", "around", POOL_COPIES)
    for name in ("DeepSeekV4PagedHostPool", "DeepSeekV4StateHostPool")
)
HOST_COPIES = tuple(
    Seam(f"{_HOST_POOLS}{name}.{method}", "replace", POOL_COPIES)
    for name in ("DeepSeekV4PagedHostPool", "DeepSeekV4StateHostPool")
    for method in ("load_to_device_per_layer", "backup_from_device_all_layer")
)
REJECTED_DRAFTS = Seam(
    "sglang.srt.mem_cache.deepseek_v4_memory_pool.clear_unaccepted_c128_draft_states",
    "replace",
    KERNEL,
)
COMPRESSED = (ROWS, NO_PLATFORM, REJECTED_DRAFTS, *HOST_MEMORY_OF_ROWS, *HOST_COPIES)
"""Hooked for DeepSeek V4 (:mod:`tokenflow_sgl_emulator.compressed`), and only there."""
