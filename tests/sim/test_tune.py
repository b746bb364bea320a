"""The search for parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tokenflow_sgl.cli.app import app
from tokenflow_sgl.policy import WorkingSetConfig
from tokenflow_sgl.sim import SimulationError
from tokenflow_sgl.sim.sweep import config_of
from tokenflow_sgl.sim.tune import AT_ONCE, SPACE, allowed, tune

SHIPPED = {"token_throughput": 100.0, "mean_waiting_s": 5.0}


def here(function: Callable, shared: object, jobs: Sequence) -> Iterator:
    """Instead of processes."""
    for job in jobs:
        yield function(shared, job)


def made_up(monkeypatch, found: Callable[[dict], dict]) -> None:
    monkeypatch.setattr("tokenflow_sgl.sim.tune.row_of", lambda device, setting: found(setting))


def row(setting: dict, **given: float) -> dict:
    """A run that is better the smaller eta is, down to 0.8."""
    waiting = 1.0 + abs(setting["eta"] - 0.8)
    return {
        "effective_throughput": 10.0,
        "token_throughput": 100.0,
        "mean_ttft_s": 1.0,
        "p99_ttft_s": 2.0,
        "mean_stall_s": waiting - 1.0,
        "mean_waiting_s": waiting,
        **given,
    }


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
    assert allowed({"token_throughput": 99.0, "mean_waiting_s": 5.0}, SHIPPED)
    assert not allowed({"token_throughput": 98.9, "mean_waiting_s": 1.0}, SHIPPED)
    assert not allowed({"token_throughput": 150.0, "mean_waiting_s": 5.1}, SHIPPED)
    # Whoever is better than shipped loses a tenth of all tokens.
    made_up(
        monkeypatch,
        lambda setting: row(setting, token_throughput=90.0 + 10 * (setting["eta"] >= 1)),
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


def test_the_command_prints_flags_and_checks_them_elsewhere(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    done = CliRunner().invoke(
        app,
        [
            *("tune", "--trace", "4090-a", "--limit", "14", "--device", "rtx4090"),
            *("--kv-tokens", "9000", "--hicache-ratio", "8", "--trials", "9"),
            *("--check", "4090-b", "--output", str(tmp_path / "runs.parquet")),
        ],
    )
    assert done.exit_code == 0, done.output
    assert "mean waiting, s" in done.output
    runs = pq.read_table(tmp_path / "runs.parquet")
    assert runs.num_rows == 9
    if "Nothing better" in done.output:
        assert "which was not searched" not in done.output
    else:
        assert "Flags to use: --scheduler tokenflow --tokenflow-eta" in done.output
        assert "4090-b, which was not searched" in done.output


def test_the_command_says_what_is_wrong() -> None:
    done = CliRunner().invoke(app, ["tune", "--trace", "4090-a", "--objective", "speed"])
    assert done.exit_code == 2
    assert "Invalid value for '--objective'" in done.output
