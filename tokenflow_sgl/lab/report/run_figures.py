"""The figures of one run: a tree of frozen dataclasses, in seconds, tokens and shares.

docs/report.md defines each. Readers' figures are those of `tokenflow_sgl.qos`; NaN means that there
was nothing to measure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tokenflow_sgl.lab.report.bench_serving import BenchServing, bench_serving
from tokenflow_sgl.lab.report.judged import COMPLETED, Judged, judge
from tokenflow_sgl.lab.report.report_options import Options, ReportError
from tokenflow_sgl.lab.report.text import plain
from tokenflow_sgl.lab.runs.recording import record
from tokenflow_sgl.lab.runs.store import Run, RunInfo
from tokenflow_sgl.qos import RunQoS, Summary, evaluate_run


@dataclass(frozen=True, slots=True)
class Requests:
    """What became of the requests.

    Attributes:
        counted: Requests that every figure is about.
        completed: Whole answers.
        failed: The others, by reason.
        unserved: Requests without any token.
        warm_up: Warm-up requests, left out.
        not_reached: Requests due after the end of the recording, left out.
    """

    counted: int
    completed: int
    failed: Mapping[str, int]
    unserved: int
    warm_up: int
    not_reached: int


@dataclass(frozen=True, slots=True)
class Latency:
    """Waiting times of a run's readers, seconds: TTFT, TBT and the like.

    Attributes:
        ttft: Due to first token; unserved requests to the end of the recording, a lower bound.
        ttft_sent: Sent to first token, of the requests that got one.
        ttfvt: Due to first visible token, likewise as `ttft`; of none where no request thinks.
        tbt: Gaps between tokens, pooled over all requests; tokens of one chunk are 0 apart.
        tpot: (last - first token) / (tokens - 1) of completed requests with two tokens or more.
        e2e: Due to last token, of completed requests.
        e2e_per_token: The same over the request's tokens: what it waited for each of them.
    """

    ttft: Summary
    ttft_sent: Summary
    ttfvt: Summary
    tbt: Summary
    tpot: Summary
    e2e: Summary
    e2e_per_token: Summary


@dataclass(frozen=True, slots=True)
class Throughput:
    """Work per second of T, the makespan.

    Attributes:
        makespan: T, from the first request's due time to the last end, seconds.
        token: Tokens that arrived, per second.
        effective: Tokens weighted by what they were worth to the reader (7.1.3), per second.
        prompt: Prompt tokens of completed requests, per second.
        request: Completed requests, per second.
    """

    makespan: float
    token: float
    effective: float
    prompt: float
    request: float


@dataclass(frozen=True, slots=True)
class Readers:
    """The run as its readers experienced it.

    Attributes:
        stall_seconds: Stalled (rebuffering) time, all readers together, seconds.
        stall_count: Stalls longer than the options' threshold, all readers together.
        stall_mean: Stalled time per request, seconds.
        stalled_share: Share of the requests whose reader had at least one such stall.
        rebuffer_share: Stalled time as a share of all time from first token (of reasoning: the
            first after it) to the end of reading.
        stall: Stalled time per request, seconds.
        qos: TokenFlow's Eq. 2, weighted tokens per second after penalties.
        andes_qoe: Andes QoE per request, 0 to 1; `p50` and higher say how many are *at most* that.
        andes_qoe_p10: QoE that 10 % of the requests do not reach.
    """

    stall_seconds: float
    stall_count: int
    stall_mean: float
    stalled_share: float
    rebuffer_share: float
    stall: Summary
    qos: float
    andes_qoe: Summary
    andes_qoe_p10: float


@dataclass(frozen=True, slots=True)
class Slo:
    """Service level objectives; NaN where no request has the objective.

    Attributes:
        requests: Requests with at least one objective.
        ttft_attainment: Of the requests with a TTFT objective, the share that met it.
        tbt_attainment: Of the requests with a TBT objective, the share that met it (`TbtRule`).
        token_attainment: Of the gaps that a TBT objective applies to, the share within it.
        attainment: Of the requests with an objective, the share that completed within all theirs.
        goodput: Requests per second of T that completed within every objective that they have;
            NaN if no request has any.
    """

    requests: int
    ttft_attainment: float
    tbt_attainment: float
    token_attainment: float
    attainment: float
    goodput: float


@dataclass(frozen=True, slots=True, eq=False)
class Figures:
    """All figures of one run.

    Attributes:
        info: What the run was.
        options: Options of the report.
        requests: What became of the requests.
        latency: Waiting times.
        throughput: Work per second.
        readers: What readers experienced.
        slo: Objectives.
        bench: The figures of `sglang.bench_serving`, by its formulas.
        judged: The requests behind them.
    """

    info: RunInfo
    options: Options
    requests: Requests
    latency: Latency
    throughput: Throughput
    readers: Readers
    slo: Slo
    bench: BenchServing
    judged: Judged

    @property
    def warnings(self) -> tuple[str, ...]:
        """Why the figures must not be trusted, in sentences; empty: valid."""
        stopped = ("The run was interrupted before its end.",) if self.info.interrupted else ()
        return (*self.info.invalid, *stopped)

    @property
    def label(self) -> str:
        """The run's name for headers and legends, with its state if it is not a valid whole run."""
        name = plain(self.info.name, 40)
        return f"{name} [{self.state}]" if self.state else name

    @property
    def state(self) -> str:
        """INVALID, INTERRUPTED, or nothing for a valid whole run."""
        if self.info.invalid:
            return "INVALID"
        return "INTERRUPTED" if self.info.interrupted else ""


