"""SGLang's admission and retraction, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tokenflow_sgl.lab.sim import SimulationError, simulate
from tokenflow_sgl.lab.sim.core import SimulatedCore
from tokenflow_sgl.lab.sim.prefixes import Prefixes
from tokenflow_sgl.lab.sim.schedulers.fcfs import FcfsScheduler
from tokenflow_sgl.lab.sim.simulated_streams import SimulatedStreams
from tokenflow_sgl.lab.sim.step import NO_STREAM, Chunk, SimulatedDevice, Step
from tokenflow_sgl.lab.sim.step_results import StepResults
from tokenflow_sgl.lab.traces import TraceRequest


@pytest.fixture
def core(device, options):
    def make(*rows: tuple[int, int], **given) -> SimulatedCore:
        requests = [TraceRequest(0.0, prompt, output) for prompt, output in rows]
        streams, prefixes = SimulatedStreams(requests), Prefixes(requests, {})
        core = SimulatedCore(streams, prefixes, SimulatedDevice(device), options(**given))
        for index in range(len(rows)):
            core.arrive(index, 0.0, 0.0)
        return core

    return make


# A request needs prompt + answer + 1 of what is left; one that was admitted before holds as much.
@pytest.mark.parametrize(
    ("memory", "admitted"),
    [(151, 0), (152, 1), (302, 1), (303, 2), (453, 2), (454, 3)],
)
def test_admission_reserves_whole_answers(core, memory, admitted) -> None:
    there = core(*[(100, 50)] * 3, max_total_tokens=memory)
    step = FcfsScheduler(there).plan(0.0)
    assert (0 if step is None else len(step.chunks)) == admitted
    assert there.full is (admitted in (1, 2))


def test_a_running_stream_holds_a_share_of_what_it_may_still_produce(core) -> None:
    there = core((100, 50), (100, 50), max_total_tokens=289)
    scheduler = FcfsScheduler(there)
    first = scheduler.plan(0.0)
    assert [chunk.stream for chunk in first.chunks] == [0]
    there.allocate(sum(chunk.tokens for chunk in first.chunks), 0.0)
    StepResults(there.streams).add(np.array([0]), np.array([0.1]))
    there.advance(first, 0.1)
    # 189 are free; 49 tokens to come at 0.7 hold 34.3: 154.7 are left, and 151 are needed.
    there.full = False
    assert [chunk.stream for chunk in scheduler.plan(0.1).chunks] == [1]


def test_memory_is_taken_by_pages(core) -> None:
    there = core((100, 50), (60, 50), max_total_tokens=1000, page_size=16)
    scheduler = FcfsScheduler(there)
    first = scheduler.plan(0.0)
    there.allocate(sum(there.memory.paged(chunk.tokens) for chunk in first.chunks), 0.0)
    assert there.memory.held == 112 + 64
    StepResults(there.streams).add(np.array([0, 1]), np.array([0.2]))
    there.advance(first, 0.2)
    rows = there.running
    # 100 tokens have a page of which 12 are free; 60 one of which 4 are.
    assert [there.growth(rows, steps) for steps in (1, 4, 5, 12, 13, 20)] == [0, 0, 16, 16, 32, 32]
    assert there.steps_that_fit(rows) == (992 - 176) // 32 * 16


# 100 tokens and an answer of 50 need 50 more and a page; each one admitted before holds 112.
@pytest.mark.parametrize(("memory", "admitted"), [(160, 0), (176, 1), (336, 1), (352, 2)])
def test_admission_counts_pages(core, memory, admitted) -> None:
    there = core(*[(100, 50)] * 2, max_total_tokens=memory, page_size=16)
    step = FcfsScheduler(there).plan(0.0)
    assert (0 if step is None else len(step.chunks)) == admitted


def test_the_largest_request_that_is_taken_is_served(trace, device, options) -> None:
    # 1000 tokens are 62 whole pages; 975 and a page are less than these 992.
    paged = options(max_total_tokens=1000, page_size=16)
    assert simulate(trace((0.0, 970, 5)), device, paged, policy="fcfs").steps == 5
    with pytest.raises(SimulationError, match="serves at most 975"):
        simulate(trace((0.0, 970, 6)), device, paged, policy="fcfs")


def test_rows_decode_beside_a_prefill_only_if_its_pages_leave_room(core) -> None:
    there = core((100, 50), (20, 50), max_total_tokens=1000, page_size=16, enable_mixed_chunk=True)
    scheduler = FcfsScheduler(there)
    there.running = np.array([0])
    there.streams.generated[0] = 13  # 112 tokens are there: the next one needs a page
    prefill = Step(NO_STREAM, (Chunk(1, 0, 20),))
    there.memory.held = there.memory.device - 48
    assert scheduler.mixed(prefill).decode.tolist() == [0]
    there.memory.held += 16  # 32 for the prefill are left, and none for the row
    assert scheduler.mixed(prefill).decode.tolist() == []


def test_chunks_end_with_a_page(core) -> None:
    there = core((100, 5), max_total_tokens=1000, page_size=16, chunked_prefill_size=70)
    (chunk,) = FcfsScheduler(there).plan(0.0).chunks
    assert (chunk.tokens, chunk.last) == (64, False)


def test_the_reserved_share_falls_with_every_decode_step(core) -> None:
    scheduler = FcfsScheduler(core((10, 10)))
    scheduler.decoded(300)
    assert scheduler.ratio == pytest.approx(0.7 - 0.5 * 0.602)
    scheduler.decoded(1000)
    assert scheduler.ratio == pytest.approx(0.098)


def test_the_least_progressed_stream_is_retracted_and_computed_anew(
    times_of, trace, device, options
) -> None:
    # The second comes when 38 tokens of the first are left: 90 - 12 - 26.6 = 51.4 > 51.
    rows = trace((0.0, 10, 40), (0.015, 10, 40))
    done = simulate(rows, device, options(max_total_tokens=90), policy="fcfs", known_lengths=True)
    assert done.retracted == 1
    times = times_of(done)
    assert max(np.diff(times[0])) < 0.03
    gaps = np.diff(times[1])
    place = int(gaps.argmax())
    # It waits until the first has ended, and until the step after that has freed its memory.
    assert times[1][place + 1] > times[0][-1]
    # Its 10 prompt tokens and what it had generated are prefilled again.
    assert times[1][place + 1] == pytest.approx(times[0][-1] + 0.001 * (10 + place + 1), abs=0.011)


def test_retraction_makes_the_reserve_larger(core) -> None:
    there = core((10, 100), (10, 100), (30, 100), max_total_tokens=332)
    scheduler = FcfsScheduler(there)
    there.running = np.array([0, 1, 2])
    there.waiting = []
    there.streams.generated[:] = 60, 50, 50
    there.memory.held = 69 + 59 + 79
    there.memory.device = 209  # two tokens free for three rows
    assert len(scheduler.decode(0.0).decode) == 2
    # Of the two with 50 tokens the one with the longer prompt goes.
    assert there.waiting == [2]
    assert scheduler.ratio == pytest.approx((110 + 20 * 2) / 201)
