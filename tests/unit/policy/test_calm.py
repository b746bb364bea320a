"""`calm` says without the streams what `decide` says with them, or nothing."""

from __future__ import annotations

import dataclasses

import pytest

from tokenflow_sgl.contract import CalmPolicy, Mode, Phase
from tokenflow_sgl.policy import WorkingSetConfig, WorkingSetPolicy


@pytest.mark.parametrize("free", [0, 99, 101, 1000])
@pytest.mark.parametrize("promised", [0, 1])
@pytest.mark.parametrize("admission", ["demand", "slo"])
def test_where_all_streams_run_both_say_the_same(
    make_state, make_stream, free, promised, admission
) -> None:
    policy = WorkingSetPolicy(WorkingSetConfig(admission=admission))
    assert isinstance(policy, CalmPolicy)
    rows = [make_stream(Phase.RUNNING, slack=5.0) for _ in range(3)]
    state = make_state(rows, total=1000, free=free)
    memory = state.memory
    kv = dataclasses.replace(memory.device.kv, promised=promised)
    memory = dataclasses.replace(memory, device=dataclasses.replace(memory.device, kv=kv))
    state = dataclasses.replace(state, memory=memory)
    said = policy.calm(memory, state.memo)
    if said is None:
        assert promised or free <= 100
        return
    assert said == policy.decide(state)
    assert said.mode is Mode.IDLE


def test_it_remembers_that_sglang_passed_over_a_newcomer(make_state, make_stream) -> None:
    policy = WorkingSetPolicy()
    waits = make_stream(Phase.WAITING, since=-50.0, prompt=10)
    state = make_state([make_stream(Phase.RUNNING), waits], total=1000, free=900)
    memo = dataclasses.replace(policy.decide(state).memo, decided=False)
    state = make_state([make_stream(Phase.RUNNING)], total=1000, free=900)
    state = dataclasses.replace(state, memo=memo)
    assert policy.calm(state.memory, memo) == policy.decide(state)


def test_a_policy_that_paces_has_to_look(make_state, make_stream) -> None:
    state = make_state([make_stream()], total=1000, free=900)
    assert WorkingSetPolicy(WorkingSetConfig(pace=True)).calm(state.memory, None) is None
