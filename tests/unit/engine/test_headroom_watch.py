"""Headroom of the live scheduler: when it looks, and how it gets into /v1/loads."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sglang.srt.managers import load_snapshot
from sglang.srt.managers.load_snapshot import (
    LoadSnapshot,
    QueueMetrics,
    ShmLoadSnapshotReader,
    ShmLoadSnapshotWriter,
)

from tokenflow_sgl.contract import Memory, Pool, State, Tier
from tokenflow_sgl.costs import StepCosts
from tokenflow_sgl.engine.telemetry.headroom_watch import HeadroomWatch
from tokenflow_sgl.engine.telemetry.loads import LoadDecoder, LoadWithHeadroom
from tokenflow_sgl.engine.telemetry.prometheus import Recorder
from tokenflow_sgl.lifecycle.table import StreamTable
from tokenflow_sgl.policy import WorkingSetConfig, make_predictor
from tokenflow_sgl.policy.headroom import headroom


class Told(Recorder):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[float] = []

    def headroom(self, tokens: float, promised: float, wait: float) -> None:
        assert np.isnan(promised) or 0.0 <= promised <= 1.0
        self.told.append(tokens)


@pytest.fixture
def watch():
    recorder = Told()
    return HeadroomWatch(WorkingSetConfig(), recorder), recorder.told


def test_it_looks_once_a_second(watch, make_state, make_stream) -> None:
    looks, told = watch
    state = make_state([make_stream()])
    built = []
    for now in np.arange(0.0, 2.5, 0.1).tolist():
        looks.look(now, 1, lambda: built.append(1) or state)
    assert len(built) == len(told) == 3
    assert looks.tokens == told[0] == round(headroom(state, WorkingSetConfig()))


def test_an_engine_that_has_emptied_is_looked_at_once(watch, make_state, make_stream) -> None:
    looks, told = watch
    looks.look(0.0, 1, lambda: make_state([make_stream()]))
    for _ in range(5):  # the clock stands still
        looks.look(0.1, 0, lambda: make_state([]))
    assert len(told) == 2
    assert told[1] > told[0]
    looks.look(1.2, 1, lambda: make_state([make_stream()]))
    looks.look(1.3, 0, lambda: make_state([]))
    assert len(told) == 4


def test_requests_that_are_gone_are_ahead_of_none(watch, make_state, make_stream) -> None:
    """Each ends before the next look is due; the clock goes on only while they are served."""
    looks, _ = watch
    looks.look(0.0, 0, lambda: make_state([]))
    for now in (0.01, 0.02, 0.03):
        looks.comes(now, 5)
        looks.look(now, 1, lambda: make_state([make_stream()]))
        looks.look(now, 0, lambda: make_state([]))
        [_, ahead, _], *_ = looks.published
        assert ahead == 0.0


def test_what_fails_is_told_once_and_not_known(watch, make_state, caplog) -> None:
    looks, told = watch
    with caplog.at_level(logging.ERROR):
        for now in (0.0, 2.0):
            looks.look(now, 1, lambda: 1 / 0)
    assert len(caplog.records) == 1
    assert looks.tokens is None
    assert looks.promised is None
    assert np.isnan(told).all()
    looks.look(4.0, 0, lambda: make_state([]))
    assert looks.tokens > 0


def test_an_engine_without_streams_has_headroom(watch) -> None:
    looks, _ = watch
    table: StreamTable[object] = StreamTable(make_predictor("learned"))
    memory = Memory(Tier(Pool(1000, 1000)), Tier(), page_size=1, max_running=8)
    costs = StepCosts(decode=(0.01, 0.0, 0.0))
    looks.look(0.0, 0, lambda: State(0.0, table.streams([], writes=True), memory, costs))
    assert looks.tokens == 950
    assert looks.promised == 0.0


@pytest.fixture
def shared(tmp_path):
    """A scheduler's writer and the HTTP server's reader, through real shared memory."""
    path = str(tmp_path / "loads.shm")
    writer = ShmLoadSnapshotWriter(path, 1, 0)
    reader = ShmLoadSnapshotReader(path, 1)
    yield writer, reader
    reader.close()
    writer.close()


@pytest.mark.parametrize("tokens", [1234, -56, None])
def test_headroom_gets_from_the_scheduler_to_the_answer(shared, monkeypatch, tokens) -> None:
    writer, reader = shared
    monkeypatch.setattr(load_snapshot, "snapshot_decoder", LoadDecoder)  # as the registry does it
    writer.write(LoadWithHeadroom(num_waiting_reqs=3, tokenflow_headroom_tokens=tokens))
    answer = reader.read(0).to_dict({"core"})
    assert answer["tokenflow_headroom_tokens"] == tokens
    assert answer["num_waiting_reqs"] == 3


def test_a_reader_that_does_not_know_it_reads_the_rest(shared) -> None:
    writer, reader = shared
    writer.write(LoadWithHeadroom(num_waiting_reqs=3, tokenflow_headroom_tokens=5))
    answer = reader.read(0).to_dict()
    assert "tokenflow_headroom_tokens" not in answer
    assert answer["num_waiting_reqs"] == 3


@pytest.mark.filterwarnings("ignore")  # SGLang's imports warn about third parties
@pytest.mark.parametrize(("promised", "usage"), [(0.25, 0.25), (None, 0.98)])
def test_the_inquirer_adds_paused_streams_and_headroom(monkeypatch, promised, usage) -> None:
    from sglang.srt.managers.scheduler_components.load_inquirer import SchedulerLoadInquirer

    from tokenflow_sgl.engine.telemetry.load_report import inquirer_with_paused

    queues = QueueMetrics(waiting=2, grammar=0, paused=1, retracted=0, prealloc_ready=0)
    plain = LoadSnapshot(
        num_running_reqs=5,
        num_waiting_reqs=2,
        num_total_tokens=10,
        token_usage=0.98,
        gen_throughput=7.0,
        queues=queues,
    )
    monkeypatch.setattr(SchedulerLoadInquirer, "get_loads", lambda self: plain)
    fields = {name: None for name in SchedulerLoadInquirer.__dataclass_fields__}
    held = [SimpleNamespace(seqlen=100), SimpleNamespace(seqlen=50)]
    seen: Any = SimpleNamespace(tokens=42, promised=promised, wait=1.5, published=None)
    asked = inquirer_with_paused(
        SchedulerLoadInquirer(**fields), lambda: [], lambda: held, seen, lambda: ["full"]
    )
    loads = asked.get_loads().to_dict()
    assert loads["tokenflow_headroom_tokens"] == 42
    assert loads["tokenflow_expected_wait_s"] == 1.5
    assert (loads["num_running_reqs"], loads["num_waiting_reqs"]) == (7, 2)
    assert loads["num_total_tokens"] == 160
    assert loads["token_usage"] == usage
    assert loads["gen_throughput"] == 7.0
    assert loads["queues"]["paused"] == 3
