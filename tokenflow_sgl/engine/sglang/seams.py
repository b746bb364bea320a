"""The ledger of everything of SGLang that this package holds on to.

An SGLang upgrade is a walk through this table; `seam_check` holds it against an installed SGLang.
"""

from __future__ import annotations

from tokenflow_sgl.engine.decode_server.decode_seams import DECODE_SERVER
from tokenflow_sgl.engine.front_end_seams import FRONT_END
from tokenflow_sgl.engine.kv.group_seams import GROUPS
from tokenflow_sgl.engine.kv.host_room_seams import HOST_ROOM
from tokenflow_sgl.engine.kv.ledger_seams import LEDGER
from tokenflow_sgl.engine.kv.pool_seams import POOLS
from tokenflow_sgl.engine.layerwise.layerwise_seams import LAYERWISE
from tokenflow_sgl.engine.restore.layer_seams import RESTORE_LAYERS
from tokenflow_sgl.engine.restore.restore_seams import RESTORE
from tokenflow_sgl.engine.sglang.seam import Seam

SUPPORTED_SGLANG = "0.5.23"

_SCHEDULER = "sglang.srt.managers.scheduler:Scheduler"
_BATCH = "sglang.srt.managers.schedule_batch"
_ADDER = "sglang.srt.managers.schedule_policy:PrefillAdder"
_PENALTY = "sglang.srt.sampling.penaltylib"
_CACHE = "sglang.srt.mem_cache.unified_radix_cache:UnifiedRadixCache"

