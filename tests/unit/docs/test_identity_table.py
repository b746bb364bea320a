"""The table of identity scenarios: whole, without doubles, and what the page says."""

from __future__ import annotations

from collections import Counter

from identity import page
from identity.scenario import Group, Shows
from identity.table import CONTROLS, FEATURES, MODELS, SCENARIOS


def test_the_page_is_what_the_table_gives() -> None:
    old = page.PAGE.read_text()
    assert page.page(old) == old, "run: PYTHONPATH=tests/helpers python -m identity.page"


def test_every_row_says_what_it_proves_and_which_control_is_noticed() -> None:
    assert {each.feature for each in SCENARIOS.values()} == set(FEATURES)
    assert {each.model for each in SCENARIOS.values()} <= set(MODELS)
    assert {each.control for each in SCENARIOS.values()} <= set(CONTROLS)
    assert {each.group for each in SCENARIOS.values()} == set(Group)


def test_every_control_breaks_a_row() -> None:
    for control in CONTROLS.values():
        scenario = SCENARIOS[control.scenario]
        assert control.shows is not Shows.RECOMPUTED or scenario.recomputed is not None
        assert control.shows is not Shows.ACCEPTED or scenario.accepted


def test_no_row_stands_twice() -> None:
    def what(name: str) -> tuple[object, ...]:
        each = SCENARIOS[name]
        rust = "SGLANG_RUST_SERVER" in each.env
        return each.model, each.flags, each.decode, each.drafts, each.policy, rust

    (_, often), *_ = Counter(map(what, SCENARIOS)).most_common(1)
    assert often == 1
