"""Which paused streams a pass looks up, so that their KV is not evicted first."""

from __future__ import annotations

import numpy as np
import pytest

from tokenflow_sgl.contract import Phase
from tokenflow_sgl.lifecycle import PausedCopies, Phases
from tokenflow_sgl.lifecycle.paused_copies import AGAIN, LOOKS


@pytest.fixture
def seen() -> list[int]:
    return []


def paused(count: int) -> Phases:
    phases = Phases(1)
    phases.grow(count)
    for slot in range(count):
        phases.arrive(slot, 0.0)
        phases.move(slot, Phase.RUNNING, 0.0)
        phases.move(slot, Phase.PAUSED, 0.0)
    return phases


def test_only_the_paused_are_looked_up(seen) -> None:
    phases = paused(3)
    phases.move(1, Phase.RUNNING, 0.0)
    PausedCopies(phases, seen.append).look(np.arange(3))
    assert seen == [0, 2]


def test_a_pass_looks_up_a_few_and_each_again_after_a_while(seen) -> None:
    count = 2 * LOOKS + 1
    phases = paused(count)
    copies = PausedCopies(phases, seen.append)
    for expected in (LOOKS, LOOKS, 1, *[0] * (AGAIN - 3), LOOKS):
        copies.look(np.arange(count))
        assert len(seen) == expected
        seen.clear()


def test_where_none_is_paused_no_pass_counts(seen) -> None:
    phases = paused(1)
    copies = PausedCopies(phases, seen.append)
    copies.look(np.arange(1))
    phases.move(0, Phase.RUNNING, 0.0)
    for _ in range(2 * AGAIN):
        copies.look(np.arange(1))
    assert seen == [0]
