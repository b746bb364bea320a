"""Requests as the table of live streams sees them, and how they come into it."""

from __future__ import annotations

from typing import Any

from fakes import sglang

from tokenflow_sgl.contract import Phase
from tokenflow_sgl.lifecycle.table import Newcomer, StreamTable
from tokenflow_sgl.qos.classes import QosClass


class Request(sglang.Request):
    """One that streams, and has no output yet."""

    stream = True

    def __init__(self, output_ids: list[int] | None = None) -> None:
        super().__init__(made=0)
        self.output_ids = [] if output_ids is None else output_ids


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