def figures(run: Run, options: Options | None = None) -> Figures:
    """Work out all figures of a run.

    Args:
        run: The run, as `read_run` gives it.
        options: What the report is told; default `Options()`.

    Raises:
        RunError: The run's tables contradict each other.
        ReportError: A value in them cannot be judged.
    """
    options = options or Options()
    recording = record(run)
    try:
        judged = judge(recording, options)
    except ValueError as error:  # of qos, which names the field but not the run
        raise ReportError(f"run {run.info.name}: {error}") from error
    qos = _run_qos(judged, options)
    return Figures(
        info=run.info,
        options=options,
        requests=_requests(judged),
        latency=_latency(judged),
        throughput=_throughput(judged, qos),
        readers=_readers(judged, qos),
        slo=_slo(judged, qos),
        bench=bench_serving(judged.recording, judged.completed),
        judged=judged,
    )


def _run_qos(judged: Judged, options: Options) -> RunQoS | None:
    """Eq. 2 and its companions; None where nothing lasted any time."""
    ends = [stream.end for stream in judged.streams]
    if not ends or not max(ends) > min(stream.arrival for stream in judged.streams):
        return None
    return evaluate_run(
        judged.streams, ttft_penalty=options.ttft_penalty, stall_penalty=options.stall_penalty
    )


def _requests(judged: Judged) -> Requests:
    failed = Counter(word for word in judged.outcome if word != COMPLETED)
    return Requests(
        counted=len(judged),
        completed=int(judged.completed.sum()),
        failed=dict(failed.most_common()),
        unserved=int((~judged.served).sum()),
        warm_up=judged.recording.warm_up,
        not_reached=judged.recording.not_reached,
    )


def _latency(judged: Judged) -> Latency:
    gaps = [stream.tbt_seconds for stream in judged.streams]
    return Latency(
        ttft=_summary(judged.ttft),
        ttft_sent=_summary(judged.ttft_sent),
        ttfvt=_summary(judged.ttfvt),
        tbt=Summary.of(np.concatenate(gaps) if gaps else ()),
        tpot=_summary(judged.tpot),
        e2e=_summary(judged.e2e),
        e2e_per_token=_summary(judged.e2e_per_token),
    )


def _throughput(judged: Judged, qos: RunQoS | None) -> Throughput:
    if qos is None:
        return Throughput(*(math.nan,) * 5)
    return Throughput(
        makespan=qos.duration,
        token=qos.token_throughput,
        effective=qos.effective_throughput,
        prompt=float(judged.recording.prompt_tokens[judged.completed].sum()) / qos.duration,
        request=float(judged.completed.sum()) / qos.duration,
    )


def _readers(judged: Judged, qos: RunQoS | None) -> Readers:
    stall = judged.column(lambda stream: stream.stall_seconds)
    total = float(stall.sum())
    # From the first token that is seen to the end of reading: all at the rate, and the stalls.
    reading = float((judged.recording.visible_counts / judged.recording.rate).sum()) + total
    return Readers(
        stall_seconds=total,
        stall_count=sum(stream.stall_count for stream in judged.streams),
        stall_mean=_share(total, len(judged)),
        stalled_share=_share(sum(stream.stalled for stream in judged.streams), len(judged)),
        rebuffer_share=_share(total, reading),
        stall=Summary.of(stall),
        qos=math.nan if qos is None else qos.qos,
        andes_qoe=Summary.of(judged.qoe),
        andes_qoe_p10=float(np.percentile(judged.qoe, 10)) if len(judged) else math.nan,
    )


def _slo(judged: Judged, qos: RunQoS | None) -> Slo:
    has_any = judged.has_ttft_slo | judged.has_tbt_slo
    ttft = judged.met_ttft[judged.has_ttft_slo]
    tbt = judged.met_tbt[judged.has_tbt_slo]
    asked = bool(has_any.any()) and qos is not None
    return Slo(
        requests=int(has_any.sum()),
        ttft_attainment=_share(ttft.sum(), ttft.size),
        tbt_attainment=_share(tbt.sum(), tbt.size),
        token_attainment=_share(judged.gaps_met.sum(), judged.gaps.sum()),
        attainment=_share(judged.good[has_any].sum(), has_any.sum()),
        goodput=float(judged.good.sum()) / qos.duration if asked and qos else math.nan,
    )


def _summary(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Summary:
    return Summary.of(values[~np.isnan(values)])


def _share(part: float, whole: float) -> float:
    return float(part) / float(whole) if whole else math.nan
