"""One simulated run of a trace."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tokenflow_sgl.choices import IoBackend, MemLayout, Sessions
from tokenflow_sgl.contract import LengthPredictor, Policy, Traits
from tokenflow_sgl.lab.profiles import DeviceProfile
from tokenflow_sgl.lab.runs import Run, RunInfo
from tokenflow_sgl.lab.runs.run_tables import trace_info
from tokenflow_sgl.lab.sim.cluster import ROUTERS, Replica, RoutedRequests, serve
from tokenflow_sgl.lab.sim.core import SimulatedCore
from tokenflow_sgl.lab.sim.engine import Observe, SimulatedEngine
from tokenflow_sgl.lab.sim.engine_options import EngineOptions, SimulationError
from tokenflow_sgl.lab.sim.policed import PolicedScheduler
from tokenflow_sgl.lab.sim.prefixes import Prefixes
from tokenflow_sgl.lab.sim.schedulers.by_name import make_scheduler, name_of, settings_of
from tokenflow_sgl.lab.sim.schedulers.fcfs import FcfsScheduler
from tokenflow_sgl.lab.sim.simulated_run import SimulatedTokens, make_run
from tokenflow_sgl.lab.sim.simulated_streams import FloatArray, SimulatedStreams
from tokenflow_sgl.lab.sim.step import IssuedCount, SimulatedDevice
from tokenflow_sgl.lab.sim.storage import StorageCounts
from tokenflow_sgl.lab.traces import Trace, TraceRequest
from tokenflow_sgl.lab.traces.output_limits import WARM_UP_LIMIT, client_limits
from tokenflow_sgl.lab.traces.schedule import Schedule
from tokenflow_sgl.lab.traces.transform import with_classes
from tokenflow_sgl.policy import WorkingSetConfig, make_predictor
from tokenflow_sgl.policy.learned_lengths import Evidence
from tokenflow_sgl.qos.classes import SHIPPED_CLASSES, QosClasses

MOST_REPLICAS = 256

Watch = Callable[[float, SimulatedStreams], None]
"""Called with the time, by which all tokens before it are given, and the streams."""

_COUNTED = (
    *("preempted", "resumed", "loaded", "recomputed"),
    *("prefetched", "written", "needed", "held"),
)
"""Of the actuator's `Counts`: summed over the replicas."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """What a simulation found: the run, and what the engines counted.

    run: In the format of `tokenflow replay`. steps: forward passes. retracted: requests that SGLang
    itself threw out to recompute them. preempted, resumed, loaded, recomputed: what the policy had
    done, in streams and in tokens. prefetched: tokens that came back beside the steps, waited for
    by none of them. passes: decisions of the policy. written: tokens copied to the host while their
    streams ran. needed: those of streams that were preempted then. tail: tokens that a preemption
    had left to copy, median. held: tokens of all streams that were preempted, each time. stores,
    loads: all copies to the host and back, by the policy or by SGLang, and how they were issued.
    storage: what came from below the host. expected: wait in seconds that was expected of each
    request when it came, shape (requests,), likely: after which the way was likely free; NaN where
    none may be refused.
    """

    run: Run
    steps: int
    retracted: int
    preempted: int = 0
    resumed: int = 0
    loaded: int = 0
    recomputed: int = 0
    passes: int = 0
    prefetched: int = 0
    written: int = 0
    needed: int = 0
    tail: float = 0.0
    held: int = 0
    stores: IssuedCount = field(default_factory=IssuedCount)
    loads: IssuedCount = field(default_factory=IssuedCount)
    storage: StorageCounts = field(default_factory=StorageCounts)
    expected: FloatArray = field(default_factory=lambda: np.zeros(0))
    likely: FloatArray = field(default_factory=lambda: np.zeros(0))


def simulate(
    trace: Trace,
    profile: DeviceProfile,
    options: EngineOptions,
    *,
    policy: str | Policy = "tokenflow",
    config: WorkingSetConfig | None = None,
    replicas: int = 1,
    beside: Sequence[tuple[DeviceProfile, EngineOptions]] = (),
    router: str = "least-loaded",
    sessions: Sessions = Sessions.closed,
    known_lengths: bool = False,
    predictor: str = "learned",
    evidence: Evidence | None = None,
    warm_up_burst: int = 0,
    classes: QosClasses = SHIPPED_CLASSES,
    observe: Observe | None = None,
    watch: Watch | None = None,
) -> Simulation:
    """Serve a trace on a device that only exists as numbers.

    Args:
        trace: The requests and their times.
        profile: Step times and links.
        options: SGLang's settings; some belong to the policy (see `settings_of`).
        policy: One of `POLICIES`, package.module:Class, or a policy.
        config: Parameters of tokenflow's policy.
        replicas: Engines of this kind.
        beside: More engines, of other kinds: their profiles and settings.
        router: Which of them gets a request: one of `ROUTERS`.
        sessions: When later turns of a session are sent.
        known_lengths: Clients send the length of the answer as its limit (see `client_limits`), and
            a policy takes it for the length.
        predictor: Else tells a policy how long answers get (see `make_predictor`).
        evidence: Of answers before the trace, for the learned lengths, as a file of lengths brings
            it to a server; None: it starts without any.
        warm_up_burst: The predictor knows of so many answers that each was cut off early, as on a
            server to which a replay has sent its warm-up burst (`WARM_UP_LIMIT`).
        classes: Of the server; requests name them in the trace.
        observe: Told the progress.
        watch: Shown the streams from time to time, of which it may change nothing; what it raises
            ends the run.

    Raises:
        TraceError: A request names a class that there is not.
        SimulationError: The policy is unknown, the router asks for what its servers do not report,
            a request does not fit a device at all, engines have pages of different sizes, or a
            number is out of its range.
    """
    options = settings_of(policy, options)
    others = [(each, settings_of(policy, own)) for each, own in beside]
    if router not in ROUTERS:
        raise SimulationError(f"router is {router!r}; allowed is {', '.join(ROUTERS)}")
    if not 1 <= replicas <= MOST_REPLICAS:
        raise SimulationError(f"replicas is {replicas!r}; allowed is 1 to {MOST_REPLICAS}")
    if warm_up_burst < 0:
        raise SimulationError(f"warm_up_burst is {warm_up_burst!r}; allowed is 0 or more")
    config = config or WorkingSetConfig()
    fleet = _SimulatedFleet(
        kinds=[*[(profile, options)] * replicas, *others],
        policy=policy,
        config=config,
        router=router,
        sessions=sessions,
        known_lengths=known_lengths,
        predictor=predictor,
        evidence=evidence,
        warm_up_burst=warm_up_burst,
        classes=classes,
    )
    served = fleet.serve(trace, observe, watch)
    name, named = name_of(policy), with_classes(trace, classes.rates)
    info = RunInfo(
        name=name,
        source="simulate",
        trace=trace_info(named),
        target={
            **_described(profile, options),
            **({"beside": [_described(*each) for each in others]} if others else {}),
            "kv_memory": _kv_memory(served.engines),
            **_notes(named),
        },
        options={
            "policy": name,
            "replicas": replicas,
            "known_lengths": known_lengths,
            **_classes(named, classes),
            **({"router": router} if len(fleet.kinds) > 1 else {}),
            **(dataclasses.asdict(config) if policy == "tokenflow" else {}),
        },
        duration_s=float(np.nanmax(served.ended)),
        send_lag_p99_s=0.0,
    )
    return served.simulation(info, named)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ServedTrace:
    """What is left when a trace has been served: streams, their tokens, and the engines.

    ended: when each stream ended, seconds of shape (streams,).
    """

    streams: SimulatedStreams
    tokens: SimulatedTokens
    ended: FloatArray
    engines: Sequence[SimulatedEngine]
    schedulers: Sequence[FcfsScheduler]

    def simulation(self, info: RunInfo, trace: Trace) -> Simulation:
        """What the engines have counted, and the run that is described by `info`."""
        policed = [each for each in self.schedulers if isinstance(each, PolicedScheduler)]
        done = [scheduler.body.counts for scheduler in policed]
        tails = [tail for counts in done for tail in counts.tails]
        devices = [engine.core.device for engine in self.engines]
        storages = [engine.core.storage for engine in self.engines]
        return Simulation(
            make_run(info, trace.requests, self.streams, self.tokens, self.ended),
            steps=sum(engine.steps for engine in self.engines),
            retracted=sum(scheduler.retracted for scheduler in self.schedulers),
            passes=sum(scheduler.passes for scheduler in policed),
            tail=float(np.median(tails)) if tails else 0.0,
            stores=sum((device.stores for device in devices), IssuedCount()),
            loads=sum((device.loads for device in devices), IssuedCount()),
            expected=self.streams.expected_wait,
            likely=self.streams.likely_wait,
            storage=sum((each.counts for each in storages if each is not None), StorageCounts()),
            **{name: sum(getattr(counts, name) for counts in done) for name in _COUNTED},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _SimulatedFleet:
    """Engines behind a router, as `simulate` was asked for them.

    kinds: profile and settings of each engine.
    """

    kinds: Sequence[tuple[DeviceProfile, EngineOptions]]
    policy: str | Policy
    config: WorkingSetConfig
    router: str
    sessions: Sessions
    known_lengths: bool
    predictor: str
    evidence: Evidence | None
    warm_up_burst: int
    classes: QosClasses

    def serve(self, trace: Trace, observe: Observe | None, watch: Watch | None) -> _ServedTrace:
        """Serve a trace to its end.

        Raises:
            TraceError: A request names a class that there is not.
            SimulationError: It cannot be served, or not to its end.
        """
        if len({own.page_size for _, own in self.kinds}) > 1:
            raise SimulationError("engines behind one router must have pages of the same size")
        smallest = min((own for _, own in self.kinds), key=_room)
        _check(trace, smallest)
        trace = with_classes(trace, self.classes.rates)
        room = [_room(smallest) - request.prompt_tokens for request in trace.requests]
        limits = client_limits(trace.requests, known_lengths=self.known_lengths, room=room)
        streams = SimulatedStreams(trace.requests, limits, self.classes, self.config.max_wait)
        tokens, ended = SimulatedTokens(), np.full(len(streams), np.nan)
        schedule = Schedule(trace.requests, self.sessions)
        prefixes = Prefixes(trace.requests, schedule.previous, smallest.page_size)

        def make(
            inbox: RoutedRequests | Schedule, kind: tuple[DeviceProfile, EngineOptions]
        ) -> tuple[SimulatedEngine, FcfsScheduler]:
            core = SimulatedCore(streams, prefixes, _device(*kind), kind[1])
            lengths = self._predictor(trace)
            scheduler = make_scheduler(self.policy, core, self.config, lengths)
            return SimulatedEngine(core, scheduler, inbox, tokens, ended), scheduler

        def observed(now: float, finished: int) -> None:
            if watch is not None:
                watch(now, streams)
            if observe is not None:
                observe(now, finished)

        if len(self.kinds) == 1:
            made = [make(schedule, self.kinds[0])]
            made[0][0].advance(observe=observed)
        else:
            inboxes = [RoutedRequests(schedule) for _ in self.kinds]
            made = [make(inbox, kind) for inbox, kind in zip(inboxes, self.kinds, strict=True)]
            cluster = [Replica(e, inbox, s) for (e, s), inbox in zip(made, inboxes, strict=True)]
            closed = self.sessions is Sessions.closed
            turns = closed and any(request.turn for request in trace.requests)
            route = ROUTERS[self.router](streams, self.config)
            serve(schedule, cluster, route, sessions=turns, observe=observed)
        engines = [engine for engine, _ in made]
        finished = sum(engine.finished for engine in engines)
        if finished < len(trace.requests):
            raise SimulationError(
                f"{name_of(self.policy)} served {finished:,} of {len(trace.requests):,} requests "
                "and then none any more: please report this with the trace"
            )
        return _ServedTrace(
            streams=streams,
            tokens=tokens,
            ended=ended,
            engines=engines,
            schedulers=[scheduler for _, scheduler in made],
        )

    def _predictor(self, trace: Trace) -> LengthPredictor:
        """A predictor of answers' lengths that has seen the warm-up burst."""
        named = "limit" if self.known_lengths else self.predictor
        lengths = make_predictor(named, evidence=self.evidence)
        _warm_up(lengths, trace.requests[: self.warm_up_burst])
        return lengths


