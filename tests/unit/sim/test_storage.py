"""A storage tier below the host pool: how long a returning prompt waits for it, by each way."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tokenflow_sgl.lab.profiles import DeviceProfile
from tokenflow_sgl.lab.sim import EngineOptions, Simulation, SimulationError, simulate
from tokenflow_sgl.lab.sim.engine import SimulatedEngine
from tokenflow_sgl.lab.sim.storage_link import StorageLink
from tokenflow_sgl.lab.traces import Accounting, PrefixBlock, Trace, TraceRequest

SLOW, EQUAL, FAST = 0.002, 0.008, 0.08
"""Gbit/s of 250, 1,000 and 10,000 tokens per second; the device computes 1,000."""
STORED, SUFFIX = 2000, 100


def returning(*, at: float = 100.0, others: int = 4, again: int = 1) -> Trace:
    """A prompt of 2,100 tokens that comes again after others have taken all memory."""
    block = (PrefixBlock(1, STORED),)
    rows = [TraceRequest(0.0, STORED + SUFFIX, 2, rate=10.0, prefix=block)]
    rows += [TraceRequest(10.0 * (k + 1), STORED + SUFFIX, 2, rate=10.0) for k in range(others)]
    rows += [TraceRequest(at, STORED + SUFFIX, 2, rate=10.0, prefix=block) for _ in range(again)]
    return Trace("returning", tuple(rows), Accounting(len(rows), len(rows)))


@pytest.fixture
def served(device: DeviceProfile) -> Callable[..., Simulation]:
    def run(trace: Trace, **given: object) -> Simulation:
        settings = {
            "max_total_tokens": 4500,
            "host_tokens": 6700,
            "chunked_prefill_size": 512,
            "page_size": 4,
            "storage_latency_us": 0.0,
            "hicache_storage_prefetch_policy": "wait_complete",
            "overlap": False,
            **given,
        }
        options = EngineOptions(**settings)
        return simulate(trace, device, options, policy="fcfs-hicache", known_lengths=True)

    return run


@pytest.fixture
def ttft(served, times_of) -> Callable[..., float]:
    """Seconds of the last request."""

    def read(trace: Trace, **given: object) -> float:
        simulation = served(trace, **given)
        last = len(trace.requests) - 1
        return times_of(simulation)[last][0] - trace.requests[last].arrival_s

    return read


def test_stock_computes_what_has_left_host_and_device(ttft) -> None:
    assert ttft(returning()) == pytest.approx(2.1, abs=0.02)


@pytest.mark.parametrize(("gbps", "seconds"), [(SLOW, 8.0), (EQUAL, 2.0), (FAST, 0.2)])
def test_stock_waits_for_all_of_it_and_then_loads_it(gbps, seconds, ttft) -> None:
    # From the storage, over PCIe (0.1 ms a token, layer by layer), and 100 tokens computed.
    assert ttft(returning(), storage_gbps=gbps) == pytest.approx(seconds + 0.21, abs=0.05)


def test_stock_does_not_wait_or_not_for_long(ttft) -> None:
    at_once = ttft(returning(), storage_gbps=SLOW, hicache_storage_prefetch_policy="best_effort")
    assert at_once == pytest.approx(2.1, abs=0.02)
    # 1 s and 0.25 s per 1,024 tokens: 1.488 s, in which 372 tokens have come.
    late = ttft(returning(), storage_gbps=SLOW, hicache_storage_prefetch_policy="timeout")
    assert late == pytest.approx(1.488 + 2.1 - 0.372, abs=0.05)


@pytest.mark.parametrize(("gbps", "seconds"), [(SLOW, 1.6), (EQUAL, 1.0), (FAST, 0.2)])
def test_both_sources_meet(gbps, seconds, ttft, served) -> None:
    # N / (1 / Tc + 1 / Tio) of a linear device, and the suffix.
    given = {"storage_gbps": gbps, "restore": "auto"}
    assert ttft(returning(), **given) == pytest.approx(seconds + 0.1, rel=0.05, abs=0.02)
    storage = served(returning(), **given).storage
    assert storage.both == 1
    assert storage.fetched + storage.heads == STORED
    assert storage.unused <= 8


def test_a_short_prefix_is_not_asked_for(ttft) -> None:
    trace = returning()
    short = tuple(
        TraceRequest(r.arrival_s, r.prompt_tokens, 2, rate=10.0, prefix=(PrefixBlock(1, 200),))
        if r.prefix
        else r
        for r in trace.requests
    )
    trace = Trace("short", short, trace.accounting)
    assert ttft(trace, storage_gbps=SLOW) == pytest.approx(2.1, abs=0.02)


def test_one_link_serves_all_requests_in_turn(served, times_of) -> None:
    # Twice the same prompt at once: prefetches are not deduplicated, and the second one waits.
    trace = returning(again=2, others=6)
    host = {"host_tokens": 12_300, "max_total_tokens": 8100}

    def ends(**given: object) -> list[float]:
        times = times_of(served(trace, storage_gbps=EQUAL, **host, **given))
        return [times[index][0] - 100.0 for index in (7, 8)]

    assert ends()[0] == pytest.approx(2.2, abs=0.1)
    both = ends(restore="auto")
    # The suffixes of both in one step: when the first one joins, the other finds its KV there.
    assert both[0] == pytest.approx(1.2, abs=0.05)
    assert both[1] < 1.5


def test_a_head_that_waits_for_its_tail_leaves_room_for_others(served) -> None:
    # Short prompts come with it, and fit into the steps of its head.
    trace = returning()
    short = tuple(TraceRequest(100.0 + k / 10, 8, 2, rate=10.0) for k in range(12))
    rows = (*trace.requests, *short)
    trace = Trace("short", rows, Accounting(len(rows), len(rows)))
    found = served(trace, storage_gbps=EQUAL, restore="auto", chunked_prefill_size=4096)
    assert found.storage.both == 1
    assert found.run.requests["ended_s"].null_count == 0


def test_copies_to_the_storage_may_take_the_link_s_time(ttft) -> None:
    # The last other prompt, 2,100 tokens, is still on its way when the first one comes back.
    trace = returning(at=43.0)
    free = ttft(trace, storage_gbps=EQUAL)
    assert free == pytest.approx(2.21, abs=0.1)
    assert ttft(trace, storage_gbps=EQUAL, storage_writes="shared") == pytest.approx(
        free + 1.2, abs=0.3
    )


def test_the_policy_s_scheduler_has_the_storage_too(device, times_of) -> None:
    def ttft(**given: object) -> float:
        options = EngineOptions(
            max_total_tokens=4500,
            host_tokens=6700,
            chunked_prefill_size=512,
            page_size=4,
            storage_latency_us=0.0,
            hicache_storage_prefetch_policy="wait_complete",
            **given,
        )
        found = simulate(returning(), device, options, policy="tokenflow")
        return times_of(found)[5][0] - 100.0

    assert ttft() == pytest.approx(2.1, abs=0.05)
    assert ttft(storage_gbps=FAST) == pytest.approx(0.41, abs=0.05)
    assert ttft(storage_gbps=EQUAL, restore="auto") == pytest.approx(1.1, rel=0.05)


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_all_requests_are_served_and_nothing_is_held(data, device, monkeypatch) -> None:
    """Prompts of three families come again and again, under any settings."""
    rows = data.draw(
        st.lists(
            st.tuples(
                st.integers(0, 8),  # arrival; many come at once
                st.integers(0, 3),  # family; 0: none
                st.sampled_from([0, 640, 1280]),  # of it
                st.integers(1, 200),  # its own tokens
                st.integers(1, 20),
            ),
            min_size=4,
            max_size=16,
        )
    )
    requests = [
        TraceRequest(
            4.0 * arrival,
            shared + own,
            answer,
            rate=10.0,
            prefix=tuple(PrefixBlock(family * 100 + k, 64) for k in range(shared // 64))
            if family
            else (),
        )
        for arrival, family, shared, own, answer in sorted(rows)
    ]
    engines: list[SimulatedEngine] = []
    made = SimulatedEngine.__init__

    def make(self, *given) -> None:
        made(self, *given)
        engines.append(self)

    options = EngineOptions(
        max_total_tokens=data.draw(st.sampled_from([2048, 4096])),
        host_tokens=data.draw(st.sampled_from([2048, 8192])),
        page_size=data.draw(st.sampled_from([1, 16, 64])),
        chunked_prefill_size=data.draw(st.sampled_from([128, 512, 4096])),
        storage_gbps=data.draw(st.sampled_from([SLOW, EQUAL, FAST])),
        storage_writes=data.draw(st.sampled_from(["free", "shared"])),
        hicache_storage_prefetch_policy=data.draw(
            st.sampled_from(["wait_complete", "timeout", "best_effort"])
        ),
        restore=data.draw(st.sampled_from(["off", "auto", "auto"])),
        overlap=data.draw(st.booleans()),
    )
    policy = data.draw(st.sampled_from(["fcfs-hicache", "tokenflow"]))
    trace = Trace("families", tuple(requests), Accounting(len(requests), len(requests)))
    with monkeypatch.context() as patched:
        patched.setattr(SimulatedEngine, "__init__", make)
        found = simulate(trace, device, options, policy=policy, known_lengths=True)
    assert found.run.requests["ended_s"].null_count == 0
    assert min(found.storage.fetched, found.storage.unused, found.storage.heads) >= 0
    (engine,) = engines
    engine.core.forget(1e9, at_once=True)
    engine.core.memory.settle(1e9)
    assert engine.core.memory.held == 0
    assert engine.core.storage._occupied == 0
    assert not engine.core.storage._coming


def test_without_a_host_pool_there_is_no_storage(ttft) -> None:
    assert ttft(returning(), host_tokens=0, storage_gbps=FAST) == pytest.approx(2.1, abs=0.02)


def test_a_link_serves_in_turn_and_moves_up() -> None:
    link = StorageLink(1000.0, 0.01)
    first, second = link.ask(500, 0.0), link.ask(500, 0.0)
    assert link.seconds(second, 500, 0.0) == pytest.approx(1.01)
    assert link.lands_at == pytest.approx(0.51)
    link.advance(0.26)
    assert first.landed == pytest.approx(250)
    assert second.landed == 0
    link.give_up(first, 0.26)
    assert link.seconds(first, 1, 0.26) == float("inf")
    assert link.seconds(second, 500, 0.26) == pytest.approx(0.5)
    link.advance(9.0)
    assert second.over
    assert second.landed == 500
    assert link.lands_at == float("inf")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"storage_gbps": -1.0}, "storage_gbps is -1.0; allowed is 0 or more"),
        ({"storage_latency_us": float("nan")}, "storage_latency_us is nan; allowed is 0 or more"),
        ({"restore": "auto"}, "allowed without a storage"),
        ({"restore": "on", "storage_gbps": 1.0}, "restore is 'on'; allowed is off or auto"),
        ({"storage_writes": "no"}, "storage_writes is 'no'; allowed is free or shared"),
        (
            {"hicache_storage_prefetch_policy": "now"},
            "hicache_storage_prefetch_policy is 'now'; allowed is wait_complete or timeout or",
        ),
    ],
)
def test_bad_settings_are_named(given, message, options) -> None:
    with pytest.raises(SimulationError, match=message):
        options(**given)
