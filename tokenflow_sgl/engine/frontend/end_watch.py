"""Notices what waits in the front end for streams to end, and tells the scheduler.

SGLang waits for all streams of this process before it changes weights, for those that use an
adapter before it unloads that, and for all before the server ends. Newcomers wait for new weights.
What waits in the scheduler, a flush, it knows itself.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from functools import lru_cache, partial
from typing import Any

from tokenflow_sgl.engine.config import config_of
from tokenflow_sgl.engine.frontend.messenger import messenger_of
from tokenflow_sgl.engine.stream_messages import Awaited


@lru_cache(maxsize=1)
def watch_ends(manager: Any) -> None:
    """From now on the scheduler is told; before its first stream, once for a TokenizerManager."""
    lock, registry = manager.model_update_lock, manager.lora_registry
    lock.acquire_writer = partial(_new_weights, manager, lock.acquire_writer)
    registry.wait_for_unload = partial(_unload, manager, registry.wait_for_unload)


async def _new_weights(manager: Any, original: Callable[[], Awaitable[None]]) -> None:
    await _telling(manager, "", original())


async def _unload(manager: Any, original: Callable[[str], Awaitable[None]], lora_id: str) -> None:
    await _telling(manager, lora_id, original(lora_id))


async def _telling(manager: Any, adapter: str, waiting: Awaitable[None]) -> None:
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
