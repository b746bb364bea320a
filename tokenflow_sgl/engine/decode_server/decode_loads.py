"""Loads of resumed streams' KV that overlap with the decode steps of the streams that run.

In SGLang's decode server the scheduler's thread waits for each such copy, which begins when the
step under way has ended: the device stands idle meanwhile, and all streams with it. Hooks let
SGLang submit the copy and go on. Its stream has its memory then, and joins the batch when the copy
has landed; until then the host keeps its side of it.

All ranks let a stream join in the same pass: by the passes since, by the shared clock, and by the
rate of the link that the leader has measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from sglang.srt.plugins.hook_registry import HookType

from tokenflow_sgl.costs import Links
from tokenflow_sgl.engine.kv.link_rates import TransferWatch
from tokenflow_sgl.engine.sglang.controller import CopyEnds, CopyEngine, PoolCopy
from tokenflow_sgl.engine.sglang.hooking import hold
from tokenflow_sgl.engine.sglang.request import Req
from tokenflow_sgl.engine.sglang.tree import Tree
from tokenflow_sgl.engine.shared_clock import SharedClock

PASSES = 2
"""Passes after that of its submission before a copy is looked for: in the first the step that it
waits for ends, in the second one that runs beside it."""
_TREE = "sglang.srt.mem_cache.unified_radix_cache:UnifiedRadixCache"
_ENGINE = "sglang.srt.mem_cache.l2_transfer:L2TransferEngine"
_LOADS = "_tokenflow_decode_loads"
_MEASURED = "measures a decode server's copies"


def register_loads() -> None:
    """Declare the hooks, in the scheduler's process before it has a tree."""
    hold(
        f"{_TREE}.restore_kv_cache",
        beside_steps,
        HookType.AROUND,
        "submits a resumed stream's copy and goes on",
        ("req", "backup"),
    )
    hold(
        f"{_TREE}.discard_kv_cache_backup",
        when_landed,
        HookType.AROUND,
        "the host's side is kept until such a copy has landed",
        ("backup",),
    )
    hold(f"{_ENGINE}.submit_host_to_device", on_load, HookType.AFTER, _MEASURED, ("transfers",))
    hold(f"{_ENGINE}.submit_device_to_host", on_store, HookType.AFTER, _MEASURED, ("transfers",))


class Ack(NamedTuple):
    """A copy under way, as `TransferWatch` looks at those of HiCache."""

    start_event: Any
    finish_event: Any
    timing_enabled: bool
    num_tokens: int


@dataclass(slots=True)
class DecodeLoad:
    """The load of one paused stream's KV from the host.

    Attributes:
        ack: Of its copy.
        backup: What the host has of it, SGLang's record.
        passes: Since it was submitted.
        due: When it should have landed, on the shared clock.
    """

    ack: Ack
    backup: Any
    passes: int = -1
    due: float = 0.0


class NotAwaited:
    """Stands for an event where SGLang would wait for it: whoever lets the stream join does.

    event: The copy's end.
    """

    def __init__(self, event: Any) -> None:
        self.event = event

    def query(self) -> bool:
        """Whether the copy has ended."""
        return bool(self.event.query())

    def synchronize(self) -> None:
        """Wait for nothing: whoever lets the stream join waits for the copy."""


