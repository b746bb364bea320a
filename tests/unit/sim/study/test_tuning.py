"""The search for parameters."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from made_runs.settings import here, row

from tokenflow_sgl.lab.sim import SimulationError
from tokenflow_sgl.lab.sim.study.held_out import halves
from tokenflow_sgl.lab.sim.study.sweep import config_of
from tokenflow_sgl.lab.sim.study.tuning import AT_ONCE, SPACE, allowed, tune
from tokenflow_sgl.lab.traces import TraceError, open_trace
from tokenflow_sgl.policy import WorkingSetConfig

SHIPPED = {"token_throughput": 100.0, "effective_throughput": 50.0, "mean_waiting_s": 5.0}


def made_up(monkeypatch, found: Callable[[dict], dict]) -> None:
    monkeypatch.setattr(
        "tokenflow_sgl.lab.sim.study.tuning.row_of", lambda device, setting: found(setting)
    )


def test_the_first_run_is_as_shipped_and_the_best_is_found(monkeypatch) -> None:
    made_up(monkeypatch, row)
    found = tune((), objective="waiting", trials=40, seed=1, spread=here)
    config = WorkingSetConfig()
    assert {name: found.rows[0][name] for name in SPACE} == {
        name: pytest.approx(getattr(config, name)) for name in SPACE
    }
    assert len(found.rows) == 40
    assert found.setting["eta"] == pytest.approx(0.8, abs=0.05)
    assert found.best["mean_waiting_s"] < found.shipped["mean_waiting_s"]
    assert isinstance(config_of(found.setting).prefill_chunk, int)
    again = tune((), objective="waiting", trials=40, seed=1, spread=here)
    assert again.rows == found.rows


def test_what_costs_throughput_or_waiting_is_out(monkeypatch) -> None:
    assert allowed({**SHIPPED, "token_throughput": 99.0}, SHIPPED)
    assert not allowed({**SHIPPED, "token_throughput": 98.9, "mean_waiting_s": 1.0}, SHIPPED)
    assert not allowed({**SHIPPED, "token_throughput": 150.0, "mean_waiting_s": 5.1}, SHIPPED)
    assert not allowed({**SHIPPED, "effective_throughput": 43.6, "mean_waiting_s": 1.0}, SHIPPED)
    # What is better than shipped loses a tenth of all tokens.
    shipped = WorkingSetConfig().eta
    made_up(
        monkeypatch,
        lambda setting: row(setting, token_throughput=90.0 + 10 * (setting["eta"] >= shipped)),
    )
    found = tune((), objective="waiting", trials=20, seed=1, spread=here)
    assert found.setting == {}
    assert found.best == found.shipped


def test_after_the_first_run_they_come_in_batches_of_one_size(monkeypatch) -> None:
    made_up(monkeypatch, row)
    sizes = []

    def spread(function, shared, jobs):
        sizes.append(len(jobs))
        return here(function, shared, jobs)

    tune((), objective="effective", trials=8, seed=0, spread=spread)
    assert sizes == [1, AT_ONCE, 3]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"objective": "speed"}, "objective is 'speed'; allowed is effective, waiting, p99-ttft"),
        ({"trials": 1}, "trials is 1; allowed is 2 or more"),
    ],
)
def test_what_cannot_be_searched_is_said(given, message) -> None:
    with pytest.raises(SimulationError, match=message):
        tune((), **{"objective": "waiting", "trials": 5, "seed": 0, "spread": here, **given})


def test_a_trace_is_cut_in_time() -> None:
    trace = open_trace("4090-c?limit=9")
    first, second = halves(trace)
    assert (len(first.requests), len(second.requests)) == (4, 5)
    lengths = [request.prompt_tokens for part in (first, second) for request in part.requests]
    assert lengths == [request.prompt_tokens for request in trace.requests]
    assert second.requests[0].arrival_s == 0.0
    with pytest.raises(TraceError, match=r"arrives all at once.* name another trace with --check"):
        halves(open_trace("4090-a?limit=9"))
