"""A trace: requests with their arrival times, lengths and readers.

Every loader and generator makes a `Trace`; every replay and simulation reads one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tokenflow_sgl.errors import InputError


@dataclass(frozen=True, slots=True)
class PrefixBlock:
    """A stretch of the prompt that requests may share: equal ids mean equal tokens.

    Attributes:
        id: Identity of the block's content, unique within the trace.
        tokens: Length of the stretch.
    """

    id: int
    tokens: int


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace; tokens are counted by the trace's own tokenizer.

    Attributes:
        arrival_s: When it is sent, seconds after the trace's zero. For a later turn of a
            closed-loop session, `think_s` counts instead and this is only where the trace saw it.
        prompt_tokens: Length of the prompt, >= 1.
        output_tokens: Length of the answer, >= 1.
        rate: Tokens per second that its reader consumes; None where the trace does not say.
        session: Name of the conversation or agent run that it belongs to; None: independent.
        turn: Position in the session, from 0.
        think_s: Seconds between the end of the previous turn's answer and this request.
        prefix: Shared stretches that the prompt starts with, in order; their lengths sum to at
            most `prompt_tokens`, the rest is the request's own.
        ttft_slo_s: Time to first token that it asks for, seconds; None: no such objective.
        tbt_slo_s: Time between tokens that it asks for, seconds; None: no such objective.
        deadline_s: Seconds after its arrival in which it wants the whole answer; None: any time. If
            it names no rate and no class either, a program asks, and no reader.
        priority: Its priority, larger is more urgent; None: none.
        limit_tokens: Output tokens that its client allows, >= `output_tokens`; None where the trace
            does not say.
        reasoning_tokens: Leading output tokens that are thinking, which no reader sees; at most
            `output_tokens`.
        qos_class: Class that it names to the server, whose rate counts then; None: none.
        tenant: Name of who asks; None where the trace does not say.
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    rate: float | None = None
    session: str | None = None
    turn: int = 0
    think_s: float = 0.0
    prefix: tuple[PrefixBlock, ...] = ()
    ttft_slo_s: float | None = None
    tbt_slo_s: float | None = None
    deadline_s: float | None = None
    priority: int | None = None
    limit_tokens: int | None = None
    reasoning_tokens: int = 0
    qos_class: str | None = None
    tenant: str | None = None


def continues(earlier: TraceRequest, later: TraceRequest) -> bool:
    """Whether the later turn's prompt may start with the earlier one's, by their prefix blocks.

    A turn without blocks says nothing against it; one with blocks must start with all of the
    earlier turn's.
    """
    return not later.prefix or later.prefix[: len(earlier.prefix)] == earlier.prefix


@dataclass(frozen=True, slots=True)
class PriorityUpdate:
    """From `time_s` on, the request at `index` of the trace has another priority."""

    time_s: float
    index: int
    priority: int


@dataclass(frozen=True, slots=True)
class Accounting:
    """Where the rows of a source went: `rows == emitted + sum(dropped.values())`, always.

    Attributes:
        rows: Data rows read.
        emitted: Requests made of them.
        dropped: Rows left out, by the reason, in words.
    """

    rows: int
    emitted: int
    dropped: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.rows != self.emitted + sum(self.dropped.values()):
            raise ValueError(
                f"{self.rows} rows read, but {self.emitted} emitted and "
                f"{dict(self.dropped)} dropped"
            )


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in the order of their arrival, and where they come from.

    Attributes:
        name: Short name for tables and file names.
        requests: Sorted by `arrival_s`; the first may arrive after 0.
        accounting: What became of every row of the source.
        notes: What was done to the source, in sentences (seeds included), for every report.
        priority_updates: Changes of priority while requests run, sorted by time.
    """

    name: str
    requests: tuple[TraceRequest, ...]
    accounting: Accounting
    notes: tuple[str, ...] = ()
    priority_updates: tuple[PriorityUpdate, ...] = ()


class TraceError(InputError):
    """A trace cannot be used; the message is a sentence with file, line and column."""
