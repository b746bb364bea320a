"""The ledger's rows for restorations."""

from __future__ import annotations

from tokenflow_sgl.engine.sglang.seam import Seam

_SCHEDULER = "sglang.srt.managers.scheduler:Scheduler"
_ADDER = "sglang.srt.managers.schedule_policy:PrefillAdder"
_CACHE = "sglang.srt.mem_cache.unified_radix_cache:UnifiedRadixCache"
_HYBRID = "sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller"
_CONTROLLER = f"{_HYBRID}:HybridCacheController"

RESTORE: tuple[Seam, ...] = (
    Seam(
        f"{_SCHEDULER}._process_hicache_events",
        "override",
        "what has arrived decides what is computed next",
    ),
    Seam(f"{_SCHEDULER}.continue_generation", "override", "restores again", ("recv_req",)),
    Seam(f"{_CONTROLLER}.allocate_storage_hit", "hook", "turns the order of the pages round"),
    Seam(
        f"{_CONTROLLER}._page_transfer_with_stable_layout",
        "hook",
        "fetches in small batches, and ends where the head begins",
        ("operation",),
    ),
    Seam(
        "sglang.srt.managers.cache_controller:HiCacheController.prefetch_io_aux_func",
        "hook",
        "fetches what admission takes first",
    ),
    Seam(
        f"{_CONTROLLER}._page_transfer_kv_batch",
        "call",
        "fetches a batch",
        ("operation", "batch_hashes", "batch_host_indices", "extra_info", "kv_derived_transfers"),
    ),
    Seam(
        f"{_CONTROLLER}.load",
        "hook",
        "gives the tree the copies of a tail that are on the device already",
        ("host_indices", "priority", "node_id", "extra_pools"),
    ),
    Seam(f"{_CONTROLLER}._move_op_indices", "call", "copies a batch to the device", ("op",)),
    Seam(
        f"{_CONTROLLER}._l2_load_transfers",
        "call",
        "copies a batch to the device",
        ("host_indices", "device_indices", "pool_transfers"),
    ),
    Seam(f"{_CONTROLLER}._num_tokens_by_pool", "call", "acknowledges a copy", ("op",)),
    Seam(f"{_CONTROLLER}._transfer_num_bytes", "call", "acknowledges a copy", ("op",)),
    Seam(
        "sglang.srt.mem_cache.l2_transfer:L2TransferEngine.submit_host_to_device",
        "hook",
        "copies a batch to the device; the memory ledger hears of the places",
        ("transfers", "transfer_layer_id_max", "start_event", "on_layer_done"),
    ),
    Seam(
        "sglang.srt.managers.cache_controller:HiCacheAck",
        "call",
        "acknowledges a copy",
        ("start_event", "finish_event", "node_ids", "num_tokens", "num_tokens_by_pool"),
    ),
    Seam(
        "sglang.srt.managers.scheduler_components.pool_stats_observer:"
        "SchedulerPoolStatsObserver.session_held_tokens",
        "hook",
        "tells SGLang's checks of the device memory of copies",
    ),
    Seam(
        "sglang.srt.managers.scheduler_components.weight_updater:"
        "SchedulerWeightUpdaterManager.release_memory_occupation",
        "hook",
        "ends copies before the memory goes away",
        ("recv_req",),
    ),
    Seam(
        f"{_CACHE}._component_available_size",
        "hook",
        "evicts nothing for a tail that is on the device already",
        ("component_type",),
    ),
    Seam(f"{_CACHE}.load_back", "call", "the tree has a copied tail on the device", ("node_id",)),
    Seam(f"{_SCHEDULER}.flush_cache", "override", "gives the memory of copies back"),
    Seam(f"{_CONTROLLER}.terminate_prefetch", "call", "ends a fetch", ("operation",)),
    Seam(
        f"{_CONTROLLER}.append_host_mem_release",
        "call",
        "gives host memory back that the head has made needless",
        ("host_indices",),
    ),
    Seam(
        "sglang.srt.managers.cache_controller:PrefetchAck",
        "call",
        "reports a batch; the last one ends a fetch",
        ("rid", "completed_tokens", "operation", "completed_req"),
    ),
    Seam(
        f"{_CACHE}._drain_storage_control_queues_impl",
        "hook",
        "notes which fetches have ended",
        ("n_ack_prefetch",),
    ),
    Seam(
        f"{_CACHE}.check_prefetch_progress",
        "hook",
        "admits a request whose head is to be computed",
        ("request",),
    ),
    Seam(
        f"{_CACHE}._handle_prefetch_result",
        "hook",
        "keeps what has arrived until the head meets it, and enters it then",
        ("operation",),
    ),
    Seam(
        f"{_CACHE}.inc_host_lock_ref", "call", "locks the node that the head ends at", ("node_id",)
    ),
    Seam(f"{_CACHE}.dec_host_lock_ref", "call", "unlocks the one before", ("node_id", "params")),
    Seam(
        f"{_CACHE}._resolve_storage_prefetch_tokens",
        "call",
        "tells SGLang's metrics what is not fetched",
        ("request", "num_tokens"),
    ),
    Seam(
        f"{_CACHE}._finish_storage_prefetch",
        "call",
        "tells SGLang's metrics that a storage hit is not used",
        ("request", "fulfilled_tokens", "reason"),
    ),
    Seam(f"{_CACHE}.is_backuped", "call", "whether the tree takes a tail", ("node_id",)),
    Seam(f"{_CACHE}.is_root", "call", "whether the tree takes a tail", ("node_id",)),
    Seam(
        f"{_CACHE}._execute_and_commit_kv_backup",
        "call",
        "copies a head to the host, so that the tree takes its tail",
        ("action", "write_back"),
    ),
    Seam(
        "sglang.srt.mem_cache.unified_cache.unified_tree_core_interface:"
        "UnifiedTreeCoreInterface.build_backup_kv_action",
        "call",
        "copies a head to the host, so that the tree takes its tail",
        ("node_id",),
    ),
    Seam(f"{_CACHE}.release_aborted_request", "call", "drops a fetch or a query", ("request",)),
    Seam(f"{_CACHE}._all_reduce", "call", "all ranks decide by the leader's figures"),
    Seam(
        "sglang.srt.mem_cache.common:checkpoint_kv_cache",
        "call",
        "hands a computed head to the prefix tree",
        ("req", "tree_cache"),
    ),
    Seam(
        f"{_ADDER}._account_prefill_cache_admission",
        "override",
        "a computed head is no hit",
        ("req", "prefix_len"),
    ),
    Seam(f"{_ADDER}.add_chunked_req", "override", "the head ends where a chunk does", ("req",)),
    Seam(
        "sglang.srt.mem_cache.prefill_budget:PrefillBudget.reserve",
        "call",
        "keeps memory for the rest of a prompt that leaves room in its step",
        ("extend_input_len", "max_new_tokens"),
    ),
)
