"""Starts SGLang with a prefix tree whose copies are counted, and that is checked while it serves.

Every few passes SGLang looks whether its tree holds together (`sanity_check`), with copies under
way. What was counted is in a file per rank, anew whenever it has changed.

`TOKENFLOW_TEST_WATCH`: the file, without the number of the rank.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from functools import wraps
from pathlib import Path
from typing import Any

from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.plugins import load_plugins
from sglang.srt.runtime_context import get_parallel
from sglang.srt.server_args import prepare_server_args

from tokenflow_sgl.engine.shared_clock import local_time

WATCH = "TOKENFLOW_TEST_WATCH"
EVERY = 4
"""Passes from one look at the tree to the next one."""

counted: Counter[str] = Counter()
waits: dict[str, float] = {"longest wait": 0.0, "waited": 0.0}
written: dict[str, float] = {}
copied_before: set[int] = set()

look = UnifiedRadixCache.check_hicache_events
wait = UnifiedRadixCache.writing_check
evict_host = UnifiedRadixCache.evict_host
back_up = UnifiedRadixCache._execute_and_commit_kv_backup
drop = UnifiedRadixCache._drop_subtree_no_host
lock, unlock = UnifiedRadixCache.inc_host_lock_ref, UnifiedRadixCache.dec_host_lock_ref


@wraps(look)
def look_and_check(self: Any) -> None:
    look(self)
    counted["passes"] += 1
    if counted["passes"] % EVERY == 0:
        self.sanity_check()
        counted["checks"] += 1
    _write()


@wraps(wait)
def wait_and_count(self: Any, *args: Any, **kwargs: Any) -> None:
    """Of waits, those that something was under way for."""
    under_way = len(self.ongoing_write_through)
    began = local_time()
    wait(self, *args, **kwargs)
    if (kwargs.get("write_back") or any(args[:1])) and under_way:
        seconds = local_time() - began
        counted["waits"] += 1
        counted["waited for"] += under_way
        waits["waited"] += seconds
        waits["longest wait"] = max(waits["longest wait"], seconds)


@wraps(evict_host)
def evict_host_and_count(self: Any, *args: Any, **kwargs: Any) -> int:
    before = self.tree_core.write_back_duplicate_reclaim_digest
    freed = evict_host(self, *args, **kwargs)
    reclaimed = before != self.tree_core.write_back_duplicate_reclaim_digest
    counted["evictions with duplicates" if reclaimed else "evictions without"] += 1
    return int(freed)


@wraps(back_up)
def back_up_and_count(self: Any, action: Any, write_back: bool = False) -> int:
    again = copied_before.issuperset(action.node_ids)
    copied_before.update(action.node_ids)
    tokens = back_up(self, action, write_back)
    who = "at eviction" if write_back else "ahead"
    counted[f"copied {who} again"] += tokens * again
    counted[f"copied {who}"] += tokens
    counted[f"not copied {who}"] += not tokens
    return int(tokens)


@wraps(drop)
def drop_and_count(self: Any, *args: Any) -> bool:
    counted["dropped"] += 1
    return bool(drop(self, *args))


@wraps(lock)
def lock_and_count(self: Any, node_id: Any) -> Any:
    counted["host locks"] += 1
    return lock(self, node_id)


@wraps(unlock)
def unlock_and_count(self: Any, *args: Any) -> Any:
    counted["host locks"] -= 1
    return unlock(self, *args)


def _write() -> None:
    now = {**counted, **waits}
    if now != written:
        written.update(now)
        path = Path(f"{os.environ[WATCH]}.{get_parallel().tp_rank}")
        new = Path(f"{path}.new")
        new.write_text(json.dumps(now))
        new.rename(path)


UnifiedRadixCache.check_hicache_events = look_and_check  # type: ignore[method-assign]
UnifiedRadixCache.writing_check = wait_and_count  # type: ignore[method-assign]
UnifiedRadixCache.evict_host = evict_host_and_count  # type: ignore[method-assign]
UnifiedRadixCache._execute_and_commit_kv_backup = back_up_and_count  # type: ignore[method-assign]
UnifiedRadixCache._drop_subtree_no_host = drop_and_count  # type: ignore[method-assign]
UnifiedRadixCache.inc_host_lock_ref = lock_and_count  # type: ignore[method-assign]
UnifiedRadixCache.dec_host_lock_ref = unlock_and_count  # type: ignore[method-assign]

if __name__ == "__main__":
    load_plugins()
    args = prepare_server_args(sys.argv[1:])
    from sglang.launch_server import run_server

    run_server(args)
