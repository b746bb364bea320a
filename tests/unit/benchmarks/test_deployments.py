"""benchmarks/deployments: what its tables say of the data, and how they judge the goals."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
OURS = ("compared", "deployed", "deployments_tables")


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(BENCHMARKS / "burst"))
    monkeypatch.syspath_prepend(str(BENCHMARKS / "deployments"))
    yield
    for name in OURS:
        sys.modules.pop(name, None)


@pytest.fixture
def tables(folders: None) -> ModuleType:
    import deployments_tables

    return deployments_tables


def run(**changes: float) -> dict[str, float]:
    plain = {
        "requests": 100.0,
        "ttft_mean": 2.0,
        "ttft_p99": 10.0,
        "stalled_share": 0.2,
        "stall_seconds": 50.0,
        "served_well": 0.9,
        "e2e_mean": 20.0,
        "tbt_p99": 0.1,
        "tokens_per_s": 1000.0,
    }
    return plain | changes


def carried(rate: float, *, monotone: bool = True) -> dict[str, Any]:
    return {"requests_per_s": rate, "monotone": monotone}


def deployment(tables: ModuleType, **changes: float) -> dict[str, Any]:
    """Two settings of SGLang's; tokenflow is as `hrrn` but for the changes."""
    ours = run(ttft_mean=1.0, ttft_p99=8.0, **changes)
    runs = {
        "defaults": run(),
        "hrrn": run(ttft_mean=1.0, ttft_p99=8.0, stalled_share=0.1),
        **dict.fromkeys(tables.HOSTS, ours),
    }
    return {
        "model": "llama3-8b",
        "traffic": "chat",
        "served": "conversations",
        "kv_tokens": 1000,
        "kv_gb": 2.0,
        "capacity": {"defaults": carried(1.0), "hrrn": carried(2.0), "tokenflow": carried(3.0)},
        "loads": dict.fromkeys(tables.LOADS, runs),
    }


def reached(tables: ModuleType, found: dict[str, Any]) -> dict[str, list[str]]:
    """The cells of the table of goals behind their names, without those that say where."""
    lines = tables.verdict_table(found).splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]
    return {row[0]: row[2:5] for row in rows}


def test_goals_are_counted_by_run_and_host(tables: ModuleType) -> None:
    good = deployment(tables, stalled_share=0.01, stall_seconds=1.0)
    better = deployment(tables, stalled_share=0.0, stall_seconds=0.0)
    less = {"tokenflow, host 0.5": run(ttft_mean=0.5, ttft_p99=7.0, stalled_share=0.3)}
    better["loads"] = {
        load: runs | {"tokenflow": runs["tokenflow"] | {"ttft_mean": 0.6}} | less
        for load, runs in better["loads"].items()
    }
    found = reached(tables, {"good": good, "better": better})
    assert found["at most 1 % of the readers stall"] == ["8 of 8", "8 of 8", "4 of 8"]
    assert found["no more readers stall than with stock"] == ["8 of 8", "8 of 8", "4 of 8"]
    assert found["mean TTFT at most 0.6 times the best"] == ["2 of 4", "0 of 4", "2 of 4"]
    assert found["P99 TTFT at most 0.9 times the best"] == ["0 of 4", "0 of 4", "2 of 4"]
    assert found["end to end at most 1.03 times the best"] == ["8 of 8"] * 3
    assert found["columns worse than the best by over 2 %"] == ["2 of 2", "2 of 2", "1 of 2"]


def test_the_farthest_run_is_named(tables: ModuleType) -> None:
    near, far = deployment(tables), deployment(tables, e2e_mean=30.0)
    text = tables.verdict_table({"near": near, "far": far})
    assert "| end to end at most 1.03 times the best | 0.7, 0.9, 1.1, 1.5 | 4 of 8" in text
    assert "| `far` at 0.7: 1.5 |" in text


