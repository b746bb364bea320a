"""Streams are paused every few steps, and every token is the one that stock SGLang gives.

The scenarios are rows of `identity.table`; so are those of the other files `test_identity_*`.
"""

from __future__ import annotations

import pytest
from identity.cases import controls, scenarios
from identity.scenario import Group
from identity.table import SCENARIOS
from servers.fixtures import COLD

pytestmark = pytest.mark.engine


@scenarios(Group.PLAIN)
def test_tokens_are_those_of_the_undisturbed_run(arena, name) -> None:
    arena.check(SCENARIOS[name])


@controls(Group.PLAIN)
def test_what_is_broken_on_purpose_is_noticed(arena, broken) -> None:
    arena.check_control(broken)


@pytest.mark.slow
def test_a_server_that_starts_as_users_start_it_says_the_same(start, prompts, reference) -> None:
    """The reference comes of a fork of a process that has SGLang imported."""
    with start("--max-total-tokens", "4000", launcher=COLD) as served:
        assert [served.outputs([prompt])[0] for prompt in prompts] == reference
