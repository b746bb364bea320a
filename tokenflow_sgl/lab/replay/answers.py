"""Answers of the three endpoints: tokens of each chunk, and how the answer ended.

A chunk states how many tokens the answer has so far (`completion_tokens`), so what came is counted
right whether chunks repeat the whole answer (SGLang's default), bring only what is new
(`--incremental-streaming-output`), or bring several tokens at once. Where a chunk does not say it,
it counts as one token until a later chunk does; then the tokens are shared among all since the last
that did (`spreading`).
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from tokenflow_sgl.lab.replay.spreading import call_size, spread, text_size

# With many streams the chunks that only carry tokens must be cheap, and a cumulative chunk is long.
# Inside a JSON string every quote is escaped, so these bytes can only be a key of the chunk.
_COUNT = re.compile(rb'"completion_tokens":([1-9]\d*)')
_RUNNING = b'"finish_reason":null'
_REASONING = re.compile(rb'"reasoning_tokens"\s*:\s*(\d+)')
_SEEN = re.compile(rb'"content"\s*:\s*"[^"]|"tool_calls"\s*:\s*\[\s*\{')
_REASONED = re.compile(rb'"reasoning(?:_content)?"\s*:\s*"[^"]')


MOST_TOKENS = 1 << 22
"""Of one answer: each takes memory here, whatever a server says."""
_UNREADABLE = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
"""What reading a chunk that is not of the endpoint's form raises."""


class ChunkError(ValueError):
    """A chunk is not what the endpoint sends; the message quotes it."""


class Answer(ABC):
    """The state of one answer.

    Attributes:
        tokens: Tokens counted so far, those that were never streamed left out.
        uncounted: Bytes of text of the latest chunks, of which the server has not said yet how many
            tokens they have: each counts as one.
        settled: Where the chunk just taken says how many tokens the uncounted ones have together,
            itself included if it brought text: those of each.
        shared: Chunks whose tokens were settled so.
        shared_tokens: Tokens that they have.
        unstreamed: Tokens that the server reports and never streamed: reasoning that it hides.
        prompt_tokens: Length of the prompt by the server's count; None: never said.
        reasoning_tokens: Leading tokens of the answer that its reader does not see, so far.
        finish_reason: `length`, `stop`, `abort`, ...; None: not finished.
        error: Why it failed, in the server's words; None: it did not.
        ids: Token ids, if they are kept and the server sends them.
        text: Text of the answer, if it is kept.
    """

    __slots__ = (
        "_keep",
        "error",
        "finish_reason",
        "ids",
        "prompt_tokens",
        "reasoning_tokens",
        "settled",
        "shared",
        "shared_tokens",
        "text",
        "tokens",
        "uncounted",
        "unstreamed",
    )

    def __init__(self, *, keep: bool = False) -> None:
        self._keep = keep
        self.tokens = 0
        self.uncounted: list[int] = []
        self.settled: Sequence[int] = ()
        self.shared = self.shared_tokens = 0
        self.unstreamed = 0
        self.prompt_tokens: int | None = None
        self.reasoning_tokens = 0
        self.finish_reason: str | None = None
        self.error: str | None = None
        self.ids: list[int] = []
        self.text = ""

    def take(self, chunk: bytes) -> int:
        """Take one chunk, the data of one event; return how many tokens it brought.

        Raises:
            ChunkError: It is not JSON, or not of the endpoint's form.
        """
        self.settled = ()
        if chunk == b"[DONE]":
            return 0
        try:
            if not self._keep and not self.uncounted:
                at = chunk.rfind(b'"completion_tokens":')
                if at >= 0 and chunk.rfind(_RUNNING) >= 0 and (count := _COUNT.match(chunk, at)):
                    return self._up_to(int(count[1]))
            fields = json.loads(chunk)
            if "error" in fields:
                self.error = _message(fields["error"])
                return 0
            return self._take(fields)
        except _UNREADABLE as error:
            raise ChunkError(
                f"a chunk cannot be read ({type(error).__name__}: {error}): {chunk[:200]!r}"
            ) from None

    @property
    def thinking(self) -> bool:
        """Whether all that came so far is reasoning; False before the first token."""
        return 0 < self.tokens == self.reasoning_tokens

    @abstractmethod
    def _take(self, fields: dict[str, Any]) -> int:
        """Take one chunk of an answer that was read as JSON."""

    def _up_to(self, total: int) -> int:
        """Take the answer's length so far; return how many tokens of it are new."""
        if total > MOST_TOKENS:
            raise ValueError(f"completion_tokens is above {MOST_TOKENS:,}")
        new = total - self.unstreamed - self.tokens
        if new <= 0:
            return 0
        self.tokens += new
        return new

    def _settle(self, total: int) -> None:
        """Share what the server has reported among the chunks since the report before."""
        if total > MOST_TOKENS:
            raise ValueError(f"completion_tokens is above {MOST_TOKENS:,}")
        chunks = len(self.uncounted)
        known = self.tokens - chunks
        new = total - self.unstreamed - known
        if known == 0 and new <= 0:
            return  # there was text: what is reported is not its length
        self.settled = spread(max(new, 0), self.uncounted)
        self.tokens = known + sum(self.settled)
        self.shared += chunks
        self.shared_tokens += sum(self.settled)
        self.uncounted = []

    def _one_more(self, size: int) -> int:
        """Count a chunk with so many bytes of text as one token."""
        self.uncounted.append(size)
        self.tokens += 1
        return 1


