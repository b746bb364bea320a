"""The ledger's rows for room beside the copies on the host, in place of SGLang's list of slots."""

from __future__ import annotations

from tokenflow_sgl.engine.sglang.seam import Seam

_HOST = "sglang.srt.mem_cache.pool_host.base:HostKVCache"
_CACHE = "sglang.srt.mem_cache.unified_radix_cache:UnifiedRadixCache"

HOST_ROOM: tuple[Seam, ...] = (
    Seam(
        "sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler:_mha_host_inputs",
        "hook",
        "puts a host pool with room beside its copies in place",
        ("pool", "drafts"),
    ),
    Seam(
        f"{_CACHE}._execute_kv_backup",
        "hook",
        "which node's KV the host's slots are asked for",
        ("node_id",),
    ),
    Seam(
        "sglang.srt.mem_cache.unified_cache.unified_tree_core_interface:"
        "UnifiedTreeCoreInterface.collect_path_info",
        "call",
        "which node that one goes on",
        ("end_node_ids",),
    ),
    Seam(f"{_HOST}.alloc", "override", "which slots serve", ("need_size",)),
    Seam(f"{_HOST}.free", "override", "merges them", ("indices",)),
    Seam(f"{_HOST}.available_size", "override", "what is set aside counts as free"),
    Seam(f"{_HOST}.logical_page_size", "call", "slots of a page"),
)
