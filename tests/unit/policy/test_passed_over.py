"""Newcomers that SGLang passes over beside free memory do not wait a cycle each."""

from __future__ import annotations

import pytest

from tokenflow_sgl.contract import Mode, Phase
from tokenflow_sgl.policy import WorkingSetConfig, WorkingSetPolicy
from tokenflow_sgl.policy.working_set import WorkingSetMemo

POLICY = WorkingSetPolicy()


@pytest.fixture
def newcomer_with_memory_free(make_state, make_stream):
    """One that waits since so many seconds, beside streams that read far behind."""

    def made(waited: float, memo: object = None):
        rows = [make_stream(slack=50.0) for _ in range(3)]
        rows.append(make_stream(Phase.WAITING, prompt=100, since=100.0 - waited))
        return make_state(rows, total=10_000, free=8000, memo=memo)

    return made


def test_a_newcomer_that_sglang_has_passed_over_is_remembered(newcomer_with_memory_free) -> None:
    early = POLICY.decide(newcomer_with_memory_free(POLICY.config.cycle / 2))
    assert (early.mode, early.memo) == (Mode.IDLE, None)
    late = POLICY.decide(newcomer_with_memory_free(2 * POLICY.config.cycle))
    assert late.mode is Mode.WORKING_SET
    assert late.run == (13,)
    assert late.memo.held_up == 100.0


@pytest.mark.parametrize("decided", [True, False])
@pytest.mark.parametrize(("since", "mode"), [(9.9, Mode.WORKING_SET), (10.1, Mode.IDLE)])
def test_the_next_ones_do_not_wait_for_sglang(
    newcomer_with_memory_free, since, mode, decided
) -> None:
    """For ten seconds; then one is left to it again, which may have memory by then."""
    memo = WorkingSetMemo(held_up=100.0 - since, decided=decided)
    decision = POLICY.decide(newcomer_with_memory_free(0.0, memo))
    assert decision.mode is mode
    # What this policy admits itself says nothing of SGLang's.
    assert decision.memo.held_up == 100.0 - since


def test_by_objectives_alone_newcomers_are_left_to_sglang_for_a_cycle(
    newcomer_with_memory_free,
) -> None:
    policy = WorkingSetPolicy(WorkingSetConfig(admission="slo"))
    state = newcomer_with_memory_free(0.0, WorkingSetMemo(held_up=99.0, decided=False))
    assert policy.decide(state).mode is Mode.IDLE


def test_what_was_held_up_is_remembered_while_nothing_waits(make_state, make_stream) -> None:
    memo = WorkingSetMemo(held_up=95.0, decided=True)
    state = make_state([make_stream()] * 3, memo=memo)
    decision = POLICY.decide(state)
    assert decision.mode is Mode.IDLE
    assert decision.memo == WorkingSetMemo(held_up=95.0, decided=False)


def test_a_newcomer_of_ours_that_waits_is_not_one_that_sglang_has_passed_over(
    newcomer_with_memory_free,
) -> None:
    memo = WorkingSetMemo(held_up=80.0, decided=True)
    decision = POLICY.decide(newcomer_with_memory_free(2 * POLICY.config.cycle, memo))
    assert decision.mode is Mode.WORKING_SET
    assert decision.memo.held_up == 80.0
