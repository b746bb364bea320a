"""What readers get: streams by phase, latencies, buffers, stalls."""

from __future__ import annotations

from tokenflow_sgl.metrics.declared_metric import BUFFER_SECONDS, TBT_SECONDS, TTFT_SECONDS, Metric
from tokenflow_sgl.qos import NOTICEABLE_STALL

LONGER = f"for longer than {NOTICEABLE_STALL:g} s"
"""Which stalls are counted; every view that shows a count of stalls says so."""
CLASS = ("qos_class",)

STREAMS = (
    Metric("running_streams", "gauge", "Streams that hold KV and are served.", "streams"),
    Metric("paused_streams", "gauge", "Preempted streams that wait to be resumed.", "streams"),
    Metric("waiting_streams", "gauge", "Streams without a first token yet.", "streams"),
    Metric(
        "working_set_streams", "gauge", "Streams that were admitted and have not ended.", "streams"
    ),
    Metric(
        "reading_streams",
        "gauge",
        "Streams whose reader has begun to read and has not looked away.",
        "streams",
        CLASS,
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
TENANT = ("tenant",)
TENANTS = (
    Metric(
        "tenant_streams",
        "gauge",
        "Streams of a tenant that the class file names, and of all others together; only with "
        "--tokenflow-tenant-by.",
        "streams",
        TENANT,
    ),
    Metric(
        "tenant_kv_share",
        "gauge",
        "Share of the running streams' KV that is a tenant's, of the same tenants. Decode steps "
        "take time for each about in proportion to it.",
        "share",
        TENANT,
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
        "deposit_tokens",
        "gauge",
        "Tokens that were generated and wait in token deposits for the moment at which the front "
        "end delivers them.",
        "tokens",
        shared=True,
    ),
    Metric(
        "ttft_seconds",
        "histogram",
        "Time from a stream's arrival at the scheduler to its first token, of reasoning or not.",
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
        "Unread output in seconds of reading, at present, by percentile of the class's streams; "
        "NaN: it has none.",
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
