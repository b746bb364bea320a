"""Requests of a decode server, as far as its pauses and its queue look at them."""

from __future__ import annotations

from types import SimpleNamespace


class Request:
    """Two tokens so far, and KV that nothing else has a copy of."""

    def __init__(self, rid: str, seqlen: int = 100) -> None:
        self.rid, self.seqlen = rid, seqlen
        self.output_ids = [1, 2]
        self.retraction_count = 0
        self.kv = SimpleNamespace(retraction_backup=None)
        self.finished_reason = None
        self.done = False

    def finished(self) -> bool:
        return self.done
