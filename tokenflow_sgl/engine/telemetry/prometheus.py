"""The scheduler's metrics on SGLang's own /metrics page, beside `sglang:*`.

SGLang collects in Prometheus multiprocess mode, so the metric objects are made in the
scheduler process after its PROMETHEUS_MULTIPROC_DIR is set, with SGLang's own labels.
Series are bounded: labels are the server's, plus the rate class and fixed enumerations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tokenflow_sgl.contract import Cause, Mode
from tokenflow_sgl.engine.sglang.worker import LiveScheduler
from tokenflow_sgl.lifecycle.rest_rules import REASONS
from tokenflow_sgl.metrics import METRICS, Metric

PERCENTILES = (10, 50, 90)
"""Of the unread output of a class's streams."""
SOURCES = ("device", "host", "nowhere")
"""Where a resumed stream's KV was."""


@dataclass(frozen=True, slots=True)
class Levels:
    """How many streams are where, and how fast they are read and served."""

    running: int = 0
    paused: int = 0
    waiting: int = 0
    working_set: int = 0
    demand: float = 0.0
    capacity: float = float("nan")


class Recorder:
    """What the scheduler reports. This one reports nowhere: without --enable-metrics.

    Attributes:
        listens: Whether anybody hears; if not, what takes time to put together can be left out.
    """

    listens = False

    def count(self, name: str, amount: float, **labels: str) -> None:
        """A counter of the contract goes up by `amount`."""

    def observe(self, name: str, values: Any, counts: Any = None, **labels: str) -> None:
        """Observations of a histogram of the contract; `counts`: how many of each, default one."""

    def preempted(self, cause: Cause) -> None:
        """Count a stream that was preempted."""

    def resumed(self, recomputed: int, loaded: int, resident: int) -> None:
        """Count a stream that resumes: tokens recomputed, loaded, found there."""

    def written_ahead(self, tokens: int) -> None:
        """Count tokens of running streams that are on their way to the host."""

    def released(self, tail: int, needed: int, held: int) -> None:
        """A preempted stream leaves the device.

        tail: its tokens that are copied only now. needed: those that were copied ahead. held: all.
        """

    def loaded_ahead(self, tokens: int, *, part: bool) -> None:
        """Count tokens of a paused stream that are prefetched; part: not all that it needs."""

    def link(self, direction: str, rate: float, queued: int) -> None:
        """Tokens per second of a direction, NaN: unknown; tokens that have not landed yet."""

    def levels(self, levels: Levels) -> None:
        """How many streams are where now."""

    def tenant(self, name: str, streams: int, kv_share: float) -> None:
        """How many streams a tenant has, and its share of the running streams' KV."""

    def headroom(self, tokens: float, promised: float, wait: float) -> None:
        """Newcomers' work that can be taken, the share that is promised, and newcomers' wait."""

    def lost_deadlines(self, streams: int) -> None:
        """Set how many streams are here that cannot keep their deadline."""

    def layers_on_host(self, share: float) -> None:
        """Set the share of all KV, counted by layers, that lies on the host now."""

    def buffers(self, qos_class: str, seconds: NDArray[np.float64], stalled: int) -> None:
        """Unread output of each reader of a class now, and how many of them stand still."""

    def finished(self, qos_class: str, stalled: bool) -> None:
        """A stream ended after its first token; `stalled`: its reader did, at least once."""

    def policy_pass(self, mode: Mode, seconds: float) -> None:
        """One pass was decided in `mode` and took `seconds`."""

    def policy_error(self) -> None:
        """Count an error that the policy raised."""

    def lost(self) -> None:
        """A stream was in no batch and no queue any more."""


