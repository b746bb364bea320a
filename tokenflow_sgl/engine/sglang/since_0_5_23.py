"""What SGLang does in another way since 0.5.23; `before_0_5_23` has the same for older releases."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from sglang.srt.plugins.hook_registry import HookType

from tokenflow_sgl.engine.sglang.hooking import hold
from tokenflow_sgl.engine.sglang.protocol import of
from tokenflow_sgl.engine.sglang.tree import Tree
from tokenflow_sgl.engine.sglang.worker import LiveScheduler, ModelConfig, Ranks

WORKERS_SERVE_OURS = True
"""Whether tokenizer workers serve the application that the environment names."""
MIXES_STATES = True
"""Whether mixed steps keep recurrent states right. Before 0.5.23 a row that decodes in one is taken
for saved where nothing was: a stream that resumes from there goes on with other tokens."""
_CONTROLLER = "sglang.srt.managers.data_parallel_controller:DataParallelController"


@of("sglang.srt.managers.data_parallel_controller:DataParallelController")
class ReplicaController(Protocol):
    """Launches the data-parallel replicas of a server."""

    _scheduler_init_infos: list[dict[str, Any]]
    """What the replicas' schedulers say."""


@of("sglang.srt.environ:Envs")
class WorkerEnvironment(Protocol):
    """Variables that SGLang's tokenizer workers read."""

    SGLANG_HTTP_SERVER_APP_PATH: Any
    """Puts our part of the front end into every tokenizer worker."""


@of("sglang.srt.configs.model_config:ModelConfig")
class OpeningModel(Protocol):
    """A model that may open its thinking by itself."""

    self_opened_think_start_ids: Sequence[int] | None
    """Which answers begin with thoughts."""


@of("sglang.srt.arg_groups.fields.parallel:Parallel")
class MegamoeRanks(Protocol):
    """Where in a group of processes this one is."""

    enable_megamoe_for_layernorm_sp: bool
    """With it SGLang refuses mixed steps."""


@of("sglang.srt.mem_cache.unified_radix_cache:UnifiedRadixCache")
class WindowedTree(Protocol):
    """The tree of a model with sliding windows."""

    swa_retain_window: int | Any
    """How many tokens a window has."""


def said(info: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    """What a scheduler of ours tells its parent: SGLang's `info`, and ours."""
    return {**info, **ours}


def heard(infos: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What each scheduler, or the controller of replicas, has said, with ours as it was given."""
    return infos


def hold_controller(gather: Callable[[list[dict[str, Any]]], dict[str, Any]]) -> None:
    """Let the controller of replicas pass on what `gather` makes of what all of them say."""

    def pass_on(info: dict[str, Any], controller: ReplicaController) -> dict[str, Any]:
        return {**info, **gather(controller._scheduler_init_infos)}

    hold(
        f"{_CONTROLLER}.get_init_info",
        pass_on,
        HookType.AFTER,
        "passes on what the schedulers of data-parallel replicas say",
    )


def hold_server_info(ours: Callable[[LiveScheduler], dict[str, Any]]) -> None:
    """Let /server_info of SGLang's front end in Rust have `ours`, too."""

    def told(info: str, scheduler: LiveScheduler) -> str:
        return json.dumps({**json.loads(info), **ours(scheduler)})

    hold(
        "sglang.srt.rust_server.config:_launch_server_info",
        told,
        HookType.AFTER,
        "what a scheduler of ours says of itself, in /server_info of the front end in Rust",
        ("scheduler",),
    )


def opening_of(model: ModelConfig) -> tuple[int, ...]:
    """Tokens with which the model opens its thinking by itself; empty: it does not."""
    opening: OpeningModel | Any = model
    return tuple(opening.self_opened_think_start_ids or ())


def megamoe(ranks: Ranks) -> bool:
    """Whether experts are computed in the one step that expects no decoding rows."""
    combined: MegamoeRanks | Any = ranks
    return bool(combined.enable_megamoe_for_layernorm_sp)


def kept_by_windows(tree: Tree) -> int:
    """Tokens of a stream that a sliding window keeps."""
    windowed: WindowedTree | Any = tree
    return int(windowed.swa_retain_window)
