"""When the policy steps in at all."""

from __future__ import annotations

import dataclasses

import pytest

from tokenflow_sgl.contract import Growth, Phase
from tokenflow_sgl.costs import StepCosts
from tokenflow_sgl.policy.stress import prefills_stall_readers, under_stress

PATIENCE = 0.2


@pytest.mark.parametrize(
    ("page", "batch", "steps", "tokens"),
    [
        (1, 7, 24, 168),  # a token per row and step
        (16, 7, 1, 112),  # any of the 7 rows may be at the end of its page
        (16, 7, 16, 112),
        (16, 7, 17, 224),  # the 17th step needs a second page
        (64, 3, 24, 192),
        (16, 0, 24, 0),
    ],
)
def test_the_decode_reserve_counts_whole_pages(page, batch, steps, tokens) -> None:
    assert Growth(page).reserve(batch, steps) == tokens


@pytest.mark.parametrize(
    ("page", "per_step", "steps", "tokens"),
    [
        (1, 1.0, 24, 32),  # 8 slots for drafts
        (1, 2.5, 24, 68),
        (1, 2.51, 24, 69),  # 60.24: a whole token more
        (64, 2.5, 24, 128),
    ],
)
def test_with_speculation_a_stream_needs_a_steps_tokens_and_the_slots_of_its_drafts(
    page, per_step, steps, tokens
) -> None:
    growth = Growth(page, per_step, ahead=8)
    assert growth.reserve(1, steps) == tokens
    assert growth.reserve(3, steps) == 3 * tokens
    assert Growth(1, per_step, ahead=8).headroom == growth.tokens(24)


def test_a_state_says_how_its_streams_grow(make_state, make_stream) -> None:
    state = make_state([make_stream()], page=16, ahead=8, tokens_per_step=2.5)
    assert state.growth == Growth(16, 2.5, 8)
    assert make_state([make_stream()]).growth == Growth()


def test_the_slots_of_drafts_are_needed_too(make_state, make_stream) -> None:
    waiting = [make_stream(Phase.WAITING, prompt=100, since=100.0) for _ in range(10)]
    rows = [make_stream(), *waiting]
    assert not under_stress(make_state(rows, total=10_000, free=2010), PATIENCE)
    assert under_stress(make_state(rows, total=10_000, free=2010, ahead=8), PATIENCE)


def test_a_server_without_streams_is_not_under_stress(make_state) -> None:
    assert not under_stress(make_state([]), PATIENCE)


def test_running_streams_with_room_are_no_stress(make_state, make_stream) -> None:
    assert not under_stress(make_state([make_stream()] * 3), PATIENCE)


@pytest.mark.parametrize("phase", [Phase.PAUSED, Phase.DRAINING])
def test_a_preempted_stream_is_stress_however_much_is_free(make_state, make_stream, phase) -> None:
    assert under_stress(make_state([make_stream(phase)], free=9_000), PATIENCE)


# 10 % of 10,000 tokens stay free.
@pytest.mark.parametrize(
    ("free", "promised", "stress"), [(1000, 0, 0), (999, 0, 1), (1100, 101, 1)]
)
def test_running_streams_may_use_nine_tenths(make_state, make_stream, free, promised, stress):
    state = make_state([make_stream()], free=free, promised=promised)
    assert under_stress(state, PATIENCE) is bool(stress)


@pytest.mark.parametrize(
    ("page", "free", "stress"),
    [
        (1, 1402, False),  # two prompts of 200, a page each, and the tenth: 1402
        (1, 1401, True),
        (16, 1432, False),
        (16, 1431, True),
    ],
)
def test_waiting_prompts_must_fit_beside_the_tenth(make_state, make_stream, page, free, stress):
    waiting = make_stream(Phase.WAITING, prompt=200, since=100.0)
    state = make_state([make_stream(), waiting, waiting], free=free, page=page)
    assert under_stress(state, PATIENCE) is stress


@pytest.mark.parametrize(("since", "stress"), [(99.9, False), (99.7, True)])
def test_waiting_beyond_patience_is_stress(make_state, make_stream, since, stress) -> None:
    rows = [make_stream(Phase.WAITING, since=since), make_stream(Phase.WAITING, since=100.0)]
    assert under_stress(make_state(rows), PATIENCE) is stress


@pytest.mark.parametrize(("limit", "stress"), [(3, False), (2, True)])
def test_more_streams_than_rows_is_stress(make_state, make_stream, limit, stress) -> None:
    rows = [make_stream(), make_stream(), make_stream(Phase.WAITING, since=100.0)]
    assert under_stress(make_state(rows, rows_limit=limit), PATIENCE) is stress


def test_full_rows_without_anybody_waiting_are_no_stress(make_state, make_stream) -> None:
    assert not under_stress(make_state([make_stream()] * 2, rows_limit=2), PATIENCE)


def test_patience_is_the_callers(make_state, make_stream) -> None:
    state = make_state([make_stream(Phase.WAITING, since=99.0)])
    assert under_stress(state, patience=0.5)
    assert not under_stress(dataclasses.replace(state, now=99.4), patience=0.5)


