"""One request whose prefix is restored from both sides."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tokenflow_sgl.engine.restore.layer_fetch import LayerFetch
from tokenflow_sgl.engine.restore.tail_copies import TailCopies
from tokenflow_sgl.engine.restore.tail_fetch import TailFetch, tail_of


@dataclass(eq=False, slots=True)
class Restoration:
    """How far its head and its tail are.

    request: SGLang's. operation: its fetch from the tail. began: when that was first looked at.
    arrived: tokens of the tail. landed: layers, where it is fetched by layers. seen: `arrived` when
    its next chunk was last decided. fetched: no more will come. chunk: tokens to compute next, if
    not any number. head: tokens that it had when that was decided. alone: all of it will be
    computed, if it is admitted in this pass. needed: tokens of the tail that it waits for. landing:
    when they will have arrived, while it waits for that; else infinite. probe: it is computed
    alone, and its fetch only measures the link. As of this pass, number: its place among all;
    ahead: tokens that the link brings before its own; on_link: its own come next. placed: a leader
    was looked for. rank: of those under way the ones with the least are fetched first. looked_for:
    no more will come, and its head was looked for in the tree since.
    leader: another one that brings its beginning, too, up to the token `shared`; None: no other
    does, or not any more. by_layers: it is in its first step, whose lower layers are computed.
    """

    request: Any
    operation: Any
    began: float = math.nan
    arrived: int = 0
    landed: int = 0
    seen: int = -1
    fetched: bool = False
    chunk: int = 0
    head: int = 0
    alone: bool = False
    needed: int = 0
    landing: float = math.inf
    probe: bool = False
    number: int = 0
    ahead: int = 0
    on_link: bool = False
    rank: int = 0
    placed: bool = False
    looked_for: bool = False
    leader: Restoration | None = None
    shared: int = 0
    by_layers: bool = False

    @property
    def tail(self) -> TailFetch:
        """How it is fetched."""
        tail = tail_of(self.operation)
        assert tail is not None, "it was marked when it began"
        return tail

    @property
    def layer_fetch(self) -> LayerFetch:
        """How it is fetched layer by layer."""
        assert isinstance(self.tail, LayerFetch)
        return self.tail

    @property
    def layered(self) -> bool:
        """Whether it is fetched layer by layer."""
        return isinstance(self.tail, LayerFetch)

    def look(self) -> bool:
        """Take in what has arrived; whether it is more than before."""
        tail, before = self.tail, (self.arrived, self.landed)
        if isinstance(tail, LayerFetch):
            # For SGLang all of it, or nothing.
            self.landed = tail.landed
            whole = self.fetched and tail.landed == tail.layers
            self.arrived = tail.tokens if whole else 0
        else:
            self.arrived = int(self.operation.completed_tokens)
        return (self.arrived, self.landed) != before

    @property
    def copies(self) -> TailCopies:
        """Of its tail, to the device."""
        return self.tail.copies

    @property
    def allocated(self) -> bool:
        """Whether the storage has said what it has, and host memory is there for it."""
        return self.operation.host_indices is not None

    @property
    def may_lead(self) -> bool:
        """Whether others may wait for what it brings.

        Not if its fetch has ended and its head, as far as it is computed, does not meet it: it may
        not be asked for for long.
        """
        return not self.probe and not (self.fetched and self.looked_for)

    @property
    def enters_tree(self) -> bool:
        """Whether it is in its first step, after which its prefix is in the tree."""
        request = self.request
        step = self.by_layers and not request.output_ids
        return step and bool(request.kv.holds_kv) and not request.finished()

    @property
    def start(self) -> int:
        """Tokens before those that were looked for in the storage."""
        return int(self.operation.storage_start)

    @property
    def end(self) -> int:
        """Behind the last token that the storage has."""
        assert self.tail.end is not None, "the storage has not said what it has"
        return self.tail.end

    @property
    def whole(self) -> int:
        """Tokens of its stored prefix that no other one brings."""
        return self.end - max(self.start, self.shared)

    @property
    def has_failed(self) -> bool:
        """Whether less has come than was fetched: then no more will."""
        page = len(self.operation.host_indices) // len(self.operation.hash_value)
        told = min(self.tail.told * self.tail.batch, len(self.operation.hash_value))
        return not self.layered and int(self.operation.completed_tokens) < told * page

    def loading(self, page: int) -> int:
        """Tokens that the I/O thread was told to fetch, and has not yet.

        page: tokens of a page.
        """
        if not self.allocated or self.fetched:
            return 0
        if self.tail.handed is None:
            return self.left
        return min((self.tail.handed - self.tail.told) * self.tail.batch * page, self.left)

    @property
    def left(self) -> int:
        """Tokens that its fetch still brings, or that take as long as the layers that it brings."""
        if isinstance(self.tail, LayerFetch):
            return self.tail.left
        return max(min(len(self.operation.host_indices), self.tail.enough) - self.arrived, 0)
