"""CacheFlow's evaluation (arXiv 2604.25080, section 4), by the planner: our factors beside its own.

    python benchmarks/papers/cacheflow/reproduce.py

A minute on one core. Every schedule is exact, chunk by chunk (`tokenflow_sgl.restoration`); step
times are those of the device profiles, links have the rate that is said, nothing is drawn. Writes
the tables of README.md beside this file.
"""

from __future__ import annotations

import itertools
import math
import statistics
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rich.progress import track

from tokenflow_sgl.lab.profiles import DEVICES, MODELS, Device, Model, PrefillTable, aiconfigurator
from tokenflow_sgl.lab.profiles.launch import default_launch
from tokenflow_sgl.lab.profiles.pool import chunked_prefill_size, graph_rows
from tokenflow_sgl.restoration import (
    BatchOutcome,
    Channel,
    IoOrder,
    Job,
    Pipeline,
    PrefillMachine,
    RestoreTerms,
    Seconds,
    best_layers,
    best_split,
    crossover_length,
    in_chunks,
    play_stages,
    schedule,
)
from tokenflow_sgl.restoration.prefix_way import PrefixWay

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "burst"))

from run import commit
from table import replace_table

PAGE = Path(__file__).with_name("README.md")

PAGE_TOKENS = 64
SUFFIX = 128
"""Tokens behind the prefix: the new message."""
LATENCY = 1e-3
"""Seconds of the storage before a request's first byte; an assumption."""
STORAGE = (10, 20, 40, 80)
"""Gbit/s."""
LENGTHS = (2048, 4096, 8192, 16384, 32768)
BATCHES = (1, 2, 4, 8)
MIXED = (30720, 6144, 16384, 10240, 24576, 8192, 12288, 20480)
"""Prefixes of a mixed batch, the paper's range of lengths (figure 6)."""
CAKE_CHUNK = 512
"""Tokens of a chunk, the paper's C."""


@dataclass(frozen=True)
class Setup:
    """Devices that serve a model."""

    device: str
    model: str
    ranks: int = 1

    @property
    def name(self) -> str:
        """As in the tables."""
        return f"{self.ranks} x {self.device}" if self.ranks > 1 else self.device


SETUPS = tuple(
    Setup(device, model, 2 if (device, model) == ("l40s", "qwen3-30b-a3b") else 1)
    for device, model in itertools.product(
        ("l40s", "a100", "h100", "h200"), ("llama3-8b", "qwen3-8b", "qwen3-30b-a3b")
    )
)
"""Qwen3-30B-A3B has 61 GB of weights: two L40S."""


@dataclass(frozen=True)
class System:
    """How a system restores: the way of each request, and what differs on the machine."""

    way: PrefixWay
    patience: float = math.inf
    order: IoOrder = IoOrder.IN_TURN
    cake: bool = False

    def jobs(self, gaps: Iterable[int]) -> list[Job]:
        """Requests with these prefixes, all of which come at once."""

        def patience(gap: int) -> float:
            return 1.0 + 0.25 * math.ceil(gap / 1024) if self.patience == TIMEOUT else self.patience

        return [Job(gap, SUFFIX, self.way, patience=patience(gap)) for gap in gaps]


TIMEOUT = -1.0
"""SGLang's default: 1 s and 0.25 s per 1,024 tokens."""
SYSTEMS = {
    "recompute (vLLM)": System(PrefixWay.RECOMPUTE),
    "wait_complete": System(PrefixWay.LOAD),
    "timeout": System(PrefixWay.LOAD, TIMEOUT),
    "best_effort": System(PrefixWay.LOAD, 0.0),
    "per request (Cake)": System(PrefixWay.TOKENS, cake=True),
    "ours": System(PrefixWay.TOKENS),
    "ours, largest first": System(PrefixWay.TOKENS, order=IoOrder.LARGEST),
}
SINGLE = ("recompute (vLLM)", "wait_complete")
STOCK = (*SINGLE, "timeout", "best_effort")
CAKE = ("per request (Cake)",)
LARGEST = ("ours, largest first",)


