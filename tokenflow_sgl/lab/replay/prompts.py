"""Prompts of the lengths that a trace states: the same ones for the same seed, request and blocks.

Two kinds: token ids of exactly the stated length, and chat messages of about that length. What a
trace calls the same prefix block is the same stretch of tokens (or words) in every prompt, so the
server's prefix cache hits where the trace says it would. A prompt that goes on after an answer
starts with the prompt before it and that answer.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tokenflow_sgl.lab.replay.answers import Answer
from tokenflow_sgl.lab.traces.request import TraceRequest

_OWN, _BLOCK, _BURST = range(3)  # purposes of random numbers: never the same ones
_BLOCKS_KEPT = 4096

# Short and common: one token each, with the space before it, in the usual vocabularies.
_WORDS = (  # noqa: SIM905 (the list would take 110 lines)
    "time year people way day man thing woman life child world school state family student group "
    "country problem hand part place case week company system program question work government "
    "number night point home water room mother area money story fact month lot right study book "
    "eye job word business issue side kind head house service friend father power hour game line "
    "end member law car city community name president team minute idea kid body information back "
    "parent face others level office door health person art war history party result change "
    "morning reason research girl guy moment air teacher force education foot boy age policy music"
).split()


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt, ready to send.

    Attributes:
        tokens: Its length; for chat an estimate.
        json: Its items as they stand in a JSON list: token ids, or chat messages.
    """

    tokens: int
    json: bytes


class Prompts(Protocol):
    """Makes the prompts of a replay."""

    def fresh(self, index: int, request: TraceRequest) -> Prompt:
        """The prompt of a request that follows no answer; `index` is its position in the trace."""

    def following(
        self, index: int, request: TraceRequest, before: Prompt, answer: Answer
    ) -> Prompt | None:
        """The prompt that goes on after `before` and its answer.

        None where the trace's prompt is not longer than those two: it cannot contain them.
        """

    def burst(self, number: int, tokens: int) -> Prompt:
        """A prompt of the warm-up burst: like no other."""


class _Drawn:
    """Stretches of a prompt, drawn from numbered items and written as text.

    Args:
        seed: Seed of all draws.
        low: Smallest number of an item.
        high: One more than the largest.
        write: Writes drawn numbers.
    """

    def __init__(self, seed: int, low: int, high: int, write: Callable[[list[int]], bytes]) -> None:
        self._seed, self._low, self._high = seed, low, high
        self._write = write
        self.block = functools.lru_cache(_BLOCKS_KEPT)(functools.partial(self.draw, _BLOCK))

    def draw(self, purpose: int, number: int, count: int) -> bytes:
        """`count` items, always the same ones for the same purpose and number."""
        # Block ids of a trace may be negative; a seed may not.
        rng = np.random.default_rng([self._seed, purpose, number % (1 << 64)])
        return self._write(rng.integers(self._low, self._high, count).tolist())


class TokenPrompts:
    """Prompts of exactly the stated number of token ids, from `low` to `high` - 1.

    Where the server does not send an answer's ids, the prompt after it has others in their place.
    """

    def __init__(self, seed: int, low: int, high: int) -> None:
        self._ids = _Drawn(seed, low, high, _write_ids)

    def fresh(self, index: int, request: TraceRequest) -> Prompt:
        """See `Prompts`."""
        blocks = [self._ids.block(block.id, block.tokens) for block in request.prefix]
        own = request.prompt_tokens - sum(block.tokens for block in request.prefix)
        return _joined(request.prompt_tokens, *blocks, self._ids.draw(_OWN, index, own))

    def following(
        self, index: int, request: TraceRequest, before: Prompt, answer: Answer
    ) -> Prompt | None:
        """See `Prompts`."""
        if request.prompt_tokens <= before.tokens + max(answer.tokens, len(answer.ids)):
            return None
        own = request.prompt_tokens - before.tokens - len(answer.ids)
        return _joined(
            request.prompt_tokens,
            before.json,
            _write_ids(answer.ids),
            self._ids.draw(_OWN, index, own),
        )

    def burst(self, number: int, tokens: int) -> Prompt:
        """See `Prompts`."""
        return Prompt(tokens, self._ids.draw(_BURST, number, tokens))


class ChatPrompts:
    """Chat messages of common words, of about the stated number of tokens.

    Args:
        seed: Seed of all draws.
        tokens_per_word: What the server's tokenizer makes of a word, on average.
        overhead: Tokens that the chat template adds to a single message.
    """

    def __init__(self, seed: int, *, tokens_per_word: float = 1.0, overhead: float = 0.0) -> None:
        self._words = _Drawn(seed, 0, len(_WORDS), _write_words)
        self._tokens_per_word = tokens_per_word
        self._overhead = overhead

    def fresh(self, index: int, request: TraceRequest) -> Prompt:
        """See `Prompts`."""
        counts = [self._count(block.tokens) for block in request.prefix]
        blocks = [
            self._words.block(block.id, count)
            for block, count in zip(request.prefix, counts, strict=True)
        ]
        own = max(0, self._count(request.prompt_tokens - self._overhead) - sum(counts))
        # A message must not be empty.
        stretches = [*blocks, self._words.draw(_OWN, index, own if any(counts) else max(1, own))]
        return Prompt(request.prompt_tokens, _message("user", b" ".join(filter(None, stretches))))

    def following(
        self, index: int, request: TraceRequest, before: Prompt, answer: Answer
    ) -> Prompt | None:
        """See `Prompts`."""
        context = (answer.prompt_tokens or before.tokens) + answer.tokens
        if request.prompt_tokens <= context:
            return None
        new = self._words.draw(_OWN, index, max(1, self._count(request.prompt_tokens - context)))
        answered = _message("assistant", answer.text.encode(errors="replace"))
        return _joined(request.prompt_tokens, before.json, answered, _message("user", new))

    def burst(self, number: int, tokens: int) -> Prompt:
        """See `Prompts`."""
        words = max(1, self._count(tokens - self._overhead))
        return Prompt(tokens, _message("user", self._words.draw(_BURST, number, words)))

    def _count(self, tokens: float) -> int:
        return max(0, round(tokens / self._tokens_per_word))


def _write_ids(ids: Sequence[int]) -> bytes:
    return ",".join(map(str, ids)).encode()


def _write_words(numbers: list[int]) -> bytes:
    return " ".join([_WORDS[number] for number in numbers]).encode()


def _joined(tokens: int, *parts: bytes) -> Prompt:
    return Prompt(tokens, b",".join(part for part in parts if part))


def _message(role: str, text: bytes) -> bytes:
    return json.dumps({"role": role, "content": text.decode()}).encode()
