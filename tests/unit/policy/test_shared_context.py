"""KV of a common beginning is on the device once: it is promised, taken and freed once."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tokenflow_sgl.contract import Phase
from tokenflow_sgl.contract.needs import occupied, shared_once
from tokenflow_sgl.policy import WorkingSetConfig
from tokenflow_sgl.policy.admission import DemandAnswer, admissible
from tokenflow_sgl.policy.exchange import exchange
from tokenflow_sgl.policy.headroom import headroom
from tokenflow_sgl.policy.pacing import room_for_all
from tokenflow_sgl.policy.parking import _load
from tokenflow_sgl.policy.slo_admission import forecast, within_objectives
from tokenflow_sgl.policy.stress import under_stress
from tokenflow_sgl.policy.supply import modelled
from tokenflow_sgl.policy.working_set import WorkingSetPolicy

CONFIG = WorkingSetConfig()
COMMON = 30_000
TOTAL = 100_000


@pytest.fixture
def crowd(make_state, make_stream):
    """Streams of a common beginning and 300 tokens of their own each, of which some run."""

    def make(running: int, waiting: int = 0, *, shared: int = COMMON, **given):
        rows = [
            make_stream(prompt=COMMON + 200, generated=100, shared=shared, expected=400.0, **given)
            for _ in range(running)
        ]
        rows += [
            make_stream(
                Phase.WAITING,
                prompt=COMMON + 200,
                on_device=shared,
                on_host=shared,
                shared=shared,
                expected=400.0,
                arrival=99.0 + 0.001 * place,
                since=100.0,
            )
            for place in range(waiting)
        ]
        free = TOTAL - COMMON - running * 299
        return make_state(rows, total=TOTAL, free=free, host=2 * TOTAL)

    return make


def test_what_streams_share_takes_memory_once(crowd, make_state, make_stream) -> None:
    state = crowd(20)
    every = np.arange(20)
    assert shared_once(state.memory, state.streams) == COMMON
    assert occupied(state.memory, state.streams, every) == (COMMON + 20 * 300, 0)
    plain = make_state([make_stream()] * 3)
    assert shared_once(plain.memory, plain.streams) == 0
    assert occupied(plain.memory, plain.streams, np.arange(3)) == (600, 0)


def test_what_two_computed_at_the_same_time_counts_as_often_as_it_is_there(crowd) -> None:
    state = crowd(4)
    kv = dataclasses.replace(state.memory.kv, free=state.memory.kv.free - COMMON)
    memory = dataclasses.replace(
        state.memory, device=dataclasses.replace(state.memory.device, kv=kv)
    )
    assert shared_once(memory, state.streams) == 2 * COMMON
    none_free = dataclasses.replace(kv, free=0, total=10 * TOTAL)
    memory = dataclasses.replace(memory, device=dataclasses.replace(memory.device, kv=none_free))
    assert shared_once(memory, state.streams) == 4 * COMMON, "others hold the rest"


def test_a_load_under_way_is_not_what_the_others_share(crowd, make_stream, make_state) -> None:
    state = crowd(4)
    rows = [make_stream(prompt=COMMON + 200, generated=100, shared=COMMON)] * 4
    rows += [
        make_stream(Phase.LOADING, prompt=500),
        make_stream(Phase.LOADING, prompt=900, to_load=300),
    ]
    loading = make_state(rows, total=TOTAL, free=state.memory.kv.free - 600)
    assert shared_once(loading.memory, loading.streams) == COMMON


def test_forty_streams_of_one_system_prompt_all_join(crowd) -> None:
    state = crowd(20, 20)
    assert not under_stress(state, CONFIG.cycle), "20 times 300 tokens of 64,000"
    assert len(admissible(state, CONFIG).join) == 20
    assert room_for_all(state)
    apart = crowd(20, 20, shared=0)
    assert under_stress(apart, CONFIG.cycle)
    assert len(admissible(apart, CONFIG).join) == 0
    assert not room_for_all(apart)


def test_all_join_by_objectives(crowd) -> None:
    assert len(within_objectives(crowd(20, 20), CONFIG)) == 20
    assert len(within_objectives(crowd(20, 20, shared=0), CONFIG)) == 0


def test_a_victim_frees_only_what_is_its_own(make_state, make_stream) -> None:
    runs = [
        make_stream(prompt=900, generated=100, slack=500.0, expected=1000.0, shared=900)
        for _ in range(8)
    ]
    waiting = make_stream(Phase.WAITING, prompt=276, admitted=True)

    def preempted(shared: int) -> int:
        chosen = [{**row, "shared": shared} for row in runs]
        state = make_state([*chosen, waiting], total=10_000, free=192)
        return len(exchange(state, CONFIG, DemandAnswer(np.zeros(0, dtype=np.int64))).preempt)

    # 276 and 24 steps of it; 192 are what the eight need to go on.
    assert preempted(900) == 3
    assert preempted(0) == 1


def test_an_emergency_counts_what_is_freed(make_state, make_stream) -> None:
    def preempted(shared: int) -> int:
        rows = [
            make_stream(prompt=990, generated=10, slack=float(place), shared=shared)
            for place in range(8)
        ]
        decision = WorkingSetPolicy(CONFIG).decide(make_state(rows, total=10_000, free=16))
        return len(decision.preempt)

    assert preempted(0) == 1
    assert preempted(980) == 4, "the other four need 96, which are 16 and 20 of each that goes"


def test_a_paused_stream_needs_only_its_own_tokens(make_state, make_stream) -> None:
    paused = make_stream(Phase.PAUSED, prompt=900, generated=100, slack=1.0, shared=900)
    runs = make_stream(prompt=900, generated=100, shared=900)

    def started(**given) -> int:
        state = make_state([runs, {**paused, **given}], total=2000, free=200)
        return len(exchange(state, CONFIG, DemandAnswer(np.zeros(0, dtype=np.int64))).run)

    assert started() == 1
    assert started(shared=0) == 0


def test_more_streams_fit_where_they_share(crowd) -> None:
    state, apart = crowd(20), crowd(20, shared=0)
    assert headroom(state, CONFIG) > 0.0 > headroom(apart, CONFIG)
    shares, alone = _load(state), _load(apart)
    assert shares.mean == alone.mean == COMMON + 300
    assert shares.own == pytest.approx(COMMON / 20 + 300)
    assert alone.own == COMMON + 300
    # A step of three streams costs almost as much as one of many: per token it is dear.
    few = modelled(state, COMMON + 300.0, COMMON + 300.0)
    many = modelled(state, COMMON + 300.0, COMMON / 20 + 300.0)
    assert many.token_cost < few.token_cost
    assert many.speed < few.speed


def test_no_more_streams_are_reckoned_with_than_can_run(make_state, make_stream) -> None:
    state = make_state([make_stream()], rows_limit=4)
    supply = modelled(state, 1000.0, 100.0)
    step = state.costs.token_seconds(4, 4000.0)
    assert supply.token_cost == pytest.approx(step / 4000.0)
    assert supply.speed == pytest.approx(1.0 / step)


def test_the_forecast_gives_back_what_is_their_own(crowd) -> None:
    state = crowd(20)
    streams = dataclasses.replace(state.streams, limit=np.full(20, 101))
    # All end with their next token: 299 tokens of each come back, not the common ones.
    soon = dataclasses.replace(state, streams=streams)
    assert forecast(soon) == state.memory.kv.free - 20
    assert forecast(crowd(20)) == state.memory.kv.free - 64 * 20 - 20
