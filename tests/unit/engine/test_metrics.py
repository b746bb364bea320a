"""The recorder: every metric of the contract exists, many observations count like single ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from prometheus_client import REGISTRY, Histogram, generate_latest

from tokenflow_sgl.contract import Cause, Mode
from tokenflow_sgl.engine.telemetry.prometheus import (
    PERCENTILES,
    Levels,
    PrometheusRecorder,
    Recorder,
    _observe,
)
from tokenflow_sgl.lab.observe import Scrape, parse
from tokenflow_sgl.metrics import GROUPS, METRICS

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"
MOST_SERIES, MOST_PER_CLASS, PER_TENANT = 125, 105, 2
"""Of one scheduler, of each rate class that its requests name, and of each tenant that the class
file names; the page says so."""


@pytest.fixture
def recorder():
    before = set(REGISTRY._collector_to_names)
    yield PrometheusRecorder({"model_name": "tiny", "tp_rank": 0})
    for each in set(REGISTRY._collector_to_names) - before:
        REGISTRY.unregister(each)


def page() -> Scrape:
    return parse(generate_latest(REGISTRY).decode())


def fill(recorder: Recorder, qos_class: str) -> None:
    """Report everything that can be reported."""
    for name in (
        *("output_tokens_total", "effective_tokens_total", "stalls_total"),
        "reasoning_tokens_total",
    ):
        recorder.count(name, 3, qos_class=qos_class)
    recorder.count("stall_seconds_total", 0.5, qos_class=qos_class)
    recorder.observe("ttft_seconds", [0.1, 0.2], qos_class=qos_class)
    recorder.observe("ttfvt_seconds", [0.1, 0.9], qos_class=qos_class)
    recorder.observe("tbt_seconds", [0.0, 0.02], [5, 1], qos_class=qos_class)
    recorder.buffers(qos_class, np.array([0.0, 1.0, 2.0]), stalled=1)
    recorder.finished(qos_class, stalled=True)
    recorder.finished(qos_class, stalled=False)


def test_everything_declared_can_be_reported_and_the_series_are_bounded(recorder) -> None:
    classes = ("default", "custom", "reading", "agent")
    for name in classes:
        fill(recorder, name)
    for cause in Cause:
        recorder.preempted(cause)
    recorder.resumed(recomputed=1, loaded=2000, resident=3)
    recorder.released(tail=1, needed=10, held=20)
    recorder.written_ahead(10)
    recorder.loaded_ahead(10, part=True)
    for direction in ("store", "load"):
        recorder.link(direction, 1000.0, 3)
        recorder.count("layers_moved_tokens_total", 8.0, direction=direction)
    for cause in ("staging", "stores", "moves"):
        recorder.count("layers_wait_seconds_total", 0.1, cause=cause)
    recorder.layers_on_host(0.5)
    recorder.levels(Levels(running=1, demand=10.0, capacity=20.0))
    recorder.headroom(-5.0, promised=0.5, wait=3.0)
    recorder.lost_deadlines(2)
    recorder.tenant("gold", 3, 0.5)
    for mode in Mode:
        recorder.policy_pass(mode, 0.001)
    recorder.policy_error()
    recorder.count("scheduling_seconds_total", 0.1)
    recorder.count("restoring_seconds_total", 0.1)
    for resource in ("device", "link"):
        recorder.count("restoring_busy_seconds_total", 0.1, resource=resource)
    seen = page()
    for metric in METRICS.values():
        if metric.shared:
            continue  # the HTTP server's
        assert seen.has(metric.name + ("_bucket" if metric.kind == "histogram" else ""))
    ours = [
        sample
        for samples in seen.samples.values()
        for sample in samples
        if sample.name.startswith("tokenflow:") and not sample.name.endswith("_created")
    ]
    assert len(ours) == MOST_SERIES + MOST_PER_CLASS * len(classes) + PER_TENANT
    said = " ".join(PAGE.read_text().split())
    assert f"at most {MOST_SERIES} per scheduler and {MOST_PER_CLASS} for each class" in said
    assert seen.total("headroom_tokens") == -5
    assert seen.total("expected_wait_seconds") == 3
    assert seen.total("promised_share") == 0.5
    assert seen.by("resumes_total", "source") == {"device": 0, "host": 1, "nowhere": 0}
    assert seen.by("buffer_percentile_seconds", "percentile") == {
        str(percentile): pytest.approx(4 * 2 * percentile / 100) for percentile in PERCENTILES
    }


def test_a_class_without_streams_has_no_unread_text_and_not_none_left(recorder) -> None:
    recorder.buffers("reading", np.array([4.0]), stalled=0)
    assert page().total("reading_streams") == 1
    recorder.buffers("reading", np.zeros(0), stalled=0)
    seen = page()
    assert seen.total("reading_streams") == 0
    assert all(np.isnan(each.value) for each in seen.samples["buffer_percentile_seconds"])
    assert seen.total("stalled_streams") == 0


def test_a_fresh_server_has_what_alerts_look_at(recorder) -> None:
    seen = page()
    assert seen.by("preemptions_total", "cause") == {cause.value: 0 for cause in Cause}
    assert seen.total("policy_errors_total") == 0
    # A rate needs the zero from which it rises.
    for name in ("resume_recomputed_tokens", "policy_pass_seconds"):
        assert f"tokenflow:{name}_sum" in generate_latest(REGISTRY).decode()
    assert seen.by("mode", "mode") == {"idle": 1, "working-set": 0, "fallback": 0}


def test_modes_and_their_changes(recorder) -> None:
    for mode in (Mode.IDLE, Mode.WORKING_SET, Mode.WORKING_SET, Mode.IDLE, Mode.WORKING_SET):
        recorder.policy_pass(mode, 0.001)
    seen = page()
    assert seen.by("mode_changes_total", "mode") == {"working-set": 2, "idle": 1}
    assert seen.by("mode", "mode") == {"idle": 0, "working-set": 1, "fallback": 0}
    assert seen.total("policy_pass_seconds_count") == 3


def test_many_observations_at_once_are_the_same_as_one_by_one() -> None:
    bounds = (0.0, 0.1, 0.5, 2.0)
    values = np.array([0.0, 0.05, 0.1, 0.3, 0.5, 1.9, 2.0, 2.1, 100.0])
    counts = np.array([3, 1, 2, 1, 1, 0, 4, 1, 2])
    many, single = (
        Histogram(name, "x", ["a"], buckets=bounds, registry=None).labels("b") for name in "xy"
    )
    _observe(many, bounds, values, None)
    _observe(many, bounds, values, counts)
    _observe(many, bounds, np.zeros(0), None)
    for value, count in zip(values.tolist(), (counts + 1).tolist(), strict=True):
        for _ in range(count):
            single.observe(value)
    sums = [
        [(s.name, s.labels, pytest.approx(s.value)) for s in child._samples()]
        for child in (many, single)
    ]
    for one, other in zip(*sums, strict=True):
        assert one == other


def test_the_contract_is_consistent() -> None:
    assert len(METRICS) == sum(len(group) for group in GROUPS.values()), "no name twice"
    for metric in METRICS.values():
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert bool(metric.buckets) == (metric.kind == "histogram")
        assert list(metric.buckets) == sorted(set(metric.buckets))
        assert metric.help.endswith((".", "yet.")) and "|" not in metric.help
        assert not {"rid", "request", "user", "session"} & set(metric.labels)
