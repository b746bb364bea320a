"""Sweeps against the stub server: what is under way, what is sent, and what ends them."""

import asyncio
import itertools

import pytest

from tokenflow_sgl.choices import Sessions
from tokenflow_sgl.lab.replay import ReplayError, ReplayOptions, find_target
from tokenflow_sgl.lab.replay.replay_options import TargetError
from tokenflow_sgl.lab.replay.sweep import SweepControl, SweepPlan, sweep
from tokenflow_sgl.lab.report.goal import parse_goal
from tokenflow_sgl.lab.report.load_sweep import LoadKind, read_sweep
from tokenflow_sgl.lab.runs import read_run

KNOWN = ReplayOptions(known_lengths=True)
CLOSED = ReplayOptions(concurrency=3)


def under_way(found):
    """The most requests that ran at one time."""
    moves = [(row["sent_s"], 1) for row in found] + [(row["ended_s"], -1) for row in found]
    return max(itertools.accumulate(move for _, move in sorted(moves)))


def test_so_many_requests_are_under_way(ask, on_stub, rows):
    requests = [ask(1000.0, output=3 + number % 5) for number in range(12)]
    _, run = on_stub(requests, CLOSED)
    found = rows(run)
    assert under_way(found) == 3
    assert [row["scheduled_s"] for row in found[:3]] == [0.0] * 3
    ends = sorted(row["ended_s"] for row in found)
    assert sorted(row["scheduled_s"] for row in found)[3:] == pytest.approx(ends[:9])
    assert run.info.options["concurrency"] == 3
    assert not any(row["warm_up"] for row in found)


def test_a_failure_frees_its_place(ask, on_stub, rows):
    _, run = on_stub([ask(output=4) for _ in range(12)], CLOSED, failures={1: "break", 4: "500"})
    found = rows(run)
    assert sum(row["error"] is not None for row in found) == 2
    assert all(row["sent_s"] is not None for row in found)
    assert under_way(found) == 3


def test_sessions_keep_their_order(ask, on_stub, rows):
    turns = [ask(prompt=20 + 10 * n, session="a", turn=n, think_s=99.0) for n in range(3)]
    _, run = on_stub([*turns, ask(), ask()], ReplayOptions(concurrency=2))
    found = rows(run)
    for before, after in itertools.pairwise(found[:3]):
        assert before["ended_s"] <= after["sent_s"]
    _, run = on_stub(turns, ReplayOptions(concurrency=3, sessions=Sessions.open))
    assert [row["scheduled_s"] for row in rows(run)] == [0.0] * 3


def test_seconds_of_warm_up_are_those_of_sending(ask, on_stub, rows):
    options = ReplayOptions(concurrency=1, warm_up_s=0.15)
    _, run = on_stub([ask(500.0, output=5) for _ in range(8)], options, gap_s=0.02)
    found = rows(run)
    assert [row["warm_up"] for row in found] == [row["scheduled_s"] < 0.15 for row in found]
    assert found[0]["warm_up"] and not found[-1]["warm_up"]


def test_a_virtual_clock_has_no_closed_loop(ask, on_stub):
    device = {"device": "toy", "time_dilation": 1.0, "virtual_time": True}
    with pytest.raises(ReplayError, match=r"virtual clock, .*; got concurrency 3\. Give rates"):
        on_stub([ask()], CLOSED, server_info={"internal_states": [{"emulated_device": device}]})


@pytest.fixture
def swept(stub, trace_of, tmp_path):
    """Sweep on a stub; returns the stub, what came of it, and what was told."""

    def run(requests, plan, options=KNOWN, *, find=find_target, on_end=None, **behaviour):
        told = []

        async def main():
            async with stub.serve(stub.Behaviour(**behaviour)) as (server, url):
                stop = asyncio.Event()

                def ends(load, found):
                    told.append((load, found))
                    if on_end is not None:
                        on_end(stop)

                control = SweepControl(
                    find=lambda: find(url),
                    stop=stop,
                    begins=lambda load, repeat, target: told.append((load, repeat)),
                    ends=ends,
                    observe=lambda snapshot, wall_s: None,
                )
                trace = trace_of(*requests)
                return server, await sweep(trace, options, plan, tmp_path, control)

        return *asyncio.run(main()), told

    return run


