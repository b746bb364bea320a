"""Public launch options as lines of a shell, in the spelling of the SGLang that is installed."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

FILE = Path(__file__).parents[3] / "shared" / "launch-lines" / "options.jsonl"
"""Beside the working tree; no part of the product."""

RENAMED = {
    "cuda-graph-max-bs": "cuda-graph-max-bs-decode",
    "mamba-scheduler-strategy": "mamba-radix-cache-strategy",
    "nsa-decode-backend": "dsa-decode-backend",
    "nsa-prefill-backend": "dsa-prefill-backend",
}
GONE = ("disable-piecewise-cuda-graph", "prefill-round-robin-balance")
"""What SGLang 0.5.23 does not know any more, and nothing of ours depends on."""
BENCHMARK = "disable-radix-cache"
"""A benchmark's setting: no two of its prompts begin alike."""


def public_lines(*, without: tuple[str, ...] = ()) -> list[str]:
    """All of `FILE`, less the options `without`; a variable of the scripts counts as 8."""
    return [_line(json.loads(text), without) for text in FILE.read_text().splitlines()]


def _line(entry: dict, without: tuple[str, ...]) -> str:
    words: list[str] = []
    for old, value in entry["options"].items():
        name = RENAMED.get(old, old)
        if name in (*without, *GONE, "_variables") or value is False or value is None:
            continue
        if str(value).startswith("["):  # one of each server of a deployment
            value = json.loads(str(value))[0]
        words.append(f"--{name}")
        if value is not True and not _of_script(str(value)):
            words.append(shlex.quote(_known(name, str(value))))
    if not {"--model-path", "--model"} & set(words):
        words = ["--model-path", "/model/", *words]
    return shlex.join(["python3", "-m", "sglang.launch_server"]) + " " + " ".join(words)


def _of_script(value: str) -> bool:
    """Not this option's value, but a variable with more options."""
    return re.fullmatch(r"\$\{?\w+(ARGS|CONFIG)(\[@\])?\}?", value) is not None


def _known(name: str, value: str) -> str:
    """What a script's variable may stand for."""
    if "$" not in value:
        return value
    if "model" in name or "path" in name or "template" in name or "device" in name:
        return "/model/"
    return "0.1" if "ratio" in name or "fraction" in name else "8"
