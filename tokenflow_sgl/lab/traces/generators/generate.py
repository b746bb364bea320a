"""A trace from generators: arrivals, lengths, readers, and conversations if wanted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tokenflow_sgl.lab.traces.generators.arrivals import Arrivals
from tokenflow_sgl.lab.traces.generators.reading_rates import RateMix
from tokenflow_sgl.lab.traces.generators.request_lengths import LengthPairs
from tokenflow_sgl.lab.traces.generators.sessions import SessionConfig
from tokenflow_sgl.lab.traces.parameters import extent
from tokenflow_sgl.lab.traces.request import Accounting, Trace, TraceError, TraceRequest


@dataclass(frozen=True, slots=True)
class TraceConfig:
    """What a generated trace is made of; equal configs give equal traces.

    Attributes:
        name: Name of the trace.
        arrivals: When requests arrive, or sessions start.
        lengths: Lengths of prompts and answers; with sessions of messages and answers.
        requests: Number of requests (of sessions, with sessions); or
        duration_s: seconds in which they arrive.
        rates: Readers; None: the trace does not say. A session has one reader.
        sessions: Makes each arrival a conversation; None: requests are independent.
        seed: Seed of everything that is drawn, >= 0.
        note: A sentence on what this is, for the trace's notes.
    """

    name: str
    arrivals: Arrivals
    lengths: LengthPairs
    requests: int | None = None
    duration_s: float | None = None
    rates: RateMix | None = None
    sessions: SessionConfig | None = None
    seed: int = 0
    note: str = ""

    def __post_init__(self) -> None:
        extent(self.requests, self.duration_s)
        if self.seed < 0:
            raise TraceError(f"seed is {self.seed}; allowed is a whole number of at least 0")


def make_trace(config: TraceConfig) -> Trace:
    """Draw a trace; its arrival times are whole microseconds.

    Arrivals are drawn first, then lengths, then rates, all from one stream, so that changing the
    rates changes nothing else.

    Raises:
        TraceError: The generators do not fit together, or nothing arrived in the duration.
    """
    rng = np.random.default_rng(config.seed)
    drawn = config.arrivals.times(rng, requests=config.requests, duration_s=config.duration_s)
    starts = np.round(drawn, 6)
    if not len(starts):
        raise TraceError(f"{config.name}: nothing arrives within {config.duration_s} s")
    if config.sessions is None:
        prompts, outputs = config.lengths.pairs(rng, len(starts))
        reader = _readers(config, rng, len(starts))
        requests = tuple(
            map(TraceRequest, starts.tolist(), prompts.tolist(), outputs.tolist(), reader)
        )
    else:
        turns = list(config.sessions.requests(rng, starts, config.lengths))
        reader = _readers(config, rng, len(starts))
        requests = tuple(_with_reader(turns, reader))
    notes = [config.note] if config.note else []
    notes.append(f"Generated with seed {config.seed}.")
    return Trace(config.name, requests, Accounting(len(requests), len(requests)), tuple(notes))


def _readers(config: TraceConfig, rng: np.random.Generator, count: int) -> list[float | None]:
    if config.rates is None:
        return [None] * count
    return list(config.rates.sample(rng, count).tolist())


def _with_reader(
    turns: Sequence[TraceRequest], reader: Sequence[float | None]
) -> Iterator[TraceRequest]:
    """The turns with the rate of their session's reader; sessions come one after another."""
    session = -1
    for request in turns:
        session += request.turn == 0
        yield replace(request, rate=reader[session])