PLAN = SweepPlan(
    kind=LoadKind.concurrency, loads=(1.0, 4.0), repeats=2, goals=(parse_goal("ttft<=2"),)
)


def test_points_are_measured_once_before_any_is_repeated(ask, swept, tmp_path):
    server, found, told = swept([ask(output=3)] * 8, PLAN, server_info={"tp_size": 2})
    assert told[::2] == [(1.0, 0), (4.0, 0), (1.0, 1), (4.0, 1)]
    assert read_sweep(tmp_path) == found
    assert [each.runs for each in found.points] == [
        ("concurrency-1-1", "concurrency-1-2"),
        ("concurrency-4-1", "concurrency-4-2"),
    ]
    for each in found.points:
        assert each.requests == 8
        assert each.figures["tokens_per_s"].ci95 is not None
        assert each.mean("tokens_per_s_per_gpu") == pytest.approx(each.mean("tokens_per_s") / 2)
    run = read_run(tmp_path / "concurrency-4-2")
    assert (run.info.name, run.info.options["concurrency"]) == ("small, concurrency 4", 4)
    prompts = [tuple(body["input_ids"]) for _, body in server.bodies]
    assert len(prompts) == len(set(prompts)) == 32, "no run finds prompts of another in a cache"
    assert found.gpus == 2 and not found.interrupted and found.ended_early is None
    assert "without --warm-up" in found.notes[0]


def test_rates_have_the_same_arrivals_stretched(ask, swept, tmp_path):
    plan = SweepPlan(kind=LoadKind.rate, loads=(50.0, 100.0), repeats=2)
    _, found, _ = swept([ask(output=2)] * 8, plan, ReplayOptions(known_lengths=True, seed=5))
    due = {
        name: read_run(tmp_path / name).requests["scheduled_s"].to_pylist()
        for point in found.points
        for name in point.runs
    }
    assert due["rate-50-1"] == pytest.approx([2 * each for each in due["rate-100-1"]])
    assert due["rate-100-1"] != due["rate-100-2"]
    notes = read_run(tmp_path / "rate-100-2").info.trace["notes"]
    assert notes[-1] == "Poisson arrivals at 100 requests/s, seed 6."


def test_a_server_that_goes_ends_the_sweep_and_leaves_what_was_measured(ask, swept, tmp_path):
    asked = []

    async def gone(url):
        asked.append(url)
        if len(asked) > 1:
            raise TargetError(f"no server answers at {url}")
        return await find_target(url)

    _, found, _ = swept([ask(output=3)] * 8, PLAN, find=gone)
    assert [each.load for each in found.points] == [1.0]
    assert found.ended_early.startswith("no server answers at http://127.0.0.1")
    assert read_sweep(tmp_path) == found
    asked.append("before")
    with pytest.raises(TargetError):
        swept([ask()] * 8, PLAN, find=gone)


def test_a_stop_ends_the_sweep(ask, swept, tmp_path):
    _, found, told = swept([ask(output=3)] * 8, PLAN, on_end=asyncio.Event.set)
    assert len(told) == 2
    assert found.interrupted and found.ended_early == "interrupted in run 1 of 4."
    assert read_sweep(tmp_path) == found


def test_an_invalid_run_makes_its_point_invalid(ask, swept):
    _, found, _ = swept([ask(output=3)] * 8, PLAN, failures={8: "500", 9: "500"})
    first, second = found.points
    assert any("Only 6 of 8 requests were served" in each for each in second.invalid)
    assert not any("were served" in each for each in first.invalid)


@pytest.mark.parametrize(
    ("parallel", "gpus"),
    [
        ({}, None),
        ({"tp_size": 2}, 2),
        ({"tp_size": 2, "dp_size": 3, "pp_size": 2}, 12),
        ({"tp_size": 4, "dp_size": 4, "enable_dp_attention": True}, 4),
        ({"tp_size": "2"}, None),
    ],
)
def test_a_server_says_how_many_gpus_it_has(stub, parallel, gpus):
    async def main():
        async with stub.serve(stub.Behaviour(server_info=parallel)) as (_, url):
            return (await find_target(url)).gpus

    assert asyncio.run(main()) == gpus
