"""Forks of the warm SGLang copy tensors in many threads at once, as its weight loaders do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import os, sys, threading
import torch
from sglang_forks import renew_thread_pools

torch.set_num_threads(2)
if sys.argv[1] == "renewed":
    renew_thread_pools()
source = torch.ones(400_000)


def copy(start, failed):
    target = torch.empty(400_000)
    start.wait()
    try:
        target.copy_(source)
    except RuntimeError:
        failed.append(target)


def copied():
    start, failed = threading.Barrier(16), []
    threads = [threading.Thread(target=copy, args=(start, failed)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return not failed


for _ in range(int(sys.argv[2])):
    pid = os.fork()
    if pid == 0:
        os._exit(0 if copied() else 1)
    if os.waitpid(pid, 0)[1]:
        print("failed")
        break
"""


def a_fork_fails(pools: str, forks: int) -> bool:
    """Whether a thread of one of the forks cannot copy a tensor."""
    command = [sys.executable, "-c", SCRIPT, pools, str(forks)]
    folder = Path(__file__).parents[2] / "warm"
    return bool(subprocess.run(command, cwd=folder, check=True, capture_output=True).stdout)


def test_every_thread_of_a_fork_can_copy() -> None:
    assert not a_fork_fails("renewed", forks=20)


def test_without_new_pools_one_cannot() -> None:
    """Two of three forks; where none fails any more, PyTorch has mended it, and ours can go."""
    assert a_fork_fails("inherited", forks=500)
