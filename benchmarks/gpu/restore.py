"""A stored prefix on a GPU: computed, loaded, or both at once until they meet.

    python benchmarks/gpu/restore.py           # on the GPU: about a minute
    python benchmarks/gpu/restore.py --toy     # on a CPU, tiny: shows that it runs

A prompt's KV lies in pinned host memory. A storage that delivers at a rate is paced by the clock;
the steps, the copies to the device and what they cost each other are real. Before each chunk the
package's own rule (`restoration.next_head`) says how much of the head is still to be computed, by
step times measured before. KV is overwritten with NaN before each run, and compared after it with
what was stored. Writes --output (JSON). Needs this repository, torch and scipy; no SGLang, no
weights.
"""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from scipy.interpolate import RegularGridInterpolator

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from command import arguments
from llama import TOY, Llama, Step
from timing import seconds, wait

from tokenflow_sgl.engine.layerwise.batched_copies import copy_batch, has_batched_copies
from tokenflow_sgl.lab.profiles import MODELS, Model
from tokenflow_sgl.restoration import MeetingPoint, best_split, in_chunks, next_head

Row = dict[str, float | str | bool]

ROUNDING = 0.02
"""Of the norm: how far KV in bfloat16 may be from KV that was computed in other steps."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is measured.

    Attributes:
        model: Its shape.
        prefix, suffix: Tokens that are stored, and behind them.
        chunk: New tokens of a step at most.
        steps: New tokens of the steps that are measured for the planner.
        piece: Tokens that the storage delivers at a time.
        page: Tokens of a page.
        rates: Of the storage, in Gbit/s.
    """

    model: Model
    prefix: int
    suffix: int
    chunk: int
    steps: tuple[int, ...]
    piece: int
    page: int
    rates: tuple[float, ...]


WHOLE = Sizes(
    *(MODELS["llama3-8b"], 32768, 64, 2048, (64, 256, 512, 1024, 2048)),
    *(512, 64, (10.0, 20.0, 30.0, 40.0, 80.0)),
)
SMALL = Sizes(TOY, 512, 16, 64, (16, 32, 64), 16, 8, (0.001, 0.01))