SEAMS: tuple[Seam, ...] = (
    *FRONT_END,
    *RESTORE,
    *RESTORE_LAYERS,
    *LAYERWISE,
    *DECODE_SERVER,
    # Scheduler methods that we override
    Seam(f"{_SCHEDULER}.init_schedule_policy", "override", "builds the policy and the tables"),
    Seam(f"{_SCHEDULER}.get_init_info", "override", "says that the scheduler is ours"),
    Seam(f"{_SCHEDULER}.init_request_dispatcher", "override", "registers the shared clock"),
    Seam(f"{_SCHEDULER}.init_metrics_collector", "override", "adds metrics to /metrics"),
    Seam(f"{_SCHEDULER}.init_invariant_checker", "override", "counts draining rows"),
    Seam(f"{_SCHEDULER}.init_metrics_reporter", "override", "paused streams in SGLang's gauges"),
    Seam(f"{_SCHEDULER}.init_load_inquirer", "override", "paused streams in /v1/loads"),
    Seam(
        f"{_SCHEDULER}._record_scheduler_state_for_paused_engine",
        "override",
        "acknowledges copies while the engine is paused",
    ),
    Seam(
        f"{_SCHEDULER}._add_request_to_queue",
        "override",
        "starts tracking a stream",
        ("req", "is_retracted"),
    ),
    Seam(
        f"{_SCHEDULER}.process_input_requests",
        "override",
        "ends rests for a flush that waits",
        ("recv_reqs",),
    ),
    Seam(
        "sglang.srt.managers.io_struct:FlushCacheReqInput",
        "call",
        "the same: for how long it waits",
        ("timeout_s",),
    ),
    Seam(
        f"{_SCHEDULER}._poll_timeout_aborts",
        "override",
        "sends the leader's clock; pauses do not count as running",
    ),
    Seam(
        f"{_SCHEDULER}.get_next_batch_to_run",
        "override",
        "accounts what was delivered",
        ("running_batch", "last_batch"),
    ),
    Seam(
        f"{_SCHEDULER}.get_new_batch_prefill",
        "override",
        "the decision point",
        ("running_batch",),
    ),
    Seam(
        f"{_SCHEDULER}._should_defer_prefill",
        "override",
        "decides in the passes, too, in which --prefill-decode-interval lets prefills wait",
        ("running_batch",),
    ),
    Seam(f"{_SCHEDULER}.get_prefill_adder_class", "override", "memory by need, not by maximum"),
    Seam(
        f"{_SCHEDULER}.update_running_batch",
        "override",
        "waits a step for memory that copies hold, instead of retracting",
        ("batch",),
    ),
    Seam(f"{_BATCH}:ScheduleBatch.check_decode_mem", "call", "whether a decode step would fit"),
    Seam(f"{_SCHEDULER}._collect_inflight_batches", "override", "aborts find paused streams"),
    Seam(
        f"{_SCHEDULER}.set_internal_state",
        "override",
        "hears how live streams are read",
        ("recv_req",),
    ),
    Seam(f"{_SCHEDULER}.abort_request", "override", "ends paused streams", ("recv_req",)),
    Seam(
        f"{_SCHEDULER}._release_aborted_request",
        "override",
        "forgets what is turned away or aborted without a row",
        ("req",),
    ),
    Seam(f"{_SCHEDULER}.pause_generation", "override", "drops draining KV", ("recv_req",)),
    Seam(f"{_SCHEDULER}.is_fully_idle", "override", "paused streams are work", ("ignore_waiting",)),
    Seam(
        f"{_SCHEDULER}.release_host_resources",
        "override",
        "writes learned lengths when the server shuts down",
    ),
    # Scheduler methods that we call
    Seam(
        f"{_SCHEDULER}._prefetch_kvcache",
        "override",
        "re-queues as the engine does; a fetch that begins may be one from the tail",
        ("req", "storage_hit_end"),
    ),
    Seam(
        "sglang.srt.observability.trace:TraceReqContext.trace_event",
        "call",
        "adds pauses, loads and resumes to the spans",
        ("name", "level", "attrs"),
    ),
    Seam(
        "sglang.srt.runtime_context:get_parallel",
        "call",
        "one rank writes files; rows that one batch may have",
    ),
    # Preempt
    Seam(
        "sglang.srt.mem_cache.common:release_kv_cache",
        "call",
        "hands KV to the prefix tree",
        ("req", "tree_cache", "checkpoint"),
    ),
    Seam(
        f"{_CACHE}._load_back_transfers",
        "call",
        "obeys load_back_threshold, which we lower so that short tails are loaded, too",
    ),
    Seam(
        f"{_CACHE}.checkpoint",
        "call",
        "publishes what a running stream has computed, which HiCache then writes",
        ("req", "up_to"),
    ),
    Seam(f"{_CACHE}.flush_pending_backups", "call", "starts these copies before the next step"),
    Seam(
        "sglang.srt.mem_cache.common:match_kv_cache",
        "call",
        "finds what of a paused stream is on the device and on the host, and splits it into chunks",
        ("req", "tree_cache", "max_prefix_len"),
    ),
    Seam(
        f"{_CACHE}.lock",
        "call",
        "keeps the chunks of a stream on the device until the last one is there",
        ("node_id",),
    ),
    Seam(f"{_CACHE}.unlock", "call", "gives them up", ("lock",)),
    Seam(
        f"{_CACHE}.supports_prefix_sharing",
        "call",
        "whether what several prompts begin with is there once",
    ),
    Seam(f"{_CACHE}.evictable_size", "call", "counts what such a lock keeps"),
    Seam(
        f"{_CACHE}.init_load_back",
        "hook",
        "brings a paused stream's KV back; block groups hear of which stream",
        ("params",),
    ),
    Seam(
        f"{_CACHE}.ready_to_load_host_cache",
        "call",
        "starts that copy, and says which counter a sharing prefill waits for",
    ),
    Seam(
        f"{_CACHE}.writing_check",
        "call",
        "waits for all writes before the caches may be flushed",
        ("write_back",),
    ),
    Seam(
        f"{_CACHE}.loading_check",
        "call",
        "acknowledges all loads before the caches may be flushed",
        ("finish_count",),
    ),
    Seam(
        f"{_CACHE}.check_hicache_events",
        "call",
        "acknowledges copies while the engine is paused",
    ),
    Seam(
        "sglang.srt.managers.scheduler_components.load_inquirer:SchedulerLoadInquirer.get_loads",
        "override",
        "paused streams in /v1/loads",
    ),
    Seam(
        f"{_BATCH}:Req.owned_kv_len",
        "hook",
        "with --strip-thinking-cache, keeps what a paused stream has computed",
    ),
    Seam(f"{_BATCH}:Req.update_reasoning_tokens", "call", "counts what no reader sees"),
    Seam(
        f"{_CACHE}.match_prefix",
        "call",
        "finds what of a waiting prompt is on the device and on the host",
        ("params",),
    ),
    Seam("sglang.srt.mem_cache.base_prefix_cache:MatchPrefixParams", "call", "the same", ("key",)),
    Seam(
        "sglang.srt.mem_cache.radix_cache:RadixKey",
        "call",
        "names the prompt",
        ("token_ids", "extra_key", "limit", "cache_salt"),
    ),
    Seam(
        f"{_BATCH}:Req._compute_max_prefix_len",
        "call",
        "how much of a prompt may come from the cache",
        ("input_len",),
    ),
    Seam(f"{_BATCH}:Req.refresh_fill_ids", "call", "ids of what is published"),
    Seam(f"{_BATCH}:Req.reset_for_retract", "call", "makes a request resumable"),
    Seam(f"{_BATCH}:Req.update_finish_state", "call", "ends a paused stream with its output"),
    Seam(
        f"{_BATCH}:ScheduleBatch.filter_batch",
        "call",
        "takes victims out of the batch",
        ("reqs_to_exclude",),
    ),
    Seam(
        "sglang.srt.beam_search.coordinator:BeamCoordinator.retire_group",
        "call",
        "uncounts a beam group that was thrown out and then aborted",
        ("req",),
    ),
    Seam(f"{_BATCH}:NextBatchPlan", "call", "holds a prefill back"),
    Seam(
        "sglang.srt.managers.scheduler_components.output_streamer:"
        "SchedulerOutputStreamer.stream_output",
        "call",
        "sends an aborted stream's output, and what a paused one has unsent",
        ("reqs", "return_logprob"),
    ),
    Seam(
        "sglang.srt.sampling.sampling_params:SamplingParams.stream_interval",
        "call",
        "holds tokens back, which a pause sends",
    ),
    Seam(
        "sglang.srt.managers.scheduler_components.invariant_checker:"
        "SchedulerInvariantChecker._requests_owning_rows",
        "override",
        "strict memory checks see draining rows",
    ),
    *LEDGER,
    *POOLS,
    # Admission
    Seam(
        f"{_ADDER}.__init__", "override", "short prefill chunks under stress", ("rem_chunk_tokens",)
    ),
    Seam(
        f"{_SCHEDULER}.check_truncation_align_fits_chunk",
        "call",
        "truncation_align_size, which prefill chunks must hold",
    ),
    Seam(
        f"{_ADDER}._get_running_request_total_token_offset",
        "override",
        "reserves a few decode steps",
        ("req",),
    ),
    Seam(
        f"{_ADDER}._select_prefill_admission",
        "override",
        "admits by need",
        ("req", "total_tokens"),
    ),
    Seam(f"{_ADDER}._update_prefill_budget", "override", "charges by need", ("max_new_tokens",)),
    Seam(f"{_ADDER}.add_one_req", "override", "recomputes, or lets it wait", ("req",)),
    Seam(f"{_ADDER}._lock_node", "call", "what a load will lock does not count as free"),
    Seam("sglang.srt.managers.schedule_policy:SchedulePolicy", "call", "keeps our order"),
    Seam("sglang.srt.managers.schedule_policy:CLIP_MAX_NEW_TOKENS", "call", "its reservation"),
    *GROUPS,
    *HOST_ROOM,
    # Penalties
    Seam(f"{_PENALTY}.orchestrator:BatchedPenalizerOrchestrator", "call", "rows after a resume"),
    Seam(f"{_PENALTY}.frequency_penalty:BatchedFrequencyPenalizer", "call", "its rows"),
    Seam(f"{_PENALTY}.presence_penalty:BatchedPresencePenalizer", "call", "its rows"),
    Seam(f"{_PENALTY}.repetition_penalty:BatchedRepetitionPenalizer", "call", "its rows"),
    Seam(f"{_PENALTY}.min_new_tokens:BatchedMinNewTokensPenalizer", "call", "its rows"),
)