class PrometheusRecorder(Recorder):
    """Writes `tokenflow:*` metrics with the labels of SGLang's own collector."""

    listens = True

    def __init__(self, labels: Mapping[str, Any]) -> None:
        self._labels = dict(labels)
        own = [metric for metric in METRICS.values() if not metric.shared]
        self._metrics = {metric.name: make_metric(metric, [*labels]) for metric in own}
        self._children: dict[tuple[str, ...], Any] = {}
        self._last_mode: Mode | None = None
        # A series that exists from the start can be alerted on.
        for metric in METRICS.values():
            if metric.kind != "gauge" and not metric.labels:
                self._at(metric.name)
        for cause in Cause:
            self._at("preemptions_total", cause=cause.value)
        for reason in REASONS:
            self._at("rests_ended_total", reason=reason)
        for source in SOURCES:
            self._at("resumes_total", source=source)
        for way in ("both", "computed", "fetched", "layers"):
            self._at("restorations_total", way=way)
        for kept in ("yes", "no"):
            self._at("deadlines_total", kept=kept)
        for source in ("computed", "fetched"):
            self._at("restored_tokens_total", source=source)
        self._set_mode(Mode.IDLE)

    def _at(self, name: str, **labels: str) -> Any:
        key = (name, *labels.values())
        if key not in self._children:
            self._children[key] = self._metrics[name].labels(**self._labels, **labels)
        return self._children[key]

    def count(self, name: str, amount: float, **labels: str) -> None:
        """A counter of the contract goes up by `amount`."""
        self._at(name, **labels).inc(amount)

    def observe(self, name: str, values: Any, counts: Any = None, **labels: str) -> None:
        """Observations of a histogram of the contract; `counts`: how many of each, default one."""
        _observe(self._at(name, **labels), METRICS[name].buckets, values, counts)

    def preempted(self, cause: Cause) -> None:
        """Count a stream that was preempted."""
        self._at("preemptions_total", cause=cause.value).inc()

    def resumed(self, recomputed: int, loaded: int, resident: int) -> None:
        """Count a stream that resumes: tokens recomputed, loaded, found there."""
        tokens = dict(zip(SOURCES, (resident, loaded, recomputed), strict=True))
        self._at("resumes_total", source=max(tokens, key=lambda source: tokens[source])).inc()
        self._at("resume_recomputed_tokens").observe(recomputed)
        self.count("resume_loaded_tokens_total", loaded)

    def written_ahead(self, tokens: int) -> None:
        """Count tokens of running streams that are on their way to the host."""
        self.count("written_ahead_tokens_total", tokens)

    def released(self, tail: int, needed: int, held: int) -> None:
        """A preempted stream leaves the device."""
        self._at("preemption_tail_tokens").observe(tail)
        self.count("written_ahead_needed_tokens_total", needed)
        self.count("preempted_tokens_total", held)

    def loaded_ahead(self, tokens: int, *, part: bool) -> None:
        """Count tokens of a paused stream that are prefetched; part: not all that it needs."""
        self.count("loaded_ahead_tokens_total", tokens)
        self.count("loaded_ahead_chunks_total", int(part))

    def link(self, direction: str, rate: float, queued: int) -> None:
        """Tokens per second of a direction, NaN: unknown; tokens that have not landed yet."""
        self._at("link_tokens_per_second", direction=direction).set(rate)
        self._at("link_queue_tokens", direction=direction).set(queued)

    def levels(self, levels: Levels) -> None:
        """How many streams are where now."""
        self._at("running_streams").set(levels.running)
        self._at("paused_streams").set(levels.paused)
        self._at("waiting_streams").set(levels.waiting)
        self._at("working_set_streams").set(levels.working_set)
        self._at("demand_tokens_per_second").set(levels.demand)
        self._at("capacity_tokens_per_second").set(levels.capacity)

    def tenant(self, name: str, streams: int, kv_share: float) -> None:
        """How many streams a tenant has, and its share of the running streams' KV."""
        self._at("tenant_streams", tenant=name).set(streams)
        self._at("tenant_kv_share", tenant=name).set(kv_share)

    def headroom(self, tokens: float, promised: float, wait: float) -> None:
        """Newcomers' work that can be taken, the share that is promised, and newcomers' wait."""
        self._at("headroom_tokens").set(tokens)
        self._at("promised_share").set(promised)
        self._at("expected_wait_seconds").set(wait)

    def lost_deadlines(self, streams: int) -> None:
        """Set how many streams are here that cannot keep their deadline."""
        self._at("lost_deadlines").set(streams)

    def layers_on_host(self, share: float) -> None:
        """Set the share of all KV, counted by layers, that lies on the host now."""
        self._at("layers_host_share").set(share)

    def buffers(self, qos_class: str, seconds: NDArray[np.float64], stalled: int) -> None:
        """Unread output of each reader of a class now, and how many of them stand still."""
        self._at("reading_streams", qos_class=qos_class).set(len(seconds))
        self._at("stalled_streams", qos_class=qos_class).set(stalled)
        for each in ("yes", "no"):  # there before the first one ends: a share of nothing is none
            self._at("finished_streams_total", qos_class=qos_class, stalled=each)
        self.observe("buffer_seconds", seconds, qos_class=qos_class)
        unknown = np.full(len(PERCENTILES), np.nan)  # 0 would say that all are about to stall
        values = np.percentile(seconds, PERCENTILES) if len(seconds) else unknown
        for percentile, value in zip(PERCENTILES, values.tolist(), strict=True):
            labels = {"qos_class": qos_class, "percentile": str(percentile)}
            self._at("buffer_percentile_seconds", **labels).set(value)

    def finished(self, qos_class: str, stalled: bool) -> None:
        """A stream ended after its first token; `stalled`: its reader did, at least once."""
        self._at(
            "finished_streams_total", qos_class=qos_class, stalled="yes" if stalled else "no"
        ).inc()

    def policy_pass(self, mode: Mode, seconds: float) -> None:
        """One pass was decided in `mode` and took `seconds`."""
        if mode is not Mode.IDLE:
            self._at("policy_pass_seconds").observe(seconds)
        if mode is not self._last_mode:
            self._set_mode(mode)
            self._at("mode_changes_total", mode=mode.value).inc()

    def policy_error(self) -> None:
        """Count an error that the policy raised."""
        self._at("policy_errors_total").inc()

    def lost(self) -> None:
        """A stream was in no batch and no queue any more."""
        self._at("lost_streams_total").inc()

    def _set_mode(self, mode: Mode) -> None:
        for each in Mode:
            self._at("mode", mode=each.value).set(float(each is mode))
        self._last_mode = mode