class Restored:
    """One prompt whose KV is restored again and again."""

    def __init__(self, sizes: Sizes, device: str) -> None:
        self.sizes, self.device = sizes, device
        self.room = sizes.prefix + sizes.suffix
        self.model = Llama(sizes.model, self.room, device)
        self.tokens, self.angles = self.model.inputs(Step(chunk=self.room))
        layers = range(sizes.model.layers)
        self.memory = [each[0] for layer in layers for each in self.model.kv(layer, 1, self.room)]
        self.token = self._computed(0, self.room)
        self.right = [each.clone() for each in self.memory]
        self.stored = [
            torch.empty(each.shape, dtype=each.dtype, pin_memory=device == "cuda").copy_(each)
            for each in self.memory
        ]
        self.step = RegularGridInterpolator(*self._measured())
        self.link = torch.cuda.Stream() if device == "cuda" else None

    def cost(self, new: int, prefix: int) -> float:
        """Seconds of a step, by the measured ones."""
        new = max(new, self.sizes.steps[0])
        return float(self.step((new, min(prefix, self.sizes.prefix)))[()])

    def run(self, way: str, rate: float) -> Row:
        """Seconds to the first token, and how far its KV is from what was stored.

        Args:
            way: `computed`, `loaded`, or `restored` by both.
            rate: Tokens per second of the storage.
        """
        for each in self.memory:
            each.fill_(float("nan"))
        wait(self.device)
        run = Run(self, rate, loads=way != "computed", computes=way != "loaded")
        token, taken = run.until_first_token()
        errors = [
            float((each.float() - right.float()).norm() / right.float().norm())
            for each, right in zip(self.memory, self.right, strict=True)
        ]
        error = max(errors, key=_nan_last)
        return {
            "way": way,
            "seconds": taken,
            "computed_tokens": run.computed,
            "kv_error": error,
            "token_is_the_same": bool(token.equal(self.token)),
        }

    def compute(self, begin: int, end: int) -> torch.Tensor:
        """One step: the tokens between."""
        step = Step(chunk=end - begin, prefix=begin, room=self.room)
        return self.model.run(step, self.tokens[begin:end], self.angles[begin:end])

    def load(self, begin: int, end: int) -> None:
        """Copy these tokens of all layers from the host, and wait for them."""
        pairs = [
            (each[:, begin:end], stored[:, begin:end])
            for each, stored in zip(self.memory, self.stored, strict=True)
        ]
        if self.link is None or not has_batched_copies():
            for target, source in pairs:
                target.copy_(source)
            return
        # Of each head the tokens follow each other.
        rows = [(a.data_ptr(), b.data_ptr()) for pair in pairs for a, b in zip(*pair, strict=True)]
        targets, sources = (list(each) for each in zip(*rows, strict=True))
        sizes = [pairs[0][0][0].nbytes] * len(rows)
        copy_batch(targets, sources, sizes, self.link.cuda_stream)
        self.link.record_event().synchronize()

    def _computed(self, begin: int, end: int) -> torch.Tensor:
        for at in range(begin, end, self.sizes.chunk):
            token = self.compute(at, min(at + self.sizes.chunk, end))
        return token

    def _measured(self) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], list[list[float]]]:
        sizes = self.sizes
        prefixes = tuple(range(0, sizes.prefix + 1, sizes.prefix // 8))
        times = [
            [
                seconds(
                    lambda new=new, at=at: self.compute(
                        *(min(at, self.room - new), min(at, self.room - new) + new)
                    ),
                    self.device,
                )
                for at in prefixes
            ]
            for new in sizes.steps
        ]
        return (sizes.steps, prefixes), times


class Run:
    """One restoration: a thread loads the tail, from its end on, while the caller computes.

    Args:
        of: The prompt.
        rate: Tokens per second of the storage.
        loads, computes: Whether the prefix is loaded, and computed; both: until they meet.
    """

    def __init__(self, of: Restored, rate: float, *, loads: bool, computes: bool) -> None:
        self._of, self._rate = of, rate
        self._loads, self._computes = loads, computes
        self._lock = threading.Lock()
        self._landed = 0  # tokens, from the prefix's end
        self._taken = 0  # tokens, from its beginning, that are or will be computed
        self._began = 0.0
        self.computed = 0
        """Tokens of the prefix that were computed."""

    def until_first_token(self) -> tuple[torch.Tensor, float]:
        """The first token, and the seconds until it was there."""
        of, end = self._of, self._of.sizes.prefix
        loader = threading.Thread(target=self._load)
        self._began = time.perf_counter()
        if self._loads:
            loader.start()
        done = 0
        while until := self._next(done):
            token = of.compute(done, until)
            wait(of.device)
            done = until
        self.computed = min(done, end)
        if self._loads:
            loader.join()
        if done < of.room:
            token = of.compute(end, of.room)
            wait(of.device)
        return token, time.perf_counter() - self._began

    def _next(self, done: int) -> int | None:
        """Where the next step ends; None: nothing more of the prefix is computed."""
        sizes = self._of.sizes
        with self._lock:
            head: int | None = self._of.room - done
            if self._loads:
                head = 0
                if self._computes and done + self._landed < sizes.prefix:
                    known: Any = {
                        "compute": in_chunks(self._of.cost, sizes.chunk),
                        "fetch": self._arrives,
                        "page": sizes.page,
                    }
                    at = done, sizes.prefix, self._landed, sizes.suffix
                    head = next_head(MeetingPoint(), *at, known)
            step = min(sizes.chunk, self._of.room - done if head is None else head)
            self._taken = done + step
            return done + step if step else None

    def _arrives(self, tokens: int) -> float:
        """Seconds until so many more have come from the storage."""
        due = self._began + (self._landed + tokens) / self._rate
        return max(due - time.perf_counter(), 0.0)

    def _load(self) -> None:
        sizes = self._of.sizes
        while True:
            with self._lock:
                end = sizes.prefix - self._landed
                begin = max(end - sizes.piece, self._taken)
                if begin >= end:
                    return
                late = self._arrives(end - begin)
            time.sleep(late)
            self._of.load(begin, end)
            with self._lock:
                self._landed += end - begin


def main() -> int:
    args = arguments(__doc__, "gpu-restore.json", "FILE")
    sizes = SMALL if args.toy else WHOLE
    torch.manual_seed(0)
    of = Restored(sizes, args.device)
    for way in ("computed", "loaded", "restored"):  # libraries set themselves up
        of.run(way, math.inf)
    found = [measured(of, rate) for rate in sizes.rates]
    name = "cpu" if args.toy else torch.cuda.get_device_name()
    told = {"device": name, "prefix": sizes.prefix, "suffix": sizes.suffix, "rates": found}
    args.output.write_text(json.dumps(told, indent=1) + "\n")
    print(f"{name}, {sizes.prefix:,} stored tokens and {sizes.suffix} behind them, seconds:")
    print(f"{'Gbit/s':>7} {'computed':>9} {'loaded':>9} {'restored':>9} {'best split':>11}")
    for row in found:
        times = [each["seconds"] for each in row["runs"]]
        print(f"{row['gbit_per_s']:7g}", *(f"{each:9.3f}" for each in times), end=" ")
        print(f"{row['best_split_s']:11.3f}")
    # Steps of other lengths round otherwise; NaN is no less than anything.
    worst = max((each["kv_error"] for row in found for each in row["runs"]), key=_nan_last)
    print(f"KV differs from what was stored by {worst:.1e} of its norm at most.")
    print(f"{args.output} written.")
    return 0 if worst < ROUNDING else 1


def _nan_last(value: float) -> float:
    return math.inf if math.isnan(value) else value


def measured(of: Restored, gbit: float) -> dict[str, Any]:
    """Each way at a rate of the storage, and what the planner expects of both."""
    sizes = of.sizes
    rate = gbit * 1e9 / 8 / sizes.model.kv_bytes_per_token
    compute = in_chunks(of.cost, sizes.chunk)
    split = best_split(
        0, sizes.prefix, compute=compute, fetch=lambda tokens: tokens / rate, page=sizes.page
    )
    behind = of.cost(sizes.suffix, sizes.prefix)
    return {
        "gbit_per_s": gbit,
        "best_split_s": split.seconds + behind,
        "best_split_head": split.head,
        "runs": [of.run(way, rate) for way in ("computed", "loaded", "restored")],
    }


if __name__ == "__main__":
    sys.exit(main())
