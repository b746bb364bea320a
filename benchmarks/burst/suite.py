"""What the burst benchmark runs: workloads, contenders, and the emulated device that they share."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

MODEL = "llama3-8b"


@dataclass(frozen=True, slots=True)
class Load:
    """One workload.

    Attributes:
        trace: What `tokenflow replay` is given; FILE stands for a file of the user's.
        device: Emulated device.
        kv_tokens: KV pool, tokens.
        dilation: Wall-clock seconds per emulated second: the least that two cores kept up with.
        replay: More options of `tokenflow replay`.
        link: GB/s each way between device and host, instead of the device's own.
        model: What the device serves.
    """

    trace: str
    device: str
    kv_tokens: int
    dilation: float
    replay: tuple[str, ...] = ()
    link: float | None = None
    model: str = MODEL


_RTX4090 = ("rtx4090", 35_000, 0.3)
_H200 = ("h200", 200_000, 1.9)

LOADS = {
    "4090-a": Load("4090-a", *_RTX4090),
    "4090-b": Load("4090-b", *_RTX4090),
    "4090-c": Load("4090-c", *_RTX4090),
    "4090-d": Load("4090-d", *_RTX4090),
    "h200-a": Load("h200-a", *_H200),
    "h200-b": Load("h200-b", *_H200),
    "h200-c": Load("h200-c", *_H200),
    "h200-d": Load("h200-d", *_H200),
    # Real traces on a whole H200, and with its KV pool as in Table 1.
    "azure-2x": Load(
        "azure:FILE", "h200", 200_000, 1.2, ("--window", "0:600", "--speed-up", "2", "--rate", "20")
    ),
    # So slowly that a request's way through HTTP hardly counts: its TTFT is 50 ms.
    "azure-slice": Load(
        "azure:FILE", "h200", 200_000, 5.0, ("--window", "0:120", "--speed-up", "2", "--rate", "20")
    ),
    "azure-4x": Load(
        "azure:FILE", "h200", 200_000, 1.9, ("--window", "0:600", "--speed-up", "4", "--rate", "20")
    ),
    "mooncake": Load("mooncake:FILE", "h200", 916_069, 0.4, ("--window", "0:600", "--rate", "20")),
}
"""By name. The first eight are Table 1 of the TokenFlow paper."""

CONTENDERS = {
    "stock": (),
    "stock, mixed chunks": ("--enable-mixed-chunk",),
    "stock, 2k mixed chunks": ("--enable-mixed-chunk", "--chunked-prefill-size", "2048"),
    "stock, HiCache": ("--enable-hierarchical-cache", "--hicache-ratio", "8"),
    "stock, prefill interval": ("--prefill-decode-interval", "22"),
    "stock, shortest prefill": ("--schedule-policy", "shortest-prefill-first"),
    "stock, hrrn": ("--schedule-policy", "hrrn"),
    "stock, shortest prefill, 2k mixed chunks": (
        *("--schedule-policy", "shortest-prefill-first"),
        *("--enable-mixed-chunk", "--chunked-prefill-size", "2048"),
    ),
    # Preempts whoever has less priority; what it throws away is recomputed.
    "stock, priorities": (
        "--enable-priority-scheduling",
        *("--priority-scheduling-preemption-threshold", "0"),
    ),
    "tokenflow": ("--scheduler", "tokenflow", "--hicache-ratio", "8"),
}
"""SGLang's options by contender. The first is the baseline.

The host pool of tokenflow is what the paper's machines have: eight times the device's.
"""


def tuning(name: str) -> tuple[str, str]:
    """Options with the tuning file of this name, one of `benchmarks/tuning`."""
    path = Path(__file__).resolve().parents[1] / "tuning" / f"{name}.toml"
    return "--tokenflow-tuning", os.path.relpath(path)


SENSITIVITY = {
    **{f"cycle {seconds:g} s": tuning(f"cycle-{seconds:g}") for seconds in (0.5, 1, 1.5)},
    **{f"mu {mu}": tuning(f"mu-{mu}") for mu in (1, 5, 20)},
    **{f"host ratio {ratio}": ("--hicache-ratio", str(ratio)) for ratio in (1, 2, 4)},
}
"""tokenflow with one parameter changed: scheduling interval, buffer conservativeness, and how many
times the device's KV the host has."""

PAGED = {
    f"{name}, pages of {size}": (*CONTENDERS[name], "--page-size", str(size))
    for size in (16, 64)
    for name in ("stock", "tokenflow")
}
"""The pair with larger KV pages than SGLang's default of one token."""

WITH_PRIORITIES = "stock, priorities"
PRIORITY_LEVELS = 4
"""The priorities of this contender's requests are drawn evenly from so many levels."""

SERVER = (
    *("--skip-tokenizer-init", "--incremental-streaming-output"),  # tokens, not texts, are measured
    "--sleep-on-idle",
)
"""SGLang's options of every contender."""


def options_of(contender: str) -> tuple[str, ...]:
    """SGLang's options of a contender or of a sensitivity run."""
    if contender in SENSITIVITY:
        return CONTENDERS["tokenflow"] + SENSITIVITY[contender]
    return {**CONTENDERS, **PAGED}[contender]
