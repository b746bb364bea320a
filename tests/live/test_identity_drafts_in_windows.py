"""The same where layers have windows, those for drafts of NEXTN and STANDALONE among them."""

from __future__ import annotations

import pytest
from identity.cases import controls, scenarios
from identity.scenario import Group
from identity.table import SCENARIOS

pytestmark = pytest.mark.engine


@scenarios(Group.DRAFTS_IN_WINDOWS)
def test_tokens_are_those_of_the_undisturbed_run(arena, name) -> None:
    arena.check(SCENARIOS[name])


@controls(Group.DRAFTS_IN_WINDOWS)
def test_what_is_broken_on_purpose_is_noticed(arena, broken) -> None:
    arena.check_control(broken)
