"""Replay comparison: the same trace against two servers, side by side."""

from __future__ import annotations

from tokenflow_sgl.lab.observe.dashboards.panels import (
    RANGE,
    Board,
    Kind,
    Panel,
    Query,
    Row,
    Variable,
    level,
    quantile,
    rate,
)

SIDES = ("baseline", "candidate")
NO_READERS = "a server without --scheduler tokenflow has no metrics of readers"
VARIABLES = tuple(
    Variable(side, side.capitalize(), "sglang:num_running_reqs", "instance", many=False)
    for side in SIDES
)


def _where(side: str) -> str:
    return f'instance="${side}"'


def _both(
    expr: str, metric: str, legend: str = "", *, empty: str | None = None
) -> tuple[Query, ...]:
    """A query for each side; `expr` is one of "rate", "mean", "total", "P50", "P99".

    "total" is a gauge without SGLang's series by priority, which it has beside their sum.
    """
    queries = []
    for side in SIDES:
        where = _where(side)
        if expr == "rate":
            promql = rate(metric, where=where)
        elif expr == "mean":
            promql = f"sum(avg_over_time({metric}{{{where}}}{RANGE}))"
        elif expr == "total":
            promql = level(metric, f'{where},priority=""')
        else:
            promql = quantile(float(expr.removeprefix("P")) / 100, metric, where)
        queries.append(Query(promql, f"{side} {legend}".strip(), empty))
    return tuple(queries)


SERVED = Row(
    "What clients get",
    (
        Panel(
            "Time to first token, P50 and P99",
            "As SGLang's HTTP process sees it.",
            "s",
            _both("P50", "sglang:time_to_first_token_seconds", "P50")
            + _both("P99", "sglang:time_to_first_token_seconds", "P99"),
        ),
        Panel(
            "Time between tokens, P99",
            "As SGLang's HTTP process sees it: the gap between two chunks of a stream, divided by "
            "the tokens of the chunk.",
            "s",
            _both("P99", "sglang:inter_token_latency_seconds"),
        ),
        Panel(
            "Tokens per second",
            "Output of all streams.",
            "short",
            _both("rate", "sglang:generation_tokens_total"),
        ),
    ),
)
READERS = Row(
    "What readers get",
    (
        Panel(
            "Effective tokens per second",
            "Tokens that readers could use. A baseline with SGLang's own policy counts them if it "
            "is started with --scheduler tokenflow --tokenflow-policy stock.",
            "short",
            _both("rate", "tokenflow:effective_tokens_total", empty=NO_READERS),
        ),
        Panel(
            "Readers standing still",
            "Mean number of readers in a stall.",
            "short",
            _both("mean", "tokenflow:stalled_streams", empty=NO_READERS),
        ),
        Panel(
            "Streams at work",
            "Streams that are served, and requests that wait in SGLang's queue.",
            "short",
            _both("total", "sglang:num_running_reqs", "running")
            + _both("total", "sglang:num_queue_reqs", "waiting"),
        ),
    ),
)
RATIOS = Row(
    "Candidate over baseline",
    tuple(
        Panel(
            title,
            f"{title} of the candidate over the baseline's. {better} is better.",
            "short",
            (Query(f"{candidate.expr} / {baseline.expr}", "ratio", empty),),
            Kind.NUMBER,
        )
        for title, better, empty, (baseline, candidate) in (
            (
                "First token, P99",
                "Less than 1",
                None,
                _both("P99", "sglang:time_to_first_token_seconds"),
            ),
            (
                "Tokens per second",
                "More than 1",
                None,
                _both("rate", "sglang:generation_tokens_total"),
            ),
            (
                "Effective tokens per second",
                "More than 1",
                NO_READERS,
                _both("rate", "tokenflow:effective_tokens_total"),
            ),
        )
    ),
)

REPLAY = Board(
    "tokenflow-replay",
    "Replay comparison",
    "Two servers under the same trace: `tokenflow replay` against each, at the same time or "
    "shifted "
    "by Grafana's time range.",
    VARIABLES,
    (SERVED, READERS, RATIOS),
)
