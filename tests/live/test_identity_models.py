"""With other kinds of models every token is the one that stock SGLang gives, too."""

from __future__ import annotations

import pytest
from identity.cases import controls, scenarios
from identity.scenario import Group
from identity.table import SCENARIOS

pytestmark = pytest.mark.engine


@scenarios(Group.MODELS)
def test_tokens_are_those_of_the_undisturbed_run(arena, name) -> None:
    arena.check(SCENARIOS[name])


@controls(Group.MODELS)
def test_what_is_broken_on_purpose_is_noticed(arena, broken) -> None:
    arena.check_control(broken)
