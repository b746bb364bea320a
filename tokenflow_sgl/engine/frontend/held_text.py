"""Text that the front end holds back: the scheduler must not take it for read.

Tokens leave the scheduler one by one. Their text may stay in the front end for long: a parser of
tool calls waits until it knows what a text is, bytes that are no UTF-8 yet wait for more. Where
that lasts for some tokens the scheduler is told how far the client has got, once, and once more
when text flows again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec

from tokenflow_sgl.engine.config import config_of
from tokenflow_sgl.engine.frontend.messenger import Messenger, messenger_of
from tokenflow_sgl.engine.frontend.token_deposit import unseen
from tokenflow_sgl.lifecycle.first_text import HELD


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []


_CHUNKS = msgspec.json.Decoder(_Chunk)


def has_text(event: str) -> bool:
    """Whether a server-sent event of a chat has something for the client: text or a tool call."""
    try:
        chunk = _CHUNKS.decode(event.removeprefix("data: ").strip())
    except msgspec.DecodeError:
        return False  # [DONE], an error, an event with another name
    return any(
        each.delta is not None
        and bool(each.delta.content or each.delta.reasoning_content or each.delta.tool_calls)
        for each in chunk.choices
    )


@dataclass(slots=True)
class _Passing:
    """One request: output tokens passed on, characters of them, and whether a hold was told."""

    tokens: int = 0
    characters: int = 0
    told: bool = False


class _Watch:
    """Follows one generate request and tells what of its output is held back.

    Args:
        messenger: Tells the scheduler.
        incremental: Each chunk has its own text only.
    """

    def __init__(self, messenger: Messenger, *, incremental: bool) -> None:
        self._messenger = messenger
        self._incremental = incremental
        self._passing: dict[str, _Passing] = {}

    def passed(self, content: dict[str, Any], *, sent: bool | None) -> None:
        """A chunk was dealt with.

        sent: whether the client got something for it; None: it got the text, as it is.
        """
        meta, text = content.get("meta_info", {}), content.get("text")
        rid, made = meta.get("id"), meta.get("completion_tokens")
        if rid is None or made is None or text is None:
            return  # an embedding, or a server without a tokenizer
        passing = self._passing.setdefault(rid, _Passing())
        if sent is None:
            sent = bool(text) if self._incremental else len(text) > passing.characters
        passing.characters = len(text)
        if sent:
            passing.tokens = made
        else:
            unseen(rid)
        if meta.get("finish_reason") is not None:
            return  # the scheduler forgets it anyway
        if sent and passing.told:
            passing.told = False
            self._messenger.passed_on(rid, None)
        elif not passing.told and made - passing.tokens >= HELD:
            passing.told = True
            self._messenger.passed_on(rid, passing.tokens)


@dataclass(slots=True)
class _Chat:
    """Whether a chat has sent something since its last chunk from the tokenizer manager."""

    sent: bool = False


_chats: dict[int, _Chat] = {}
"""Chats under way, by the identity of their generate requests."""


def watch_generate(
    original: Callable[..., AsyncGenerator[Any, None]],
    manager: Any,
    obj: Any,
    *args: Any,
    **kw: Any,
) -> AsyncIterator[Any]:
    """Around TokenizerManager.generate_request."""
    contents = original(manager, obj, *args, **kw)
    if config_of(manager.server_args) is None or not getattr(obj, "stream", False):
        return contents
    return _watched(contents, manager, obj)


async def _watched(
    contents: AsyncGenerator[Any, None], manager: Any, obj: Any
) -> AsyncGenerator[Any, None]:
    incremental = bool(manager.incremental_streaming_output)
    watch, chat = _Watch(messenger_of(manager), incremental=incremental), _chats.get(id(obj))
    async with aclosing(contents):
        async for content in contents:
            if chat is not None:
                chat.sent = False
            yield content
            # Who asks for the next one has sent what there was to send of this one.
            watch.passed(content, sent=None if chat is None else chat.sent)


def watch_chat(
    original: Callable[..., AsyncGenerator[str, None]],
    serving: Any,
    obj: Any,
    *args: Any,
    **kw: Any,
) -> AsyncIterator[str]:
    """Around OpenAIServingChat._generate_chat_stream, whose parsers may keep text to themselves."""
    events = original(serving, obj, *args, **kw)
    if config_of(serving.tokenizer_manager.server_args) is None:
        return events
    return _marked(events, obj)


async def _marked(events: AsyncGenerator[str, None], obj: Any) -> AsyncGenerator[str, None]:
    chat = _chats[id(obj)] = _Chat()
    try:
        async with aclosing(events):
            async for event in events:
                chat.sent = chat.sent or has_text(event)
                yield event
    finally:
        _chats.pop(id(obj), None)