class DecodeLoads:
    """The copies of one rank.

    Args:
        tree_cache: SGLang's, whose hooks find this.
        clock: That all ranks share.

    Attributes:
        ack_load_queue, ack_write_queue, write_queue: As HiCache has them, to be measured.
    """

    def __init__(self, tree_cache: Tree, clock: SharedClock) -> None:
        self._tree, self._clock = tree_cache, clock
        self._under_way: dict[Any, DecodeLoad] = {}
        self._restored: Any = None
        self._begun: list[Ack] = []
        self.ack_load_queue: list[Ack] = []
        self.ack_write_queue: list[Ack] = []
        self._stored: list[Ack] = []
        self.write_queue: tuple[Any, ...] = ()
        setattr(tree_cache, _LOADS, self)
        setattr(tree_cache.cache_controller.l2_transfer_engine, _LOADS, self)

    # ---- what the scheduler asks ----------------------------------------------------

    def coming(self, *, alone: bool) -> dict[Any, DecodeLoad]:
        """Streams that cannot join in this pass; called once per pass.

        alone: No step runs that a copy could run beside, so all are waited for.
        """
        # What lands in this pass is measured when the next one begins.
        self.ack_load_queue = [load.ack for load in self._under_way.values()]
        self.ack_write_queue, self._stored = self._stored, []
        now, free_from = self._clock.now, 0.0
        for request, load in list(self._under_way.items()):
            load.passes += 1
            if load.passes <= 1:
                load.due = max(now, free_from) + self._seconds(load.ack.num_tokens)
            free_from = load.due
            if alone or (load.passes >= PASSES and now >= load.due):
                self.end(request)
        return self._under_way

    def end(self, request: Req) -> None:
        """Wait for a stream's copy, if one is under way: its memory may be given away then."""
        load = self._under_way.pop(request, None)
        if load is not None:
            load.ack.finish_event.synchronize()
            self._tree.discard_kv_cache_backup(load.backup)

    def settle(self) -> None:
        """Wait for all of them."""
        for request in list(self._under_way):
            self.end(request)

    def _seconds(self, tokens: int) -> float:
        """How long the link takes for so many; 0.0 while that was not measured."""
        rate = self._clock.load_rate
        return tokens / rate if rate > 0.0 else 0.0

    # ---- what the hooks tell --------------------------------------------------------

    def submit(self, restore: Callable[[], None], request: Req, backup: Any) -> None:
        """Let SGLang restore a stream without waiting for the copy."""
        self._restored, self._begun = backup, []
        try:
            restore()
        finally:
            self._restored = None
        (ack,) = self._begun
        self._under_way[request] = DecodeLoad(ack, backup)

    def keeps(self, backup: Any) -> bool:
        """Whether SGLang gives up what the copy that it has just submitted still reads."""
        return backup is self._restored

    def began(self, completion: CopyEnds, tokens: int) -> Any:
        """A copy to the device was submitted; what SGLang is to know of it."""
        if self._restored is None:
            return completion
        self._begun.append(_ack(completion, tokens))
        return completion._replace(finish_event=NotAwaited(completion.finish_event))

    def stored(self, completion: CopyEnds, tokens: int) -> None:
        """A copy to the host was submitted."""
        self._stored.append(_ack(completion, tokens))


class DecodeTransfers(TransferWatch):
    """Measures a decode server's copies.

    The policy is not told: no step waits for a load, and no stream needs one ahead of its turn.
    """

    def links(self, clock: SharedClock) -> Links:
        """Nothing that would be planned by."""
        return Links()


def beside_steps(original: Callable[..., None], tree: Tree, req: Req, backup: Any) -> None:
    """Around `restore_kv_cache`: it returns when the copy was submitted."""
    loads: DecodeLoads | None = getattr(tree, _LOADS, None)
    if loads is None:
        original(tree, req, backup)
    else:
        loads.submit(lambda: original(tree, req, backup), req, backup)


def when_landed(original: Callable[..., None], tree: Tree, backup: Any) -> None:
    """Around `discard_kv_cache_backup`: not while a copy is to read it."""
    loads: DecodeLoads | None = getattr(tree, _LOADS, None)
    if loads is None or not loads.keeps(backup):
        original(tree, backup)


def on_load(
    completion: CopyEnds, engine: CopyEngine, transfers: list[PoolCopy], *_args: Any, **_rest: Any
) -> Any:
    """After a copy to the device was submitted."""
    loads: DecodeLoads | None = getattr(engine, _LOADS, None)
    return completion if loads is None else loads.began(completion, _tokens(transfers))


def on_store(
    completion: CopyEnds, engine: CopyEngine, transfers: list[PoolCopy], *_args: Any, **_rest: Any
) -> Any:
    """After a copy to the host was submitted."""
    loads: DecodeLoads | None = getattr(engine, _LOADS, None)
    if loads is not None:
        loads.stored(completion, _tokens(transfers))
    return completion


def _ack(completion: CopyEnds, tokens: int) -> Ack:
    events = completion.start_event, completion.finish_event
    return Ack(*events, bool(completion.timing_enabled), tokens)


def _tokens(transfers: list[PoolCopy]) -> int:
    """KV tokens of a copy, whose first part is that of the model's own pool."""
    return len(transfers[0].device_indices)
