"""The front end's way to data-parallel ranks, each of which has streams of its own."""

from __future__ import annotations

import asyncio
from typing import Any

from sglang.srt.managers.io_struct import msgpack_decode, msgpack_encode
from tracked import running

from tokenflow_sgl.engine.stream_messages import take
from tokenflow_sgl.lifecycle.table import StreamTable
from tokenflow_sgl.policy.predictors import LimitLengths


class Rank:
    """One scheduler with running streams of these ids."""

    def __init__(self, rids: tuple[str, ...]) -> None:
        self.table: StreamTable[Any] = StreamTable(LimitLengths(), capacity=4)
        self.compiling: list[Any] = []
        self.live = {rid: running(self.table) for rid in rids}

    def rate(self, rid: str) -> float:
        """Tokens/s that the stream's reader reads."""
        rates = dict(zip(self.table.order(), self.table.streams(()).rate, strict=True))
        return float(rates[self.table.slot(self.live[rid])])


class Ranks:
    """SGLang's TokenizerManager: one message at a time goes to all, answered after a while."""

    def __init__(self, *rids_of_ranks: tuple[str, ...]) -> None:
        self.ranks = [Rank(rids) for rids in rids_of_ranks]
        self.heard: list[dict[str, float]] = []
        self.failures = 0

    def auto_create_handle_loop(self) -> None:
        """Needs nothing here."""

    async def set_internal_state_communicator(self, message: Any) -> list[Any]:
        for _ in range(10):
            await asyncio.sleep(0)
        if self.failures:
            self.failures -= 1
            raise OSError("no scheduler")
        message = msgpack_decode(msgpack_encode(message))  # as between SGLang's processes
        self.heard.append(dict(message.server_args))
        answers = [take(message, rank.live, rank.compiling, rank.table, 4.0) for rank in self.ranks]
        return [msgpack_decode(msgpack_encode(answer)) for answer in answers]
