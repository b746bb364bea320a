"""Memory as two pools: KV of all tokens, and the last tokens of layers with a sliding window."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenflow_sgl.contract import (
    Cause,
    IntArray,
    Memory,
    Phase,
    Pool,
    State,
    Streams,
    Tier,
    Window,
)
from tokenflow_sgl.contract.needs import (
    Needs,
    Room,
    holds,
    leaves,
    most_streams,
    need,
    needs,
    prompts,
    steps,
    together,
    windows,
)
from tokenflow_sgl.contract.reserve import Growth
from tokenflow_sgl.policy.admission import DemandAnswer, admissible
from tokenflow_sgl.policy.config import WorkingSetConfig
from tokenflow_sgl.policy.exchange import exchange
from tokenflow_sgl.policy.headroom import headroom
from tokenflow_sgl.policy.pacing import room_for_all
from tokenflow_sgl.policy.parking import _load, _rate
from tokenflow_sgl.policy.slo_admission import within_objectives
from tokenflow_sgl.policy.stress import under_stress
from tokenflow_sgl.policy.supply import modelled
from tokenflow_sgl.policy.working_set import WorkingSetPolicy

CONFIG = WorkingSetConfig()
NO_NEWCOMERS = DemandAnswer(np.zeros(0, dtype=np.int64))
WIDE = Window(tokens=100, prefill=64)


def with_windows(state: State, free: int, total: int = 2000, host: int = 8000) -> State:
    """The same state where half of the layers have a window of 100 tokens."""
    memory = state.memory
    return dataclasses.replace(
        state,
        memory=dataclasses.replace(
            memory,
            device=dataclasses.replace(memory.device, window=Pool(total, free)),
            host=dataclasses.replace(memory.host, window=Pool(host)),
            window=WIDE,
        ),
    )


def memory(window: Pool | None = None) -> Memory:
    device = Tier(kv=Pool(1000, 600, 100), window=window or Pool())
    return Memory(device, Tier(), page_size=1, max_running=8, window=WIDE if window else Window())


def waiting(make_state, make_stream, *prompt: int) -> tuple[Streams, IntArray]:
    rows = [make_stream(Phase.WAITING, prompt=each) for each in prompt]
    return make_state(rows).streams, np.arange(len(rows))


def test_without_windows_only_kv_counts(make_state, make_stream) -> None:
    plain, two = memory(), waiting(make_state, make_stream, 10, 20)
    assert need(plain, 300, 300) == (300, 0)
    assert steps(plain, Growth(), 3, 4) == (12, 0)
    assert prompts(plain, *two) == (32, 0)
    assert together(plain, *two) == (30, 0)
    assert Room(plain).fits((500, 0)) and not Room(plain).fits((501, 0))
    assert leaves(plain, (400, 0), 0.1) and not leaves(plain, (401, 0), 0.1)
    assert holds(plain, (800, 0), 0.9) and not holds(plain, (801, 0), 0.9)
    assert most_streams(plain, 100.0, 100.0) == 10.0
    assert most_streams(plain, 100.0, 50.0) == 20.0


def test_a_stream_needs_its_last_tokens_in_the_windows_pool(make_state, make_stream) -> None:
    both = memory(Pool(500, 200))
    assert need(both, 30, 30) == (30, 30)
    assert need(both, 300, 300) == (300, 100)
    assert need(both, 300, 200) == (200, 100), "what it shares are its first tokens"
    assert windows(both, np.array([30.0, 300.0])).tolist() == [30, 100]
    assert steps(both, Growth(), 3, 4) == (12, 12)
    two = waiting(make_state, make_stream, 10, 300)
    assert prompts(both, *two) == (312, 10 + 100 + 64 + 2)
    assert together(both, *two) == (310, 110)


def test_a_prefill_needs_its_step_in_the_windows_pool(make_state, make_stream) -> None:
    rows = [
        make_stream(Phase.WAITING, prompt=30),
        make_stream(Phase.WAITING, prompt=300),
        make_stream(Phase.PAUSED, prompt=60, generated=20),
    ]
    streams, index = make_state(rows).streams, np.arange(3)
    assert needs(memory(), streams, index, (5, 0)).behind(0) == [(35, 0), (305, 0), (85, 0)]
    narrow = dataclasses.replace(memory(Pool(500, 200)), window=Window(tokens=40, prefill=64))
    wanted = needs(narrow, streams, index, (5, 5))
    assert wanted.behind(0) == [(35, 35), (305, 69), (85, 45)]
    assert wanted.behind(2) == [(85, 45)]


def test_windows_take_whole_pages(make_state, make_stream) -> None:
    paged = dataclasses.replace(
        memory(Pool(500, 200)), page_size=16, window=Window(tokens=48, prefill=20)
    )
    assert need(paged, 30, 30) == (30, 32)
    assert need(paged, 300, 300) == (300, 48)
    assert windows(paged, np.array([16, 17, 300])).tolist() == [16, 32, 48]
    assert windows(paged, np.array([16.5])).tolist() == [32]
    assert most_streams(paged, 20.0, 20.0) == 500 / 32
    streams, index = waiting(make_state, make_stream, 10, 300)
    assert needs(paged, streams, index, (0, 0)).behind(0) == [(10, 16), (300, 48)]
    long = dataclasses.replace(paged, window=Window(tokens=48, prefill=70))
    assert needs(long, streams, index, (0, 0)).behind(1) == [(300, 80)]


@settings(max_examples=100, deadline=None)
@given(
    line=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=8),
    free=st.tuples(st.integers(-5, 200), st.integers(-5, 200)),
    rows=st.integers(-1, 9),
    narrow=st.booleans(),
)
def test_the_head_of_a_line_is_what_fits_one_after_the_other(line, free, rows, narrow) -> None:
    if not narrow:
        line, free = [(kv, 0) for kv, _ in line], (free[0], 0)
    room, alone = Room(memory()), Room(memory())
    room.kv, room.window = alone.kv, alone.window = free
    kv, window = (
        (np.array(each, dtype=np.int64) for each in zip(*line, strict=True))
        if line
        else (np.zeros(0, dtype=np.int64),) * 2
    )
    count = room.take_head(Needs(kv, window if narrow else None), rows)
    expected = 0
    for wanted in line[: max(rows, 0)]:
        if not alone.fits(wanted):
            break
        alone.take(wanted)
        expected += 1
    assert (count, room.kv, room.window) == (expected, alone.kv, alone.window)


@pytest.mark.parametrize(("window", "fits"), [(200, True), (201, False)])
def test_it_fits_if_it_fits_every_pool(window, fits) -> None:
    room = Room(memory(Pool(500, 200)))
    assert room.fits((1, window)) is fits
    room.take((1, 100))
    room.give((0, 100))
    assert room.fits((1, window)) is fits
    assert room.lacks((600, 201)) == (600 - 499, 1)


def test_the_pool_that_is_full_first_bounds_the_streams() -> None:
    assert most_streams(memory(Pool(500, 0)), 50.0, 50.0) == 10.0
    assert most_streams(memory(Pool(500, 0)), 200.0, 200.0) == 5.0
    assert most_streams(memory(Pool(300, 0)), 200.0, 200.0) == 3.0


def test_a_full_windows_pool_is_stress(make_state, make_stream) -> None:
    state = make_state([make_stream(Phase.RUNNING, prompt=100, generated=10)], total=100_000)
    assert not under_stress(state, 0.2)
    assert not under_stress(with_windows(state, free=1000), 0.2)
    assert under_stress(with_windows(state, free=199), 0.2)


def test_prompts_that_do_not_fit_the_windows_pool_are_stress(make_state, make_stream) -> None:
    rows = [make_stream(Phase.WAITING, prompt=400, since=1000.0) for _ in range(4)]
    state = make_state(rows, total=100_000)
    needed = 4 * 100 + 64 + 4
    assert not under_stress(state, 1e9)
    assert not under_stress(with_windows(state, free=needed + 200), 1e9)
    assert under_stress(with_windows(state, free=needed + 199), 1e9)


def crowded(make_state, make_stream) -> State:
    """Two run far ahead, and one is paused whose reader is about to stall; KV is plenty."""
    running = [
        make_stream(Phase.RUNNING, prompt=500, generated=50, slack=60.0 + i, since=0.0)
        for i in range(2)
    ]
    return make_state(
        [*running, make_stream(Phase.PAUSED, prompt=500, generated=50, slack=0.1)], total=100_000
    )


def test_a_stream_is_displaced_for_its_window(make_state, make_stream) -> None:
    state = crowded(make_state, make_stream)
    for seen in (state, with_windows(state, free=500)):
        outcome = exchange(seen, CONFIG, NO_NEWCOMERS)
        assert outcome.run == (2,) and not outcome.preempt
    outcome = exchange(with_windows(state, free=120), CONFIG, NO_NEWCOMERS)
    assert outcome.run == (2,)
    assert [p.cause for p in outcome.preempt] == [Cause.EXCHANGE]


def test_and_none_if_that_does_not_free_enough(make_state, make_stream) -> None:
    state = crowded(make_state, make_stream)
    outcome = exchange(with_windows(state, free=-300), CONFIG, NO_NEWCOMERS)
    assert outcome.run == () and outcome.preempt == ()


def test_decode_steps_that_do_not_fit_the_windows_pool_are_an_emergency(
    make_state, make_stream
) -> None:
    rows = [
        make_stream(Phase.RUNNING, prompt=500, generated=50, slack=float(i), since=1000.0)
        for i in range(4)
    ]
    state = make_state(rows, total=100_000)
    policy = WorkingSetPolicy(CONFIG)
    assert policy._emergency(with_windows(state, free=16), []) == ()
    preempted = policy._emergency(with_windows(state, free=15), [])
    assert [p.cause for p in preempted] == [Cause.MEMORY]
    assert preempted[0].slot == int(state.streams.slot[3]), "the one furthest ahead"


def test_newcomers_are_promised_windows_on_device_and_host(make_state, make_stream) -> None:
    rows = [make_stream(Phase.WAITING, prompt=500, expected=100) for _ in range(6)]
    state = make_state(rows, total=100_000, host=100_000)
    for rule in (
        lambda seen: admissible(seen, CONFIG).join,
        lambda s: within_objectives(s, CONFIG),
    ):
        assert len(rule(state)) == 6
        assert len(rule(with_windows(state, free=2000))) == 6
        few = with_windows(state, free=200, total=200, host=122)
        assert len(rule(few)) == 3, "95 % of 322 tokens for windows of 100"


def test_fewer_streams_run_where_their_windows_do_not_fit(make_state, make_stream) -> None:
    rows = [make_stream(Phase.RUNNING, prompt=500, generated=10) for _ in range(8)]
    state = make_state(rows, total=100_000, host=100_000)
    narrow = with_windows(state, free=0, total=400)
    cost, plain = (modelled(each, 500.0, 500.0).token_cost for each in (narrow, state))
    assert cost > plain
    assert _rate(narrow, _load(narrow), 8) < _rate(state, _load(state), 8)
    assert room_for_all(state) and not room_for_all(narrow)
    none_left = with_windows(state, free=0, total=400, host=0)
    assert headroom(none_left, CONFIG) < 0.0 < headroom(state, CONFIG)
