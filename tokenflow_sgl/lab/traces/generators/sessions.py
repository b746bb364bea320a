"""Closed-loop conversations with shared system prompts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tokenflow_sgl.lab.traces.generators.request_lengths import LengthPairs
from tokenflow_sgl.lab.traces.parameters import MOST_SECONDS, FloatArray, check, parameter
from tokenflow_sgl.lab.traces.request import PrefixBlock, TraceRequest


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """What generated conversations are like: turns, think times, system prompts.

    A turn's prompt is the system prompt, then everything said before, then its own message. The
    system prompt is a `PrefixBlock` that all conversations of a group share.
    """

    turns: float = parameter("mean number of turns (geometric, at least 1)", low=1, high=1000)
    think_s: float = parameter(
        "mean seconds before the next turn (exponential)", low=0, high=MOST_SECONDS
    )
    system_tokens: int = parameter("length of a system prompt", low=0, high=2**20, default=0)
    groups: int = parameter("number of different system prompts", low=1, high=2**31, default=1)

    def __post_init__(self) -> None:
        check(self)

    def requests(
        self, rng: np.random.Generator, starts: FloatArray, lengths: LengthPairs
    ) -> Iterator[TraceRequest]:
        """Draw one conversation for each start.

        Args:
            rng: Where randomness comes from.
            starts: When conversations start, seconds, sorted, shape (n,).
            lengths: Lengths of messages and answers.

        Yields:
            Requests, conversation by conversation. A later turn has its conversation's start as
            `arrival_s`, for when it is sent depends on the server.
        """
        turns = rng.geometric(1.0 / self.turns, len(starts))
        group = rng.integers(0, self.groups, len(starts))
        total = int(turns.sum())
        think = np.round(rng.exponential(self.think_s, total), 3)
        messages, answers = lengths.pairs(rng, total)
        at = 0
        for index, start in enumerate(starts):
            prefix: tuple[PrefixBlock, ...] = ()
            if self.system_tokens:
                prefix = (PrefixBlock(int(group[index]), self.system_tokens),)
            context = self.system_tokens
            for turn in range(int(turns[index])):
                prompt, answer = context + int(messages[at]), int(answers[at])
                yield TraceRequest(
                    arrival_s=float(start),
                    prompt_tokens=prompt,
                    output_tokens=answer,
                    session=f"s{index}",
                    turn=turn,
                    think_s=float(think[at]) if turn else 0.0,
                    prefix=prefix,
                )
                context = prompt + answer
                at += 1
