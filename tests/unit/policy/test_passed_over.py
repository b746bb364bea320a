"""Which newcomers are left to SGLang's own policy while memory is free."""

from __future__ import annotations

import pytest

from tokenflow_sgl.contract import Mode, Phase
from tokenflow_sgl.policy import WorkingSetConfig, WorkingSetPolicy


@pytest.fixture
def newcomer_with_memory_free(make_state, make_stream):
    """One that waits since so many seconds, beside streams that read far behind."""

    def made(waited: float):
        rows = [make_stream(slack=50.0) for _ in range(3)]
        rows.append(make_stream(Phase.WAITING, prompt=100, since=100.0 - waited))
        return make_state(rows, total=10_000, free=8000)

    return made


def test_readers_decode_beside_the_prompt_of_any_newcomer(newcomer_with_memory_free) -> None:
    decision = WorkingSetPolicy().decide(newcomer_with_memory_free(0.0))
    assert decision.mode is Mode.WORKING_SET
    assert decision.run == (13,)


def test_while_none_waits_sglang_decodes_on(make_state, make_stream) -> None:
    assert WorkingSetPolicy().decide(make_state([make_stream()] * 3)).mode is Mode.IDLE


@pytest.mark.parametrize(("cycles", "mode"), [(0.5, Mode.IDLE), (2.0, Mode.WORKING_SET)])
def test_by_objectives_alone_newcomers_are_left_to_sglang_for_a_cycle(
    newcomer_with_memory_free, cycles, mode
) -> None:
    policy = WorkingSetPolicy(WorkingSetConfig(admission="slo"))
    state = newcomer_with_memory_free(cycles * policy.config.cycle)
    assert policy.decide(state).mode is mode
