"""Streaming QoS overview: whether readers stall, and why."""

from __future__ import annotations

from tokenflow_sgl.lab.observe.dashboards.panels import (
    CLASS,
    RANGE,
    SERVER,
    Board,
    Kind,
    Panel,
    Query,
    Row,
    Variable,
    known,
    level,
    quantile,
    rate,
)
from tokenflow_sgl.metrics import LONGER

VARIABLES = (
    Variable("model", "Model", "tokenflow:mode", "model_name"),
    Variable("instance", "Instance", 'tokenflow:mode{model_name=~"$model"}', "instance"),
)
CLASS_VARIABLE = Variable(
    "class",
    "Class",
    'tokenflow:output_tokens_total{model_name=~"$model"}',
    "qos_class",
)


NOW = Row(
    "Now",
    (
        Panel(
            "Readers standing still",
            f"Streams whose reader has no text left and has waited for the next token {LONGER}.",
            "short",
            (Query(level("tokenflow:stalled_streams", CLASS), "stalled"),),
            Kind.NUMBER,
            ((1, "orange"), (10, "red")),
            width=4,
        ),
        Panel(
            "Streams",
            "Streams that are served, paused by the scheduler, or without a first token yet.",
            "short",
            (
                Query(level("tokenflow:running_streams"), "running"),
                Query(level("tokenflow:paused_streams"), "paused"),
                Query(level("tokenflow:waiting_streams"), "waiting"),
            ),
            Kind.NUMBER,
            width=6,
        ),
        Panel(
            "Effective throughput",
            "Tokens per second that readers could use: a token far ahead of its reader counts "
            "less.",
            "short",
            (Query(rate("tokenflow:effective_tokens_total", where=CLASS), "tokens/s"),),
            Kind.NUMBER,
            width=4,
        ),
        Panel(
            "First token, P99",
            "Time from arrival to first token that 99 % of the streams did not exceed.",
            "s",
            (Query(quantile(0.99, "tokenflow:ttft_seconds", where=CLASS), "P99"),),
            Kind.NUMBER,
            ((2, "orange"), (10, "red")),
            width=4,
        ),
        Panel(
            "Streams without a stall",
            f"Of the streams that ended, the share without a stall {LONGER}.",
            "percentunit",
            (
                Query(
                    f'sum(rate(tokenflow:finished_streams_total{{{CLASS},stalled="no"}}{RANGE})) / '
                    + rate("tokenflow:finished_streams_total", where=CLASS),
                    "smooth",
                ),
            ),
            Kind.NUMBER,
            ((0.9, "orange"), (0.99, "green")),
            width=3,
            base="red",
        ),
        Panel(
            "Policy failures",
            "Passes in the last five minutes in which the policy failed and SGLang's own policy "
            "decided.",
            "short",
            (Query(f"sum(increase(tokenflow:policy_errors_total{{{SERVER}}}[5m]))", "failed"),),
            Kind.NUMBER,
            ((1, "red"),),
            width=3,
        ),
    ),
)
READERS = Row(
    "Readers",
    (
        Panel(
            "Unread output",
            "Seconds of reading that streams have in reserve, as P10, median and P90 of the "
            "streams. A P10 near zero means that stalls are close.",
            "s",
            (
                Query(
                    "min by (qos_class, percentile) "
                    f"(tokenflow:buffer_percentile_seconds{{{CLASS}}})",
                    "{{qos_class}} P{{percentile}}",
                ),
            ),
        ),
        Panel(
            "Readers standing still",
            f"Mean number of readers that have waited for the next token {LONGER}, by class.",
            "short",
            (
                Query(
                    "sum by (qos_class) "
                    f"(avg_over_time(tokenflow:stalled_streams{{{CLASS}}}{RANGE}))",
                    "{{qos_class}}",
                ),
            ),
            thresholds=((1, "red"),),
        ),
        Panel(
            "Stalls",
            f"Stalls {LONGER}, per second, by class.",
            "short",
            (Query(rate("tokenflow:stalls_total", "qos_class", CLASS), "{{qos_class}}"),),
        ),
        Panel(
            "Unread output, all streams",
            "Number of streams by their reserve, sampled once a second.",
            "s",
            (Query(rate("tokenflow:buffer_seconds_bucket", "le", CLASS), "{{le}}"),),
            Kind.HEATMAP,
            width=12,
        ),
        Panel(
            "Streams without a stall",
            f"Of the streams that ended, the share without a stall {LONGER}, by class.",
            "percentunit",
            (
                Query(
                    "sum by (qos_class) (rate(tokenflow:finished_streams_total"
                    f'{{{CLASS},stalled="no"}}{RANGE})) / '
                    + rate("tokenflow:finished_streams_total", "qos_class", CLASS),
                    "{{qos_class}}",
                ),
            ),
            width=12,
        ),
    ),
)
LATENCY = Row(
    "Latency",
    (
        Panel(
            "Time to first token",
            "From arrival to first token, and to the first that its reader sees: of a model that "
            "thinks, the first after that.",
            "s",
            (
                *(
                    Query(
                        quantile(share, "tokenflow:ttft_seconds", where=CLASS), f"P{100 * share:g}"
                    )
                    for share in (0.5, 0.9, 0.99)
                ),
                Query(quantile(0.99, "tokenflow:ttfvt_seconds", where=CLASS), "P99, visible"),
            ),
        ),
        Panel(
            "Time to first token, by class",
            "From arrival to first token, P99 of each class.",
            "s",
            (Query(quantile(0.99, "tokenflow:ttft_seconds", CLASS, "qos_class"), "{{qos_class}}"),),
        ),
        Panel(
            "Time between tokens",
            "Per token, as the engine makes them. A preempted stream has one long gap. Its reader "
            "does not notice the gap while unread text remains.",
            "s",
            tuple(
                Query(quantile(share, "tokenflow:tbt_seconds", where=CLASS), f"P{100 * share:g}")
                for share in (0.5, 0.99, 0.999)
            ),
        ),
        Panel(
            "Newcomers' wait",
            "Seconds to the first token that a request with a usual prompt would have to expect "
            "now, and by how much first tokens came later than was expected, P90.",
            "s",
            (
                Query(
                    f"max by (instance) (tokenflow:expected_wait_seconds{{{SERVER}}})",
                    "expected, {{instance}}",
                ),
                Query(quantile(0.9, "tokenflow:first_token_lateness_seconds"), "later, P90"),
            ),
            width=8,
        ),
        Panel(
            "Deadlines",
            "Of the answers with a deadline that ended, the share that came in time; and streams "
            "here that cannot keep theirs any more.",
            "short",
            (
                Query(
                    f'sum(rate(tokenflow:deadlines_total{{{SERVER},kept="yes"}}{RANGE})) / '
                    + rate("tokenflow:deadlines_total"),
                    "kept",
                ),
                Query(level("tokenflow:lost_deadlines"), "lost, streams"),
            ),
            width=8,
        ),
        Panel(
            "Refused requests",
            "Requests per second that were refused with HTTP 429, as their first token was "
            "expected later than they may wait, by class.",
            "short",
            (Query(rate("tokenflow:refused_requests_total", "qos_class", CLASS), "{{qos_class}}"),),
            width=8,
        ),
    ),
)
THROUGHPUT = Row(
    "Throughput",
    (
        Panel(
            "Tokens per second",
            "Tokens made for readers, how many of them they could use, and reasoning beside them.",
            "short",
            (
                Query(rate("tokenflow:output_tokens_total", where=CLASS), "made"),
                Query(rate("tokenflow:effective_tokens_total", where=CLASS), "effective"),
                Query(rate("tokenflow:reasoning_tokens_total", where=CLASS), "reasoning"),
            ),
            width=5,
        ),
        Panel(
            "QoS",
            "Equation 2 of TokenFlow over five minutes: effective tokens, minus one for every "
            "second that a reader waited for a first token or stalled.",
            "short",
            (Query(f"sum(tokenflow:qos:rate5m{{{SERVER}}})", "QoS"),),
            width=5,
            signed=True,
        ),
        Panel(
            "Demand and capacity",
            "Tokens per second that the readers of the working set consume, and that the engine "
            "made recently. If demand stays above capacity, readers stall or requests wait.",
            "short",
            (
                Query(level("tokenflow:demand_tokens_per_second"), "demand"),
                Query(known("tokenflow:capacity_tokens_per_second"), "capacity"),
            ),
            width=5,
        ),
        Panel(
            "Headroom",
            "Tokens of newcomers' work that can be taken within 30 s without making present "
            "readers stall. Below 0 there is more work than can be done in time.",
            "short",
            (Query(known("tokenflow:headroom_tokens"), "headroom"),),
            width=5,
            signed=True,
        ),
        Panel(
            "Promised",
            "Share of the KV memory or of the engine's time that is promised to streams, the "
            "larger of the two, of the fullest server. At 100% newcomers wait.",
            "percentunit",
            (Query(f"max(tokenflow:promised_share{{{SERVER}}} > -Inf)", "promised"),),
            width=4,
        ),
    ),
)

OVERVIEW = Board(
    "tokenflow-overview",
    "Streaming QoS overview",
    "Whether readers of streamed answers stall, how much unread text they have, and how well the "
    "server uses its time.",
    (*VARIABLES, CLASS_VARIABLE),
    (NOW, READERS, LATENCY, THROUGHPUT),
)
