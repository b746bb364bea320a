"""Starts SGLang on a machine that seems to have as much host memory as the environment says.

TOKENFLOW_TEST_FREE: bytes that are free, beside SGLang's reserve.
TOKENFLOW_TEST_SHARE: bytes of the machine for each of its accelerators, of which the emulated
device is taken to be one; without it, it is none. TOKENFLOW_TEST_UNLIKE: bytes that are free where
the other ranks than the first run, as if that were another machine.
"""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

from sglang.srt.mem_cache import hicache_auto_size, host_memory
from sglang.srt.mem_cache.pool_host import base
from sglang.srt.plugins import load_plugins
from sglang.srt.runtime_context import get_parallel
from sglang.srt.server_args import prepare_server_args

from tokenflow_sgl.engine.host_memory import HostRoom

RESERVE = base.HICACHE_HOST_MEMORY_RESERVE_BYTES
FREE = RESERVE + int(os.environ["TOKENFLOW_TEST_FREE"])
DEVICES = 8


def machine(_device: Any) -> HostRoom:
    share = int(os.environ["TOKENFLOW_TEST_SHARE"])
    return HostRoom(FREE, total=RESERVE + DEVICES * share, devices=DEVICES)


def memory() -> SimpleNamespace:
    free = FREE
    if "TOKENFLOW_TEST_UNLIKE" in os.environ and get_parallel().tp_rank:
        free = RESERVE + int(os.environ["TOKENFLOW_TEST_UNLIKE"])
    return SimpleNamespace(available=free, total=2 * free)


host_memory.psutil = SimpleNamespace(virtual_memory=memory)  # type: ignore[assignment]
host_memory._cgroup_memory_headroom = lambda: None
# The emulator's platform takes all that is free; SGLang's own sizing has its name of this already.
base.host_memory_budget_scope = lambda _bytes: nullcontext()
assert hicache_auto_size.host_memory_budget_scope is not base.host_memory_budget_scope
if "TOKENFLOW_TEST_SHARE" in os.environ:
    from tokenflow_sgl.engine.kv import host_size

    host_size._room = machine

if __name__ == "__main__":
    load_plugins()
    args = prepare_server_args(sys.argv[1:])
    from sglang.launch_server import run_server

    run_server(args)
