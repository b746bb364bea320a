"""Environments of servers that find another plugin beside ours: `server_side/rival_plugin.py`."""

from __future__ import annotations

import json
import os
from importlib.metadata import distribution
from pathlib import Path

from servers.fixtures import SERVER_SIDE

RIVAL = Path(__file__).parents[1] / "rival"
"""A folder with its entry point, which installers would make."""
WRAPPING = ("BEFORE", "AFTER", "AROUND")
PARSING = (
    "sglang.srt.server_args.ServerArgs.add_cli_args",
    "sglang.srt.server_args.ServerArgs.from_cli_args",
)
"""Ran before a hook on it was there to hear."""
EVICTING = "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache.evict_for_alloc"
"""Is called where recurrent states are evicted."""
CONTROLLER = "sglang.srt.managers.data_parallel_controller.DataParallelController.get_init_info"
STEPPING = "sglang.srt.managers.scheduler.Scheduler.get_next_batch_to_run"
TARGETS = (
    *PARSING,
    "sglang.srt.entrypoints.engine.Engine._launch_scheduler_processes",
    "sglang.srt.managers.tokenizer_manager.TokenizerManager.generate_request",
    "sglang.srt.managers.tokenizer_manager.TokenizerManager._wait_one_response",
    "sglang.srt.entrypoints.http_server.serve_generate_request",
    "sglang.srt.entrypoints.openai.serving_base.OpenAIServingBase.handle_request",
    "sglang.srt.entrypoints.openai.serving_chat.OpenAIServingChat._generate_chat_stream",
    "sglang.srt.managers.scheduler.configure_scheduler_process",
    STEPPING,
    "sglang.srt.managers.scheduler.Scheduler.get_new_batch_prefill",
    "sglang.srt.managers.scheduler.Scheduler.abort_request",
    EVICTING,
)
"""What a server of one flag has hooks on, and some methods of its scheduler; SGLang's spelling."""
HARMLESS = [(target, WRAPPING[i % len(WRAPPING)]) for i, target in enumerate(TARGETS)]
"""A hook on each of them, one kind after the other."""


def beside(hooks: list[tuple[str, str]], before: Path | None = None) -> dict[str, str]:
    """The environment in which SGLang finds the other plugin, with these hooks.

    Args:
        hooks: Targets and kinds.
        before: An empty folder, where SGLang is to find ours before the other one; None: it finds
            the other one first.
    """
    folders = [RIVAL, SERVER_SIDE]
    if before is not None:
        info = before / "tokenflow_sgl-0.dist-info"
        info.mkdir()
        for name in ("METADATA", "entry_points.txt"):
            (info / name).write_text(distribution("tokenflow-sgl").read_text(name) or "")
        folders = [before, *folders]
    return {
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
        "RIVAL_HOOKS": json.dumps(hooks),
    }