def recorder_of(scheduler: LiveScheduler) -> Recorder:
    """Where this scheduler of SGLang's reports: on its /metrics page, if it has one."""
    if scheduler.metrics_collector_context.current_scheduler_metrics_enabled:
        return PrometheusRecorder(scheduler.metrics_collector.labels)
    return Recorder()


def make_metric(metric: Metric, labels: Sequence[str]) -> Any:
    """Prometheus' object of a metric, with these labels before its own."""
    # Only after SGLang has set PROMETHEUS_MULTIPROC_DIR; an earlier import counts nowhere.
    from prometheus_client import Counter, Gauge, Histogram

    names = [*labels, *metric.labels]
    match metric.kind:
        case "counter":
            return Counter(metric.full_name, metric.help, names)
        case "gauge":
            mode: Literal["livesum", "mostrecent"] = "livesum" if metric.shared else "mostrecent"
            return Gauge(metric.full_name, metric.help, names, multiprocess_mode=mode)
        case "histogram":
            return Histogram(metric.full_name, metric.help, names, buckets=metric.buckets)


def count_at(counter: Any, labels: Mapping[str, str], qos_class: str) -> None:
    """One more of a class in a counter that `make_metric` made with these labels."""
    counter.labels(**labels, qos_class=qos_class).inc()


def _observe(child: Any, bounds: Sequence[float], values: Any, counts: Any) -> None:
    """Add many observations to a histogram at once.

    prometheus_client observes one value at a time, some microseconds each: 500 streams would pay
    for it with every token. Its own counters per bucket are added to instead (`_buckets`, `_sum`);
    a test compares with single observations.
    """
    values = np.asarray(values, dtype=np.float64)
    if not len(values):
        return
    weights = None if counts is None else np.asarray(counts, dtype=np.float64)
    index = np.searchsorted(np.asarray(bounds, dtype=np.float64), values, side="left")
    added = np.bincount(index, weights=weights, minlength=len(bounds) + 1)
    for number in np.nonzero(added)[0].tolist():
        child._buckets[number].inc(float(added[number]))
    child._sum.inc(float(values.sum() if weights is None else values @ weights))
