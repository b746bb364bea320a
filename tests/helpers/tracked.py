"""Requests as the table of live streams sees them, and how they come into it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tokenflow_sgl.contract import Phase
from tokenflow_sgl.lifecycle.table import Newcomer, StreamTable
from tokenflow_sgl.qos.classes import QosClass


@dataclass(eq=False)
class Request:
    output_ids: list[int] = field(default_factory=list)
    held_back: int = 0
    stream: bool = True

    @property
    def send_token_offset(self) -> int:
        return len(self.output_ids) - self.held_back

    def produce(self, count: int, held_back: int = 0) -> None:
        self.output_ids.extend(range(count))
        self.held_back = held_back


CLASS = ("rate", "tolerance", "weight", "reader")
"""What is said of a stream's class; all else is the stream's own."""


def track(table: StreamTable[Any], request: Any, **given: Any) -> int:
    """A new stream of a class made for it, read at 10 tokens/s; returns its slot."""
    asked = {name: given.pop(name) for name in CLASS if name in given}
    kind = QosClass(given.pop("qos_class", "reading"), **{"rate": 10.0, **asked})
    own = {"prompt": 7, "limit": 50, "arrival": 1.0, "now": 1.5}
    return table.track(request, kind, Newcomer(**{**own, **given}))


def running(table: StreamTable[Request], **given) -> Request:
    request = Request()
    track(table, request, **given)
    table.move(request, Phase.RUNNING, 2.0)
    return request
