"""What waits in the front end for streams to end is told, and that it is over."""

from __future__ import annotations

import asyncio
from functools import partialmethod
from types import SimpleNamespace
from typing import Any

import pytest
from ranks import Ranks
from sglang.srt.lora.lora_registry import LoRARef, LoRARegistry
from sglang.srt.utils.aio_rwlock import RWLock

from tokenflow_sgl.engine.config import ATTRIBUTE, TokenFlowConfig
from tokenflow_sgl.engine.frontend.end_watch import (
    adapter_ends,
    new_weights,
    server_ends,
    watch_ends,
)


class Manager(Ranks):
    """SGLang's TokenizerManager with its own lock and its own adapters."""

    def __init__(self, *, ours: bool = True) -> None:
        super().__init__(("a",))
        self.model_update_lock = RWLock()
        self.adapter = LoRARef(lora_name="tiny", lora_path="somewhere")
        self.lora_registry = LoRARegistry([self.adapter])
        self.server_args = SimpleNamespace(**({ATTRIBUTE: TokenFlowConfig()} if ours else {}))

    def said(self) -> list[tuple[str, float]]:
        """Of each wait the adapter, and whether it goes on."""
        return [(name.split(":")[2], on) for each in self.heard for name, on in each.items()]


@pytest.fixture(autouse=True)
def hooked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As SGLang's registry of hooks does it."""
    for owner, name, hook in (
        (RWLock, "acquire_writer", new_weights),
        (LoRARegistry, "wait_for_unload", adapter_ends),
    ):
        monkeypatch.setattr(owner, name, partialmethod(around, getattr(owner, name), hook))


def around(self: Any, original: Any, hook: Any, *args: Any) -> Any:
    return hook(original, self, *args)


async def a_while() -> None:
    for _ in range(60):
        await asyncio.sleep(0)


def test_new_weights_wait_for_a_stream() -> None:
    async def main() -> None:
        manager = Manager()
        watch_ends(manager)
        watch_ends(manager)  # with each stream
        entered = []

        async def update() -> None:
            async with manager.model_update_lock.writer_lock:
                entered.append(list(manager.said()))

        async with manager.model_update_lock.reader_lock:
            updating = asyncio.create_task(update())
            await a_while()
            assert (manager.said(), entered) == ([("", 1)], [])
        await updating
        await a_while()
        assert manager.said() == [("", 1), ("", 0)]
        assert len({name for each in manager.heard for name in each}) == 1, "it is the same wait"
        # Without a stream there is nothing to wait for: that it is over is all that is told.
        async with manager.model_update_lock.writer_lock:
            pass
        await a_while()
        assert manager.said()[2:] == [("", 0)]

    asyncio.run(main())


def test_an_operator_who_goes_waits_no_more() -> None:
    async def main() -> None:
        manager = Manager()
        watch_ends(manager)
        async with manager.model_update_lock.reader_lock:
            updating = asyncio.create_task(manager.model_update_lock.acquire_writer())
            await a_while()
            updating.cancel()
            with pytest.raises(asyncio.CancelledError):
                await updating
            await a_while()
        assert manager.said() == [("", 1), ("", 0)]

    asyncio.run(main())


def test_an_adapter_waits_for_those_that_use_it() -> None:
    async def main() -> None:
        manager = Manager()
        watch_ends(manager)
        registry: Any = manager.lora_registry
        used = await registry.acquire("tiny")
        assert await registry.unregister("tiny") == used
        unloading = asyncio.create_task(registry.wait_for_unload(used))
        await a_while()
        assert manager.said() == [(used, 1)]
        await registry.release(used)
        await unloading
        await a_while()
        assert manager.said() == [(used, 1), (used, 0)]

    asyncio.run(main())


@pytest.mark.parametrize("ours", [True, False])
def test_a_server_that_ends_waits_to_the_end(ours) -> None:
    async def main() -> None:
        manager = Manager(ours=ours)
        server_ends(None, SimpleNamespace(tokenizer_manager=manager), 15, None)
        await a_while()
        assert manager.said() == ([("", 1)] if ours else [])

    asyncio.run(main())


def test_other_locks_are_none_of_it() -> None:
    async def main() -> None:
        manager = Manager()
        watch_ends(manager)
        async with RWLock().writer_lock:
            await a_while()
        assert manager.said() == []

    asyncio.run(main())
