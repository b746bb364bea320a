"""The replay itself: sends the requests of a trace when they are due, and records what comes.

    run = await replay(trace, await find_target("http://localhost:30000"), ReplayOptions())

A request that fails becomes a record with a sentence; the others go on.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable

from tokenflow_sgl.lab.replay.answers import Answer
from tokenflow_sgl.lab.replay.endpoints import ENDPOINTS, Endpoint
from tokenflow_sgl.lab.replay.live import Observer
from tokenflow_sgl.lab.replay.outcome import ReplayOutcome, make_run
from tokenflow_sgl.lab.replay.pace import pace
from tokenflow_sgl.lab.replay.preparation import check_trace, make_prompts, make_records
from tokenflow_sgl.lab.replay.replay_options import ReplayOptions
from tokenflow_sgl.lab.replay.replay_parts import ReplayParts
from tokenflow_sgl.lab.replay.steady import LoopLag, no_collections
from tokenflow_sgl.lab.replay.stream_client import StreamClient
from tokenflow_sgl.lab.replay.target import Target
from tokenflow_sgl.lab.replay.virtual import VirtualReplayer
from tokenflow_sgl.lab.replay.wall import WallReplayer
from tokenflow_sgl.lab.runs.store import Run
from tokenflow_sgl.lab.traces.request import Trace


async def replay(
    trace: Trace,
    target: Target,
    options: ReplayOptions,
    *,
    observe: Observer = lambda snapshot, wall_s: None,
    stop: asyncio.Event | None = None,
    endpoint: Endpoint | None = None,
    answered: Callable[[int, Answer], None] | None = None,
) -> Run:
    """Replay a trace against a server.

    Args:
        trace: The requests and their times.
        target: The server; see `find_target`.
        options: How.
        observe: Called twice per second. What it does delays stamps: it must be quick.
        stop: Once set, nothing more is sent, and streams that run are cut off.
        endpoint: Where requests go and what reads the answers, instead of `options.api`'s; not on
            a virtual clock.
        answered: Called with the index of a request and its answer, token ids included, at its end.

    Returns:
        The run; `Run.info.invalid` says why its figures must not be trusted, if so.

    Raises:
        ReplayError: It cannot start: rates or token ids are not known, or are none that a server
            takes; it is stopped in the warm-up burst; a TargetError if the server does not answer
            or the burst fails.
    """
    check_trace(trace, options)
    notes: list[str] = []
    prompts = await make_prompts(target, options, notes)
    client = StreamClient(target.url, headers=target.headers)
    await client.open()
    try:
        parts = ReplayParts(
            trace=trace,
            target=target,
            options=options,
            endpoint=endpoint if endpoint and not target.virtual else ENDPOINTS[options.api],
            records=make_records(trace),
            prompts=prompts,
            client=client,
            answered=answered,
        )
        replayer = VirtualReplayer(parts) if target.virtual else WallReplayer(parts)
        stop = stop or asyncio.Event()
        await replayer.burst(stop)
        replayer.prepare()
        started_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        with no_collections():
            lag = LoopLag()
            interrupted = await replayer.run(observe, stop)
            lag.stop()
    finally:
        await client.close()
    outcome = ReplayOutcome(
        clock=replayer.clock,
        started_at=started_at,
        ended=replayer.ended,
        interrupted=interrupted,
        send_lag_s=replayer.send_lag_s,
        loop_lag_s=() if target.virtual else lag.late_s,
        server_lag_s=replayer.server_lag_s,
        notes=notes,
        invalid=[] if replayer.gone is None else [replayer.gone],
        pace=await pace(target),
    )
    return make_run(trace, target, options, parts.records, outcome)
