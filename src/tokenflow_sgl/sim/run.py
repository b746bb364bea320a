"""One simulated run of a trace."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from tokenflow_sgl.policy import WorkingSetConfig, WorkingSetPolicy
from tokenflow_sgl.profiles import DeviceProfile
from tokenflow_sgl.replay import Run
from tokenflow_sgl.replay.options import Sessions
from tokenflow_sgl.replay.schedule import Schedule
from tokenflow_sgl.sim.core import Core
from tokenflow_sgl.sim.engine import Engine, Observe
from tokenflow_sgl.sim.options import EngineOptions, SimulationError
from tokenflow_sgl.sim.policed import PolicedScheduler
from tokenflow_sgl.sim.recording import Recording, make_run
from tokenflow_sgl.sim.step import Device
from tokenflow_sgl.sim.stock import StockScheduler
from tokenflow_sgl.sim.streams import Streams
from tokenflow_sgl.traces import Trace

POLICIES = ("stock", "tokenflow")


@dataclass(frozen=True, slots=True)
class Simulation:
    """What a simulation found.

    run: In the format of `tokenflow replay`. steps: forward passes. retracted: requests that SGLang
    itself threw out to recompute them. preempted, resumed, loaded, recomputed: what the policy had
    done, in streams and in tokens. passes: decisions of the policy.
    """

    run: Run
    steps: int
    retracted: int
    preempted: int = 0
    resumed: int = 0
    loaded: int = 0
    recomputed: int = 0
    passes: int = 0


def simulate(
    trace: Trace,
    profile: DeviceProfile,
    options: EngineOptions,
    *,
    policy: str = "tokenflow",
    config: WorkingSetConfig | None = None,
    sessions: Sessions = Sessions.closed,
    observe: Observe | None = None,
) -> Simulation:
    """Serve a trace on a device that only exists as numbers.

    Args:
        trace: What is asked when.
        profile: Step times and links.
        options: SGLang's settings.
        policy: `stock` or `tokenflow`.
        config: Parameters of tokenflow's policy.
        sessions: When later turns of a session are sent.
        observe: Told the progress.

    Raises:
        SimulationError: The policy is unknown, or a request does not fit the device at all.
    """
    if policy not in POLICIES:
        raise SimulationError(f"policy is {policy!r}; allowed is {' or '.join(POLICIES)}")
    _check(trace, options)
    streams = Streams(trace.requests)
    core = Core(streams, Device(profile), options)
    config = config or WorkingSetConfig()
    scheduler = (
        StockScheduler(core)
        if policy == "stock"
        else PolicedScheduler(core, WorkingSetPolicy(config), config.cycle)
    )
    recording = Recording()
    engine = Engine(core, scheduler, Schedule(trace.requests, sessions), recording)
    engine.run(observe)
    if engine.finished < len(trace.requests):
        raise SimulationError(
            f"{policy} served {engine.finished:,} of {len(trace.requests):,} requests and then "
            "nobody any more: please report this with the trace"
        )
    run = make_run(
        trace,
        streams,
        recording,
        engine.ended,
        name=policy,
        target={
            "model": profile.model,
            "simulated_device": profile.device,
            "profile": profile.source,
            "server_args": dataclasses.asdict(options),
        },
        options={"policy": policy, **(dataclasses.asdict(config) if policy != "stock" else {})},
        duration_s=engine.now,
    )
    counts = {}
    if isinstance(scheduler, PolicedScheduler):
        names = ("preempted", "resumed", "loaded", "recomputed", "passes")
        counts = {name: getattr(scheduler, name) for name in names}
    return Simulation(run, engine.steps, scheduler.retracted, **counts)


def _check(trace: Trace, options: EngineOptions) -> None:
    for index, request in enumerate(trace.requests):
        tokens = request.prompt_tokens + request.output_tokens
        # SGLang wants a page more than that, and something left.
        if tokens + 1 >= options.max_total_tokens:
            raise SimulationError(
                f"request {index} of {trace.name} has {tokens:,} tokens; max_total_tokens is "
                f"{options.max_total_tokens:,}, which serves at most "
                f"{max(options.max_total_tokens - 2, 0):,}"
            )