def _device(profile: DeviceProfile, options: EngineOptions) -> SimulatedDevice:
    return SimulatedDevice(
        profile,
        overlap=options.load_evict_overlap,
        page=options.page_size,
        backend=IoBackend(options.hicache_io_backend),
        layout=MemLayout(options.hicache_mem_layout),
        drafts=options.speculative_num_draft_tokens,
    )


def _described(profile: DeviceProfile, options: EngineOptions) -> dict[str, Any]:
    """A kind of engine, for the run's target."""
    return {
        "model": profile.model,
        "simulated_device": profile.device,
        "profile": profile.source,
        "server_args": dataclasses.asdict(options),
    }


def _kv_memory(engines: Sequence[SimulatedEngine]) -> dict[str, int]:
    """How full the fullest engine was, and what all of them have on the host."""
    fullest = max(engines, key=lambda engine: engine.kv_peak / engine.core.memory.device)
    sizes = [engine.core.device.profile.kv_bytes_per_token for engine in engines]
    hosts = [engine.core.memory.host.size for engine in engines]
    peaks = [engine.host_peak for engine in engines]
    return {
        "tokens": fullest.core.memory.device,
        "peak_tokens": fullest.kv_peak,
        "host_bytes": sum(size * host for size, host in zip(sizes, hosts, strict=True)),
        "host_peak_bytes": sum(size * peak for size, peak in zip(sizes, peaks, strict=True)),
    }


