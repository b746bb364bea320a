"""A replay's warm-up burst teaches the server that answers are longer than it allows them to be."""

from __future__ import annotations

from typing import ClassVar

import pytest

from tokenflow_sgl.lab.sim import SimulationError, simulate
from tokenflow_sgl.lab.traces.output_limits import WARM_UP_LIMIT
from tokenflow_sgl.policy.predictors import LimitLengths


class Told(LimitLengths):
    """Notes the ends that it is told of."""

    ends: ClassVar[list[tuple[int, bool]]]

    def ended(self, kind: int, length: int, *, cut_off: bool) -> None:
        """Note it."""
        self.ends.append((length, cut_off))


@pytest.mark.parametrize("burst", [0, 2, 50])
def test_the_predictor_knows_of_it(monkeypatch, trace, device, options, burst) -> None:
    monkeypatch.setattr(Told, "ends", [], raising=False)
    monkeypatch.setattr("tokenflow_sgl.lab.sim.run.make_predictor", lambda name, evidence: Told())
    rows = trace(*[(float(number), 50, 40, 10.0) for number in range(5)])
    simulate(rows, device, options(), warm_up_burst=burst)
    of_burst = [(WARM_UP_LIMIT, True)] * min(burst, 5)
    assert Told.ends == of_burst + [(40, False)] * 5


def test_a_burst_has_no_negative_size(trace, device, options) -> None:
    with pytest.raises(SimulationError, match="warm_up_burst is -1; allowed is 0 or more"):
        simulate(trace((0.0, 50, 40, 10.0)), device, options(), warm_up_burst=-1)
