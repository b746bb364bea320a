"""Starts SGLang so that it flushes its caches only if, apart from them, nothing is held.

Asked for by a file, since it looks longer than a flush does: it evicts all that the prefix tree
has, on the device and on the host. What is not free then is held by what is over: memory that was
lost, locks that were left, entries of requests that have ended. All ranks look at the same time.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

import torch
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.srt.plugins import load_plugins
from sglang.srt.server_args import prepare_server_args

from tokenflow_sgl.engine.restore.fetch_ends import fetches_of
from tokenflow_sgl.engine.restore.restore_hooks import restorations_of

LOOK = "TOKENFLOW_TEST_LOOK"
"""Variable with the path of the file that has to be there."""
THREADS = ("prefetch_thread", "prefetch_io_aux_thread", "prefetch_sync_thread", "backup_thread")

logger = logging.getLogger(__name__)
flush = Scheduler.flush_cache


def flush_if_nothing_is_held(self: Any, *args: Any, **kwargs: Any) -> bool:
    if not (Path(os.environ[LOOK]).exists() and self.is_fully_idle()):
        return bool(flush(self, *args, **kwargs))
    held = _under_way(self)
    if _agreed(self, not held):
        held = _not_free(self)
    if _agreed(self, not held):
        return bool(flush(self, *args, **kwargs))
    logger.warning("held at idle: %s", held or "by another rank")
    return False


def _under_way(scheduler: Any) -> dict[str, int]:
    tree = scheduler.tree_cache
    ours, controller = restorations_of(tree), tree.cache_controller
    assert ours is not None, "the server was started to restore"
    held = {
        "fetches": len(tree.ongoing_prefetch),
        "tokens of fetches": controller.prefetch_tokens_occupied,
        "fetches of threads": len(fetches_of(controller)),
        "restorations": len(ours.open.all),
        "memory of layers": int(bool(ours.open.layer_memory)),
        "memory of tails": ours.copy_memory.held_tokens,
        "copies to the host": len(tree.ongoing_write_through),
        "copies to the device": len(tree.ongoing_load_back),
        "copies to the storage": len(tree.ongoing_backup),
        "memory on its way back": controller.host_mem_release_queue.qsize(),
        "loaded tokens of requests": len(tree.prefetch_loaded_tokens_by_reqid),
        "beginnings of requests": len(tree.prefetch_loaded_storage_start_by_reqid),
        "hits of requests": len(tree._storage_prefetch_hit_remaining_by_reqid),
        "waits of requests": len(tree._storage_prefetch_wait),
        "dead threads": sum(not getattr(controller, each).is_alive() for each in THREADS),
    }
    return {name: number for name, number in held.items() if number}


def _not_free(scheduler: Any) -> dict[str, int]:
    tree, device = scheduler.tree_cache, scheduler.token_to_kv_pool_allocator
    host = tree.cache_controller.mem_pool_host
    everything = int(device.size) + int(host.size)
    tree.evict(EvictParams(num_tokens=everything))
    tree.evict_host(everything)
    held = {
        "on the device": int(device.size) - int(device.available_size()),
        "on the host": int(host.size) - int(host.available_size()),
        "rows": scheduler.req_to_token_pool.size - scheduler.req_to_token_pool.available_size(),
    }
    return {name: number for name, number in held.items() if number}


def _agreed(scheduler: Any, right: bool) -> bool:
    said = torch.tensor(int(right))
    scheduler.tree_cache._all_reduce(said, torch.distributed.ReduceOp.MIN)
    return bool(said)


Scheduler.flush_cache = flush_if_nothing_is_held

if __name__ == "__main__":
    load_plugins()
    args = prepare_server_args(sys.argv[1:])
    from sglang.launch_server import run_server

    run_server(args)
