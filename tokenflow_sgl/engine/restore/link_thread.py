"""Turns: which fetch SGLang's I/O thread loads next, and how much of it.

SGLang puts each fetch into the queue of its I/O thread when host memory is allocated for it, and
the thread loads one whole fetch after the other. A fetch from the tail is passed over there. It
comes again as turns: some of its batches at a time, as the scheduler has decided between all
fetches. Every rank's scheduler puts the same turns in the same order, so the threads' reports,
on which the ranks agree one by one, are of the same batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sglang.srt.plugins.hook_registry import HookType

from tokenflow_sgl.engine.restore.tail_fetch import tail_of
from tokenflow_sgl.engine.sglang.controller import Controller
from tokenflow_sgl.engine.sglang.hooking import hold

_CONTROLLER = "sglang.srt.managers.cache_controller:HiCacheController"


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """What the I/O thread loads next.

    operation: SGLang's, a fetch from the tail. batches: of it, at most; None: to its end.
    """

    operation: Any
    batches: int | None


def hand_on(controller: Controller, turn: Turn) -> None:
    """Behind what was handed on before."""
    controller.prefetch_buffer.put(turn)


def register_turns() -> None:
    """Declare the hook, in the scheduler's process before it has a cache."""
    hold(
        f"{_CONTROLLER}.prefetch_io_aux_func",
        _work,
        HookType.AROUND,
        "fetches what admission takes first",
    )


def _work(original: Callable[[Any], None], controller: Controller) -> None:
    original(_Controller(controller))


class _Controller:
    """SGLang's, as its I/O thread sees it: its queue has only what has its turn."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self.prefetch_buffer = _Turns(controller)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._controller, name)


class _Turns:
    """SGLang's queue of fetches; other ones than those from the tail are taken as they come."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Next fetch for SGLang's I/O thread, as from a queue; None: nothing, it asks again."""
        controller = self._controller
        item = controller.prefetch_buffer.get(block=block, timeout=timeout)
        if not isinstance(item, Turn):
            return None if item is not None and tail_of(item) is not None else item
        if item.batches is None:
            return item.operation  # the thread says that it has ended
        fetch = tail_of(item.operation)
        assert fetch is not None, "turns are of fetches from the tail"
        with controller.mem_pool_host.layout_lease():
            fetch.fetch(controller, item.operation, item.batches)
        return None
