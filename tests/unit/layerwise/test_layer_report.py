"""What is moved and waited for, in metrics."""

from __future__ import annotations

import random
from typing import Any

import pytest
from layerwise_body import MadeUpEngine

from tokenflow_sgl.engine.layerwise import layer_report
from tokenflow_sgl.engine.layerwise.layer_copies import Ticket
from tokenflow_sgl.engine.layerwise.layer_report import LayerReport
from tokenflow_sgl.engine.layerwise.wait_times import WaitTimes
from tokenflow_sgl.engine.telemetry.prometheus import Recorder

LAYERS, PAGE = 4, 2


class Heard(Recorder):
    listens = True

    def __init__(self) -> None:
        self.counted: dict[tuple[str, ...], float] = {}
        self.share = -1.0

    def count(self, name: str, amount: float, **labels: str) -> None:
        key = (name, *labels.values())
        self.counted[key] = self.counted.get(key, 0.0) + amount

    def layers_on_host(self, share: float) -> None:
        self.share = share


class Turns:
    """Other layers in each step."""

    def __init__(self, *layouts: tuple[int, ...]) -> None:
        self._layouts = list(layouts)

    def layouts(self, streams: Any) -> Any:
        return [self._layouts.pop(0)] * streams.rows.size


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(layer_report.time, "monotonic", lambda: now[0])
    return now


def made(planner: Any) -> MadeUpEngine:
    return MadeUpEngine(
        layers=LAYERS, pages=16, ratio=1.0, page=PAGE, chance=random.Random(1), planner=planner
    )


def test_tokens_that_move(clock) -> None:
    engine, heard = made(Turns((), (1, 2), (2,))), Heard()
    report = LayerReport(engine.executor, PAGE, heard)
    engine.copies.seconds = lambda begin, end: None
    row = engine.arrive()
    for new in (8, 1, 1):  # four pages, then five
        assert engine.step({row: new})
    report.look()
    assert heard.counted["layers_moved_tokens_total", "store"] == 2 * 4 * PAGE / LAYERS
    assert heard.counted["layers_moved_tokens_total", "load"] == 5 * PAGE / LAYERS
    assert heard.counted["layers_staged_tokens_total",] == (2 * 4 + 5) * PAGE / LAYERS
    assert heard.share == 1 / LAYERS
    before = dict(heard.counted)
    engine.end(row)
    engine.free_late()
    clock[0] += 0.5
    report.look()
    assert heard.share == 1 / LAYERS, "once a second"
    clock[0] += 0.6
    report.look()
    assert heard.share != heard.share, "nothing has KV"
    assert heard.counted == before, "nothing is counted twice"


def test_without_metrics_nothing_is_put_together(clock) -> None:
    engine = made(Turns(()))
    engine.executor.waits.learn = None
    LayerReport(engine.executor, PAGE, Recorder()).look()


class Slow:
    """Each wait takes a second, which is known when the device has come to it."""

    def __init__(self) -> None:
        self.time, self.reached = 0.0, 0.0

    def wait(self, ticket: Ticket) -> None:
        self.time += 1.0

    def moment(self) -> float:
        return self.time

    def seconds(self, begin: float, end: float) -> float | None:
        return end - begin if end <= self.reached else None


def test_waits_are_added_up_when_they_are_over() -> None:
    copies: Any = Slow()
    waits = WaitTimes(copies)
    assert waits.wait(Ticket(None, None), "staging") == (0.0, 1.0)
    waits.wait(Ticket(None, None), "moves")
    waits.learn()
    assert waits.seconds == {"staging": 0.0, "stores": 0.0, "moves": 0.0}
    copies.reached = 1.0
    waits.learn()
    assert waits.seconds == {"staging": 1.0, "stores": 0.0, "moves": 0.0}
    copies.reached = 2.0
    for _ in range(2):
        waits.learn()
    assert waits.seconds == {"staging": 1.0, "stores": 0.0, "moves": 1.0}


@pytest.mark.parametrize("tokens", [1, 9])
def test_every_wait_of_the_device_is_noted(tokens) -> None:
    engine = made(Turns((), (1, 2, 3, 4), (1, 2, 3, 4)))
    copies, noted = engine.copies, engine.executor.waits.wait
    wait, to_device = copies.wait, copies.to_device
    waits, causes = [], []
    copies.wait = lambda ticket: (waits.append(ticket), wait(ticket))
    # A copy that waits for another one is not the device's business.
    copies.to_device = lambda cells, host, after: to_device(
        cells, host, after and (wait(after), None)[1]
    )
    engine.executor.waits.wait = lambda *how: (causes.append(how[1]), noted(*how))[1]
    row = engine.arrive()
    for _ in range(3):
        assert engine.step({row: tokens})
    assert {*causes} == {"staging", "stores", "moves"}
    assert len(waits) == len(causes)
