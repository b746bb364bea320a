"""Puts the twins in place, in a process that is about to speculate."""

import os
import sys
from types import ModuleType
from typing import Any

from tokenflow_sgl_emulator.emulator_seams import SPECULATION
from tokenflow_sgl_emulator.speculation import draft_slots, draft_trees

_LIBRARY = "sgl_kernel.speculative"


def _no_copy_kernel(pool: Any) -> None:
    """Instead of warming up the kernel that moves KV: torch moves it."""
    pool._kv_copy_config = None


def _mask_of_drafts() -> Any:
    from sglang.kernels.ops.speculative.spec_tree import TreeMaskMode

    return TreeMaskMode.QLEN_ONLY


def _always_greedy(**_why: Any) -> bool:
    """There is no kernel here that verifies samples."""
    return True


def _last_slots(table: Any, rows: Any, lengths: Any) -> Any:
    from sglang.srt.mem_cache.allocation import get_last_loc_torch

    return get_last_loc_torch(table, rows, lengths)


def _decode_backend(factory: Any) -> Any:
    """Imported late: attention needs the model runner, which imports the platform."""
    from tokenflow_sgl_emulator.speculation.draft_steps import decode_backend

    return decode_backend(factory)


def _extend_backend(factory: Any) -> Any:
    from tokenflow_sgl_emulator.speculation.draft_steps import extend_backend

    return extend_backend(factory)


_TWINS = {
    "assign_draft_cache_locs_contiguous_func": draft_slots.draft_cache_locs,
    "fill_front_out_cache_loc_func": draft_slots.front_cache_locs,
    "fill_accept_out_cache_loc_func": draft_slots.accepted_cache_locs,
    "fill_bonus_tokens_func": draft_slots.bonus_tokens,
    "assign_req_to_token_pool_func": draft_slots.assign_slots,
    "get_last_loc": _last_slots,
    "gather_spec_extras": draft_slots.gather_extras,
    "build_tree_kernel_efficient_func": draft_trees.build_trees,
    "verify_tree_greedy_func": draft_trees.verify_greedy,
    "reconstruct_indices_from_tree_mask_func": draft_trees.describe_trees,
    "default_tree_mask_mode": _mask_of_drafts,
    "_verify_uses_greedy": _always_greedy,
    "_init_kv_copy_and_warmup": _no_copy_kernel,
    "create_decode_backend": _decode_backend,
    "create_draft_extend_backend": _extend_backend,
}
"""By the last name of the seam."""


def stand_in_library() -> None:
    """Let SGLang import its compiled library for NGRAM, which does not load without CUDA.

    It imports one operator by name; the function around that is replaced.
    """
    if _LIBRARY not in sys.modules:
        library = ModuleType(_LIBRARY)
        vars(library)["reconstruct_indices_from_tree_mask"] = draft_trees.describe_trees
        sys.modules[_LIBRARY] = library


def install() -> None:
    """Replace SGLang's kernels for drafts, once per process.

    Raises:
        RuntimeError: SGLang did not apply a hook; the message names it.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from tokenflow_sgl_emulator.platform_plugin import check_hooked

    os.environ["SGLANG_NATIVE_MOVE_KV_CACHE"] = "1"
    stand_in_library()
    for seam in SPECULATION:
        twin = _TWINS[seam.target.rpartition(".")[2]]
        HookRegistry.register(seam.target, twin, HookType.REPLACE)
    HookRegistry.apply_hooks()
    check_hooked(SPECULATION)
