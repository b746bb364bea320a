"""Text that the front end holds back: the scheduler must not take it for read.

Tokens leave the scheduler one by one. Their text may stay in the front end for long: a parser of
tool calls waits until it knows what a text is, bytes that are no UTF-8 yet wait for more. Where
that lasts for some tokens the scheduler is told how far the client has got, once, and once more
when text flows again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tokenflow_sgl.engine.config import config_of
from tokenflow_sgl.engine.frontend.end_watch import watch_ends
from tokenflow_sgl.engine.frontend.held_output import IDS
from tokenflow_sgl.engine.frontend.messenger import Messenger, messenger_of
from tokenflow_sgl.engine.frontend.token_deposit import unseen
from tokenflow_sgl.engine.frontend.token_texts import TokenTexts
from tokenflow_sgl.engine.frontend.unsent_text import UnsentText
from tokenflow_sgl.engine.sglang.server import Manager
from tokenflow_sgl.lifecycle.first_text import HELD


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct):
    function: _Function | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []


_CHUNKS = msgspec.json.Decoder(_Chunk)


def texts_of(event: str) -> list[str]:
    """What a server-sent event of a chat has for the client: text, or parts of a tool call.

    A part without any text is an empty one; an event that is of no use to a reader has no parts.
    """
    try:
        chunk = _CHUNKS.decode(event.removeprefix("data: ").strip())
    except msgspec.DecodeError:
        return []  # [DONE], an error, an event with another name
    parts = []
    for delta in (each.delta for each in chunk.choices if each.delta is not None):
        parts += [text for text in (delta.reasoning_content, delta.content) if text]
        for call in delta.tool_calls or ():
            function = call.function or _Function()
            parts += [text for text in (function.name, function.arguments) if text] or [""]
    return parts


@dataclass(slots=True)
class _Passing:
    """One request: its text, output tokens, characters that came, and whether a hold was told."""

    unsent: UnsentText
    tokens: int = 0
    made: int = 0
    characters: int = 0
    told: bool = False


class _Watch:
    """Follows one generate request and tells what of its output is held back.

    Args:
        messenger: Tells the scheduler.
        texts: Tells where a token's text ends.
        incremental: Each chunk has its own text only.
    """

    def __init__(self, messenger: Messenger, texts: TokenTexts, *, incremental: bool) -> None:
        self._messenger = messenger
        self._texts = texts
        self._incremental = incremental
        self._passing: dict[str, _Passing] = {}

    def passed(self, content: dict[str, Any], *, sent: list[str] | None) -> None:
        """A chunk was dealt with.

        sent: what the client got for it; None: it got the text, as it is.
        """
        meta, text = content.get("meta_info", {}), content.get("text")
        rid, made = meta.get("id"), meta.get("completion_tokens")
        if rid is None or made is None or text is None:
            return  # an embedding, or a server without a tokenizer
        if (passing := self._passing.get(rid)) is None:
            passing = self._passing[rid] = _Passing(UnsentText(self._texts))
        ids = content.get(IDS) or []
        if not self._incremental:  # SGLang's own text and list, which go on growing
            text, ids = text[passing.characters :], ids[passing.made : made]
            passing.characters += len(text)
        if sent is not None:
            passing.unsent.passed(text, ids, made, sent)
            passing.tokens = passing.unsent.tokens
        elif text:
            passing.tokens = made
        passing.made = made
        went_out = bool(text if sent is None else sent)
        if not went_out:
            unseen(rid)
        if meta.get("finish_reason") is not None:
            return  # the scheduler forgets it anyway
        if made - passing.tokens >= HELD:
            if went_out or not passing.told:
                passing.told = True
                self._messenger.passed_on(rid, passing.tokens)
        elif went_out and passing.told:
            passing.told = False
            self._messenger.passed_on(rid, None)


@dataclass(slots=True)
class _Chat:
    """What a chat has sent since its last chunk from the tokenizer manager."""

    sent: list[str] = field(default_factory=list)


_chats: dict[int, _Chat] = {}
"""Chats under way, by the identity of their generate requests."""


def watch_generate(
    original: Callable[..., AsyncGenerator[Any, None]],
    manager: Manager,
    obj: Any,
    *args: Any,
    **kw: Any,
) -> AsyncIterator[Any]:
    """Notice text of a stream that is held back; around TokenizerManager.generate_request."""
    contents = original(manager, obj, *args, **kw)
    if config_of(manager.server_args) is None or not getattr(obj, "stream", False):
        return contents
    watch_ends(manager)
    return _watched(contents, manager, obj)


async def _watched(
    contents: AsyncGenerator[Any, None], manager: Manager, obj: Any
) -> AsyncGenerator[Any, None]:
    incremental = bool(manager.incremental_streaming_output)
    texts = TokenTexts(getattr(manager, "tokenizer", None), getattr(obj, "sampling_params", None))
    watch = _Watch(messenger_of(manager), texts, incremental=incremental)
    chat = _chats.get(id(obj))
    async with aclosing(contents):
        async for content in contents:
            if chat is not None:
                chat.sent.clear()
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
                chat.sent += texts_of(event)
                yield event
    finally:
        _chats.pop(id(obj), None)
