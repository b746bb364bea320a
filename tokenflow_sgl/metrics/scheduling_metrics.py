"""What the scheduler decides, and what that costs."""

from __future__ import annotations

from tokenflow_sgl.metrics.declared_metric import LATENESS_SECONDS, PASS_SECONDS, Metric

SCHEDULING = (
    Metric("mode", "gauge", "1 for the scheduler's present mode, 0 for the others.", "", ("mode",)),
    Metric("mode_changes_total", "counter", "Changes into a mode.", "changes", ("mode",)),
    Metric("preemptions_total", "counter", "Preemptions by cause.", "preemptions", ("cause",)),
    Metric(
        "resumes_total",
        "counter",
        "Paused streams that were resumed, by where most of their KV was.",
        "resumes",
        ("source",),
    ),
    Metric(
        "rests_ended_total",
        "counter",
        "Rests that the server ended though no reader was back, by reason.",
        "rests",
        ("reason",),
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
        "promised_share",
        "gauge",
        "Share of the KV memory or of the engine's time that is promised to streams, the larger of "
        "the two; /v1/loads has it as token_usage.",
        "ratio",
    ),
    Metric(
        "expected_wait_seconds",
        "gauge",
        "Seconds until the first token of a request with a usual prompt that comes now; NaN: not "
        "known.",
        "seconds",
    ),
    Metric(
        "first_token_lateness_seconds",
        "histogram",
        "How much later the first token of a request came than was expected when it came; 0: no "
        "later.",
        "seconds",
        (),
        LATENESS_SECONDS,
    ),
    Metric(
        "refused_requests_total",
        "counter",
        "Requests refused with HTTP 429, as their first token was expected too late or their "
        "tenant had as many streams as it may, by rate class.",
        "requests",
        ("qos_class",),
        shared=True,
    ),
    Metric(
        "deadlines_total",
        "counter",
        "Answers with a deadline that have ended, by whether they came in time.",
        "answers",
        ("kept",),
    ),
    Metric(
        "lost_deadlines",
        "gauge",
        "Streams that are here and can no longer keep their deadline; they go behind all others.",
        "streams",
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
    Metric(
        "decision_log_lost_lines_total",
        "counter",
        "Lines of the decision log that were lost, most often because the disk is full or slow.",
        "lines",
    ),
)
