"""Which loads are part of the next step, and which are prefetched beside the steps."""

from __future__ import annotations

import dataclasses

import pytest

from tokenflow_sgl.contract import Phase, When
from tokenflow_sgl.costs import Links, MeasuredLink, StepCosts
from tokenflow_sgl.policy import WorkingSetConfig, WorkingSetPolicy
from tokenflow_sgl.policy.working_set import WorkingSetMemo

POLICY = WorkingSetPolicy()
JUST_PLANNED = WorkingSetMemo(planned=99.9)


def prefetched(decision) -> tuple[int, ...]:
    return tuple(each.slot for each in decision.restore if each.when is When.AHEAD)


# Decoding beside one stream of 200 tokens takes 8.024 ms; a load of 200 tokens 3 ms.
@pytest.mark.parametrize(
    ("per_token", "started", "loading"),
    [
        (15e-6, (11, 12), (13,)),  # two hide behind the step
        (30e-6, (11,), (12, 13)),  # 6 ms: one
        (90e-6, (), (11, 12, 13)),  # 18 ms: none, they come beside several steps
    ],
)
def test_loads_hide_behind_the_next_step(
    make_state, make_stream, per_token, started, loading
) -> None:
    costs = StepCosts(decode=(0.008, 2e-5, 2e-8), load=(0.0, per_token))
    rows = [make_stream(), *(make_stream(Phase.PAUSED, slack=s) for s in (1.0, 2.0, 3.0))]
    decision = POLICY.decide(make_state(rows, costs=costs))
    assert decision.run == started
    assert prefetched(decision) == loading
    assert decision.memo.plan == (11, 12, 13)


def test_beside_drafts_a_load_hides_behind_its_own_step(make_state, make_stream) -> None:
    """No rows decode in it: one token's prefill takes 2 ms, a load of 200 tokens 3 ms."""
    costs = StepCosts(decode=(0.008, 2e-5, 2e-8), prefill=(0.002, 1e-5, 0.0), load=(0.0, 15e-6))
    rows = [make_stream(), make_stream(Phase.PAUSED, slack=1.0)]
    plain = POLICY.decide(make_state(rows, costs=costs))
    drafts = POLICY.decide(make_state(rows, costs=costs, ahead=8))
    assert (plain.run, prefetched(plain)) == ((11,), ())
    assert (drafts.run, prefetched(drafts)) == ((), (11,))


SLOW = StepCosts(decode=(0.008, 2e-5, 2e-8), load=(0.0, 90e-6))


def test_without_loads_beside_steps_the_first_one_is_waited_for(make_state, make_stream) -> None:
    policy = WorkingSetPolicy(WorkingSetConfig(load_ahead=False))
    rows = [make_stream(), *(make_stream(Phase.PAUSED, slack=s) for s in (1.0, 2.0))]
    decision = policy.decide(make_state(rows, costs=SLOW))
    assert (decision.run, prefetched(decision)) == ((11,), ())
    assert decision.memo.plan == (11, 12)


def test_a_stream_that_has_been_loaded_runs_at_once(make_state, make_stream) -> None:
    rows = [make_stream(), make_stream(Phase.PAUSED, slack=1.0, ready=True)]
    decision = POLICY.decide(make_state(rows, costs=SLOW))
    assert (decision.run, prefetched(decision)) == ((11,), ())


def test_a_loading_stream_stays_in_the_plan(make_state, make_stream) -> None:
    rows = [make_stream(), make_stream(Phase.LOADING, slack=1.0), make_stream(Phase.PAUSED)]
    kept = dataclasses.replace(JUST_PLANNED, plan=(11, 12))
    decision = POLICY.decide(make_state(rows, costs=SLOW, memo=kept))
    assert (decision.run, prefetched(decision)) == ((), (12,))
    assert decision.memo.plan == (11, 12)


def test_where_no_stream_runs_none_waits_for_a_load(make_state, make_stream) -> None:
    rows = [make_stream(Phase.PAUSED, slack=s) for s in (1.0, 2.0)]
    decision = POLICY.decide(make_state(rows, costs=SLOW))
    assert (decision.run, prefetched(decision)) == ((10, 11), ())


def test_a_load_is_judged_by_the_link_while_no_step_has_waited_for_one(
    make_state, make_stream
) -> None:
    costs = dataclasses.replace(SLOW, load=None)
    rows = [make_stream(), make_stream(Phase.PAUSED, slack=1.0)]
    slow = Links(load=MeasuredLink(rate=1000.0))
    assert POLICY.decide(make_state(rows, costs=costs)).run == (11,)
    assert prefetched(POLICY.decide(make_state(rows, costs=costs, links=slow))) == (11,)


def test_newcomers_do_not_wait_for_loads(make_state, make_stream) -> None:
    costs = StepCosts(decode=(0.008, 2e-5, 2e-8), load=(0.0, 90e-6))
    rows = [make_stream(), *(make_stream(Phase.PAUSED, slack=s) for s in (-2.0, -1.0))]
    rows.append(make_stream(Phase.WAITING, admitted=True))
    decision = POLICY.decide(make_state(rows, costs=costs))
    assert (decision.run, prefetched(decision)) == ((13,), (11, 12))


CHUNKS = WorkingSetPolicy(WorkingSetConfig(load_chunks=True))


def parts(decision) -> tuple[int, ...]:
    return tuple(each.part for each in decision.restore if each.when is When.AHEAD)


def test_prefetches_come_as_a_whole_or_in_parts_that_are_worth_a_step(
    make_state, make_stream
) -> None:
    rows = [make_stream(), make_stream(Phase.PAUSED, slack=1.0, prompt=2000)]
    # In 8.024 ms of decoding come 89 tokens at 90 us each, fewer than are worth a copy, or 802.
    for per_token, part in ((90e-6, 256), (10e-6, 802)):
        state = make_state(rows, costs=dataclasses.replace(SLOW, load=(0.0, per_token)))
        assert parts(POLICY.decide(state)) == (0,)
        assert parts(CHUNKS.decide(state)) == (part,)


def test_a_stream_that_is_loaded_in_part_goes_on_by_its_urgency(make_state, make_stream) -> None:
    rows = [
        make_stream(),
        make_stream(Phase.LOADING, slack=2.0, to_load=150),
        make_stream(Phase.PAUSED, slack=1.0),
    ]
    decision = CHUNKS.decide(make_state(rows, costs=SLOW))
    assert prefetched(decision) == (12, 11)
    assert decision.memo.plan == (12, 11)


def test_the_rest_of_a_stream_comes_with_the_step_if_it_hides_there(
    make_state, make_stream
) -> None:
    rows = [make_stream(), make_stream(Phase.LOADING, slack=1.0, to_load=50)]
    decision = CHUNKS.decide(make_state(rows, costs=SLOW))
    assert (decision.run, prefetched(decision)) == ((11,), ())


def test_what_is_loaded_in_part_gives_its_memory_to_a_more_urgent_stream(
    make_state, make_stream
) -> None:
    rows = [
        make_stream(),
        make_stream(Phase.LOADING, slack=9.0, to_load=150),
        make_stream(Phase.PAUSED, slack=1.0),
    ]
    # Room for one of them beside the running stream's reserve.
    decision = CHUNKS.decide(make_state(rows, costs=SLOW, free=300))
    assert prefetched(decision) == (12,)
