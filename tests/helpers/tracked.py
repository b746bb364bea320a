"""Requests as the table of live streams sees them, and how they come into it."""

from __future__ import annotations

from dataclasses import dataclass, field

from tokenflow_sgl.contract import Phase
from tokenflow_sgl.lifecycle.table import StreamTable


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


def track(table: StreamTable[Request], request: Request, **given) -> int:
    values = {
        "prompt": 7,
        "limit": 50,
        "rate": 10.0,
        "qos_class": "reading",
        "arrival": 1.0,
        "now": 1.5,
    }
    return table.track(request, **{**values, **given})


def running(table: StreamTable[Request], **given) -> Request:
    request = Request()
    track(table, request, **given)
    table.move(request, Phase.RUNNING, 2.0)
    return request
