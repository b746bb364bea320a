"""Sweeps over the policy's parameters."""

from __future__ import annotations

import pytest

from tokenflow_sgl.lab.report import figures
from tokenflow_sgl.lab.sim import SimulationError, simulate
from tokenflow_sgl.lab.sim.study.spread import on_cores
from tokenflow_sgl.lab.sim.study.sweep import Setup, parse_sweep, sweep
from tokenflow_sgl.policy import WorkingSetConfig

BURST = [(0.0, 100, 200, 10.0)] * 10


def test_all_combinations_in_order() -> None:
    assert parse_sweep(["eta=0.8,1", "park=true,false"]) == [
        {"eta": 0.8, "park": True},
        {"eta": 0.8, "park": False},
        {"eta": 1.0, "park": True},
        {"eta": 1.0, "park": False},
    ]
    assert parse_sweep(["band-seconds=2"]) == [{"band_seconds": 2.0}]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["speed=1"], r"sweep is 'speed=1'; allowed is KEY=VALUE.* of eta, burst_eta"),
        (["eta"], "sweep is 'eta'; allowed is KEY=VALUE"),
        (["eta=1", "eta=2"], "sweep has eta twice"),
        (["eta=fast"], "sweep has eta='fast'; allowed is a number"),
        (["park=1"], "sweep has park='1'; allowed is true or false"),
        (["eta=0"], r"sweep: eta is 0\.0; allowed is 0\.1 to 10"),
    ],
)
def test_what_is_no_sweep_is_said(texts, message) -> None:
    with pytest.raises(SimulationError, match=message):
        parse_sweep(texts)


def test_a_row_per_setting_is_what_a_single_run_says(trace, device, options) -> None:
    settings = parse_sweep(["hysteresis=2,10", "prefill-chunk=64"])
    ended = []
    roomy = options(host_tokens=8000)
    with on_cores(2) as spread:
        setup = Setup(trace(*BURST), device, roomy)
        table = sweep(setup, settings, spread=spread, done=lambda: ended.append(1))
    assert len(ended) == 2
    for row, hysteresis in zip(table.to_pylist(), (2.0, 10.0), strict=True):
        config = WorkingSetConfig(hysteresis=hysteresis, prefill_chunk=64)
        alone = figures(simulate(trace(*BURST), device, roomy, config=config).run)
        assert row["hysteresis"] == hysteresis
        assert row["effective_throughput"] == pytest.approx(alone.throughput.effective)
        assert row["mean_stall_s"] == pytest.approx(alone.readers.stall_mean)
        assert row["mean_waiting_s"] == pytest.approx(row["mean_ttft_s"] + row["mean_stall_s"])