def test_streams_without_readers_are_sglangs_business(make_state, make_stream) -> None:
    unread = make_stream(Phase.PAUSED, streaming=False)
    assert not under_stress(make_state([unread] * 3, free=0), PATIENCE)
    assert under_stress(make_state([unread, make_stream()], free=0), PATIENCE)


@pytest.mark.parametrize(
    ("decided", "promised", "stress"), [(True, 300, True), (False, 300, False), (True, 0, False)]
)
def test_stress_lasts_until_the_prefill_under_way_has_ended(
    make_state, make_stream, decided, promised, stress
) -> None:
    prefilled = make_stream(generated=0, prompt=400)
    state = make_state([make_stream(), prefilled], promised=promised)
    assert under_stress(state, PATIENCE, decided) is stress


# ---- prefills beside readers, however much is free ---------------------------------------------
# A prefill of 1,000 tokens takes 4 + 60 + 1 ms, the decode step after it 8 + 0.02 + 0.004 ms.

PREFILL, STEP = 0.0645, 0.008024


def newcomer(make_stream, prompt=1000):
    return make_stream(Phase.WAITING, prompt=prompt, since=100.0)


@pytest.mark.parametrize(("slack", "stall"), [(-3.0, 1), (0.0724, 1), (0.0727, 0), (60.0, 0)])
def test_a_reader_must_have_text_for_the_prefills_that_wait(
    make_state, make_stream, slack, stall
) -> None:
    state = make_state([make_stream(slack=slack), newcomer(make_stream)])
    assert state.prefill_seconds.sum() + state.decode_seconds == pytest.approx(PREFILL + STEP)
    assert not under_stress(state, PATIENCE)
    assert prefills_stall_readers(state) is bool(stall)


def test_all_prompts_count_and_what_is_left_of_the_one_under_way(make_state, make_stream) -> None:
    reader = make_stream(slack=0.1)
    begun = make_stream(generated=0, prompt=2000)
    assert not prefills_stall_readers(make_state([reader, newcomer(make_stream)]))
    assert prefills_stall_readers(make_state([reader] + [newcomer(make_stream)] * 2))
    assert not prefills_stall_readers(make_state([reader, begun], promised=1000))
    both = [reader, begun, newcomer(make_stream)]
    assert prefills_stall_readers(make_state(both, promised=1000))


def test_the_reader_with_the_least_text_decides(make_state, make_stream) -> None:
    rows = [make_stream(slack=9.0), make_stream(slack=0.01), newcomer(make_stream)]
    assert prefills_stall_readers(make_state(rows))


def test_without_a_prefill_there_is_nothing_to_do(make_state, make_stream) -> None:
    assert not prefills_stall_readers(make_state([make_stream(slack=-1.0)] * 2))


def test_a_newcomer_alone_gets_the_whole_engine(make_state, make_stream) -> None:
    """The one in its prefill has no text that could run out, and needs no short steps."""
    begun = make_stream(generated=0, prompt=2000)
    assert not prefills_stall_readers(make_state([begun, newcomer(make_stream)], promised=1000))


def test_only_readers_that_mind_count(make_state, make_stream) -> None:
    unread = make_stream(slack=0.0, streaming=False)
    thinks = make_stream(slack=0.0, thinking=True)
    paused = make_stream(Phase.PAUSED, slack=0.0)
    tolerant = make_stream(slack=0.0, tolerance=5.0)
    for row in (unread, thinks, paused, tolerant):
        assert not prefills_stall_readers(make_state([row, newcomer(make_stream)]))


def test_a_tbt_objective_counts_as_unread_text_does(make_state, make_stream) -> None:
    strict = make_stream(slack=9.0, tbt_slo=0.05)
    assert prefills_stall_readers(make_state([strict, newcomer(make_stream)]))
    assert not prefills_stall_readers(make_state([strict, newcomer(make_stream, prompt=100)]))


def test_prefills_of_unknown_cost_are_sglangs_business(make_state, make_stream) -> None:
    rows = [make_stream(slack=0.0), newcomer(make_stream)]
    assert not prefills_stall_readers(make_state(rows, costs=StepCosts()))


@pytest.mark.parametrize(
    ("computed", "promised", "prompt", "stall"),
    [
        (1, 0, 200, False),  # 0.024 s until the next token, read for 0.1 s
        (1, 0, 2000, True),
        (0, 0, 2000, False),
        (1, 2000, 10, False),  # it is the one whose prefill goes on
        (2, 2000, 10, True),
    ],
)
def test_readers_whose_first_text_is_being_computed_count(
    make_state, make_stream, computed, promised, prompt, stall
) -> None:
    new = [make_stream(generated=0, visible=0) for _ in range(computed)]
    rows = [*new, make_stream(Phase.WAITING, prompt=prompt)]
    assert prefills_stall_readers(make_state(rows, free=9_000, promised=promised)) is stall
    quiet = [make_stream(generated=0, visible=0, streaming=False) for _ in range(computed)]
    assert not prefills_stall_readers(make_state([*quiet, rows[-1]], promised=promised))
