"""The table of live streams: what a policy sees of every request, in numpy columns.

Filled as requests come and go, brought up to date once per iteration from what the requests that
run have made (it takes memory), and what of it was sent (a reader can read it): SGLang holds tokens
back for `--stream-interval`, and where a stop string may have begun, and its front end holds text
back (see `reader_updates`). Reasoning is made and sent, but not read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from tokenflow_sgl.contract import IntArray, LengthPredictor, Phase, Streams, Traits
from tokenflow_sgl.contract.lengths import CERTAIN
from tokenflow_sgl.lifecycle.columns import StreamColumns
from tokenflow_sgl.lifecycle.live_tenants import LiveTenants
from tokenflow_sgl.lifecycle.phases import Phases
from tokenflow_sgl.lifecycle.progress import Generating, Progress
from tokenflow_sgl.lifecycle.rest_rules import RestRules
from tokenflow_sgl.lifecycle.settled import Settled, preemptible, settle, unwritten
from tokenflow_sgl.lifecycle.shared_prefixes import SharedPrefixes
from tokenflow_sgl.qos import ReaderBank
from tokenflow_sgl.qos.classes import QosClass

R = TypeVar("R", bound=Generating)


@dataclass(frozen=True, slots=True)
class Newcomer:
    """What is known of a stream when it comes, beside how it is read.

    Attributes:
        prompt: Tokens that it has.
        limit: Tokens that its answer has at most.
        arrival: When its client sent it, in seconds on the clock of decisions.
        now: The present on that clock.
        streaming: A reader follows the text as it is made.
        thinking: Its answer begins with reasoning.
        hidden: The reader does not see the reasoning.
        priority: Larger is more urgent.
        tenant: Key of who asks; None: tenants are not told apart.
    """

    prompt: int
    limit: int
    arrival: float
    now: float
    streaming: bool = True
    thinking: bool = False
    hidden: bool = True
    priority: int = 0
    tenant: str | None = None

    @property
    def thinks(self) -> bool:
        """Whether a reader waits for its first text until its reasoning has ended."""
        return self.thinking and self.hidden and self.streaming


class StreamTable(StreamColumns, Generic[R]):
    """Live streams by slot. A slot is reused after its stream is forgotten."""

    def __init__(
        self,
        lengths: LengthPredictor,
        capacity: int = 256,
        *,
        reasoning: Callable[[R, int], int] | None = None,
    ) -> None:
        """An empty table.

        Args:
            lengths: Tells how long answers get.
            capacity: Streams for which there is place at first.
            reasoning: Of a stream that thinks: how many of its leading output tokens are reasoning,
                as the first so many of them were at the last look. None: no stream thinks.
        """
        self._reasoning_of = reasoning
        self.readers = ReaderBank(capacity)
        self.phases = Phases(capacity)
        """Where each stream stands."""
        self.rests = RestRules()
        self.tenants: LiveTenants | None = None
        """Who has streams; None: they are not told apart."""
        self._lengths = lengths
        self._known = CERTAIN
        self._requests: list[R | None] = []
        self._slot_of: dict[R, int] = {}  # insertion order is arrival order
        self.class_names: list[str] = []
        """Classes seen so far; they come from the server's configuration, so they are few."""
        self.unread: set[str] = set()  # of these, those that have no readers
        self._rank_of: dict[int, int] = {}
        self._arrivals = 0
        self._free: list[int] = []
        self._grow(capacity)
        self._order: NDArray[np.int64] | None = None
        self._active: tuple[list[R], NDArray[np.int64]] = ([], np.zeros(0, dtype=np.int64))
        self._active_version = -1
        self._settled: Settled | None = None
        self._thinks = False  # whether any stream ever thought

    def __len__(self) -> int:
        return len(self._slot_of)

    def __contains__(self, request: R) -> bool:
        return request in self._slot_of

    def _grow(self, capacity: int) -> None:
        old = len(self._requests)
        self.grow_columns(capacity, old)
        self.phases.grow(capacity)
        self._requests.extend([None] * (capacity - old))
        self._free.extend(range(capacity - 1, old - 1, -1))

    # ---- membership -----------------------------------------------------------------

    def track(self, request: R, asked: QosClass, newcomer: Newcomer) -> int:
        """A new stream; returns its slot.

        Args:
            request: Whose it is.
            asked: How it is read: its rate, class and objectives.
            newcomer: What else is known of it.
        """
        name, limit = asked.name, newcomer.limit
        if not self._free:
            self._grow(2 * len(self._requests))
        slot = self._free.pop()
        kind = self._lengths.kind(Traits(newcomer.prompt, limit, name, newcomer.thinking))
        # The curves of the last pass: asking for new ones would be work for each request, and
        # would hide the streams under way from the predictor. A new kind is not among them yet.
        typical = self._known.typical
        row = np.array([kind if kind < len(typical.survival) else 0])
        expected = typical.left(row, np.zeros(1, dtype=np.int64), np.array([limit]))
        self.readers.open(
            slot,
            rate=asked.rate,
            arrival=newcomer.arrival,
            expected_tokens=max(math.ceil(expected[0]), 1),
            tolerance=asked.tolerance,
        )
        self.kind[slot], self._requests[slot] = kind, request
        self._slot_of[request] = slot
        if name not in self.class_names:
            self.class_names.append(name)
            if not asked.reader:
                self.unread.add(name)
        self.class_number[slot] = self.class_names.index(name)
        self._rank_of[slot] = self._arrivals
        self._arrivals += 1
        self.prompt[slot], self.limit[slot] = newcomer.prompt, limit
        self.streaming[slot] = newcomer.streaming
        self.weight[slot], self.tolerance[slot] = asked.weight, asked.tolerance
        self.priority[slot] = newcomer.priority
        self._belongs(slot, newcomer.tenant)
        thinks = newcomer.thinks and self._reasoning_of is not None
        self.thinking[slot], self._thinks = thinks, self._thinks or thinks
        self.blank(slot)
        self.ask(slot, asked)
        self.awaited_since[slot] = self.rests.since(slot)
        self.phases.arrive(slot, newcomer.now)
        self._order = None
        return slot

    def _belongs(self, slot: int, key: str | None) -> None:
        """The stream is of the tenant of this key."""
        self.tenant[slot], self.tenant_weight[slot] = 0, 1.0
        if self.tenants is not None:
            self.tenant[slot] = number = self.tenants.join(key or "")
            self.tenant_weight[slot] = self.tenants.granted(number).weight

    def redate(self, request: R, now: float) -> None:
        """The stream arrived just now, not when it was tracked."""
        slot = self._slot_of[request]
        self.readers.redate(slot, now)
        self.phases.redate(slot, now)

    def forget(self, request: R, *, cut_off: bool) -> None:
        """The stream is gone; `cut_off`: its output would have been longer."""
        slot = self._slot_of.pop(request)
        if length := len(request.output_ids):
            self._lengths.ended(int(self.kind[slot]), length, cut_off=cut_off)
        self.readers.close(slot)
        self.rests.leave(slot)
        if self.tenants is not None:
            self.tenants.leave(int(self.tenant[slot]))
        self._requests[slot] = None
        del self._rank_of[slot]
        self._free.append(slot)
        self.phases.leave(slot)
        self._order = None

    def lost(self, held: Set[R]) -> list[R]:
        """Streams that are not in `held`, in order of arrival."""
        if self._slot_of.keys() <= held:
            return []
        return [request for request in self._slot_of if request not in held]

    def move(self, request: R, phase: Phase, now: float) -> None:
        """Move a stream to another phase."""
        self.phases.move(self._slot_of[request], phase, now)

    def slot(self, request: R) -> int:
        """The stream's slot; KeyError if it is not tracked."""
        return self._slot_of[request]

    def request(self, slot: int) -> R | None:
        """The request in a slot, or None if the slot is free or unknown."""
        return self._requests[slot] if 0 <= slot < len(self._requests) else None

    def rank(self, request: R) -> int:
        """Number of the stream in order of arrival."""
        return self._rank_of[self._slot_of[request]]

    def qos_class(self, slot: int) -> str:
        """Name of the rate class of the stream in `slot`; KeyError if there is none."""
        if self._requests[slot] is None:
            raise KeyError(slot)
        return self.class_names[int(self.class_number[slot])]

    def requests(self, phase: Phase) -> list[R]:
        """Streams in `phase`, in order of arrival."""
        order = self.order()
        slots = order[self.phases.phase.take(order) == phase.value]  # five times as fast as an enum
        found = [self._requests[slot] for slot in slots.tolist()]
        return [request for request in found if request is not None]

    def started(self) -> list[R]:
        """Streams that are not `Phase.WAITING`, in order of arrival."""
        phase, waiting = self.phases.phase, Phase.WAITING.value
        return [request for request, slot in self._slot_of.items() if phase[slot] != waiting]

    # ---- the running ones -----------------------------------------------------------

    def active(self) -> tuple[list[R], NDArray[np.int64]]:
        """Streams that may have produced since the last look: running and draining."""
        if self._active_version != self.phases.version:
            order = self.order()
            slots = order[self.phases.generates(order)]
            requests = [self._requests[slot] for slot in slots.tolist()]
            self._active = [request for request in requests if request is not None], slots
            self._active_version = self.phases.version
        return self._active

    def collect(self, now: float) -> Progress:
        """Hand what was sent since the last call to the readers, at time `now`.

        Without a reader there is nothing to wait for: what is made counts as delivered.
        """
        requests, slots = self.active()
        if stopped := self.phases.take_stopped():
            left = [self._requests[slot] for slot in stopped]
            requests = [*requests, *(request for request in left if request is not None)]
            slots = np.concatenate([slots, np.array(stopped, dtype=np.int64)])
        made = np.array([len(request.output_ids) for request in requests], dtype=np.int64)
        sent = np.array([request.send_token_offset for request in requests], dtype=np.int64)
        sent = np.where(self.streaming.take(slots), sent, made)
        produced = int(np.maximum(made - self.generated.take(slots), 0).sum())
        reasoned = self.look(requests, slots, made, self._reasoning_of, self.readers)
        self.generated[slots] = made
        begun = (sent > 0) & ~self.begun.take(slots)
        self.begun[slots] |= begun
        passed_on = np.minimum(sent, self.passed_on.take(slots))
        seen = np.maximum(passed_on - self.reasoning.take(slots), 0)
        counts = seen - self.readers.delivered.take(slots)
        delivery = self.readers.deliver(slots, counts, now)
        last = self.last_token[slots]
        self.last_token[slots] = np.where(counts > 0, now, last)
        new = np.clip(seen - self.counted.take(slots), 0, np.maximum(counts, 0))
        self.counted[slots] += new
        return Progress(slots, counts, new, delivery, now - last, produced, begun, reasoned)

    # ---- the policy's view ----------------------------------------------------------

    def order(self) -> NDArray[np.int64]:
        """All slots in order of arrival."""
        if self._order is None:
            self._order = np.fromiter(self._slot_of.values(), np.int64, len(self._slot_of))
        return self._order

    def streams(
        self,
        untouchable: Iterable[int],
        *,
        writes: bool = False,
        cached: tuple[IntArray, IntArray] | None = None,
        prefixes: SharedPrefixes | None = None,
    ) -> Streams:
        """The table as the policy sees it; `untouchable` slots cannot be preempted now.

        writes: computed KV of running streams can be copied to the host. cached: as of
        `CachedPrefixes.of`. prefixes: know what streams share. None: not known.
        """
        settled = self._settled
        if settled is None or settled.version != self.phases.version:
            tenants = self.tenants is not None
            settled = settle(self, self.readers, self.phases, self.order(), tenants=tenants)
            self._settled = settled
        order = settled.standing.slot
        generated = self.generated.take(order)
        self._known = self._lengths.lengths(settled.kind, generated)
        next_due = self.readers.next_due.take(order)
        if self.rests.awaited:
            since = np.maximum(self.awaited_since.take(order), settled.columns["arrival"])
            next_due = np.minimum(next_due, since)
        on_device, on_host = (None, None) if cached is None else cached
        return Streams(
            standing=settled.standing,
            kind=settled.kind,
            **settled.columns,
            next_due=next_due,
            first_text=self.readers.first_token.take(order),
            generated=generated,
            lengths=self._known,
            visible=generated - self.reasoning.take(order) if self._thinks else None,
            thinking=self.thinking.take(order) if self._thinks else None,
            admitted=self.phases.admitted.take(order),
            preemptible=preemptible(self, settled, generated, untouchable),
            ready=self.phases.ready.take(order),
            unwritten=unwritten(self, settled, generated, writes=writes),
            to_load=self.phases.to_load(order),
            on_device=on_device,
            on_host=on_host,
            shared=None if prefixes is None else prefixes.of(order, generated > 0),
            beginnings=None if prefixes is None else prefixes.beginnings,
        )
