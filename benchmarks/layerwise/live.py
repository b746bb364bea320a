"""What layer-wise KV does for prompts that wait for memory, in real SGLang on an emulated L20.

    python benchmarks/layerwise/live.py longest
    python benchmarks/layerwise/live.py arrivals --rate 1.2 --rate 1.6
    python benchmarks/layerwise/live.py conversations --rate 0.6 --rate 1.2

Time is virtual: figures repeat, whatever else runs. Stock SGLang and `--tokenflow-layerwise auto`
have the same KV memory on the device; only conversations are served with a prefix cache. The
servers see the client's limit of each answer and not its length. The figures go to
benchmarks/results/layerwise/, and from there into the tables of README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "burst"))

import numpy as np
from devices import device_profile
from run import ROOT, TOKENFLOW, commit, keep, measure
from suite import SERVER, Load
from table import replace_table

from tokenflow_sgl.lab.demo.server import SglangServer
from tokenflow_sgl.lab.observe.metrics_page import scrape
from tokenflow_sgl.lab.traces import Accounting, Trace, TraceRequest, write_native
from tokenflow_sgl.lab.traces.generators.sessions import SessionConfig
from tokenflow_sgl_emulator.timed.virtual_arrivals import ARRIVAL_KEY, STAMP_KEY

PAGE = Path(__file__).with_name("README.md")
RESULTS = ROOT / "benchmarks" / "results" / "layerwise"
DEVICE, KV_TOKENS = "l20", 20_000
"""KV tokens of all layers that fit the device."""
MORE_TOKENS = 100_000
"""Those of a device on which every prompt fits: what a prefill takes that moves nothing."""
ALONE, TOGETHER = (2.0, 4.0), (1.25, 1.5, 2.0)
"""KV tokens that SGLang hands out, over those that fit: for one prompt, and for many."""
CACHE = ("--page-size", "16")
NO_CACHE = ("--disable-radix-cache", *CACHE)
LENGTHS = (0.5, 0.9, 1.2, 1.4, 1.9, 3.8)
"""Tokens of prompts, over those that fit."""
ANSWER = 64
PROMPT, LIMIT, READER, SECONDS = 1024, 512, 5.0, 60.0
"""Of the arrivals: tokens of a prompt, of the longest answer, tokens per second that each reader
reads (LayerKV's objective, 200 ms), and for how long they come."""

RATES = {"arrivals": (1.2, 1.6), "conversations": (0.6, 1.2)}
"""Arrivals per second: memory is just enough for the first. And conversations that begin."""
TALK = SessionConfig(turns=4.0, think_s=20.0, system_tokens=500, groups=2)
SAYS = (32, 512)
"""Of conversations: tokens of a message, evenly spread; answers are as those of the arrivals."""
COUNTED_SECONDS = 3.0
"""After which a server has counted all that it has done."""
HOST = 4.0
"""Tokens on the host of those servers, over those on the device."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("longest", *RATES))
    parser.add_argument("--rate", type=float, action="append", help="arrivals per second")
    parser.add_argument("--only", action="append", help="of the servers, by name; default: all")
    parser.add_argument("--output", type=Path, default=Path("layerwise-results"))
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    RESULTS.mkdir(parents=True, exist_ok=True)
    if args.what == "longest":
        served = {**contenders(ALONE), "stock, memory for all": (*NO_CACHE, *memory(MORE_TOKENS))}
        found = {name: longest(name, what, args.output) for name, what in served.items()}
        kept = {"commit": commit(), "runs": found}
        (RESULTS / "longest.json").write_text(json.dumps(kept, indent=1) + "\n")
    else:
        arrives = args.what == "arrivals"
        served = {**contenders(TOGETHER), **scheduled()} if arrives else cached()
        if args.only:
            served = {name: served[name] for name in args.only}
        for rate in args.rate or RATES[args.what]:
            requests = prompts(rate) if arrives else conversations(rate)
            serve_all(args.what, rate, requests, served, args.output)
    write()


Contenders = dict[str, tuple[str, ...]]
"""SGLang's options by name; the last --max-total-tokens counts."""


def contenders(ratios: tuple[float, ...]) -> Contenders:
    """Stock SGLang, and layer-wise KV with these ratios."""
    placed = {f"layer-wise, {ratio:g}x": (*NO_CACHE, *layered(ratio)) for ratio in ratios}
    return {"stock": NO_CACHE, **placed}


def layered(ratio: float) -> tuple[str, ...]:
    """SGLang's options for layer-wise KV with this ratio."""
    named = ("--tokenflow-layerwise", "auto", "--tokenflow-layerwise-ratio", f"{ratio:g}")
    return *named, *memory(int(ratio * KV_TOKENS))


OURS = ("--scheduler", "tokenflow")


def scheduled() -> Contenders:
    """`--scheduler tokenflow`, with HiCache as it comes, and with layer-wise KV in its place."""
    return {
        "tokenflow": (*OURS, *CACHE),
        "tokenflow, layer-wise, 2x": (*OURS, *NO_CACHE, *layered(2.0)),
    }


def cached() -> Contenders:
    """For conversations: with prefix caches, and hosts of one size."""
    host = ("--hicache-ratio", f"{HOST:g}")
    name = f"layer-wise, {HOST:g}x"
    return {
        "stock": CACHE,
        "stock, HiCache": (*CACHE, "--enable-hierarchical-cache", *host),
        f"{name}, no prefix cache": (*NO_CACHE, *layered(HOST)),
        name: (*CACHE, *layered(HOST)),
        "tokenflow": (*OURS, *CACHE, *host),
        f"tokenflow, {name}, no prefix cache": (*OURS, *NO_CACHE, *layered(HOST)),
        f"tokenflow, {name}": (*OURS, *CACHE, *layered(HOST)),
    }


def memory(tokens: int) -> tuple[str, ...]:
    """SGLang's option for so many KV tokens."""
    return "--max-total-tokens", str(tokens)


def longest(name: str, options: tuple[str, ...], output: Path) -> dict[str, Any]:
    """Time to the first token, and between two, of one prompt after the other; by its tokens."""
    profile = output / "l20.profile.json"
    device_profile(DEVICE).save(profile)
    launcher = [TOKENFLOW, "serve-emulated", "--profile", str(profile), "--virtual-time", "--"]
    given = (*memory(KV_TOKENS), *SERVER, *options)
    said: dict[str, Any] = {}
    with SglangServer(None, given, launcher=launcher, log_path=output / f"{name}.log") as server:
        alone(server.url, PROMPT)  # the layers' times and the link's are learned from steps
        for share in LENGTHS:
            tokens = int(share * KV_TOKENS)
            times = alone(server.url, tokens)
            said[str(tokens)] = times and {
                "ttft_s": times[0],
                "tbt_s": float(np.diff(times)[ANSWER // 2 :].mean()),
            }
            print(f"{name}: {tokens:,} tokens: {said[str(tokens)] or 'refused'}", flush=True)
    return said


def alone(url: str, tokens: int) -> list[float] | None:
    """When each token of the answer to a prompt comes that nothing else is served beside.

    None: it is refused.
    """
    chance = random.Random(tokens)
    sampling = {
        "temperature": 0,
        "max_new_tokens": ANSWER,
        "ignore_eos": True,
        "custom_params": {ARRIVAL_KEY: {"at_s": 0.0, "index": 0, "of": 1}},
    }
    ids = [chance.randrange(300, 4096) for _ in range(tokens)]
    body = json.dumps({"input_ids": ids, "sampling_params": sampling}).encode()
    request = urllib.request.Request(
        url + "/generate", data=body, headers={"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=600) as response:
            times: list[float] = json.load(response)["meta_info"][STAMP_KEY]
            return times
    except urllib.error.HTTPError as refused:
        if refused.code != 400:
            raise
        return None


def prompts(rate: float) -> tuple[TraceRequest, ...]:
    """Prompts of one length, at Poisson times."""
    chance = np.random.default_rng(0)
    times = poisson(chance, rate)
    answers = chance.integers(LIMIT // 4, LIMIT + 1, len(times))
    return tuple(
        TraceRequest(float(time), PROMPT, int(tokens), READER, limit_tokens=LIMIT)
        for time, tokens in zip(times, answers, strict=True)
    )


def conversations(rate: float) -> tuple[TraceRequest, ...]:
    """Conversations that begin at Poisson times."""
    chance = np.random.default_rng(0)
    starts = poisson(chance, rate)

    class Lengths:
        def pairs(self, drawn: np.random.Generator, number: int) -> tuple[Any, Any]:
            low, high = SAYS
            return drawn.integers(low, high, number), drawn.integers(LIMIT // 4, LIMIT + 1, number)

    turns = TALK.requests(chance, starts, Lengths())
    return tuple(replace(turn, rate=READER, limit_tokens=LIMIT) for turn in turns)


def poisson(chance: np.random.Generator, rate: float) -> Any:
    """Times below `SECONDS`, so many per second."""
    times = np.cumsum(chance.exponential(1.0 / rate, int(2 * rate * SECONDS)))
    return times[times < SECONDS]


def serve_all(
    what: str, rate: float, requests: tuple[TraceRequest, ...], served: Contenders, output: Path
) -> None:
    """Each contender serves the requests; what came of it is kept."""
    name = f"{60 * rate:g} per minute"
    path = output / f"{what}-{name.replace(' ', '-')}.jsonl"
    write_native(path, Trace(name, requests, Accounting(len(requests), len(requests))))
    load = Load(str(path), DEVICE, KV_TOKENS, 1.0)
    for contender, options in served.items():
        folder = output / f"{what}-{name}-{contender}".translate(str.maketrans(" .", "--", ","))
        options = (*options, "--enable-metrics")
        waits = measure(load, str(path), contender, options, folder, None, after=waited)
        keep(
            RESULTS / f"{what}-{60 * rate:g}.json",
            name,
            load,
            str(path),
            contender,
            options,
            folder,
            time="virtual",
            waits=waits,
        )


def waited(url: str) -> dict[str, float]:
    """Virtual seconds that the device has waited for KV of layers since the server started."""
    time.sleep(COUNTED_SECONDS)
    return scrape(url).by("layers_wait_seconds_total", "cause")


def write() -> None:
    """Write the tables of what is there into the page."""
    page = PAGE.read_text()
    path = RESULTS / "longest.json"
    if path.exists():
        page = replace_table(page, "longest", _longest_table(json.loads(path.read_text())["runs"]))
    for what in RATES:
        found = sorted(RESULTS.glob(f"{what}-*.json"))
        if found:
            page = replace_table(page, what, _arrivals_table(found))
    PAGE.write_text(page)


def _longest_table(runs: dict[str, Any]) -> str:
    tokens = [int(share * KV_TOKENS) for share in LENGTHS]
    heads = ["served by", *(f"{each:,} tokens" for each in tokens)]
    lines = ["| " + " | ".join(heads) + " |", "| --- |" + " ---: |" * len(tokens)]
    for name, run in runs.items():
        cells = [
            f"{found['ttft_s']:.2f} s, {1e3 * found['tbt_s']:.0f} ms" if found else "refused"
            for found in (run[str(each)] for each in tokens)
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


COLUMNS: dict[str, Callable[[dict[str, Any]], float]] = {
    "TTFT, mean, s": lambda run: run["ttft_s"]["mean"],
    "P99, s": lambda run: run["ttft_s"]["p99"],
    "TPOT, P50, ms": lambda run: 1e3 * run["tpot_s"]["p50"],
    "P99, ms": lambda run: 1e3 * run["tpot_s"]["p99"],
    "end to end, mean, s": lambda run: run["e2e_s"]["mean"],
    "tokens/s": lambda run: run["token_throughput"],
}


def _arrivals_table(paths: list[Path]) -> str:
    heads = ["arrivals", "served by", *COLUMNS]
    lines = ["| " + " | ".join(heads) + " |", "| --- | --- |" + " ---: |" * len(COLUMNS)]
    for path in paths:
        kept = json.loads(path.read_text())
        for name, run in kept["runs"].items():
            cells = [f"{figure(run['tokenflow']):.3g}" for figure in COLUMNS.values()]
            lines.append(f"| {kept['workload']} | {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
