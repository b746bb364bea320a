"""Where a restoration may go from each of its stages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tokenflow_sgl.engine.restore.restored_request import NEXT_STAGES, Restoration, Stage

ENDS = {Stage.JOINED, Stage.COMPUTED, Stage.DROPPED}


def at(stage: Stage, request: Any = None) -> Restoration:
    return Restoration(request, SimpleNamespace(), stage)


def test_each_stage_is_reached_from_the_first_one_and_leads_to_an_end() -> None:
    assert set(NEXT_STAGES) == set(Stage)
    reached, new = {Stage.ASKED}, {Stage.ASKED}
    while new := {to for each in new for to in NEXT_STAGES[each]} - reached:
        reached |= new
    assert reached == set(Stage)
    assert {each for each, following in NEXT_STAGES.items() if not following} == ENDS


@pytest.mark.parametrize("stage", Stage)
def test_no_other_stage_follows(stage) -> None:
    for to in Stage:
        each = at(stage)
        if to in NEXT_STAGES[stage]:
            each.goes(to)
            assert each.stage is to
        else:
            with pytest.raises(AssertionError, match=f"{to.name} does not follow {stage.name}"):
                each.goes(to)
            assert each.stage is stage


@pytest.mark.parametrize("stage", [each for each in Stage if each not in ENDS])
def test_a_fetch_may_be_dropped_at_any_time(stage) -> None:
    """Where layers are computed, all of them are then, and the request still enters the tree."""
    each = at(stage)
    each.ends()
    assert each.stage is (Stage.SPLIT if stage is Stage.SPLIT else Stage.DROPPED)


@pytest.mark.parametrize("stage", Stage)
def test_what_is_in_its_first_step_enters_the_tree(stage) -> None:
    kv = SimpleNamespace(holds_kv=True)
    request = SimpleNamespace(output_ids=[], kv=kv, finished=lambda: False)
    each = at(stage, request)
    assert each.enters_tree is (stage in (Stage.SPLIT, Stage.COMPUTED))
    request.output_ids.append(1)
    assert not each.enters_tree, "it has by now"
