"""What becomes of KV: context switches, the link to host memory, restoration from storage."""

from __future__ import annotations

from tokenflow_sgl.metrics.declared_metric import TOKENS, Metric

DIRECTION = ("direction",)

SWITCHES = (
    Metric(
        "resume_recomputed_tokens",
        "histogram",
        "Tokens recomputed when a stream was resumed.",
        "tokens",
        (),
        TOKENS,
    ),
    Metric(
        "resume_loaded_tokens_total",
        "counter",
        "Tokens loaded from host memory by resumes.",
        "tokens",
    ),
    Metric(
        "written_ahead_tokens_total",
        "counter",
        "Tokens of running streams copied to host memory before a preemption (proactive writes).",
        "tokens",
    ),
    Metric(
        "written_ahead_needed_tokens_total",
        "counter",
        "Of these, tokens of streams that were then preempted: written / needed is the write "
        "amplification.",
        "tokens",
    ),
    Metric(
        "preemption_tail_tokens",
        "histogram",
        "Tokens of a preempted stream that had no host copy when it left the device.",
        "tokens",
        (),
        TOKENS,
    ),
    Metric(
        "preempted_tokens_total",
        "counter",
        "KV tokens that preempted streams held: what swapping all of it out would have copied.",
        "tokens",
    ),
    Metric(
        "loaded_ahead_tokens_total",
        "counter",
        "Tokens of paused streams loaded from host memory beside the steps (prefetch).",
        "tokens",
    ),
    Metric(
        "loaded_ahead_chunks_total",
        "counter",
        "Prefetches of a part of a stream, because memory for all of it was not free yet.",
        "",
    ),
)
LINK = (
    Metric(
        "link_tokens_per_second",
        "gauge",
        "KV tokens per second that the policy expects of copies to the host (store) or back "
        "(load); NaN: no copy was measured yet.",
        "tokens per second",
        DIRECTION,
    ),
    Metric(
        "link_queue_tokens",
        "gauge",
        "KV tokens of copies that were started and have not landed yet.",
        "tokens",
        DIRECTION,
    ),
)
"""SGLang counts the copies themselves: sglang:hicache_backup_*, sglang:load_back_*."""

LAYERS = (
    Metric(
        "layers_host_share",
        "gauge",
        "Share of all KV, counted by layers, that lies in host memory; NaN: there is none.",
        "",
    ),
    Metric(
        "layers_staged_tokens_total",
        "counter",
        "KV tokens that steps fetched from the host while they computed, a token of one layer "
        "counted as one of as many parts as there are layers.",
        "tokens",
    ),
    Metric(
        "layers_moved_tokens_total",
        "counter",
        "KV tokens, counted likewise, that moved to the host (store) or back (load) for good, "
        "because their streams' layers are placed otherwise now.",
        "tokens",
        DIRECTION,
    ),
    Metric(
        "layers_wait_seconds_total",
        "counter",
        "Time that the device waited in a step for KV from the host (staging) and for new tokens "
        "to leave for it (stores), and before one for KV that moved for good (moves).",
        "seconds",
        ("cause",),
    ),
)

RESTORATION = (
    Metric(
        "restorations_total",
        "counter",
        "Prefixes found in storage, by how they were restored: fetched, computed (faster, or the "
        "storage failed), both at once, or layers: some of these computed, the others fetched.",
        "",
        ("way",),
    ),
    Metric(
        "restored_tokens_total",
        "counter",
        "Tokens of these prefixes by where their KV came from: computed or fetched. Of prefixes "
        "restored by layers, as many as have as many bytes.",
        "tokens",
        ("source",),
    ),
    Metric(
        "restore_copied_ahead_tokens_total",
        "counter",
        "Fetched tokens of these prefixes that were on the device already when the head met the "
        "tail; the others are copied then.",
        "tokens",
    ),
    Metric(
        "restore_seconds_total",
        "counter",
        "Time until all of a prefix was on the host or the device, of those that were fetched, "
        "whole or in part.",
        "seconds",
    ),
    Metric(
        "restore_single_source_seconds_total",
        "counter",
        "What the faster one of computing all and fetching all of them would have taken, by the "
        "costs measured so far.",
        "seconds",
    ),
    Metric(
        "restoring_seconds_total",
        "counter",
        "Time in which at least one prefix was being restored.",
        "seconds",
    ),
    Metric(
        "restoring_busy_seconds_total",
        "counter",
        "Of that time, how long the device computed (any step, by the times that were expected of "
        "them), and how long the link to the storage brought batches for restorations.",
        "seconds",
        ("resource",),
    ),
    Metric(
        "restore_fetch_failures_total",
        "counter",
        "Fetches that ended early because the storage failed; what was missing was computed.",
        "",
    ),
)
