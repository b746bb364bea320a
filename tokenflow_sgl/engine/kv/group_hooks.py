"""SGLang's hooks through which block groups learn whose pages are asked for; see `stream_pages`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from sglang.srt.plugins.hook_registry import HookType

from tokenflow_sgl.engine.extension import Extension, Host
from tokenflow_sgl.engine.kv.group_allocators import with_groups
from tokenflow_sgl.engine.kv.stream_pages import StreamPages
from tokenflow_sgl.engine.sglang.batch import ReqBatch
from tokenflow_sgl.engine.sglang.hooking import hold
from tokenflow_sgl.engine.sglang.pools import Allocator
from tokenflow_sgl.engine.sglang.request import Req
from tokenflow_sgl.engine.sglang.server import ServerArgs
from tokenflow_sgl.engine.sglang.tree import Tree
from tokenflow_sgl.lifecycle.table import StreamTable

_ALLOCATION = "sglang.srt.mem_cache.allocation"
_TREE = "sglang.srt.mem_cache.unified_radix_cache:UnifiedRadixCache"
_BUILD = (
    "sglang.srt.mem_cache.kv_cache_configurator:KVCacheConfigurator"
    "._build_token_to_kv_pool_allocator"
)

Function = Callable[..., Any]


def register(server_args: ServerArgs) -> None:
    """Declare the hooks, in the scheduler's process before it has a pool."""
    hold(_BUILD, _built, HookType.AFTER, "puts an allocator with block groups in place")
    hold(
        f"{_ALLOCATION}:alloc_for_extend",
        _extend,
        HookType.AROUND,
        "whose pages a prefill asks for",
        ("batch",),
    )
    hold(
        f"{_ALLOCATION}:alloc_for_decode",
        _decode,
        HookType.AROUND,
        "whose pages a decode step asks for",
        ("batch", "token_per_req"),
    )
    hold(
        f"{_TREE}.init_load_back",
        _load,
        HookType.AROUND,
        "block groups hear of which stream's KV comes back",
        ("params",),
    )
    hold(
        f"{_TREE}.on_release",
        _released,
        HookType.AFTER,
        "gives the rest of a group back",
        ("req", "checkpointed"),
    )


def build(host: Host) -> Extension:
    """Beside our scheduler: from now on groups are as large as expected lengths let expect."""
    assert host.table is not None, "block groups work with our scheduler only"
    size_groups(host.scheduler.token_to_kv_pool_allocator, host.table)
    return Extension()


def pages_of(allocator: Allocator) -> StreamPages:
    """The pages of an allocator with block groups.

    Raises:
        RuntimeError: It has none: the hooks were not applied, or another plugin has replaced it.
    """
    pages = getattr(allocator, "pages", None)
    if not isinstance(pages, StreamPages):
        raise RuntimeError(
            f"block_groups (--tokenflow-tuning) could not put its allocator in place: it is "
            f"{type(allocator).__module__}.{type(allocator).__qualname__}"
        )
    return pages


def size_groups(allocator: Allocator, table: StreamTable[Any]) -> None:
    """From now on groups are as large as the lengths in `table` let expect.

    Raises:
        RuntimeError: The allocator has no block groups.
    """
    pages_of(allocator).tokens_left = partial(_tokens_left, table)


def _tokens_left(table: StreamTable[Any], request: Req) -> int:
    made = len(request.output_ids)
    most = int(request.sampling_params.max_new_tokens) - made
    if request not in table:
        return max(most, 0)
    slot = table.slot(request)
    if not table.thinking[slot]:
        made -= int(table.reasoning[slot])  # what is expected then is text
    left = int(table.readers.expected_tokens[slot]) - made
    # One that is longer than was expected goes on for about as long again.
    return max(min(left if left > 0 else made, most), 0)


def _built(result: Any, *_args: Any, **_kwargs: Any) -> Any:
    return with_groups(result)


def _extend(original: Function, batch: ReqBatch) -> Any:
    pages = pages_of(batch.tree_cache.token_to_kv_pool_allocator)
    with pages.extending(batch.reqs, batch.extend_lens):
        found = original(batch)
    pages.bind(batch.reqs, found[2].numpy())
    return found


def _decode(original: Function, batch: ReqBatch, token_per_req: int) -> Any:
    pages = pages_of(batch.tree_cache.token_to_kv_pool_allocator)
    with pages.decoding(batch.req_pool_indices_cpu.numpy()):
        return original(batch, token_per_req=token_per_req)


def _load(original: Function, tree: Tree, params: Any) -> Any:
    with pages_of(tree.token_to_kv_pool_allocator).loading(params.req):
        return original(tree, params)


def _released(_result: None, tree: Tree, req: Req, *, checkpointed: bool) -> None:
    pages_of(tree.token_to_kv_pool_allocator).released(req)