class Costs:
    """Seconds of a setup."""

    def __init__(self, setup: Setup) -> None:
        self.device: Device = DEVICES[setup.device]
        self.model: Model = MODELS[setup.model]
        system = self.device.system
        if system is None:
            raise ValueError(f"{setup.device} has no measured step times")
        handle = aiconfigurator.engine(self.model, system, setup.ranks)
        self._table: PrefillTable = aiconfigurator.tables(handle)[1]
        rows = graph_rows(self.device.memory)
        self._least = default_launch(self.model.layers, rows).prefill
        self.chunk = chunked_prefill_size(self.device.memory)

    def step(self, tokens: int, prefix: int) -> float:
        """Of one prefill step."""
        return max(self._table.at(tokens, prefix + tokens / 2), self._least)

    def compute(self, chunk: int | None = None) -> Seconds:
        """Of computing in chunks; by default SGLang's."""
        return in_chunks(self.step, chunk or self.chunk)

    def channel(self, link: str) -> Channel:
        """`PCIe`, or a number of Gbit/s."""
        per_token = self.model.kv_bytes_per_token
        if link == "PCIe":
            return Channel("host", self.device.link.bandwidth / per_token, self.device.link.latency)
        return Channel("storage", float(link) * 1e9 / 8 / per_token, LATENCY)

    def run(self, system: str, gaps: Iterable[int], link: str) -> BatchOutcome:
        """What came of a batch."""
        chosen = SYSTEMS[system]
        chunk = CAKE_CHUNK if chosen.cake else self.chunk
        machine = PrefillMachine(
            self.compute(chunk),
            (self.channel(link),),
            PAGE_TOKENS,
            chunk,
            chosen.order,
            greedy=chosen.cake,
        )
        return schedule(chosen.jobs(gaps), machine)


def main() -> None:
    links = [*(str(rate) for rate in STORAGE), "PCIe"]
    rows = []
    crossovers = {}
    for setup in track(SETUPS, "schedules"):
        costs = Costs(setup)
        crossovers[f"{setup.name}, {setup.model}"] = {
            link: crossover(costs, link) for link in links
        }
        for link in links:
            for batch, length in itertools.product(BATCHES, (*LENGTHS, 0)):
                gaps = [length] * batch if length else list(MIXED[:batch])
                for system in SYSTEMS:
                    outcome = costs.run(system, gaps, link)
                    rows.append(
                        {
                            "setup": setup.name,
                            "model": setup.model,
                            "link": link,
                            "batch": batch,
                            "length": length,
                            "system": system,
                            "ttft": outcome.mean_ttft,
                            "last": outcome.seconds,
                            "computing": outcome.computing / outcome.seconds,
                            "loading": outcome.loading[0] / outcome.seconds,
                            "computed": sum(one.computed for one in outcome.served),
                        }
                    )
    made = {"commit": f"Commit {commit()}.\n", **tables(rows)}
    made["crossovers"] = crossover_table(crossovers)
    made["stages"] = stage_table(stages())
    page = PAGE.read_text()
    for name, text in made.items():
        page = replace_table(page, name, text)
    PAGE.write_text(page)


def crossover(costs: Costs, link: str) -> int | None:
    """L_delta: from this length on, token-wise is done no later than layer-wise."""
    terms = RestoreTerms(costs.compute(), PAGE_TOKENS, layers=costs.model.layers)
    return crossover_length(range(64, 16384 + 1, 64), costs.channel(link), terms)


