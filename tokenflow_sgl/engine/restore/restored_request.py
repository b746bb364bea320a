"""One request whose prefix is restored from both sides."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from tokenflow_sgl.engine.restore.layer_fetch import LayerFetch
from tokenflow_sgl.engine.restore.tail_copies import TailCopies
from tokenflow_sgl.engine.restore.tail_fetch import TailFetch, tail_of


class Stage(Enum):
    """Where a restoration is; `NEXT_STAGES` says what comes behind each.

    Attributes:
        ASKED: The storage is asked what it has.
        FOUND: It has some, and host memory is there for it.
        TAIL: That is fetched from its last token on, and the request's head is computed.
        LAYERS: It is fetched from its last layer on, and the request waits.
        SPLIT: The request is in its first step, whose lower layers are computed.
        PROBE: The request is computed alone, and the fetch only measures the link.
        JOINED: The head has met the tail, which is in the prefix tree.
        COMPUTED: The rest of the layers is launched: what SGLang has is an ordinary prefill.
        DROPPED: The fetch is of no use any more.
    """

    ASKED = auto()
    FOUND = auto()
    TAIL = auto()
    LAYERS = auto()
    SPLIT = auto()
    PROBE = auto()
    JOINED = auto()
    COMPUTED = auto()
    DROPPED = auto()


NEXT_STAGES: dict[Stage, frozenset[Stage]] = {
    Stage.ASKED: frozenset({Stage.FOUND, Stage.LAYERS, Stage.DROPPED}),
    # A pass comes between, as a rule, in which another one that brings its beginning is looked for.
    Stage.FOUND: frozenset({Stage.TAIL, Stage.PROBE, Stage.JOINED, Stage.DROPPED}),
    Stage.TAIL: frozenset({Stage.PROBE, Stage.JOINED, Stage.DROPPED}),
    Stage.LAYERS: frozenset({Stage.SPLIT, Stage.PROBE, Stage.JOINED, Stage.DROPPED}),
    # What is fetched may be dropped meanwhile: then its layers are computed up to the last one.
    Stage.SPLIT: frozenset({Stage.COMPUTED, Stage.DROPPED}),
    Stage.PROBE: frozenset({Stage.DROPPED}),
    Stage.JOINED: frozenset(),
    Stage.COMPUTED: frozenset(),
    Stage.DROPPED: frozenset(),
}
"""Stages that may follow each stage of a restoration; those with none are its ends."""


@dataclass(slots=True)
class NextStep:
    """What was decided of a restoration's next step, until it is decided again.

    Attributes:
        chunk: Tokens that it computes; 0: any number.
        head: Tokens that it had when that was decided.
        alone: All of it is computed, if it is admitted in this pass.
        seen: Tokens of its tail that had arrived then; -1: it was not looked at yet.
    """

    chunk: int = 0
    head: int = 0
    alone: bool = False
    seen: int = -1


@dataclass(slots=True)
class TailWait:
    """What a restoration waits for whose head is computed far enough.

    Attributes:
        needed: Tokens of the tail.
        landing: Seconds, when they will have arrived; infinite while it does not wait.
    """

    needed: int = 0
    landing: float = math.inf


@dataclass(slots=True)
class LinkPlace:
    """Where a restoration's fetch is among all of them, as of this pass.

    Attributes:
        number: Its place in their order.
        ahead: Tokens that the link brings before its own.
        on_link: Its own come next.
        rank: Those with the least are fetched first.
    """

    number: int = 0
    ahead: int = 0
    on_link: bool = False
    rank: int = 0


@dataclass(eq=False, slots=True)
class Restoration:
    """How far a request's restoration is.

    Attributes:
        request: SGLang's.
        operation: Its fetch, which is one from the tail, or by layers.
        stage: Where it is; changed by `goes` alone.
        began: Seconds, when its fetch was first looked at; NaN: not yet.
        arrived: Tokens of the tail.
        landed: Layers, where it is fetched by layers.
        fetched: The fetch has ended, no more will come.
        looked_for: No more will come, and its head was looked for in the tree since.
        leader: Another one that brings its beginning, too; None: no other does, or not any more.
        shared: Up to which token the leader brings it.
        step: Its next one.
        wait: For its tail.
        link: Its place there.
    """

    request: Any
    operation: Any
    stage: Stage = Stage.ASKED
    began: float = math.nan
    arrived: int = 0
    landed: int = 0
    fetched: bool = False
    looked_for: bool = False
    leader: Restoration | None = None
    shared: int = 0
    step: NextStep = field(default_factory=NextStep)
    wait: TailWait = field(default_factory=TailWait)
    link: LinkPlace = field(default_factory=LinkPlace)

    def goes(self, to: Stage) -> None:
        """Move a restoration to its next stage, one that may follow the stage that it is at."""
        assert to in NEXT_STAGES[self.stage], f"{to.name} does not follow {self.stage.name}"
        self.stage = to

    def ends(self) -> None:
        """Drop the fetch of a restoration; layers that are computed already go on without it."""
        if self.stage is not Stage.SPLIT:
            self.goes(Stage.DROPPED)

    @property
    def tail(self) -> TailFetch:
        """The fetch of this restoration's tail."""
        tail = tail_of(self.operation)
        assert tail is not None, "it was marked when it began"
        return tail

    @property
    def layer_fetch(self) -> LayerFetch:
        """The fetch of a restoration that comes layer by layer."""
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
        """Copies of the tail to the device."""
        return self.tail.copies

    @property
    def allocated(self) -> bool:
        """Whether the storage has said what it has, and host memory is there for it."""
        return self.stage is not Stage.ASKED

    @property
    def may_lead(self) -> bool:
        """Whether others may wait for what it brings.

        Not if its fetch has ended and its head, as far as it is computed, does not meet it: it may
        not be asked for for long.
        """
        return self.stage is not Stage.PROBE and not (self.fetched and self.looked_for)

    @property
    def enters_tree(self) -> bool:
        """Whether it is in its first step, after which its prefix is in the tree."""
        request = self.request
        step = self.stage in (Stage.SPLIT, Stage.COMPUTED) and not request.output_ids
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
