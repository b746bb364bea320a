"""Answers of the three endpoints: tokens of each chunk, and how the answer ended.

A chunk states how many tokens the answer has so far (`completion_tokens`), so what came is counted
right whether chunks repeat the whole answer (SGLang's default), bring only what is new
(`--incremental-streaming-output`), or bring several tokens at once.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from typing import Any

# With many streams the chunks that only carry tokens must be cheap, and a cumulative chunk is long.
# Inside a JSON string every quote is escaped, so these bytes can only be a key of the chunk.
_COUNT = re.compile(rb'"completion_tokens":(\d+)')
_RUNNING = b'"finish_reason":null'
_REASONING = re.compile(rb'"reasoning_tokens":(\d+)')
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
        tokens: Tokens counted so far.
        estimated: The server did not say how many tokens a chunk brings: one was counted for each.
        reported_tokens: Length of the answer as last reported by the server; None: not reported.
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
        "estimated",
        "finish_reason",
        "ids",
        "prompt_tokens",
        "reasoning_tokens",
        "reported_tokens",
        "text",
        "tokens",
    )

    def __init__(self, *, keep: bool = False) -> None:
        self._keep = keep
        self.tokens = 0
        self.estimated = False
        self.reported_tokens: int | None = None
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
        if chunk == b"[DONE]":
            return 0
        try:
            if not self._keep and not self.estimated:
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
        """Take one chunk, read."""

    def _up_to(self, total: int) -> int:
        if total > MOST_TOKENS:
            raise ValueError(f"completion_tokens is above {MOST_TOKENS:,}")
        self.reported_tokens = total
        new = total - self.tokens
        if new <= 0:
            return 0
        self.tokens = total
        return new

    def _usage(self, usage: dict[str, Any]) -> int:
        self.prompt_tokens = int(usage["prompt_tokens"])
        total = int(usage["completion_tokens"])
        if self.estimated:  # when the tokens came that were not counted cannot be known
            self.reported_tokens = total
            return 0
        return self._up_to(total)

    def _one_more(self) -> int:
        self.estimated = True
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
        brings = self._read(choice)
        if self._keep:
            self.ids.extend(choice.get("token_ids") or ())
        reason = choice.get("finish_reason")
        if reason is not None:
            self.finish_reason = str(reason)
            if reason == "abort":
                self.error = "aborted by the server"
        usage = fields.get("usage")
        if usage is not None:
            return self._usage(usage)
        return self._one_more() if brings else 0

    def _read(self, choice: dict[str, Any]) -> bool:
        """Keep the choice's text; return whether it brings any."""
        text = choice.get("text")
        if text and self._keep:
            self.text += text
        return bool(text)


class ChatAnswer(CompletionsAnswer):
    """An answer of `/v1/chat/completions`; reasoning counts as tokens, but is not kept.

    Its reader sees text and calls of tools. Where one chunk brings the end of the reasoning and the
    first text, all its tokens count as text: it is when that came that matters.
    """

    __slots__ = ("_reasoned", "_seen")

    def __init__(self, *, keep: bool = False) -> None:
        super().__init__(keep=keep)
        self._reasoned = self._seen = False

    def take(self, chunk: bytes) -> int:
        """Take one chunk, the data of one event; return how many tokens it brought.

        Raises:
            ChunkError: It is not JSON, or not of the endpoint's form.
        """
        new = super().take(chunk)
        if not self._seen:
            self._seen = _SEEN.search(chunk) is not None
            self._reasoned = self._reasoned or _REASONED.search(chunk) is not None
            if not self._seen and self._reasoned:
                self.reasoning_tokens = self.tokens
        return new

    def _read(self, choice: dict[str, Any]) -> bool:
        delta = choice.get("delta") or {}
        content = delta.get("content")
        if content and self._keep:
            self.text += content
        return bool(
            content
            or delta.get("reasoning_content")
            or delta.get("reasoning")
            or delta.get("tool_calls")
        )


def _message(error: Any) -> str:
    """The sentence in an error object, whatever its form."""
    return str(error["message"] if isinstance(error, dict) and "message" in error else error)
