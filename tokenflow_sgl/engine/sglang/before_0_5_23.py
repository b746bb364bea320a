"""What SGLang did in another way before 0.5.23; `since_0_5_23` has the same for later releases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from sglang.srt.plugins.hook_registry import HookType

from tokenflow_sgl.engine.sglang.hooking import hold
from tokenflow_sgl.engine.sglang.protocol import of
from tokenflow_sgl.engine.sglang.tree import Tree
from tokenflow_sgl.engine.sglang.worker import LiveScheduler, ModelConfig, Ranks

WORKERS_SERVE_OURS = False
"""Whether tokenizer workers serve the application that the environment names."""
MIXES_STATES = False
"""Whether mixed steps keep recurrent states right. Before 0.5.23 a row that decodes in one is taken
for saved where nothing was: a stream that resumes from there goes on with other tokens."""
_CONTROLLER = "sglang.srt.managers.data_parallel_controller"
_TIMES = "startup_time"
_OURS = "tokenflow_"
"""How the names begin of what we add."""


@of("sglang.srt.mem_cache.unified_radix_cache:UnifiedRadixCache")
class SlidingTree(Protocol):
    """The tree of a model with sliding windows."""

    sliding_window_size: int | Any
    """How many tokens a window has."""


def said(info: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    """What a scheduler of ours tells its parent: SGLang's `info`, and ours.

    Among the times of its start, too: the controller of replicas passes on nothing else.
    """
    return {**info, **ours, _TIMES: {**info[_TIMES], **ours}}


def heard(infos: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What each scheduler, or the controller of replicas, has said, with ours as it was given."""
    for info in infos:
        times = info[_TIMES]
        for name in [each for each in times if each.startswith(_OURS)]:
            info[name] = times.pop(name)
    return infos


def hold_controller(gather: Callable[[list[dict[str, Any]]], dict[str, Any]]) -> None:
    """Let the controller of replicas pass on what `gather` makes of what all of them say."""
    every: list[dict[str, Any]] = []  # each replica's are summed up in a call of their own

    def pass_on(
        original: Callable[..., dict[str, Any]], times: Iterable[Mapping[str, Any] | None]
    ) -> dict[str, Any]:
        here = [{**(each or {})} for each in times]
        every.extend(here)
        return {**original(here), **gather(every)}

    hold(
        f"{_CONTROLLER}:aggregate_scheduler_startup_times",
        pass_on,
        HookType.AROUND,
        "passes on what the schedulers of data-parallel replicas say",
    )


def hold_server_info(ours: Callable[[LiveScheduler], dict[str, Any]]) -> None:
    """Nothing: its front end in Rust is refused, with whatever `ours` would say."""


def opening_of(model: ModelConfig) -> tuple[int, ...]:
    """Tokens with which the model opens its thinking by itself; SGLang knows of none."""
    return ()


def megamoe(ranks: Ranks) -> bool:
    """Whether experts are computed in the one step that expects no decoding rows; there is none."""
    return False


def kept_by_windows(tree: Tree) -> int:
    """Tokens of a stream that a sliding window keeps."""
    windowed: SlidingTree | Any = tree
    return int(windowed.sliding_window_size)