def test_capacity_is_over_the_best_of_sglangs_own(tables: ModuleType) -> None:
    one, two = deployment(tables), deployment(tables)
    assert tables.capacity_ratio(one) == 1.5
    two["capacity"] = two["capacity"] | {"tokenflow": carried(1.0, monotone=False)}
    found = reached(tables, {"one": one, "two": two})
    assert found["capacity at least 1.3 times the best in the median deployment"][0] == (
        "missed: 1.00"
    )
    assert found["capacity never below the best"][0] == "1 of 2"
    assert "| 1 | 2 | hrrn | 1 (*) | **0.50x** |" in tables.machines_table({"two": two})


def test_only_whole_deployments_are_shown(tables: ModuleType) -> None:
    whole, started = deployment(tables), deployment(tables)
    started["loads"] = {"0.7": started["loads"]["0.7"]}
    both = {"deployments": {"whole": whole, "started": started}}
    assert list(tables.complete(both)) == ["whole"]
    small = [host for host in tables.HOSTS if host != tables.TOKENFLOW]
    few = {
        load: {n: r for n, r in runs.items() if n not in small}
        for load, runs in whole["loads"].items()
    }
    both["deployments"]["few"] = whole | {"loads": few}
    found = tables.complete(both)
    assert list(found) == ["whole", "few"]
    assert "`few`" not in tables.hosts_table(found)
    assert reached(tables, found)["no more readers stall than with stock"] == [
        "8 of 8",
        "4 of 4",
        "4 of 4",
    ]
    assert list(tables.verdicts({"deployments": {}})) == ["No deployment is complete."]


def test_tables_name_what_is_best_and_what_is_worse(tables: ModuleType) -> None:
    found = {"one": deployment(tables, stalled_share=0.15, tokens_per_s=900.0)}
    row = next(line for line in tables.short_table(found).splitlines() if "`one`" in line)
    assert row == (
        "| `one` | 0.7 | 1.00x (0.50x) | 1.00x (0.80x) | 10% (20%) → **15%** | "
        "50 s (50 s) → 50 s | 90% (90%) → 90% | 1.00x (1.00x) | **0.90x** (**0.90x**) |"
    )
    assert "| `chat` | conversations |" in tables.traffic_table(found)
    long = tables.long_table(found)
    assert "| `one` | 1.5 | first text, mean | 2.00 s | 1.00 s | hrrn | 1.00 s | 1.00x |" in long
    assert "| `one` | 1.5 | served well | 90% | 90% | defaults | 90% |" in long


def test_the_page_has_the_tables_of_the_data(tables: ModuleType) -> None:
    data, page = json.loads(tables.DATA.read_text()), tables.PAGE.read_text()
    found = tables.complete(data)
    assert found
    assert data["commit"]
    assert not data["commit"].endswith("-dirty")
    for marker, make in tables.TABLES.items():
        assert f"<!-- {marker} -->\n" in page
        assert tables.between(page, marker, make(found)) == page


def test_deployments_are_of_all_kinds_and_loads_last(folders: None) -> None:
    import deployed

    from tokenflow_sgl.lab.profiles import DEVICES, MODELS
    from tokenflow_sgl.lab.profiles.load import pool_tokens

    chosen = deployed.DEPLOYMENTS
    assert len(chosen) >= 8
    devices = {DEVICES[each.device].title.rpartition(" x ")[2] for each in chosen.values()}
    assert {title.split()[0] for title in devices} == {
        "GeForce",
        *["L40S", "A100", "H100", "H200", "B200"],
    }
    assert {each.traffic for each in chosen.values()} == set(deployed.TRAFFIC)
    for name, each in chosen.items():
        assert name == f"{each.device}-{each.traffic}"
        trace = each.trace()
        longest = max(row.prompt_tokens + row.output_tokens for row in trace.requests)
        assert longest < pool_tokens(DEVICES[each.device], MODELS[each.model])
        visible = [row.output_tokens - row.reasoning_tokens for row in trace.requests]
        reading = sum(
            tokens / row.rate for tokens, row in zip(visible, trace.requests, strict=True)
        ) / len(visible)
        assert each.duration_s > 3 * reading
        assert len(trace.requests) > 200
        assert {row.rate for row in trace.requests} <= {10.0, 15.0, 20.0, 30.0}
        assert any(row.reasoning_tokens for row in trace.requests) == (each.traffic == "thinking")
