"""Turns of conversations that a file has row by row, made sessions of a trace.

A session's name in the file may be somebody's words: in the trace it is a number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tokenflow_sgl.lab.traces.loaders.intake import require_some, stem
from tokenflow_sgl.lab.traces.loaders.source import Source
from tokenflow_sgl.lab.traces.request import Accounting, PrefixBlock, Trace, TraceRequest


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """One row that is a request.

    Attributes:
        prompt: Tokens of the whole prompt, what came before in the session included.
        output: Tokens of the answer.
        think_s: Seconds after the answer before it; 0.0 for a first turn.
        prefix: Shared stretches that the prompt starts with.
        limit: Tokens that its client allows the answer, at least `output`; None: not told.
        reasoning: Leading tokens of the answer that are thinking.
    """

    prompt: int
    output: int
    think_s: float = 0.0
    prefix: tuple[PrefixBlock, ...] = ()
    limit: int | None = None
    reasoning: int = 0


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns in their order; `start` seconds after any zero. A single request is one of one turn."""

    start: float
    turns: list[ChatTurn]
    single: bool = False


def trace_of(
    source: Source,
    conversations: Sequence[Conversation],
    rows: int,
    dropped: Counter[str],
    notes: Sequence[str],
) -> Trace:
    """The trace of these conversations, the first of them at 0.

    Args:
        source: The file, for its name and for errors.
        conversations: In the order of the file; those without turns are left out.
        rows: Data rows of the file.
        dropped: Those that are no request, by the reason.
        notes: What was done to the file.

    Raises:
        TraceError: There is no row, or none is a request.
    """
    kept = [each for each in conversations if each.turns]
    require_some(source, rows, sum(len(each.turns) for each in kept), dropped)
    zero = min(each.start for each in kept)
    requests: list[TraceRequest] = []
    for number, each in enumerate(sorted(kept, key=lambda each: each.start)):
        requests += [
            TraceRequest(
                round(each.start - zero, 9),
                turn.prompt,
                turn.output,
                session=None if each.single else f"s{number}",
                turn=place,
                think_s=turn.think_s,
                prefix=turn.prefix,
                limit_tokens=turn.limit,
                reasoning_tokens=turn.reasoning,
            )
            for place, turn in enumerate(each.turns)
        ]
    accounting = Accounting(rows, len(requests), dict(dropped))
    return Trace(stem(source), tuple(requests), accounting, tuple(notes))
