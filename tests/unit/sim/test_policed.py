"""The policy inside the simulated engine."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tokenflow_sgl.contract import Decision, Mode, Prefill
from tokenflow_sgl.lab.profiles import Link
from tokenflow_sgl.lab.report import figures
from tokenflow_sgl.lab.sim import simulate
from tokenflow_sgl.lab.sim.core import SimulatedCore
from tokenflow_sgl.lab.sim.experience import experienced
from tokenflow_sgl.lab.sim.kv_memory import KVMemory
from tokenflow_sgl.lab.sim.prefixes import Prefixes
from tokenflow_sgl.lab.sim.simulated_streams import SimulatedStreams
from tokenflow_sgl.lab.sim.step import SimulatedDevice
from tokenflow_sgl.lab.traces import TraceRequest
from tokenflow_sgl.policy import WorkingSetConfig, WorkingSetPolicy

BURST = [(0.0, 100, 200, 10.0)] * 12
"""Twelve readers of 10 tokens/s, 3,600 tokens of KV in the end; 1,000 fit."""


# With overlap none comes just when a step ends: which is first would be a matter of rounding.
@pytest.mark.parametrize(("overlap", "late"), [(False, 0.0), (True, 0.003)])
def test_without_stress_nothing_differs_from_stock(
    times_of, trace, device, options, overlap, late
) -> None:
    rows = trace(*[(0.3 * number + late, 50, 40, 10.0) for number in range(20)])
    roomy = options(max_total_tokens=100_000, host_tokens=1000, overlap=overlap)
    ours = simulate(rows, device, roomy, policy="tokenflow")
    stock = simulate(rows, device, roomy, policy="fcfs")
    for index, times in times_of(stock).items():
        assert times_of(ours)[index] == pytest.approx(times)
    assert ours.preempted == 0


def test_the_last_prefill_of_a_burst_lets_no_reader_wait(trace, device, options) -> None:
    # Beside the prefills each reader gets a token as it reads the last one. Computed in one step,
    # the rest of the last prompt would take longer. Nothing is short but the engine's time.
    rows = trace(*[(0.0, 1300, 100, 2.0)] * 12)
    roomy = options(max_total_tokens=100_000, host_tokens=100_000, chunked_prefill_size=4096)
    done = simulate(rows, device, roomy, policy="tokenflow")
    assert done.preempted == 0
    # Not even those of the first prefill, during which the second one is composed.
    assert figures(done.run).readers.stalled_share == 0.0


def test_a_burst_reads_sooner_than_under_stock(times_of, trace, device, options) -> None:
    rows = trace(*BURST)
    ours = simulate(rows, device, options(host_tokens=8000), policy="tokenflow")
    stock = simulate(rows, device, options(), policy="fcfs")

    def last_start(done) -> float:
        return max(times[0] for times in times_of(done).values())

    assert last_start(ours) < 0.8 * last_start(stock)
    assert ours.preempted > 0
    assert ours.resumed == ours.preempted


def test_with_a_host_pool_a_resume_computes_one_token(trace, device, options) -> None:
    done = simulate(trace(*BURST), device, options(host_tokens=8000), policy="tokenflow")
    assert done.recomputed == done.resumed
    without = simulate(trace(*BURST), device, options(), policy="tokenflow")
    assert without.loaded == 0
    if without.preempted:
        assert without.recomputed > without.resumed


def test_with_pages_a_resume_computes_the_last_one_again(trace, device, options) -> None:
    paged = options(host_tokens=8000, page_size=16)
    done = simulate(trace(*BURST), device, paged, policy="tokenflow")
    assert done.resumed < done.recomputed <= 16 * done.resumed


def test_a_simulated_server_has_served_before(device, options) -> None:
    core = SimulatedCore(
        SimulatedStreams([]),
        Prefixes([], {}),
        SimulatedDevice(device),
        options(max_total_tokens=10_000),
    )
    timer = experienced(core)
    costs = timer.costs()
    assert costs.decode_seconds(8, 4000) == pytest.approx(0.01, rel=0.02)
    assert costs.prefill_seconds(1000) == pytest.approx(1.0, rel=0.05)
    assert np.isnan(timer.kv_rate())


def test_the_policy_object_is_the_live_one(trace, device, options, monkeypatch) -> None:
    seen = []
    decide = WorkingSetPolicy.decide

    def spy(self, state):
        decision = decide(self, state)
        seen.append((state, decision))
        return decision

    monkeypatch.setattr(WorkingSetPolicy, "decide", spy)
    config = WorkingSetConfig(cycle=0.5)
    simulate(trace(*BURST), device, options(host_tokens=8000), policy="tokenflow", config=config)
    stressed = [state for state, decision in seen if decision.mode is Mode.WORKING_SET]
    assert stressed
    for state in stressed:
        streams, memory = state.streams, state.memory
        assert (np.diff(streams.slot) > 0).all()
        assert (streams.generated <= streams.expected).all()
        assert 0 <= memory.kv.free <= memory.kv.total


def test_proactive_writes_leave_a_preemption_its_tail(trace, device, options) -> None:
    done = simulate(trace(*BURST), device, options(host_tokens=8000), policy="tokenflow")
    assert done.written >= done.needed > 0
    assert done.tail <= 1
    plain = WorkingSetConfig(write_ahead=False)
    without = simulate(
        trace(*BURST), device, options(host_tokens=8000), policy="tokenflow", config=plain
    )
    assert without.written == 0
    assert without.tail > 1


def test_there_are_no_proactive_writes_without_a_host_pool(trace, device, options) -> None:
    assert simulate(trace(*BURST), device, options(host_tokens=0)).written == 0


def test_copies_are_made_ahead_with_write_back_too(trace, device, options, monkeypatch) -> None:
    waited_for = []
    allocate = KVMemory.allocate

    def watched(memory, tokens) -> int:
        waited_for.append(allocate(memory, tokens))
        return waited_for[-1]

    monkeypatch.setattr(KVMemory, "allocate", watched)
    given = options(host_tokens=8000, hicache_write_policy="write_back")
    ours = simulate(trace(*BURST), device, given, policy="tokenflow")
    assert ours.written > 0
    assert ours.recomputed == ours.resumed > 0
    assert sum(waited_for) == 0, "evictions find the copies"
    stock = simulate(trace(*BURST), device, given, policy="fcfs-hicache")
    assert stock.written == 0
    assert sum(waited_for) > 0


def test_no_stream_waits_for_loads_longer_than_a_step(trace, device, options) -> None:
    slow = dataclasses.replace(device, host_to_device=Link(device.kv_bytes_per_token * 1000.0, 0.0))
    host, plain = options(host_tokens=8000), WorkingSetConfig(load_ahead=False)
    beside = simulate(trace(*BURST), slow, host, policy="tokenflow", known_lengths=True)
    within = simulate(
        trace(*BURST), slow, host, policy="tokenflow", config=plain, known_lengths=True
    )
    assert beside.prefetched > beside.loaded
    assert within.prefetched == 0
    assert beside.run.info.duration_s < within.run.info.duration_s


def test_a_policy_sees_that_a_stream_thinks_and_when_it_stops_but_not_before(
    trace, device, options, monkeypatch
) -> None:
    seen = []
    decide = WorkingSetPolicy.decide

    def spy(self, state):
        seen.append(state.streams)
        return decide(self, state)

    monkeypatch.setattr(WorkingSetPolicy, "decide", spy)
    asked = [TraceRequest(0.0, 50, 60, reasoning_tokens=40, rate=20.0)] * 40
    made = dataclasses.replace(trace(*BURST[:1] * 40), requests=tuple(asked))
    simulate(made, device, options(host_tokens=8000), policy="tokenflow")
    for streams in seen:
        assert (streams.visible == np.maximum(streams.generated - 40, 0)).all()
        assert (streams.thinking == (streams.generated <= 40)).all()
        assert (streams.next_due[streams.thinking] == 0.0).all()
    assert any(streams.thinking.any() and not streams.thinking.all() for streams in seen)


def test_without_proactive_writes_streams_are_loaded_in_parts(
    trace, device, options, monkeypatch
) -> None:
    """Memory comes free copy by copy then, and what is loaded never takes more than that."""
    slow = dataclasses.replace(
        device,
        host_to_device=Link(device.kv_bytes_per_token * 2000.0, 0.0),
        device_to_host=Link(device.kv_bytes_per_token * 4000.0, 0.0),
    )
    seen: list[int] = []
    load = SimulatedCore.load

    def spy(core, stream, tokens, now):
        missing, free = core.missing(stream), core.memory.free
        assert tokens <= free
        ends = load(core, stream, tokens, now)
        assert core.memory.free >= 0
        seen.append(missing - tokens)
        return ends

    monkeypatch.setattr(SimulatedCore, "load", spy)
    rows = trace(*[(0.0, 1500, 600, 10.0)] * 12)
    runs = {}
    for chunks in (False, True):
        seen.clear()
        # Turns so short that a stream leaves before all of its KV has been copied.
        config = WorkingSetConfig(write_ahead=False, load_chunks=chunks, hysteresis=3.0)
        room = options(host_tokens=32_000, max_total_tokens=8000)
        runs[chunks] = simulate(rows, slow, room, policy="tokenflow", config=config)
        assert seen, "the test must prefetch"
        assert any(seen) == chunks
    tokens = {chunks: run.run.tokens.num_rows for chunks, run in runs.items()}
    assert tokens[True] == tokens[False] == 12 * 600


@pytest.mark.parametrize(
    ("gate", "beside"),
    [(Prefill(hold=True), True), (Prefill(hold=True, hold_mixed=True), False)],
    ids=["mixed", "held"],
)
def test_a_mixed_prefill_step_is_held_back_only_where_the_policy_says_so(
    times_of, trace, device, options, monkeypatch, gate, beside
) -> None:
    def decide(self, state):
        waiting = tuple(state.streams.slot[state.streams.waiting].tolist())
        return Decision(Mode.WORKING_SET, admit=waiting, run=waiting, prefill=gate)

    monkeypatch.setattr(WorkingSetPolicy, "decide", decide)
    rows = trace((0.0, 50, 100, 10.0), (0.4, 50, 10, 10.0))
    first, second = times_of(simulate(rows, device, options(), policy="tokenflow")).values()
    assert (second[0] < first[-1]) is beside
