"""Ten attacks of tenants on another: the other is served as on a server of its share alone.

The other's readers come as a Poisson stream that half of the device can serve. A stall is a wait
that a reader notices, of a tenth of a second or more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest

from tokenflow_sgl.lab.profiles import DeviceProfile, load_profile
from tokenflow_sgl.lab.sim import EngineOptions, simulate
from tokenflow_sgl.lab.traces import Accounting, Trace, TraceRequest
from tokenflow_sgl.qos import play
from tokenflow_sgl.qos.classes import SHIPPED, QosClass, QosClasses, Tenant

KV, CHUNK, ROWS = 35_000, 2048, 256
SECONDS, PER_SECOND = 60.0, 0.5
RATE = 10.0
NOTICED = 0.1
"""Seconds from which a wait for text counts as a stall."""
WITHIN = 1.1
"""Of the wait for the first token on a server of the share alone, P99."""
MINE, NOISY = "mine", "noisy"
CLASSES = QosClasses(
    {**SHIPPED, "pushy": QosClass("pushy", 100.0, weight=10.0)}, SHIPPED["reading"]
)

pytestmark = pytest.mark.slow


def noisy(arrival: float, prompt: int, output: int, **more: object) -> TraceRequest:
    given = {"rate": RATE, "tenant": NOISY, **more}
    return TraceRequest(arrival, prompt, output, **given)  # type: ignore[arg-type]


def _crowd(count: int, prompt: int = 512, output: int = 600, **more: object) -> list[TraceRequest]:
    return [noisy(5.0 + 0.01 * number, prompt, output, **more) for number in range(count)]


ATTACKS: dict[str, Callable[[], list[TraceRequest]]] = {
    "crowd": lambda: _crowd(200),
    "fastest readers": lambda: _crowd(200, rate=1000.0),
    "slowest readers": lambda: _crowd(200, rate=0.1),
    "endless prompts": lambda: _crowd(16, prompt=int(0.6 * KV), output=50),
    "nothing but prompts": lambda: [
        noisy(5.0 + 0.05 * number, 1500, 1) for number in range(int(SECONDS / 0.05))
    ],
    "tight objectives": lambda: _crowd(200, ttft_slo_s=0.5, tbt_slo_s=0.002),
    "a heavy class": lambda: _crowd(200, rate=None, qos_class="pushy", priority=1000),
    "endless thoughts": lambda: _crowd(200, reasoning_tokens=599),
    "bursts": lambda: [
        noisy(10.0 * (number // 50) + 0.001 * number, 800, 300) for number in range(300)
    ],
    "memory hogs": lambda: _crowd(60, prompt=2000, output=2000, limit_tokens=20_000),
}


def of(requests: Sequence[TraceRequest]) -> Trace:
    """A trace of these requests, in the order of their arrival."""
    ordered = tuple(sorted(requests, key=lambda request: request.arrival_s))
    return Trace("tenants", ordered, Accounting(len(ordered), len(ordered)))


@cache
def mine() -> tuple[TraceRequest, ...]:
    """Requests of the tenant that is attacked."""
    random = np.random.default_rng(1)
    arrivals = random.exponential(1.0 / PER_SECOND, int(2 * PER_SECOND * SECONDS)).cumsum()
    arrivals = arrivals[arrivals < SECONDS]

    def lengths(mean: int) -> list[int]:
        drawn = random.lognormal(np.log(mean) - 0.32, 0.8, len(arrivals))
        return np.clip(drawn, 8, 4 * mean).astype(int).tolist()

    columns = zip(arrivals.tolist(), lengths(500), lengths(300), strict=True)
    return tuple(TraceRequest(*row, rate=RATE, tenant=MINE) for row in columns)


def part(profile: DeviceProfile, share: float) -> DeviceProfile:
    """A device of so much of the bandwidth and arithmetic."""

    def slower(seconds: tuple[tuple[float, ...], ...]) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(each / share for each in row) for row in seconds)

    def narrower(name: str) -> object:
        link = getattr(profile, name)
        return dataclasses.replace(link, bandwidth=share * link.bandwidth)

    decode, prefill, launch = profile.decode, profile.prefill, profile.launch
    return dataclasses.replace(
        profile,
        decode=dataclasses.replace(decode, seconds=slower(decode.seconds)),
        prefill=dataclasses.replace(prefill, seconds=slower(prefill.seconds)),
        launch=dataclasses.replace(
            launch, prefill=launch.prefill / share, decode=launch.decode / share
        ),
        **{name: narrower(name) for name in ("host_to_device", "device_to_host")},  # type: ignore
    )


class Served(NamedTuple):
    """What the readers of a tenant got: seconds to the first tokens, P99, and those stalled."""

    wait: float
    stalled: float


def served(trace: Trace, share: float = 1.0, classes: QosClasses = CLASSES) -> Served:
    """How `MINE` is served on so much of an RTX 4090."""
    tokens = int(share * KV)
    options = EngineOptions(
        max_total_tokens=tokens,
        host_tokens=4 * tokens,
        chunked_prefill_size=CHUNK,
        max_running_requests=int(share * ROWS),
    )
    profile = part(load_profile("rtx4090", "llama3-8b"), share)
    found = simulate(trace, profile, options, classes=classes).run.tokens.to_pydict()
    times: dict[int, list[float]] = {}
    for request, time in zip(found["request"], found["time_s"], strict=True):
        times.setdefault(request, []).append(time)
    own = [place for place, request in enumerate(mixed_names(trace)) if request == MINE]
    waits = [times[place][0] - trace.requests[place].arrival_s for place in own]
    stalls = [play(times[place], RATE).stalls for place in own]
    stalled = sum(float(each[each >= NOTICED].sum()) for each in stalls)
    return Served(float(np.quantile(waits, 0.99)), stalled)


def mixed_names(trace: Trace) -> list[str]:
    """Who asks, by request; in a trace that tells none apart, whoever reads it knows."""
    known = {request.arrival_s for request in mine()}
    return [MINE if request.arrival_s in known else NOISY for request in trace.requests]


@cache
def alone(share: float) -> Served:
    """On a server of so much."""
    return served(of(mine()), share)


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_costs_no_other_tenant_more_than_its_share(name: str) -> None:
    attacked = served(of([*mine(), *ATTACKS[name]()]))
    assert attacked.wait <= WITHIN * alone(0.5).wait
    assert attacked.stalled <= WITHIN * alone(0.5).stalled


@pytest.mark.parametrize("name", ATTACKS)
def test_two_attackers_leave_a_third_of_the_server(name: str) -> None:
    third = [
        dataclasses.replace(request, tenant="third", arrival_s=request.arrival_s + 0.0037)
        for request in ATTACKS[name]()
    ]
    attacked = served(of([*mine(), *ATTACKS[name](), *third]))
    assert attacked.wait <= WITHIN * alone(1 / 3).wait
    assert attacked.stalled <= WITHIN * alone(1 / 3).stalled


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attacker_of_twice_the_weight_leaves_a_third(name: str) -> None:
    classes = dataclasses.replace(CLASSES, tenants={NOISY: Tenant(NOISY, weight=2.0)})
    attacked = served(of([*mine(), *ATTACKS[name]()]), classes=classes)
    assert attacked.wait <= WITHIN * alone(1 / 3).wait
    assert attacked.stalled <= WITHIN * alone(1 / 3).stalled


def test_where_none_is_told_apart_the_same_crowd_is_felt() -> None:
    """The control."""
    requests = [*mine(), *ATTACKS["crowd"]()]
    untold = of([dataclasses.replace(request, tenant=None) for request in requests])
    assert served(untold).wait > 10.0 * alone(0.5).wait
