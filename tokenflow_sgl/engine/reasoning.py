"""Which output tokens of a request are reasoning, which its reader does not see.

With `--reasoning-parser` SGLang says which requests reason, and counts their tokens up to the end
of it. Without one it sends all text alike, and many clients fold away what is between the model's
think tokens: then these are looked for here. What is hidden is the same either way, so answers sent
as `reasoning_content` and those with `separate_reasoning: false` are not told apart.
"""

from __future__ import annotations

from typing import Any

from tokenflow_sgl.engine.config import HIDDEN
from tokenflow_sgl.engine.sglang.release import opening_of
from tokenflow_sgl.engine.sglang.request import Req
from tokenflow_sgl.engine.sglang.worker import ModelConfig

THINK_START, THINK_END = "<think>", "</think>"
"""Tokens of the models that have them as such: DeepSeek-R1, Qwen3, GLM-4.5, Nemotron and others."""
TAIL = 4
"""Tokens at a prompt's end in which its template may open, or open and close, the thinking."""


class Reasoning:
    """Tells of each request how its answer begins.

    Attributes:
        hidden: Readers do not see the reasoning.

    Args:
        model_config: SGLang's, with the ids that its parser looks for.
        tokenizer: Of the model; None: the server was started without.
        thinking: What the configuration says of readers: hidden or shown.
    """

    def __init__(self, model_config: ModelConfig, tokenizer: Any, thinking: str = HIDDEN) -> None:
        self.hidden = thinking == HIDDEN
        self._parsed = bool(model_config.think_end_ids)
        self._opening = opening_of(model_config)
        self._tokenizer = tokenizer
        # Not every tokenizer of SGLang's lists its words.
        vocabulary: dict[str, int] = {} if self._parsed else getattr(tokenizer, "get_vocab", dict)()
        self._start = vocabulary.get(THINK_START)
        self._end: int | Any = vocabulary.get(THINK_END)

    def begins(self, req: Req) -> bool:
        """Whether the answer begins with reasoning, or may: its first tokens will tell."""
        if self._parsed:
            return bool(req.require_reasoning or self._opening)
        if self._end is None:
            return False
        mark = self._template_mark(req)
        return self._start is not None and mark in (None, self._start)

    def tokens(self, req: Req, since: int) -> int:
        """Leading output tokens that are reasoning so far.

        Args:
            req: A request that `begins` with it.
            since: Output tokens at the last look. All of them were reasoning, so only the last of
                these may be the end of it.
        """
        output = req.output_ids
        if self._parsed:
            counted = int(req.reasoning_tokens)
            begun = tuple(output[: len(self._opening)])
            may_open = not req.require_reasoning and begun == self._opening[: len(output)]
            return len(output) if not counted and may_open else counted
        if not output:
            return 0
        if not since and self._start not in (output[0], self._template_mark(req)):
            return 0
        try:
            return int(output.index(self._end, max(since - 1, 0))) + 1
        except ValueError:
            return len(output)

    def _template_mark(self, req: Req) -> int | None:
        """The think token with which the prompt's template ends, or None.

        Only space may stand behind it: what a user writes of think tokens is not the template's.
        """
        tail = req.origin_input_ids[-TAIL:]
        for place in range(len(tail) - 1, -1, -1):
            if tail[place] in (self._start, self._end):
                return int(tail[place])
            if self._tokenizer.decode([tail[place]]).strip():
                return None
        return None
