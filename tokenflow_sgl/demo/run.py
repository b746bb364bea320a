"""The demo itself: make a model, start both servers, send both the same bursts, compare, report."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tokenflow_sgl.demo.client import StreamRequest, run_burst
from tokenflow_sgl.demo.measure import BurstRun, compare, identical_answers, measure
from tokenflow_sgl.demo.plot import draw
from tokenflow_sgl.demo.report import result_table, write_json
from tokenflow_sgl.demo.server import SglangServer
from tokenflow_sgl.demo.workload import BurstConfig, make_burst, make_warm_up
from tokenflow_sgl.errors import FailedError

PLATFORM_ENV = {"SGLANG_PLATFORM": "tokenflow_emu", "HF_HUB_OFFLINE": "1"}
"""Environment of a server that runs on the CPU reference platform and downloads nothing."""


@dataclass(frozen=True)
class Contender:
    """A server to measure: its name and what it adds to the command line."""

    name: str
    args: tuple[str, ...] = ()


@dataclass(frozen=True)
class DemoConfig:
    """What the demo runs.

    Attributes:
        contenders: The two servers; names differ.
        burst: The readers of the first burst; the others differ by their seeds only.
        bursts: Number of bursts, one after the other on the same server.
        kv_tokens: KV cache of each server, tokens.
        output: Directory for plot, JSON and server logs.
    """

    contenders: tuple[Contender, Contender]
    output: Path
    burst: BurstConfig = field(default_factory=BurstConfig)
    bursts: int = 3
    kv_tokens: int = 5000


class ModelError(FailedError):
    """The tiny model could not be made."""


def run_demo(config: DemoConfig, console: Console) -> bool:
    """Run the demo and show its results; return whether all answers were the same.

    Raises:
        ModelError: The model could not be made.
        ServerError: A server did not start.
        BurstError: A server failed to answer, or answered with another length than asked for.
    """
    config.output.mkdir(parents=True, exist_ok=True)
    bursts = [
        make_burst(replace(config.burst, seed=config.burst.seed + number))
        for number in range(config.bursts)
    ]
    _introduce(config, bursts[0], console)
    first, second = _measure_all(config, bursts, console)
    rows, identical = compare(first, second), identical_answers(first, second)
    answers = sum(map(len, bursts))
    console.print()
    console.print(result_table((first[0].server, second[0].server), config.bursts, rows))
    console.print(
        f"\n[{'green' if identical == answers else 'bold red'}]{identical} of {answers} answers "
        "are the same on both servers, token for token (greedy sampling).[/]"
    )
    draw(config.output / "demo.png", (first[0], second[0]), _subtitle(config))
    write_json(config.output / "demo.json", _setting(config), (*first, *second), rows, identical)
    console.print(
        f"Picture (of the first burst), all figures and the servers' logs: {config.output}/"
    )
    return identical == answers


def _introduce(config: DemoConfig, burst: Sequence[StreamRequest], console: Console) -> None:
    demand = sum(len(request.prompt_ids) + request.max_new_tokens for request in burst)
    spec = config.burst
    console.print(
        f"[bold]{spec.readers} readers ask at once[/] (within {spec.span_s:g} s). Each wants "
        f"{spec.output_tokens[0]} to {spec.output_tokens[1]} tokens and reads {spec.rate[0]:g} to "
        f"{spec.rate[1]:g} of them per second, {sum(request.rate for request in burst):.0f} "
        f"tokens/s together. Their requests end up with {demand:,} tokens of KV cache; the server "
        f"has room for {config.kv_tokens:,}.\n\n"
        f"Two real SGLang {importlib.metadata.version('sglang')} servers are measured on this "
        f"machine: {config.contenders[0].name} and {config.contenders[1].name}. Both are warmed "
        f"up and get the same bursts ({config.bursts}), in alternating order; one is paused while "
        "the other works. The model is tiny and runs on the CPU: what means something is the "
        "comparison, not the speed.\n",
        highlight=False,
    )


def _measure_all(
    config: DemoConfig, bursts: Sequence[Sequence[StreamRequest]], console: Console
) -> tuple[list[BurstRun], list[BurstRun]]:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with (
        contextlib.ExitStack() as servers,
        tempfile.TemporaryDirectory(prefix="tokenflow-demo-") as scratch,
        Progress(*columns, console=console) as progress,
    ):
        task = progress.add_task("making a tiny model", total=None)
        model = _make_model(Path(scratch) / "model")
        progress.update(task, total=1, completed=1)
        pair = [
            (
                contender.name,
                servers.enter_context(_warm_server(config, contender, model, progress)),
            )
            for contender in config.contenders
        ]
        runs: dict[str, list[BurstRun]] = {name: [] for name, _ in pair}
        for number, burst in enumerate(bursts):
            # Each burst goes to both servers in close succession, in alternating order: whatever
            # else the machine does in these minutes does not favour one of them.
            for name, server in pair if number % 2 == 0 else reversed(pair):
                label = f"burst {number + 1} of {len(bursts)}: {name}"
                runs[name].append(_measure_burst(name, server, burst, progress, label))
    first, second = runs.values()
    return first, second


def _make_model(path: Path) -> Path:
    # In a process of its own: importing torch here would burden the client that measures.
    code = "from tokenflow_sgl_emulator.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise ModelError(f"Making the tiny model failed:\n{done.stderr[-2000:]}")
    return path


@contextlib.contextmanager
def _warm_server(
    config: DemoConfig, contender: Contender, model: Path, progress: Progress
) -> Iterator[SglangServer]:
    """Start a server, warm it up, and hand it out paused."""
    task = progress.add_task(f"{contender.name}: starting SGLang, warming up", total=None)
    with SglangServer(
        model,
        ("--max-total-tokens", str(config.kv_tokens), *contender.args),
        env=PLATFORM_ENV,
        log_path=config.output / f"{contender.name.replace(' ', '-')}.log",
    ) as server:
        measure(contender.name, asyncio.run(run_burst(server.url, make_warm_up(config.burst))))
        server.pause()
        progress.update(task, total=1, completed=1)
        yield server


def _measure_burst(
    name: str,
    server: SglangServer,
    burst: Sequence[StreamRequest],
    progress: Progress,
    label: str,
) -> BurstRun:
    """Send one burst to a paused server and judge it; the server is paused again afterwards."""
    task = progress.add_task(label, total=sum(request.max_new_tokens for request in burst))
    server.resume()
    records = asyncio.run(
        run_burst(server.url, burst, on_tokens=lambda count: progress.advance(task, count))
    )
    server.pause()
    return measure(name, records)


def _subtitle(config: DemoConfig) -> str:
    return (
        f"{config.burst.readers} readers at once on SGLang {importlib.metadata.version('sglang')}, "
        f"KV cache of {config.kv_tokens:,} tokens (tiny model on a CPU)"
    )


def _setting(config: DemoConfig) -> dict[str, Any]:
    return {
        "sglang": importlib.metadata.version("sglang"),
        "tokenflow_sgl": importlib.metadata.version("tokenflow-sgl"),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "kv_tokens": config.kv_tokens,
        "bursts": config.bursts,
        "burst": asdict(config.burst),
        "servers": [asdict(contender) for contender in config.contenders],
    }
