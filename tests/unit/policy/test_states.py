"""Models with recurrent states: no more streams are promised a place than states can be kept."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tokenflow_sgl.contract import Phase, Pool, State
from tokenflow_sgl.contract.needs import states_kept
from tokenflow_sgl.policy.admission_rules import AdmissionRules
from tokenflow_sgl.policy.config import WorkingSetConfig


def with_states(state: State, device: int, host: int) -> State:
    """The same state where so many streams can keep theirs."""
    memory = state.memory
    return dataclasses.replace(
        state,
        memory=dataclasses.replace(
            memory,
            device=dataclasses.replace(memory.device, state=Pool(device)),
            host=dataclasses.replace(memory.host, state=Pool(host)),
        ),
    )


def test_without_states_any_number_is_kept(make_state, make_stream) -> None:
    state = make_state([make_stream()])
    assert states_kept(state.memory) == np.inf
    assert states_kept(with_states(state, 4, 3).memory) == 7


@pytest.mark.parametrize("rule", ["demand", "slo"])
@pytest.mark.parametrize(("kept", "join"), [(8, 6), (5, 3), (3, 1), (2, 0), (1, 0)])
def test_newcomers_join_up_to_the_states_that_are_left(
    make_state, make_stream, rule, kept, join
) -> None:
    rows = [make_stream(Phase.RUNNING), make_stream(Phase.PAUSED)]
    rows += [make_stream(Phase.WAITING, prompt=50, expected=20) for _ in range(6)]
    state = make_state(rows, total=1_000_000, host=1_000_000)
    rules = AdmissionRules(WorkingSetConfig(admission=rule))
    assert len(rules.join(state).join) == 6
    assert len(rules.join(with_states(state, 1, kept - 1)).join) == join
