"""What streams begin with in common, against plain counts over strings of ten-token letters."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenflow_sgl.contract import Beginnings
from tokenflow_sgl.contract.beginnings import HeldBeginnings

OWN = 7
"""Tokens of each stream behind what it begins with."""


def alike(prompts: list[str]) -> Beginnings:
    """Each letter is a stretch; those without any are not among them."""
    names: dict[str, int] = {}
    paths = [
        [names.setdefault(prompt[: end + 1], len(names)) for end in range(len(prompt))]
        for prompt in prompts
    ]
    index = [i for i, prompt in enumerate(prompts) if prompt]
    return Beginnings(
        np.array(index, dtype=np.int64),
        np.array([len(paths[i]) for i in index], dtype=np.int64),
        np.array([place for i in index for place in paths[i]], dtype=np.int64),
        np.array([10 for i in index for _ in paths[i]], dtype=np.int64),
    )


def union(prompts: list[str], some: list[int]) -> int:
    """Tokens of memory that these streams take together."""
    stretches = {prompts[i][: end + 1] for i in some for end in range(len(prompts[i]))}
    return 10 * len(stretches) + OWN * len(some)


def held(prompts: list[str], holds: list[int]) -> HeldBeginnings:
    length = np.array([10 * len(prompt) + OWN for prompt in prompts], dtype=np.int64)
    return HeldBeginnings(alike(prompts), length, np.isin(np.arange(len(prompts)), holds))


PROMPTS = st.lists(st.text("ab", max_size=4), min_size=1, max_size=7)


def test_what_one_takes_depends_on_who_is_there() -> None:
    there = held(["aaa", "aab", "x"], [])
    assert there.take(0) == 30 + OWN
    assert there.take(1) == 10 + OWN
    assert there.give(0) == 10 + OWN
    assert there.give(1) == 30 + OWN, "it was the last one"
    assert there.take(2) == 10 + OWN


@given(prompts=PROMPTS, data=st.data())
def test_what_is_taken_and_given_is_what_changes(prompts, data) -> None:
    here: set[int] = set()
    there = held(prompts, [])
    for _ in range(12):
        index = data.draw(st.integers(0, len(prompts) - 1))
        before = union(prompts, sorted(here))
        changed = there.give(index) if index in here else there.take(index)
        here ^= {index}
        assert changed == abs(union(prompts, sorted(here)) - before)


@given(prompts=PROMPTS, data=st.data())
def test_the_fewest_that_free_enough_leave_together(prompts, data) -> None:
    some = st.sets(st.integers(0, len(prompts) - 1))
    here, may = sorted(data.draw(some)), data.draw(some)
    wanted = data.draw(st.integers(1, 80))
    found = held(prompts, here).together(np.isin(np.arange(len(prompts)), list(may)), wanted)
    families = [
        [i for i in here if prompts[i].startswith(name)]
        for name in {prompts[i][: end + 1] for i in here for end in range(len(prompts[i]))}
    ]
    whole = union(prompts, here)
    good = [
        family
        for family in families
        if may.issuperset(family)
        and whole - union(prompts, [i for i in here if i not in family]) >= wanted
    ]
    assert bool(found) == bool(good)
    if found:
        assert sorted(found) in good
        assert len(found) == min(map(len, good))


@pytest.mark.parametrize("chosen", [[0, 2], [3, 1], [], [4]])
def test_some_of_them_are_numbered_anew(chosen) -> None:
    prompts = ["ab", "abc", "", "x", "xy"]
    found = alike(prompts).among(np.array(chosen, dtype=np.int64))
    named = alike(prompts)
    paths = {
        int(i): named.places[named.starts[k] : named.starts[k + 1]].tolist()
        for k, i in enumerate(named.index)
    }
    of_each = {
        int(i): found.places[found.starts[k] : found.starts[k + 1]].tolist()
        for k, i in enumerate(found.index)
    }
    assert of_each == {new: paths[old] for new, old in enumerate(chosen) if old in paths}
