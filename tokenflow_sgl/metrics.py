"""Every metric of the scheduler: the one place that declares them.

The engine makes its Prometheus objects from this table, and docs/metrics.md is generated from it.
Dashboards, rules and the live view name only metrics that are in it.
"""

from __future__ import annotations

from tokenflow_sgl.declared_metric import (
    BUFFER_SECONDS,
    PASS_SECONDS,
    TBT_SECONDS,
    TOKENS,
    TTFT_SECONDS,
    Metric,
)
from tokenflow_sgl.qos import NOTICEABLE_STALL

LONGER = f"for longer than {NOTICEABLE_STALL:g} s"
"""Which stalls are counted; every view that shows a count of stalls says so."""
CLASS, CAUSE, DIRECTION = ("qos_class",), ("cause",), ("direction",)

STREAMS = (
    Metric("running_streams", "gauge", "Streams that hold KV and are served.", "streams"),
    Metric("paused_streams", "gauge", "Preempted streams that wait to be resumed.", "streams"),
    Metric("waiting_streams", "gauge", "Streams without a first token yet.", "streams"),
    Metric(
        "working_set_streams", "gauge", "Streams that were admitted and have not ended.", "streams"
    ),
    Metric(
        "stalled_streams",
        "gauge",
        f"Streams that have kept their reader waiting for text {LONGER} and than its class "
        "tolerates.",
        "streams",
        CLASS,
    ),
)
READERS = (
    Metric("output_tokens_total", "counter", "Tokens delivered to readers.", "tokens", CLASS),
    Metric(
        "reasoning_tokens_total",
        "counter",
        "Tokens of reasoning that no reader sees; they are not among the delivered ones.",
        "tokens",
        CLASS,
    ),
    Metric(
        "effective_tokens_total",
        "counter",
        "Tokens weighted by their use to the reader: 1 while at most 10 % of the expected output "
        "is unread, falling to 0 at 20 %.",
        "tokens",
        CLASS,
    ),
    Metric(
        "ttft_seconds",
        "histogram",
        "Time from a stream's arrival to its first token, of reasoning or not.",
        "seconds",
        CLASS,
        TTFT_SECONDS,
    ),
    Metric(
        "ttfvt_seconds",
        "histogram",
        "Time from a stream's arrival to the first text that its reader gets; text held back "
        "counts when it goes out.",
        "seconds",
        CLASS,
        TTFT_SECONDS,
    ),
    Metric(
        "tbt_seconds",
        "histogram",
        "Time between two tokens of a stream, per token: tokens delivered together are 0 apart.",
        "seconds",
        CLASS,
        TBT_SECONDS,
    ),
    Metric(
        "buffer_seconds",
        "histogram",
        "Unread output per stream in seconds of reading, sampled once a second.",
        "seconds",
        CLASS,
        BUFFER_SECONDS,
    ),
    Metric(
        "buffer_percentile_seconds",
        "gauge",
        "Unread output in seconds of reading, at present, by percentile of the class's streams.",
        "seconds",
        (*CLASS, "percentile"),
    ),
    Metric(
        "stalls_total",
        "counter",
        f"Reader stalls {LONGER} and than its class tolerates.",
        "stalls",
        CLASS,
    ),
    Metric(
        "stall_seconds_total",
        "counter",
        "Seconds that readers waited in stalls of any length.",
        "seconds",
        CLASS,
    ),
    Metric(
        "finished_streams_total",
        "counter",
        "Streams that ended after their first token, by whether their reader stalled at least once "
        f"{LONGER} and than its class tolerates.",
        "streams",
        (*CLASS, "stalled"),
    ),
)
SCHEDULING = (
    Metric("mode", "gauge", "1 for the scheduler's present mode, 0 for the others.", "", ("mode",)),
    Metric("mode_changes_total", "counter", "Changes into a mode.", "changes", ("mode",)),
    Metric("preemptions_total", "counter", "Preemptions by cause.", "preemptions", CAUSE),
    Metric(
        "resumes_total",
        "counter",
        "Paused streams that were resumed, by where most of their KV was.",
        "resumes",
        ("source",),
    ),
    Metric(
        "demand_tokens_per_second",
        "gauge",
        "Sum of the reading rates of the working set.",
        "tokens per second",
    ),
    Metric(
        "capacity_tokens_per_second",
        "gauge",
        "Output tokens per second that the engine made recently; NaN: not known yet.",
        "tokens per second",
    ),
    Metric(
        "headroom_tokens",
        "gauge",
        "Work of newcomers that can be taken within 30 s without making present readers stall, as "
        "tokens at a context of 1,024; below 0: so much is here that cannot be done in time.",
        "tokens",
    ),
    Metric(
        "policy_pass_seconds",
        "histogram",
        "Time of one policy pass outside idle mode.",
        "seconds",
        (),
        PASS_SECONDS,
    ),
    Metric(
        "scheduling_seconds_total",
        "counter",
        "Time that this package adds to passes of SGLang's scheduler loop that launch a step: "
        "accounting, policy passes, preemptions, starting copies.",
        "seconds",
    ),
    Metric(
        "lost_streams_total",
        "counter",
        "Streams that SGLang ended without telling the scheduler (for example when the last stream "
        "ran out of memory); the scheduler has dropped them.",
        "streams",
    ),
    Metric(
        "policy_errors_total",
        "counter",
        "Policy passes that failed; the engine's own policy ran instead.",
        "passes",
    ),
)
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

RESTORATION = (
    Metric(
        "restorations_total",
        "counter",
        "Prefixes found in storage, by how they were restored: fetched, computed (faster, or the "
        "storage failed), or both at once.",
        "",
        ("way",),
    ),
    Metric(
        "restored_tokens_total",
        "counter",
        "Tokens of these prefixes by where their KV came from: computed or fetched.",
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
        "restore_fetch_failures_total",
        "counter",
        "Fetches that ended early because the storage failed; what was missing was computed.",
        "",
    ),
)

GROUPS: dict[str, tuple[Metric, ...]] = {
    "Streams": STREAMS,
    "Readers": READERS,
    "Scheduling": SCHEDULING,
    "Context switches": SWITCHES,
    "Link to host memory": LINK,
    "Restoration from storage": RESTORATION,
}
METRICS: dict[str, Metric] = {metric.name: metric for group in GROUPS.values() for metric in group}
"""By name without the prefix."""
