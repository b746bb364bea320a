"""The share of the time of restorations in which device and link are busy."""

from __future__ import annotations

from collections import Counter

import pytest

from tokenflow_sgl.engine.restore.utilisation import Utilisation
from tokenflow_sgl.engine.telemetry.prometheus import Recorder


class Counts(Recorder):
    def __init__(self) -> None:
        super().__init__()
        self.seconds: Counter[str] = Counter()

    def count(self, name: str, amount: float, **labels: str) -> None:
        assert amount >= 0.0, "a counter"
        self.seconds[labels.get("resource", name)] += amount  # type: ignore[assignment]


def test_busy_seconds_are_those_between_passes_while_one_is_under_way() -> None:
    counts = Counts()
    busy = Utilisation(counts)
    busy.look(10.0, 9.0, 3.0)  # it begins: what was before does not count
    assert not counts.seconds
    busy.look(11.0, 10.4, 3.2)  # a step until 10.4
    busy.look(12.0, 15.0, 4.2)  # one that goes on
    busy.look(12.0, 15.0, 4.2)
    busy.look(13.0, 11.0, 4.2)  # nothing ran
    assert counts.seconds["restoring_seconds_total"] == pytest.approx(3.0)
    assert counts.seconds["device"] == pytest.approx(1.4)
    assert counts.seconds["link"] == pytest.approx(1.2)


def test_time_without_a_restoration_does_not_count() -> None:
    counts = Counts()
    busy = Utilisation(counts)
    busy.look(10.0, 9.0, 3.0)
    busy.rest()
    busy.look(70.0, 71.0, 5.0)
    busy.look(71.0, 71.0, 5.5)
    assert counts.seconds["restoring_seconds_total"] == pytest.approx(1.0)
    assert counts.seconds["device"] == pytest.approx(1.0)
    assert counts.seconds["link"] == pytest.approx(0.5)
