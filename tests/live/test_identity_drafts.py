"""With speculation every token is the one without drafts, and drafts are accepted as often.

How many are accepted depends on the draft model's KV, which is paused, kept on the host and loaded
with the stream's own.
"""

from __future__ import annotations

import pytest
from identity.cases import controls, scenarios
from identity.scenario import Group
from identity.table import SCENARIOS

pytestmark = pytest.mark.engine


@scenarios(Group.DRAFTS)
def test_tokens_are_those_of_the_undisturbed_run(arena, name) -> None:
    arena.check(SCENARIOS[name])


@controls(Group.DRAFTS)
def test_what_is_broken_on_purpose_is_noticed(arena, broken) -> None:
    arena.check_control(broken)
