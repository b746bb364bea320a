"""The rows of the table as parameters of a test."""

from __future__ import annotations

import pytest

from identity.scenario import Group
from identity.table import CONTROLS, SCENARIOS


def _marks(often: bool) -> list[pytest.MarkDecorator]:
    return [] if often else [pytest.mark.slow]


def scenarios(group: Group) -> pytest.MarkDecorator:
    """As `name`: every scenario of the group."""
    return pytest.mark.parametrize(
        "name",
        [
            pytest.param(each.name, id=each.name, marks=_marks(each.often))
            for each in SCENARIOS.values()
            if each.group is group
        ],
    )


def controls(group: Group) -> pytest.MarkDecorator:
    """As `broken`: every control whose scenario is of the group."""
    return pytest.mark.parametrize(
        "broken",
        [
            pytest.param(name, id=name, marks=_marks(each.often))
            for name, each in CONTROLS.items()
            if SCENARIOS[each.scenario].group is group
        ],
    )
