"""Notices what waits in the front end for streams to end, and tells the scheduler.

SGLang waits for all streams of this process before it changes weights, for those that use an
adapter before it unloads that, and for all before the server ends. Newcomers wait for new weights.
What waits in the scheduler, a flush, it knows itself.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from tokenflow_sgl.engine.config import config_of
from tokenflow_sgl.engine.frontend.messenger import messenger_of
from tokenflow_sgl.engine.sglang.server import Manager
from tokenflow_sgl.engine.stream_messages import Awaited

_managers: list[Any] = []
"""The one of this process, of offline engines the latest."""


def watch_ends(manager: Manager) -> None:
    """From now on the scheduler is told of what waits for this TokenizerManager's streams."""
    if not any(each is manager for each in _managers):
        _managers[:] = [manager]


async def new_weights(original: Callable[[Any], Awaitable[None]], lock: Any) -> None:
    """Around RWLock.acquire_writer, of which SGLang has other ones, too."""
    for manager in _managers:
        if manager.model_update_lock is lock:
            return await _telling(manager, "", original(lock))
    await original(lock)


async def adapter_ends(
    original: Callable[[Any, str], Awaitable[None]], registry: Any, lora_id: str
) -> None:
    """Tell that an adapter waits for its streams; around LoRARegistry.wait_for_unload."""
    for manager in _managers:
        if manager.lora_registry is registry:
            return await _telling(manager, lora_id, original(registry, lora_id))
    await original(registry, lora_id)


async def _telling(manager: Manager, adapter: str, waiting: Awaitable[None]) -> None:
    messenger, wait = messenger_of(manager), Awaited(uuid.uuid4().hex, adapter)
    messenger.awaited(wait, goes_on=True)
    try:
        await waiting
    finally:
        messenger.awaited(wait, goes_on=False)


def server_ends(_result: None, handler: Any, *_args: Any, **_kwargs: Any) -> None:
    """After SignalHandler.sigterm_handler, which runs in the event loop."""
    manager = handler.tokenizer_manager
    if config_of(manager.server_args) is not None:
        messenger_of(manager).awaited(Awaited(uuid.uuid4().hex), goes_on=True)
