"""The demo itself: start both servers, replay the burst against both at once, compare, report."""

from __future__ import annotations

import asyncio
import importlib.metadata
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rich.console import Console

from tokenflow_sgl.lab.demo.burst import Burst
from tokenflow_sgl.lab.demo.plot import draw
from tokenflow_sgl.lab.demo.result import check, identical_answers, result_table
from tokenflow_sgl.lab.demo.server import SglangServer, running
from tokenflow_sgl.lab.demo.side_by_side import SideBySide, side_by_side
from tokenflow_sgl.lab.profiles import load_profile
from tokenflow_sgl.lab.replay import ReplayOptions, find_target, replay
from tokenflow_sgl.lab.replay.answers import Answer
from tokenflow_sgl.lab.replay.steady import allow_many_files, new_event_loop
from tokenflow_sgl.lab.report import Figures, figures
from tokenflow_sgl.lab.report.fitting import Fitting
from tokenflow_sgl.lab.runs import Run, write_run
from tokenflow_sgl.lab.traces import Trace

DEVICE, MODEL = "rtx4090", "llama3-8b"
"""What both servers emulate, by the names of `profiles`."""
SERVER_ARGS = (
    *("--skip-tokenizer-init", "--incremental-streaming-output"),  # tokens, not texts, are compared
    "--sleep-on-idle",  # the server that is done first leaves its core to the other
)
WARM_UP = 12
"""Requests before the burst, for each server to do its lazy work and to learn its step times."""


@dataclass(frozen=True, slots=True)
class DemoServer:
    """A server to measure: its name and what it adds to the command line."""

    name: str
    args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DemoConfig:
    """What the demo runs: the burst, and the two servers.

    Attributes:
        contenders: The two servers; names differ.
        output: Folder for the picture, the runs and the servers' logs.
        burst: The readers.
        launcher: Starts `tokenflow_sgl_emulator.serve`.
    """

    contenders: tuple[DemoServer, DemoServer]
    output: Path
    burst: Burst = field(default_factory=Burst)
    launcher: tuple[str, ...] = (sys.executable, "-m", "tokenflow_sgl_emulator.serve")


@dataclass(frozen=True, slots=True)
class Side:
    """What one server of the demo did: its run and its answers.

    Attributes:
        run: The recorded run.
        answers: Token ids of each answer by the index of its request.
    """

    run: Run
    answers: dict[int, list[int]]


def run_demo(config: DemoConfig, console: Console) -> bool:
    """Run the demo and show its results; return whether all answers were the same.

    Raises:
        ServerError: A server did not start.
        BurstError: A server failed to answer, or a run is not valid.
        FailedError: A server went away.
    """
    trace = config.burst.trace()
    config.output.mkdir(parents=True, exist_ok=True)
    _introduce(config, trace, console)
    first, second = _measure(config, trace, console)
    for side in (first, second):
        write_run(config.output / _file_name(side.run.info.name), side.run)
    judged = figures(first.run), figures(second.run)
    for each in judged:
        check(each)
    same = identical_answers(first.answers, second.answers)
    console.print(Fitting(result_table(*judged)))
    everything = len(trace.requests)
    console.print(
        f"\n[{'green' if same == everything else 'bold red'}]{same} of {everything} answers have "
        "the same tokens on both servers.[/] This finds tokens that are missing, doubled or out of "
        "place. It does not find wrong KV: the emulated model makes a token of the one before it "
        "and its position."
    )
    draw(config.output / "demo.png", judged, _subtitle(config))
    _say_where(config, judged, console)
    return same == everything


def _introduce(config: DemoConfig, trace: Trace, console: Console) -> None:
    requests = trace.requests
    demand = sum(request.prompt_tokens + request.output_tokens for request in requests)
    rates = sorted(request.rate for request in requests if request.rate is not None)
    first, second = (contender.name for contender in config.contenders)
    console.print(
        f"[bold]{len(requests)} readers ask within {requests[-1].arrival_s:.1f} s[/] and read "
        f"{rates[0]:g} to {rates[-1]:g} tokens per second, {sum(rates):,.0f} together. Their "
        f"requests end up with {demand:,} tokens of KV cache; the server has room for "
        f"{config.burst.kv_tokens:,}.\n\n"
        f"Two real SGLang {importlib.metadata.version('sglang')} servers get the same requests, "
        f"{first} and {second}, each on an emulated {DEVICE} with {MODEL}. Time is virtual: a step "
        "takes what it would take on the device, so the figures do not depend on this machine. "
        "Neither server knows when an answer will end: the clients send a limit.\n",
        highlight=False,
    )


def _measure(config: DemoConfig, trace: Trace, console: Console) -> list[Side]:
    profile = config.output / f"{DEVICE}-{MODEL}.json"
    load_profile(DEVICE, MODEL).save(profile)
    names = [contender.name for contender in config.contenders]
    servers = [
        SglangServer(
            None,
            ("--max-total-tokens", str(config.burst.kv_tokens), *SERVER_ARGS, *contender.args),
            launcher=(*config.launcher, "--profile", str(profile), "--virtual-time", "--"),
            log_path=config.output / f"{_file_name(contender.name)}.log",
            env={"HF_HUB_OFFLINE": "1"},
        )
        for contender in config.contenders
    ]

    async def both(view: SideBySide) -> list[Side]:
        pairs = zip(names, servers, strict=True)
        return await asyncio.gather(*(_replay(name, at.url, trace, view) for name, at in pairs))

    allow_many_files()
    with console.status("starting both servers") as status, running(servers):
        status.stop()
        with (
            side_by_side(console, names) as view,
            asyncio.Runner(loop_factory=new_event_loop) as runner,
        ):
            return runner.run(both(view))


async def _replay(name: str, url: str, trace: Trace, view: SideBySide) -> Side:
    answers: dict[int, list[int]] = {}

    def keep(index: int, answer: Answer) -> None:
        answers[index] = answer.ids

    options = ReplayOptions(name=name, warm_up_burst=min(WARM_UP, len(trace.requests)))
    run = await replay(
        trace,
        await find_target(url),
        options,
        observe=partial(view.observe, name),
        answered=keep,
    )
    return Side(run, answers)


def _say_where(config: DemoConfig, judged: Sequence[Figures], console: Console) -> None:
    runs = " ".join(str(config.output / _file_name(each.info.name)) for each in judged)
    console.print(
        f"Picture: {config.output / 'demo.png'}. All figures: tokenflow report {runs}",
        highlight=False,
        soft_wrap=True,
    )


def _subtitle(config: DemoConfig) -> str:
    return (
        f"{config.burst.readers} readers at once on SGLang {importlib.metadata.version('sglang')}, "
        f"KV cache of {config.burst.kv_tokens:,} tokens (emulated {DEVICE}, {MODEL}; "
        "neither server knows the answers' lengths)"
    )


def _file_name(name: str) -> str:
    return name.replace(" ", "-")