def _notes(trace: Trace) -> dict[str, list[str]]:
    """What of the trace is not simulated, in sentences; nothing if all is."""
    changes = len(trace.priority_updates)
    said = f"{changes:,} changes of priority were not simulated."
    return {"notes": [said]} if changes else {}


def _classes(trace: Trace, classes: QosClasses) -> dict[str, Any]:
    """The classes that the trace names, for the run's options; nothing if it names none."""
    named = sorted({request.qos_class for request in trace.requests if request.qos_class})
    return {"classes": [dataclasses.asdict(classes.known[n]) for n in named]} if named else {}


def _warm_up(lengths: LengthPredictor, burst: Sequence[TraceRequest]) -> None:
    """Tell a predictor of requests like these whose answers were cut off."""
    limit = WARM_UP_LIMIT
    for request in burst:
        thinking = request.reasoning_tokens > 0
        kind = lengths.kind(Traits(request.prompt_tokens, limit, request.qos_class or "", thinking))
        lengths.ended(kind, limit, cut_off=True)


def _room(options: EngineOptions) -> int:
    """Tokens of prompt and answer that one request may have."""
    whole = options.max_total_tokens // options.page_size * options.page_size
    # SGLang wants a page more than that, and something left.
    return max(whole - options.page_size - 1, 0)


def _check(trace: Trace, options: EngineOptions) -> None:
    room = _room(options)
    for index, request in enumerate(trace.requests):
        tokens = request.prompt_tokens + request.output_tokens
        if tokens > room:
            raise SimulationError(
                f"request {index} of {trace.name} has {tokens:,} tokens; --kv-tokens is "
                f"{options.max_total_tokens:,} (max_total_tokens), which serves at most "
                f"{room:,}"
            )
