"""What block groups cost per decode step, and in how many pieces streams lie, beside SGLang's own.

    python benchmarks/allocator_pass.py [--rows 64] [--steps 4000] [--page 1 --page 16]

SGLang's allocators and ours, without a server, on the CPU, under the same traffic: streams with
prompts and answers of random lengths in memory for too few of them. A stream that ends makes place
for the next one; when a decode step finds no memory, the youngest stream is preempted, its pages
are freed, and later its KV is loaded into new ones. The two take turns step by step. Printed are
the CPU time of the calls of a decode step (mean, median and P99, in microseconds), that of all
calls over all steps, and the runs of consecutive tokens of the streams that were preempted.
"""

from __future__ import annotations

import argparse
import random
import time
import warnings
from array import array
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # SGLang's imports warn about third parties
    import torch
    from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
    from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator

    from tokenflow_sgl.engine.kv.group_allocators import with_groups

PROMPT, ANSWER = (50, 900), (50, 1200)
"""Tokens, evenly spread."""


class Stream:
    """What the allocators read of a request, and where its tokens lie."""

    def __init__(self, chance: random.Random) -> None:
        self.origin_input_ids = array("q", [0] * chance.randint(*PROMPT))
        self.output_ids = array("q")
        self.sampling_params = SimpleNamespace(max_new_tokens=chance.randint(*ANSWER))
        self.prefix_len = 0
        self.row = -1
        self.locs = np.empty(4096, dtype=np.int64)
        self.length = 0

    def put(self, locs: Any) -> None:
        """These places are behind the others."""
        self.locs[self.length : self.length + len(locs)] = locs
        self.length += len(locs)


class Server:
    """An allocator and its streams."""

    def __init__(self, page: int, tokens: int, rows: int, groups: bool) -> None:
        kind = (torch.float16, "cpu", None, False)
        self.allocator: Any = (
            TokenToKVPoolAllocator(tokens, *kind)
            if page == 1
            else PagedTokenToKVPoolAllocator(tokens, page, *kind)
        )
        if groups:
            self.allocator = with_groups(self.allocator)
        self.allocator.use_triton_kernels = False
        self.pages = self.allocator.pages if groups else None
        self.page = page
        self.chance = random.Random(1)
        self.rows = list(range(rows))
        self.running: list[Stream] = []
        self.paused: list[Stream] = []
        self.runs: list[int] = []
        self.steps: list[float] = []
        self.spent = 0.0

    def timed(self, call: Callable[..., Any], *given: Any) -> Any:
        """The call's result; its CPU time is added up."""
        started = time.thread_time()
        result = call(*given)
        self.spent += time.thread_time() - started
        return result

    def step(self) -> None:
        """Fill the rows, decode one token of each stream, end those that are done."""
        while self.rows and self._start():
            pass
        while self.running:
            before = self.spent
            found = self.timed(self._decode, *self._batch())
            if found is not None:
                self.steps.append(self.spent - before)
                break
            self._preempt()
        for stream, loc in zip(list(self.running), found.tolist(), strict=True):
            stream.put([loc])
            stream.output_ids.append(0)
            if len(stream.output_ids) >= stream.sampling_params.max_new_tokens:
                self._leave(stream)

    def _start(self) -> bool:
        stream = self.paused[0] if self.paused else Stream(self.chance)
        new = len(stream.origin_input_ids) + len(stream.output_ids)
        if self.allocator.available_size() < new + 4 * self.page * (len(self.running) + 1):
            return False
        load = (len(stream.output_ids) > 0) * (new - 1) // self.page * self.page
        if load:
            stream.put(self.timed(self._load, stream, load).tolist())
        stream.prefix_len = load
        stream.put(self.timed(self._extend, stream, new - load).tolist())
        if self.paused:
            del self.paused[0]
        stream.row = self.rows.pop()
        if self.pages is not None:
            self.timed(self.pages.bind, [stream], np.array([stream.row]))
        self.running.append(stream)
        return True

    def _load(self, stream: Stream, tokens: int) -> Any:
        if self.pages is None:
            return self.allocator.alloc(tokens)
        with self.pages.loading(stream):
            return self.allocator.alloc(tokens)

    def _extend(self, stream: Stream, tokens: int) -> Any:
        if self.pages is None:
            return self._places(stream, tokens)
        with self.pages.extending([stream], [tokens]):
            return self._places(stream, tokens)

    def _places(self, stream: Stream, tokens: int) -> Any:
        if self.page == 1:
            return self.allocator.alloc(tokens)
        before = torch.tensor([stream.length])
        last = torch.tensor([stream.locs[stream.length - 1] if stream.length else -1])
        after = before + tokens
        return self.allocator.alloc_extend(before, before, after, after, last, tokens)

    def _batch(self) -> tuple[Any, Any, Any]:
        """Rows, lengths and last places of a decode step, which SGLang has at hand."""
        rows = np.array([stream.row for stream in self.running])
        after = torch.tensor([stream.length + 1 for stream in self.running])
        last = torch.tensor([stream.locs[stream.length - 1] for stream in self.running])
        return rows, after, last

    def _decode(self, rows: Any, after: Any, last: Any) -> Any:
        if self.pages is None:
            return self._next(after, last)
        with self.pages.decoding(rows):
            return self._next(after, last)

    def _next(self, after: Any, last: Any) -> Any:
        if self.page == 1:
            return self.allocator.alloc(len(after))
        return self.allocator.alloc_decode(after, after, last)

    def _preempt(self) -> None:
        stream = self.running[-1]
        self.runs.append(1 + int((np.diff(stream.locs[: stream.length]) != 1).sum()))
        self._leave(stream)
        self.paused.append(stream)

    def _leave(self, stream: Stream) -> None:
        self.running.remove(stream)
        self.rows.append(stream.row)
        self.timed(self._free, stream)
        stream.length = 0

    def _free(self, stream: Stream) -> None:
        self.allocator.free_segment(torch.from_numpy(stream.locs[: stream.length]), start_pos=0)
        if self.pages is not None:
            self.pages.released(stream)


def main() -> None:
    """Print a row for each page size and allocator."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--page", type=int, action="append", help="tokens of a page")
    parser.add_argument("--room", type=int, default=600, help="tokens of memory for each row")
    options = parser.parse_args()
    print("page  allocator  step: mean  median     P99  all/step  preempted  runs: median  mean")
    for page in options.page or (1, 16):
        tokens = options.rows * options.room // page * page
        servers = {
            name: Server(page, tokens, options.rows, name == "groups")
            for name in ("SGLang", "groups")
        }
        for _ in range(options.steps):
            for server in servers.values():
                server.step()
        for name, server in servers.items():
            took = np.array(server.steps) * 1e6
            runs = np.array(server.runs or [0])
            print(
                f"{page:>4}  {name:<9}  {took.mean():>10.1f}  {np.median(took):>6.1f}  "
                f"{np.percentile(took, 99):>6.1f}  {server.spent / options.steps * 1e6:>8.1f}  "
                f"{len(server.runs):>9}  {np.median(runs):>12.0f}  {runs.mean():>4.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
