"""Measures a GPU with torch alone: what a device profile says, and what profiles leave out.

    python benchmarks/gpu/measure.py                     # on the GPU: a few minutes
    python benchmarks/gpu/compare.py gpu-results         # anywhere: a profile and its differences
    python benchmarks/gpu/measure.py --toy               # on a CPU, tiny: shows that it runs

Pinned copies each way by their size and by the size of their pieces; copies beside decode steps;
decode steps of a Llama-3.1-8B-shaped model in a CUDA graph and without; prefill chunks after
prefixes; mixed steps. Writes --output/measured.csv, which `tokenflow profile fit` reads, and
--output/measured.json with the rest. Needs this repository and torch; no SGLang, no weights.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import platform
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from command import arguments
from copies import Buffers, beside, by_piece, by_size
from llama import TOY, Llama, Step
from timing import graphed, seconds

from tokenflow_sgl.lab.profiles import MODELS, Model
from tokenflow_sgl.lab.profiles.measured import COLUMNS

LATER = 0.8
"""Share of the memory that is free after the weights that KV may take."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is measured.

    Attributes:
        model: Its shape.
        rows, contexts: Of decode steps, in all combinations that fit into memory.
        eager_rows: Of decode steps without a CUDA graph, with the first context.
        chunks, prefixes: New and cached tokens of prefill steps, in all combinations.
        short: New tokens of prefill steps that are also run as one CUDA graph.
        mixed: (rows, context, chunk) of mixed steps.
        copied: Tokens of copies in one piece.
        pieces: Bytes of the pieces of scattered copies.
        buffer: Bytes of host memory for copies.
    """

    model: Model
    rows: tuple[int, ...]
    contexts: tuple[int, ...]
    eager_rows: tuple[int, ...]
    chunks: tuple[int, ...]
    prefixes: tuple[int, ...]
    short: tuple[int, ...]
    mixed: tuple[tuple[int, int, int], ...]
    copied: tuple[int, ...]
    pieces: tuple[int, ...]
    buffer: int

    @property
    def kv_tokens(self) -> int:
        """KV tokens of the largest step that is not a decode step."""
        prefills = max(self.chunks) + max(self.prefixes)
        return max(prefills, *(rows * context + chunk for rows, context, chunk in self.mixed))


WHOLE = Sizes(
    model=MODELS["llama3-8b"],
    rows=(1, 2, 4, 8, 16, 32, 64, 128, 192, 256),
    contexts=(128, 512, 1024, 2048, 8192, 32768),
    eager_rows=(1, 16, 64, 256),
    chunks=(256, 512, 1024, 2048, 4096, 8192),
    prefixes=(0, 2048, 8192),
    short=(1, 16, 64, 256),
    mixed=tuple((rows, 1024, chunk) for rows in (16, 64, 128, 256) for chunk in (1, 16, 256, 2048)),
    copied=(1, 16, 256, 1024, 4096, 7000),
    pieces=tuple(1 << power for power in range(11, 27, 3)),
    buffer=1 << 30,
)
SMALL = Sizes(
    model=TOY,
    rows=(1, 2, 4),
    contexts=(8, 16, 32, 512),
    eager_rows=(1, 4),
    chunks=(8, 16, 32),
    prefixes=(0, 8, 16),
    short=(1, 8),
    mixed=((2, 8, 1), (4, 16, 8)),
    copied=(16, 256, 1024),
    pieces=(256, 4096),
    buffer=1 << 20,
)

Row = tuple[str, int | str, int | str, int | str, float]


def main() -> None:
    args = arguments(__doc__, "gpu-results", "FOLDER")
    args.output.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    rest: dict[str, Any] = {}
    try:
        measure(SMALL if args.toy else WHOLE, args.device, rows, rest)
    finally:  # what was found before an error or Ctrl-C is kept
        with (args.output / "measured.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([COLUMNS, *rows])
        (args.output / "measured.json").write_text(json.dumps(rest, indent=1) + "\n")
    print(f"{args.output}: measured.csv and measured.json, in {rest['seconds']:.0f} s.")
    print(f"Profile and differences: python benchmarks/gpu/compare.py {args.output}")


def measure(sizes: Sizes, device: str, rows: list[Row], rest: dict[str, Any]) -> None:
    """Adds to the rows for a profile, and to what goes beyond it."""
    began = time.perf_counter()
    torch.manual_seed(0)
    rest |= {**_machine(device), "model": dataclasses.asdict(sizes.model)}
    buffers = Buffers(sizes.buffer, device)
    kv_bytes = sizes.model.kv_bytes_per_token
    for kind, tokens, taken in by_size(buffers, kv_bytes, sizes.copied):
        rows.append((kind, "", tokens, "", taken))
    _say(began, "copies")
    rest["pieces"] = by_piece(buffers, sizes.pieces)
    _say(began, "copies in pieces")
    model = Llama(sizes.model, _room(sizes, device), device)
    _say(began, f"a model with KV of {model.kv_tokens:,} tokens")
    for batch in sizes.rows:
        for context in sizes.contexts:
            if batch * context <= model.kv_tokens:
                taken = _step(model, Step(batch, context), graph=True)
                rows.append(("decode", batch, "", context, taken))
    _say(began, "decode steps")
    context = sizes.contexts[0]
    for batch in sizes.eager_rows:
        rows.append(("eager", batch, "", context, _step(model, Step(batch, context))))
    for chunk in sizes.chunks:
        for prefix in sizes.prefixes:
            taken = _step(model, Step(chunk=chunk, prefix=prefix))
            rows.append(("prefill", 1, chunk, prefix, taken))
    _say(began, "prefill steps")
    rest["prefill_launch"] = [
        {
            "chunk": chunk,
            "prefix": sizes.prefixes[1],
            "eager_s": _step(model, Step(chunk=chunk, prefix=sizes.prefixes[1])),
            "graph_s": _step(model, Step(chunk=chunk, prefix=sizes.prefixes[1]), graph=True),
        }
        for chunk in sizes.short
    ]
    rest["mixed"] = [
        {
            "rows": batch,
            "context": context,
            "chunk": chunk,
            "eager_s": _step(model, Step(batch, context, chunk)),
            "graph_s": _step(model, Step(batch, context, chunk), graph=True),
        }
        for batch, context, chunk in sizes.mixed
    ]
    _say(began, "mixed steps")
    steps = {
        "decode": graphed(_call(model, Step(sizes.rows[-1], sizes.contexts[1])), device),
        "prefill": _call(model, Step(chunk=sizes.chunks[len(sizes.chunks) // 2])),
    }
    rest["beside"] = beside(buffers, steps)
    _say(began, "copies beside steps")
    rest["seconds"] = time.perf_counter() - began


def _room(sizes: Sizes, device: str) -> int:
    """KV tokens that fit beside the weights, and that the largest step needs."""
    asked = max(sizes.kv_tokens, max(sizes.rows) * max(sizes.contexts))
    if device != "cuda":
        return min(asked, 1024)
    free, _ = torch.cuda.mem_get_info()
    fits = LATER * (free - sizes.model.weight_bytes) / sizes.model.kv_bytes_per_token
    if fits < sizes.kv_tokens:
        raise SystemExit(
            f"The device has memory for KV of {fits:,.0f} tokens beside the weights; needed are "
            f"{sizes.kv_tokens:,}."
        )
    return min(asked, int(fits))


def _call(model: Llama, step: Step) -> Any:
    tokens, angles = model.inputs(step)
    return lambda: model.run(step, tokens, angles)


def _step(model: Llama, step: Step, *, graph: bool = False) -> float:
    call = _call(model, step)
    return seconds(graphed(call, model.device) if graph else call, model.device)


def _machine(device: str) -> dict[str, Any]:
    if device == "cuda":
        found = torch.cuda.get_device_properties(0)
        name, memory = found.name, found.total_memory
    else:
        name, memory = f"CPU, {platform.machine()}", 16 << 30
    return {"device": name, "memory": memory, "torch": torch.__version__}


def _say(began: float, what: str) -> None:
    print(f"{time.perf_counter() - began:6.1f} s  {what}", flush=True)


if __name__ == "__main__":
    main()
