"""Carries what the front end has to say of live streams to the scheduler, in few messages.

SGLang has one such message under way at a time, and answers it at the scheduler's next pass. What
comes up meanwhile goes together with the next one, so a thousand changes cost a few passes.
"""

from __future__ import annotations

import asyncio
import logging
from functools import lru_cache
from typing import Any

from tokenflow_sgl.engine.sglang.server import Communicator, Manager
from tokenflow_sgl.engine.stream_messages import (
    Awaited,
    Heard,
    StreamChange,
    alone_message,
    awaited_message,
    changes_message,
    heard_of,
    passed_on_message,
    stands_alone,
)
from tokenflow_sgl.engine.telemetry.sparing import Sparing

logger = logging.getLogger(__name__)
logger.addFilter(Sparing())


class Messenger:
    """The way to the scheduler.

    Args:
        manager: SGLang's TokenizerManager.
    """

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._passed_on: dict[str, int | None] = {}
        self._changes: dict[str, StreamChange] = {}
        self._asked: dict[str, list[asyncio.Future[Heard]]] = {}
        self._awaited: dict[Awaited, bool] = {}
        self._sending: asyncio.Task[None] | None = None

    def passed_on(self, rid: str, tokens: int | None) -> None:
        """Tell how many tokens of a request's output were passed on; None: all that come."""
        self._passed_on[rid] = tokens
        self._send()

    def awaited(self, wait: Awaited, *, goes_on: bool) -> None:
        """Something waits for streams to end, or no longer does."""
        self._awaited[wait] = goes_on
        self._send()

    async def change(self, rid: str, change: StreamChange) -> Heard:
        """Change a request's rate or weight; returns what the scheduler says to that.

        Of several rates for one stream that come up together the last one holds, and so of weights.
        """
        answer = asyncio.get_running_loop().create_future()
        self._changes[rid] = self._changes.get(rid, StreamChange()).then(change)
        self._asked.setdefault(rid, []).append(answer)
        self._send()
        heard: Heard = await answer
        return heard

    async def alone(self, rid: str) -> bool:
        """Whether a scheduler knows the stream, and no other request's id begins like it."""
        message = alone_message(rid)
        return stands_alone(message, await self._ask(message))

    def _send(self) -> None:
        if self._sending is None or self._sending.done():
            self._sending = asyncio.get_running_loop().create_task(self._send_all())

    async def _send_all(self) -> None:
        while self._awaited or self._changes or self._passed_on:
            awaited, self._awaited = self._awaited, {}
            changes, self._changes = self._changes, {}
            asked, self._asked = self._asked, {}
            passed_on, self._passed_on = self._passed_on, {}
            try:
                if awaited:
                    await self._ask(awaited_message(awaited))
                if passed_on:
                    await self._ask(passed_on_message(passed_on))
                for rid, heard in (await self._heard(changes)).items():
                    _answer(asked[rid], heard)
            except Exception as error:
                logger.exception("tokenflow cannot tell the scheduler of live streams")
                for each in asked.values():
                    _answer(each, error)

    async def _heard(self, changes: dict[str, StreamChange]) -> dict[str, Heard]:
        """Send the changes; what the schedulers say of each stream."""
        if not changes:
            return {}
        message = changes_message(changes)
        return heard_of(message, await self._ask(message))

    async def _ask(self, message: Any) -> list[Any]:
        """The schedulers' answers: with data-parallel ranks each has streams of its own.

        SGLang's set_internal_state does the same, but passes on only whether all was understood.
        """
        self._manager.auto_create_handle_loop()
        controls: Any = self._manager
        ask: Communicator = controls.set_internal_state_communicator  # of `Controls`
        return await ask(message)


def _answer(waiting: list[asyncio.Future[Heard]], said: Heard | Exception) -> None:
    for each in waiting:
        if each.done():
            continue  # who asked has gone
        if isinstance(said, Exception):
            each.set_exception(said)
        else:
            each.set_result(said)


@lru_cache(maxsize=1)
def messenger_of(manager: Manager) -> Messenger:
    """A process has one TokenizerManager, and one way from it to the scheduler.

    With several tokenizer workers each is such a process, and SGLang brings each its answers.
    """
    return Messenger(manager)
