"""``tokenflow replay``: a trace against a running server, recorded down to each token's arrival."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from tokenflow_sgl.choices import Api, Sessions
from tokenflow_sgl.cli.chosen_trace import TbtSlo, TraceChoice, TtftSlo, pair
from tokenflow_sgl.cli.extras import REPLAYS, need
from tokenflow_sgl.cli.failing import Exit, failing
from tokenflow_sgl.cli.option_checks import address, finite, output_folder, positive
from tokenflow_sgl.cli.replay_sweep import SweepOptions, finish_sweep, run_sweep
from tokenflow_sgl.cli.shared_options import shares_options

if TYPE_CHECKING:
    from tokenflow_sgl.lab.replay import ReplayOptions, Target
    from tokenflow_sgl.lab.runs import Run
    from tokenflow_sgl.lab.traces import Trace


_TRACE, _READERS, _SENT, _WARM_UP = "The trace", "The readers", "What is sent", "Warm-up"


@dataclass(frozen=True, kw_only=True)
class Destination:
    """The options that say where requests go, and where the run is written."""

    url: Annotated[str, typer.Option(help="Base URL of the server.", callback=address)] = (
        "http://127.0.0.1:30000"
    )
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Folder for the run, or for all of a sweep; new or empty. "
            "Default: replay-results/NAME-N.",
            callback=output_folder,
        ),
    ] = None
    name: Annotated[
        str | None, typer.Option(help="Label of the run in reports. Default: the trace's name.")
    ] = None
    api: Annotated[Api, typer.Option(help="Endpoint.")] = Api.generate


@dataclass(frozen=True, kw_only=True)
class ReplayedTrace(TraceChoice):
    """What is selected of the trace, and what its readers expect."""

    seed: Annotated[
        int,
        typer.Option(min=0, help="Seed of prompts, of --sample, --rate and --rate-sweep."),
    ] = 0
    sessions: Annotated[
        Sessions,
        typer.Option(
            help="closed: a later turn is sent after the answer before it; "
            "open: it is sent at its time in the trace.",
            rich_help_panel=_TRACE,
        ),
    ] = Sessions.closed
    send_rates: Annotated[
        bool,
        typer.Option(
            "--send-rates/--no-send-rates",
            help="Tell the server each reader's rate, or class where the trace names one.",
            rich_help_panel=_READERS,
        ),
    ] = True
    ttft_slo: TtftSlo = None
    tbt_slo: TbtSlo = None

    @property
    def slos(self) -> tuple[float | None, float | None]:
        """Objectives of every request, TTFT and TBT in seconds; None: those of the trace."""
        return self.ttft_slo, self.tbt_slo


@dataclass(frozen=True, kw_only=True)
class Sent:
    """The options of what is sent."""

    send_priority: Annotated[
        bool,
        typer.Option(
            "--send-priority",
            help="Send the trace's priorities (SGLang: --enable-priority-scheduling).",
            rich_help_panel=_SENT,
        ),
    ] = False
    token_ids: Annotated[
        str | None,
        typer.Option(
            metavar="LO:HI",
            help="Draw prompts from token ids LO to HI - 1. "
            "Default: the middle 80 % of the server's vocabulary.",
            rich_help_panel=_SENT,
        ),
    ] = None
    known_lengths: Annotated[
        bool,
        typer.Option(
            "--known-lengths",
            help="Send each answer's length as its limit, so that the server knows when it ends. "
            "Default: the trace's limit of the client, else 4096 (32768 where the answer begins "
            "with thinking); answers end at the trace's lengths on an emulated device, and where "
            "the model ends them on a real one.",
            rich_help_panel=_SENT,
        ),
    ] = False
    ignore_eos: Annotated[
        bool,
        typer.Option(
            "--ignore-eos",
            help="With --known-lengths: generate answers of full length, even if the model would "
            "end them earlier. Stock SGLang then reserves memory for whole answers at admission.",
            rich_help_panel=_SENT,
        ),
    ] = False
    temperature: Annotated[
        float,
        typer.Option(min=0.0, help="Sampling temperature.", rich_help_panel=_SENT, callback=finite),
    ] = 0.0
    timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="Give up a stream after so long without a token.",
            rich_help_panel=_SENT,
            callback=positive,
        ),
    ] = 600.0
    api_key_env: Annotated[
        str | None,
        typer.Option(
            metavar="VARIABLE",
            help="Environment variable with the API key. It is stored nowhere.",
            rich_help_panel=_SENT,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class WarmUp:
    """The options of what no figure counts."""

    warm_up: Annotated[
        str,
        typer.Option(
            metavar="N or Ns",
            help="Mark the first N requests, or those due in the first N seconds (as in 30s), as "
            "warm-up: no figure counts them.",
            rich_help_panel=_WARM_UP,
        ),
    ] = "0"
    warm_up_burst: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="Send N additional requests, and wait for them, before the clock starts.",
            rich_help_panel=_WARM_UP,
        ),
    ] = 0


@shares_options
def replay(
    trace: Annotated[
        str, typer.Argument(help="Trace: PATH, FORMAT:PATH or a workload, with its keys.")
    ],
    *,
    to: Destination,
    replayed: ReplayedTrace,
    sent: Sent,
    warm: WarmUp,
    swept: SweepOptions,
) -> None:
    """Replay a trace against a running server and record when every token arrives.

    Sends each request when it is due, whether the server keeps up or not; with --concurrency or
    --rate-sweep at one load after the other. Works with SGLang, with or without this package, and
    with other servers that have the endpoint. Ctrl-C ends the replay and writes what was measured;
    a second Ctrl-C quits. Exits with 0 if the run is valid, 1 if the server failed and there is no
    run, 2 if an option or the trace cannot be used, 3 if a run is invalid (for example because too
    little was served), 130 if it was interrupted.
    """
    sweeps = swept.concurrency is not None or swept.rate_sweep is not None
    need("A sweep" if sweeps else "A replay", *REPLAYS, *(("matplotlib",) if sweeps else ()))
    console = Console()

    # Only here: the CLI must start without what a replay needs.
    from tokenflow_sgl.lab.replay.preparation import check_trace
    from tokenflow_sgl.lab.replay.summary_table import print_summary
    from tokenflow_sgl.lab.runs import new_folder, write_run

    first = _warm_up(warm.warm_up)
    with failing("No replay"):
        plan = swept.plan()
        if plan is not None and replayed.speed_up is not None:
            raise typer.BadParameter(
                f"--speed-up {replayed.speed_up:g} changes times that a sweep does not use; give "
                "other loads instead"
            )
        chosen = replayed.open(trace, console)
        options = _options(to, replayed, sent, warm, first)
        check_trace(chosen, options)
        if plan is not None:
            plan.check(chosen, options)
            key = _api_key(sent.api_key_env)
            with new_folder(to.output, f"{to.name or chosen.name}-sweep") as folder:
                found = run_sweep(chosen, to.url, key, options, plan, folder)
                finish_sweep(found, folder)
            return
        with new_folder(to.output, to.name or chosen.name) as folder:
            run = _run(chosen, to.url, _api_key(sent.api_key_env), options, console)
            write_run(folder, run)
    print_summary(run, folder, console)
    if run.info.interrupted:
        raise typer.Exit(Exit.interrupted)
    if run.info.invalid:
        raise typer.Exit(Exit.invalid)


def _options(
    to: Destination, replayed: ReplayedTrace, sent: Sent, warm: WarmUp, first: tuple[int, float]
) -> ReplayOptions:
    """What a replay is told; `first`: requests and seconds of the warm-up."""
    from tokenflow_sgl.lab.replay import ReplayOptions

    ids = sent.token_ids
    return ReplayOptions(
        name=to.name,
        api=to.api,
        sessions=replayed.sessions,
        seed=replayed.seed,
        token_ids=None if ids is None else pair(ids, int, "--token-ids", "LO:HI"),
        send_rates=replayed.send_rates,
        send_priority=sent.send_priority,
        warm_up_requests=first[0],
        warm_up_s=first[1],
        warm_up_burst=warm.warm_up_burst,
        known_lengths=sent.known_lengths,
        ignore_eos=sent.ignore_eos,
        temperature=sent.temperature,
        timeout_s=sent.timeout,
    )


def _pace(target: Target) -> str:
    """How the time of an emulated device passes."""
    if target.virtual:
        return "on a virtual clock"
    return f"time stretched {target.time_scale:g} times"


def _warm_up(text: str) -> tuple[int, float]:
    """Requests and seconds of the warm-up; one of them is 0."""
    seconds = text.endswith("s")
    try:
        value = float(text.removesuffix("s")) if seconds else int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise typer.BadParameter(
            f"--warm-up is {text!r}; allowed is a number of requests (20) or of seconds (30s)"
        )
    return (0, float(value)) if seconds else (int(value), 0.0)


def _api_key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable)
    if not key:
        raise typer.BadParameter(f"--api-key-env: {variable} is not set")
    return key


def _run(
    trace: Trace, url: str, api_key: str | None, options: ReplayOptions, console: Console
) -> Run:
    import asyncio

    from tokenflow_sgl.lab.replay import find_target, replay
    from tokenflow_sgl.lab.replay.live import live_view
    from tokenflow_sgl.lab.replay.steady import allow_many_files, new_event_loop

    async def main() -> Run:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def interrupted() -> None:
            loop.remove_signal_handler(signal.SIGINT)  # the next one raises, as usual
            console.print("Stopping. Ctrl-C again quits without writing the run.")
            stop.set()

        target = await find_target(url, api_key=api_key)
        console.print(
            f"{len(trace.requests):,} requests of {trace.name} to {target.model or 'a server'} at "
            f"{target.url}, over {trace.requests[-1].arrival_s:,.0f} s"
            + (f", {_pace(target)}" if target.device else ""),
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
        loop.add_signal_handler(signal.SIGINT, interrupted)
        with live_view(console) as view:
            return await replay(trace, target, options, observe=view.show, stop=stop)

    allow_many_files()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main())
