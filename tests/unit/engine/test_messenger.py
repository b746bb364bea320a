"""What is said of live streams goes in few messages, and each that asks is answered."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from ranks import Ranks
from sglang.srt.managers.tokenizer_control_mixin import _COMMUNICATOR_SPECS

from tokenflow_sgl.engine.frontend.messenger import Messenger
from tokenflow_sgl.engine.stream_messages import Awaited, Heard, StreamChange


def rates(**each: float) -> dict[str, float]:
    return {f"tokenflow_rate:{rid}": rate for rid, rate in each.items()}


def run(manager: Ranks, *asked: tuple[str, float], held: dict[str, int | None]) -> list[Any]:
    async def main() -> list[Any]:
        messenger = Messenger(manager)
        for rid, tokens in held.items():
            messenger.passed_on(rid, tokens)
        answers = await asyncio.gather(
            *(messenger.change(rid, StreamChange(rate)) for rid, rate in asked),
            return_exceptions=True,
        )
        for _ in range(30):
            await asyncio.sleep(0)
        return answers

    return asyncio.run(main())


def test_what_comes_together_goes_together() -> None:
    manager = Ranks(("a", "b", "c"))
    assert run(manager, ("a", 1.0), ("b", 0.0), ("c", 5.0), held={}) == [Heard.YES] * 3
    assert manager.heard == [rates(a=1.0, b=0.0, c=5.0)]


def test_of_several_rates_for_a_stream_the_last_one_holds() -> None:
    manager = Ranks(("a",))
    assert run(manager, ("a", 1.0), ("a", 0.0), ("a", 7.0), held={}) == [Heard.YES] * 3
    assert manager.heard == [rates(a=7.0)]


def test_a_rate_and_a_weight_for_a_stream_both_hold() -> None:
    manager = Ranks(("a",))

    async def main() -> None:
        messenger = Messenger(manager)
        changes = (StreamChange(rate=1.0), StreamChange(weight=3.0), StreamChange(weight=2.0))
        heard = await asyncio.gather(*(messenger.change("a", each) for each in changes))
        assert set(heard) == {Heard.YES}

    asyncio.run(main())
    assert manager.heard == [{"tokenflow_rate:a": 1.0, "tokenflow_weight:a": 2.0}]


def test_each_is_told_whether_its_stream_is_known() -> None:
    manager = Ranks(("a", "c"))
    heard = run(manager, ("a", 1.0), ("b", 2.0), ("c", 3.0), held={})
    assert heard == [Heard.YES, Heard.NO, Heard.YES]
    assert run(Ranks(()), ("a", 1.0), held={}) == [Heard.NO]


def test_ranks_with_streams_of_their_own_hear_of_many_in_one_message() -> None:
    manager = Ranks(("a", "b"), ("c",))
    said = {"a": 1.0, "b": 2.0, "c": 3.0, "gone": 4.0}
    assert run(manager, *said.items(), held={}) == [*[Heard.YES] * 3, Heard.NO]
    assert manager.heard == [rates(**said)]
    one, other = manager.ranks
    assert (one.rate("a"), one.rate("b"), other.rate("c")) == (1.0, 2.0, 3.0)


def test_one_that_has_ended_costs_the_others_no_message() -> None:
    known = tuple(f"s{number}" for number in range(400))
    manager = Ranks(known)
    asked = [*((rid, 5.0) for rid in known), ("gone", 5.0)]
    assert run(manager, *asked, held={}) == [*[Heard.YES] * 400, Heard.NO]
    assert len(manager.heard) == 1


def test_sglang_has_the_way_that_is_taken() -> None:
    """Its managers make these by name, so no row of the ledger can see this one."""
    assert "set_internal_state" in {spec[0] for spec in _COMMUNICATOR_SPECS}


def test_held_text_of_streams_that_have_ended_is_no_matter() -> None:
    manager = Ranks(("a",))
    assert run(manager, ("a", 1.0), held={"gone": 3, "a": None}) == [Heard.YES]
    assert manager.heard[0] == {"tokenflow_passed_on:gone": 3, "tokenflow_passed_on:a": -1}
    assert manager.heard[1:] == [rates(a=1.0)]


def test_a_failure_is_told_and_logged_and_the_next_one_goes(caplog) -> None:
    manager = Ranks(("a",))
    manager.failures = 1

    async def main() -> None:
        messenger = Messenger(manager)
        with pytest.raises(OSError, match="no scheduler"):
            await messenger.change("a", StreamChange(1.0))
        assert await messenger.change("a", StreamChange(2.0)) is Heard.YES

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())
    assert len(caplog.records) == 1
    assert manager.heard == [rates(a=2.0)]


def test_an_asker_who_has_gone_keeps_no_other_from_its_answer() -> None:
    manager = Ranks(("a", "b"))

    async def main() -> None:
        messenger = Messenger(manager)
        gone = asyncio.create_task(messenger.change("a", StreamChange(1.0)))
        stays = asyncio.create_task(messenger.change("b", StreamChange(1.0)))
        await asyncio.sleep(0)
        gone.cancel()
        assert await stays is Heard.YES
        assert gone.cancelled()

    asyncio.run(main())


def test_waits_go_before_all_else_and_only_as_they_stand() -> None:
    """One that is over before it could be told is not told as one that goes on."""
    manager = Ranks(("a",), ("b",))
    weights, short, adapter = Awaited("one"), Awaited("two"), Awaited("three", "lora")

    async def main() -> None:
        messenger = Messenger(manager)
        messenger.awaited(weights, goes_on=True)
        messenger.awaited(short, goes_on=True)
        messenger.awaited(short, goes_on=False)
        messenger.awaited(adapter, goes_on=True)
        assert await messenger.change("b", StreamChange(0.0)) is Heard.YES

    asyncio.run(main())
    awaited, changes = manager.heard
    assert awaited == {
        "tokenflow_awaited:one:": 1,
        "tokenflow_awaited:two:": 0,
        "tokenflow_awaited:three:lora": 1,
    }
    assert changes == rates(b=0.0)
    for rank in manager.ranks:
        streams = rank.table.streams(())
        assert not streams.resting.any()
        assert (streams.next_due <= 4.0).all()


def test_a_stream_that_has_rested_is_told_from_one_that_is_unknown() -> None:
    manager = Ranks(("a",), ("b",))
    for rank in manager.ranks:
        rank.table.rests.longest = 0.5
    assert run(manager, ("b", 0.0), held={}) == [Heard.YES]
    assert run(manager, ("b", 5.0), held={}) == [Heard.YES]
    assert run(manager, ("b", 0.0), ("gone", 0.0), held={}) == [Heard.RESTED, Heard.NO]

    async def both() -> None:
        change = StreamChange(rate=0.0, weight=2.0)
        assert await Messenger(manager).change("b", change) is Heard.RESTED

    asyncio.run(both())