class GenerateAnswer(Answer):
    """An answer of SGLang's `/generate`."""

    __slots__ = ()

    def take(self, chunk: bytes) -> int:
        """Take one chunk, the data of one event; return how many tokens it brought.

        Raises:
            ChunkError: It is not JSON, or not of the endpoint's form.
        """
        new = super().take(chunk)
        # Chunks that only carry tokens are not read, see above, but their reader may see nothing.
        at = chunk.rfind(b'"reasoning_tokens":')
        if at >= 0 and (count := _REASONING.match(chunk, at)):
            self.reasoning_tokens = int(count[1])
        return new

    def _take(self, fields: dict[str, Any]) -> int:
        meta = fields["meta_info"]
        new = self._up_to(int(meta["completion_tokens"]))
        self.prompt_tokens = int(meta["prompt_tokens"]) if "prompt_tokens" in meta else None
        self.reasoning_tokens = int(meta.get("reasoning_tokens") or 0)
        if self._keep and new:
            # The new ids are the last ones, in cumulative and in incremental chunks alike.
            self.ids.extend(fields["output_ids"][-new:])
        reason = meta.get("finish_reason")
        if reason is not None:
            self.finish_reason = str(reason["type"])
            if self.finish_reason == "abort":
                self.error = f"aborted by the server: {reason.get('message') or 'no reason given'}"
        return new


class CompletionsAnswer(Answer):
    """An answer of `/v1/completions`."""

    __slots__ = ()

    def _take(self, fields: dict[str, Any]) -> int:
        choice: dict[str, Any] = next(iter(fields["choices"]), {})
        size = self._read(choice)
        ids = choice.get("token_ids") or ()
        if self._keep:
            self.ids.extend(ids)
        reason = choice.get("finish_reason")
        if reason is not None:
            self.finish_reason = str(reason)
            if reason == "abort":
                self.error = "aborted by the server"
        usage = fields.get("usage") or {}
        if usage.get("prompt_tokens") is not None:
            self.prompt_tokens = int(usage["prompt_tokens"])
        total = usage.get("completion_tokens")
        if total is None and ids and not self.uncounted:
            total = self.tokens + len(ids)
        if not total:  # some say 0 until the end
            return self._one_more(size) if size else 0
        if not self.uncounted:
            return self._up_to(int(total))
        new = self._one_more(size) if size else 0
        self._settle(int(total))
        return new

    def _read(self, choice: dict[str, Any]) -> int:
        """Keep the choice's text; return how many bytes it has."""
        text = choice.get("text") or ""
        if self._keep:
            self.text += text
        return text_size(text)


class ChatAnswer(CompletionsAnswer):
    """An answer of `/v1/chat/completions`; reasoning counts as tokens, but is not kept.

    Its reader sees text and calls of tools. Where one chunk brings the end of the reasoning and the
    first text, all its tokens count as text: it is when that came that matters. Reasoning that the
    server counts and does not stream is no text of the answer: its tokens are `unstreamed`.
    """

    __slots__ = ("_reasoned", "_seen", "_unseen")

    def __init__(self, *, keep: bool = False) -> None:
        super().__init__(keep=keep)
        self._reasoned = self._seen = False
        self._unseen = 0
        """Of `uncounted`, those that bring reasoning."""

    def take(self, chunk: bytes) -> int:
        """Take one chunk, the data of one event; return how many tokens it brought.

        Raises:
            ChunkError: It is not JSON, or not of the endpoint's form.
        """
        told = 0
        if not self._reasoned:
            at = chunk.rfind(b'"reasoning_tokens"')
            told = int(count[1]) if at >= 0 and (count := _REASONING.match(chunk, at)) else 0
            if told or not self._seen:
                self._reasoned = _REASONED.search(chunk) is not None
        self._seen = self._seen or _SEEN.search(chunk) is not None
        self.unstreamed = 0 if self._reasoned else max(self.unstreamed, told)
        known = self.tokens - len(self.uncounted)
        new = super().take(chunk)
        if self._reasoned and not self._seen:
            self._unseen = len(self.uncounted)
            self.reasoning_tokens = self.tokens
        elif self.settled:
            if self._unseen:
                self.reasoning_tokens = known + sum(self.settled[: self._unseen])
            self._unseen = 0
        return new

    def _read(self, choice: dict[str, Any]) -> int:
        delta = choice.get("delta") or {}
        content = delta.get("content") or ""
        if self._keep:
            self.text += content
        reasoning = delta.get("reasoning_content") or delta.get("reasoning") or ""
        self._reasoned = self._reasoned or bool(reasoning)
        calls = delta.get("tool_calls") or ()
        return text_size(content) + text_size(reasoning) + sum(map(call_size, calls))


def _message(error: Any) -> str:
    """The sentence in an error object, whatever its form."""
    return str(error["message"] if isinstance(error, dict) and "message" in error else error)