def stages() -> dict[str, dict[str, float]]:
    """Two pipeline stages of L40S with Llama-3.1-8B, 10 Gbit/s each: seconds of restoration."""
    costs = Costs(Setup("l40s", "llama3-8b"))
    compute, channel = costs.compute(CAKE_CHUNK), costs.channel("10")
    fetch = channel.seconds
    model = costs.model
    stored = Pipeline.of(2, hidden=model.hidden, kv_bytes_per_token=model.kv_bytes_per_token)
    found = {}
    for length in LENGTHS:
        asked = {"compute": compute, "fetch": fetch, "page": PAGE_TOKENS}
        played = {
            kept: play_stages(
                stored,
                length,
                compute=compute,
                channel=channel,
                chunk=CAKE_CHUNK,
                page=PAGE_TOKENS,
                stored=kept,
            ).seconds
            for kept in (True, False)
        }
        # Chunk after chunk through both stages: the second one starts a chunk later.
        chunks = -(-length // CAKE_CHUNK)
        found[str(length)] = {
            "computed, chunks through both stages": compute(0, length) * (chunks + 1) / chunks / 2,
            "in turn": Pipeline(2).in_turn(0, length, **asked).seconds,
            "at once, activations for nothing": Pipeline(2).at_once(0, length, **asked).seconds,
            "at once": stored.at_once(0, length, **asked).seconds,
            "at once, played": played[True],
            "chunks through both stages, and tails, played": played[False],
            "layers": best_layers(
                0, length, layers=model.layers, compute=compute, fetch=fetch
            ).seconds,
            "tokens": best_split(0, length, **asked).seconds,
        }
    return found


def tables(rows: list[dict]) -> dict[str, str]:
    """The tables of the page, by their markers."""

    def ttft(system: str, **where: object) -> float:
        (row,) = (
            row
            for row in rows
            if row["system"] == system and all(row[key] == value for key, value in where.items())
        )
        return row["ttft"]

    def line(label: str, **where: object) -> str:
        times = {system: ttft(system, **where) for system in SYSTEMS}
        ours = times["ours"]
        cells = [label, *(f"{seconds:.3f}" for seconds in times.values())]
        for others in (SINGLE, STOCK, CAKE):
            cells.append(f"{min(times[system] for system in others) / ours:.2f}x")
        return "| " + " | ".join(cells) + " |"

    def table(first: str, lines: list[str]) -> str:
        heads = [first, *SYSTEMS, "better source / ours", "best stock / ours", "Cake / ours"]
        rule = "| --- |" + " ---: |" * (len(heads) - 1)
        return "\n".join(["| " + " | ".join(heads) + " |", rule, *lines]) + "\n"

    l40s = {"setup": "l40s", "model": "llama3-8b", "link": "10"}
    h100 = {"setup": "h100", "model": "llama3-8b"}
    moe = {"model": "qwen3-30b-a3b", "link": "10", "length": 0}
    made = {
        "batches": table(
            "requests",
            [
                line(f"{batch} x {length or 'mixed'}", **l40s, batch=batch, length=length)
                for length in (8192, 32768, 0)
                for batch in BATCHES
            ],
        ),
        "links": table(
            "Gbit/s",
            [
                line(f"{link}, batch {batch}", **h100, link=link, batch=batch, length=0)
                for link in (*map(str, STORAGE), "PCIe")
                for batch in (1, 8)
            ],
        ),
        "devices": table(
            "devices",
            [
                line(f"{setup}, batch {batch}", **moe, setup=setup, batch=batch)
                for setup in ("2 x l40s", "a100", "h100", "h200")
                for batch in (1, 8)
            ],
        ),
        "lengths": table(
            "tokens",
            [line(str(length), **h100, link="10", batch=1, length=length) for length in LENGTHS],
        ),
    }
    made["busy"] = busy(rows)
    made["grid"] = grid(rows)
    return made


def busy(rows: list[dict]) -> str:
    """Utilisation: shares of the time until the last first token."""
    lines = ["| system | device | link |", "| --- | ---: | ---: |"]
    for system in SYSTEMS:
        (row,) = (
            row
            for row in rows
            if row["system"] == system
            and (row["setup"], row["model"], row["link"]) == ("h100", "llama3-8b", "10")
            and (row["batch"], row["length"]) == (8, 0)
        )
        lines.append(f"| {system} | {row['computing']:.0%} | {row['loading']:.0%} |")
    return "\n".join(lines) + "\n"


def grid(rows: list[dict]) -> str:
    """Of all settings: what ours gains, at best, in the middle and at worst."""
    by_setting: dict[tuple, dict[str, float]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("setup", "model", "link", "batch", "length"))
        by_setting.setdefault(key, {})[row["system"]] = row["ttft"]
    lines = [
        "| over | link | settings | least | median | most | worse by over 2 % |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, others in (
        ("the better source", SINGLE),
        ("the best of stock", STOCK),
        ("per request (Cake)", CAKE),
        ("ours, largest first", LARGEST),
    ):
        for links in (tuple(map(str, STORAGE)), ("PCIe",)):
            gains = []
            for key, times in by_setting.items():
                if key[2] in links:
                    gains.append(min(times[system] for system in others) / times["ours"])
            worse = sum(gain < 0.98 for gain in gains)
            lines.append(
                f"| {name} | {'PCIe' if links == ('PCIe',) else '10 to 80 Gbit/s'} "
                f"| {len(gains)} | {min(gains):.2f}x | {statistics.median(gains):.2f}x "
                f"| {max(gains):.2f}x | {worse} |"
            )
    return "\n".join(lines) + "\n"


def crossover_table(crossovers: dict[str, dict[str, int | None]]) -> str:
    """L_delta by setup and link."""
    links = [*map(str, STORAGE), "PCIe"]
    lines = [
        "| device, model | " + " | ".join(links) + " |",
        "| --- |" + " ---: |" * len(links),
    ]
    for name, by_link in crossovers.items():
        cells = [f"{by_link[link]:,}" if by_link[link] else "above 16,384" for link in links]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def stage_table(found: dict[str, dict[str, float]]) -> str:
    """Pipeline stages: seconds by length."""
    kinds = list(next(iter(found.values())))
    lines = ["| tokens | " + " | ".join(kinds) + " | in turn / at once |"]
    lines.append("| --- |" + " ---: |" * (len(kinds) + 1))
    for length, times in found.items():
        cells = [f"{times[kind]:.3f}" for kind in kinds]
        cells.append(f"{times['in turn'] / times['at once']:.2f}x")
        lines.append(f"| {length} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
