"""The ledger's rows for the memory ledger, a debugging aid."""

from __future__ import annotations

from tokenflow_sgl.engine.sglang.seam import Seam

_CHECKER = "sglang.srt.managers.scheduler_components.invariant_checker:SchedulerInvariantChecker"
_CACHE = "sglang.srt.mem_cache.unified_radix_cache:UnifiedRadixCache"
_TRANSFERS = "sglang.srt.mem_cache.l2_transfer:L2TransferEngine"
_HOST = "sglang.srt.mem_cache.pool_host.base:HostKVCache"

LEDGER: tuple[Seam, ...] = (
    Seam(f"{_CHECKER}.self_check_during_busy", "override", "looks at every page after a pass"),
    Seam(f"{_CACHE}.all_values_flatten", "call", "which places of the device the tree has"),
    Seam(f"{_CACHE}.session_records", "call", "which places sessions have"),
    Seam(f"{_TRANSFERS}.submit_device_to_host", "hook", "which places a copy uses", ("transfers",)),
    Seam(f"{_HOST}.clear", "call", "makes free_slots, release_slots and slot_used"),
    Seam("sglang.srt.environ:Envs", "call", "whether SGLang's strict memory check is on"),
)
