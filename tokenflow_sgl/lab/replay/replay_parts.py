"""What one replay consists of: its requests, its server, and what goes between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tokenflow_sgl.lab.replay.answers import Answer
from tokenflow_sgl.lab.replay.endpoints import Endpoint
from tokenflow_sgl.lab.replay.prompts import Prompts
from tokenflow_sgl.lab.replay.records import Record
from tokenflow_sgl.lab.replay.replay_options import ReplayOptions
from tokenflow_sgl.lab.replay.stream_client import StreamClient
from tokenflow_sgl.lab.replay.target import Target
from tokenflow_sgl.lab.traces.request import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayParts:
    """What a replay asks, of which server, and how.

    Attributes:
        trace: What is asked when.
        target: The server.
        options: How.
        endpoint: Where the requests go.
        records: All requests of the trace, in its order. A record keeps its prompt for as long as
            the next turn needs it.
        prompts: Makes the prompts.
        client: Sends and reads.
        answered: Called with the index of a request and its answer when that has ended; None: the
            answers' contents are not needed.
    """

    trace: Trace
    target: Target
    options: ReplayOptions
    endpoint: Endpoint
    records: list[Record]
    prompts: Prompts
    client: StreamClient
    answered: Callable[[int, Answer], None] | None = None
