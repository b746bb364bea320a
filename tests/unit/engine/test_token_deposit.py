"""A stream from its deposit: even, in order, complete at the end, and nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import selectors
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.managers.io_struct import EmbeddingReqInput, GenerateReqInput

from tokenflow_sgl.engine.config import ATTRIBUTE, TokenFlowConfig
from tokenflow_sgl.engine.frontend import deposited_stream, held_gauge, token_deposit
from tokenflow_sgl.engine.frontend.held_gauge import HeldGauge, gauge_of
from tokenflow_sgl.engine.frontend.token_deposit import deliver_evenly, interval_of

TICK = 0.0625
"""Seconds between tokens; sums of it are exact."""
DEPOSIT = {"tokenflow_deposit": True, "tokenflow_tbt_slo": TICK}


class Loop(asyncio.SelectorEventLoop):
    """An event loop that does not sleep: its time is that of the next thing to do."""

    now = 0.0

    def __init__(self) -> None:
        loop = self

        class Selector(selectors.SelectSelector):
            def select(self, timeout: float | None = None) -> Any:
                loop.now += timeout or 0.0
                return super().select(0)

        super().__init__(Selector())

    def time(self) -> float:
        return self.now


class Manager:
    """SGLang's, as far as a stream's waiter needs it. A step is a number of tokens or a pause."""

    tokenizer = None
    enable_metrics = False

    def __init__(self, *steps: int | float | Exception, incremental: bool = False, **config: Any):
        self.steps = steps
        self.incremental_streaming_output = incremental
        args = {ATTRIBUTE: TokenFlowConfig(**config), "tokenizer_worker_num": 1}
        self.server_args = SimpleNamespace(**args)
        state = SimpleNamespace(customized_info_accumulated={})
        self.rid_to_state = {"a": state, "b": state}
        self.closed = 0

    async def wait(self, _manager: Any, obj: Any) -> AsyncIterator[dict[str, Any]]:
        made = 0
        try:
            for step in self.steps:
                if isinstance(step, Exception):
                    raise step
                if isinstance(step, float):
                    await asyncio.sleep(step)
                    continue
                made += step
                yield self.chunk(obj.rid, made, step)
                await asyncio.sleep(0)
            yield self.chunk(obj.rid, made, 0, reason={"type": "length"})
        finally:
            self.closed += 1

    def chunk(self, rid: str, made: int, new: int, reason: Any = None) -> dict[str, Any]:
        since = made - new if self.incremental_streaming_output else 0
        ids = list(range(since, made))
        meta = {"id": rid, "completion_tokens": made, "finish_reason": reason}
        return {"text": "".join(f"{n} " for n in ids), "output_ids": ids, "meta_info": meta}

    def stream(self, rid: str = "a", custom: Any = DEPOSIT, **more: Any) -> Any:
        obj = GenerateReqInput(rid=rid, stream=True, sampling_params={"custom_params": custom})
        for name, value in more.items():
            setattr(obj, name, value)
        return deliver_evenly(self.wait, self, obj)


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch) -> Any:
    """No stream is known after a test, no token counted as held."""
    gauge = HeldGauge()
    monkeypatch.setattr(token_deposit, "gauge_of", lambda manager: gauge)
    monkeypatch.setattr(deposited_stream, "local_time", now)
    yield gauge
    assert gauge.tokens == 0
    gc.collect()  # an error and the frame that it was raised in hold each other
    assert not dict(token_deposit._streams)


def run(reading: Callable[[], Any]) -> Any:
    """Read, and find no task that is left when it has been done."""

    async def checked() -> Any:
        found = await reading()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return found

    with asyncio.Runner(loop_factory=Loop) as runner:
        return runner.run(checked())


def read(chunks: Any) -> list[tuple[float, int, Any]]:
    """When each chunk came, how many output tokens there are by then, and the chunk."""

    async def all_of_it() -> list[tuple[float, int, Any]]:
        return [(now(), each["meta_info"]["completion_tokens"], each) async for each in chunks()]

    return run(all_of_it)


def text_of(manager: Manager, got: list[tuple[float, int, Any]]) -> str:
    texts = [chunk["text"] for _, _, chunk in got]
    return "".join(texts) if manager.incremental_streaming_output else texts[-1]


@pytest.mark.parametrize("incremental", [False, True])
@pytest.mark.parametrize("steps", [(1,) * 9, (1, 8), (3, 0, 6)])
def test_one_token_per_interval_and_the_rest_at_the_end(incremental, steps) -> None:
    manager = Manager(*steps, 6.5 * TICK, 2, incremental=incremental)
    got = read(manager.stream)
    tokens = [tokens for _, tokens, _ in got]
    last = got[-1][2]
    assert tokens[:6] == [1, 2, 3, 4, 5, 6]
    assert tokens == sorted(tokens) and tokens[-1] == 11
    assert len(tokens) <= 6 + 1 + 1 + incremental, "a burst, and the end"
    assert got[5][0] >= 5 * TICK
    assert last["meta_info"]["finish_reason"] == {"type": "length"}
    assert [each["meta_info"]["finish_reason"] for _, _, each in got[:-1]] == [None] * (
        len(got) - 1
    )
    assert text_of(manager, got) == "".join(f"{n} " for n in range(11))
    assert manager.closed == 1


def test_without_it_chunks_come_as_they_are() -> None:
    """The control: the same answer, at once."""
    manager = Manager(1, 8, 6.5 * TICK, 2)
    got = read(lambda: manager.stream(custom=None))
    assert [tokens for _, tokens, _ in got] == [1, 9, 11, 11]
    assert got[1][0] < TICK


def test_an_empty_deposit_delivers_at_once() -> None:
    manager = Manager(1, 3.0 * TICK, 1, 0.2 * TICK, 1, 3.0 * TICK)
    moments = [moment / TICK for moment, *_ in read(manager.stream)]
    assert moments[1] == pytest.approx(3.0)
    assert moments[2] == pytest.approx(4.0)


def test_reasoning_takes_no_interval_where_nobody_reads_it() -> None:
    class Thinker(Manager):
        def chunk(self, rid: str, made: int, new: int, reason: Any = None) -> dict[str, Any]:
            chunk = super().chunk(rid, made, new, reason)
            chunk["meta_info"]["reasoning_tokens"] = min(made, 20)
            return chunk

    got = read(Thinker(5, 10, 10, 3.5 * TICK).stream)
    assert [tokens for _, tokens, _ in got[:5]] == [5, 15, 21, 22, 23]
    assert got[2][0] < TICK
    shown = read(Thinker(5, 10, 3.5 * TICK, thinking="shown").stream)
    assert [tokens for _, tokens, _ in shown[:4]] == [1, 2, 3, 4]


def test_a_token_without_text_for_the_client_takes_no_interval() -> None:
    manager = Manager(40, 3.5 * TICK)

    async def reading() -> list[float]:
        moments = []
        async for chunk in manager.stream():
            moments.append(now() / TICK)
            if chunk["meta_info"]["completion_tokens"] <= 10:
                token_deposit.unseen("a")
            token_deposit.unseen("unknown")
        return moments

    moments = run(reading)
    assert moments[9] < 1.0
    assert moments[12] - moments[10] == pytest.approx(2.0)


def test_another_rate_moves_the_interval() -> None:
    manager = Manager(200, 20.0 * TICK)

    async def reading() -> list[float]:
        moments = []
        async for _ in manager.stream():
            moments.append(now() / TICK)
            if len(moments) == 3:
                token_deposit.read_at("a", 0.25 / TICK)
            if len(moments) == 6:
                token_deposit.read_at("a", 2.0 / TICK)
        return moments

    moments = run(reading)
    gaps = [after - before for before, after in itertools.pairwise(moments)]
    assert gaps[:2] == pytest.approx([1.0, 1.0])
    assert gaps[3:5] == pytest.approx([4.0, 4.0])
    assert gaps[6:9] == pytest.approx([0.5] * 3)


def test_a_stream_rests_and_goes_on_when_it_is_told_or_has_rested_for_long(nothing_is_left) -> None:
    manager = Manager(200, 60.0 * TICK, longest_rest=2.0)
    told: list[float] = []

    async def reading() -> list[float]:
        moments = []
        stream = manager.stream()
        async for _ in stream:
            moments.append(now() / TICK)
            if len(moments) == 2:
                token_deposit.read_at("a", 0.0)
                loop = asyncio.get_running_loop()
                loop.call_later(8 * TICK, lambda: token_deposit.read_at("a", 1.0 / TICK))
                loop.call_later(4 * TICK, lambda: told.append(nothing_is_left.tokens))
            if len(moments) == 4:
                token_deposit.read_at("a", 0.0)
                token_deposit.read_at("a", 0.0)
            if len(moments) == 5:
                token_deposit.read_at("a", 0.0)
        return moments

    moments = run(reading)
    assert told == [198]
    # The first rest counts for a second, as the least does, and the third finds nothing left.
    assert moments[2] - moments[1] == pytest.approx(8.0)
    assert moments[3] - moments[2] == pytest.approx(1.0)
    assert (moments[4] - moments[3]) * TICK == pytest.approx(1.0)
    assert moments[5] - moments[4] == pytest.approx(1.0)


def test_an_answer_that_ends_while_it_rests_is_delivered() -> None:
    async def reading() -> list[int]:
        tokens = []
        async for chunk in Manager(9, 2.0 * TICK).stream():
            token_deposit.read_at("a", 0.0)
            tokens.append(chunk["meta_info"]["completion_tokens"])
        return tokens

    assert run(reading) == [1, 9]


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_client_that_goes_leaves_nothing(after, nothing_is_left) -> None:
    manager = Manager(9, 1.0, 9)

    async def reading() -> None:
        stream = manager.stream()
        for _ in range(after):
            await anext(stream)
        assert nothing_is_left.tokens == (9 - after if after else 0)
        await stream.aclose()

    run(reading)
    assert manager.closed == (1 if after else 0)


def test_a_reader_that_is_cancelled_leaves_nothing(nothing_is_left) -> None:
    manager = Manager(9, 5.0)

    async def reading() -> None:
        async def client() -> None:
            async for _ in manager.stream():
                pass

        task = asyncio.create_task(client())
        await asyncio.sleep(2.5 * TICK)
        assert nothing_is_left.tokens == 6
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(reading)
    assert manager.closed == 1


def test_a_chunk_that_comes_with_the_cancellation_is_not_held(nothing_is_left) -> None:
    """SGLang waits in asyncio.wait_for, which loses a cancellation if an output has just come."""

    class Deaf(Manager):
        async def wait(self, _manager: Any, obj: Any) -> AsyncIterator[dict[str, Any]]:
            try:
                yield self.chunk(obj.rid, 9, 9)
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(100.0)
                yield self.chunk(obj.rid, 18, 9)
                await asyncio.sleep(100.0)
            finally:
                self.closed += 1

    manager = Deaf()

    async def reading() -> float:
        stream = manager.stream()
        await anext(stream)
        await stream.aclose()
        return now()

    assert run(reading) < 1.0
    assert manager.closed == 1


def test_what_sglang_raises_reaches_the_caller() -> None:
    manager = Manager(5, 1.5 * TICK, ValueError("disconnected"))

    async def reading() -> list[int]:
        tokens = []
        with pytest.raises(ValueError, match="disconnected"):
            async for chunk in manager.stream():
                tokens.append(chunk["meta_info"]["completion_tokens"])
        return tokens

    assert run(reading) == [1, 2]


def test_a_client_that_is_slow_gets_what_was_due_at_once() -> None:
    async def reading() -> list[int]:
        tokens = []
        async for chunk in Manager(30, 12.0 * TICK).stream():
            tokens.append(chunk["meta_info"]["completion_tokens"])
            if len(tokens) == 2:
                await asyncio.sleep(5.5 * TICK)
        return tokens

    tokens = run(reading)
    assert tokens[:2] == [1, 2] and 6 <= tokens[2] <= 8 and tokens[3] == tokens[2] + 1


def config(**settings: Any) -> TokenFlowConfig:
    return TokenFlowConfig(**settings)


def asked(stream: bool = True, **custom: Any) -> GenerateReqInput:
    return GenerateReqInput(stream=stream, sampling_params={"custom_params": custom})


def test_who_has_a_deposit_and_of_which_interval() -> None:
    on = {"tokenflow_deposit": True}
    assert interval_of(asked(), config()) is None
    assert interval_of(asked(**on), config()) == pytest.approx(0.1)
    assert interval_of(asked(**on, tokenflow_rate=4), config()) == 0.25
    assert interval_of(asked(**on, tokenflow_rate=4, tokenflow_tbt_slo=0.05), config()) == 0.05
    assert interval_of(asked(**on, tokenflow_tbt_slo=2), config()) == 2.0
    assert interval_of(asked(False, **on), config()) is None
    assert interval_of(asked(), config(deposit=True)) == pytest.approx(0.1)
    assert interval_of(asked(tokenflow_rate=20), config(deposit=True)) == 0.05
    assert interval_of(asked(tokenflow_deposit=False), config(deposit=True)) is None
    assert interval_of(asked(tokenflow_class="agent"), config(deposit=True)) is None
    agent = asked(tokenflow_class="agent", **on)
    assert interval_of(agent, config()) == pytest.approx(0.02)
    assert interval_of(GenerateReqInput(stream=True), config()) is None
    assert interval_of(GenerateReqInput(stream=True), config(deposit=True)) == pytest.approx(0.1)
    assert interval_of(EmbeddingReqInput(), config(deposit=True)) is None


def test_answers_with_a_record_of_each_pass_are_not_cut() -> None:
    for name in ("return_hidden_states", "return_routed_experts", "return_indexer_topk"):
        obj = asked(tokenflow_deposit=True)
        setattr(obj, name, True)
        assert interval_of(obj, config()) is None


def test_on_a_virtual_clock_there_is_no_waiting(monkeypatch) -> None:
    monkeypatch.setattr(token_deposit, "current_platform", SimpleNamespace(virtual_time=True))
    assert interval_of(asked(tokenflow_deposit=True), config()) is None


def test_without_the_scheduler_nothing_is_delivered_otherwise() -> None:
    manager = Manager(1, 8)
    manager.server_args = SimpleNamespace()
    assert [tokens for _, tokens, _ in read(manager.stream)] == [1, 9, 9]


def test_a_server_without_metrics_counts_for_itself() -> None:
    gauge = gauge_of(Manager())
    gauge.add(3)
    assert gauge.tokens == 3


def test_a_folder_of_metrics_that_is_gone_keeps_no_stream_from_its_deposit(
    monkeypatch, caplog
) -> None:
    def gone(*_: object) -> None:
        raise FileNotFoundError(2, "No such file or directory", "/tmp/gone/gauge_livesum_7.db")

    monkeypatch.setattr(held_gauge, "make_metric", gone)
    manager = Manager()
    manager.enable_metrics = True
    manager.metrics_collector = SimpleNamespace(labels={"model_name": "m"})
    for _ in range(3):
        gauge = gauge_of(manager)
        gauge.add(3)
    assert gauge.tokens == 9
    assert caplog.text.count("/tmp/gone/gauge_livesum_7.db") == 1
