"""What a plan knows of the step under way: nothing but when it ends."""

from __future__ import annotations

import numpy as np
import pytest

from tokenflow_sgl.contract import Decision, Mode
from tokenflow_sgl.lab.sim import simulate
from tokenflow_sgl.lab.sim.kv_memory import KVMemory
from tokenflow_sgl.lab.sim.prefill_copies import PrefillCopies
from tokenflow_sgl.lab.sim.prefixes import Prefixes
from tokenflow_sgl.lab.sim.simulated_streams import SimulatedStreams
from tokenflow_sgl.lab.sim.step_results import StepResults
from tokenflow_sgl.lab.traces import TraceRequest


class Watching:
    """Decides in each pass, and notes when, and how many tokens the first stream has by then."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, int, float]] = []

    def decide(self, state) -> Decision:
        streams = state.streams
        self.seen.append((state.now, int(streams.generated[0]), float(streams.next_due[0])))
        return Decision(Mode.WORKING_SET, run=tuple(streams.slot[streams.waiting].tolist()))


def requests(count: int = 2) -> list[TraceRequest]:
    return [TraceRequest(0.0, 100, 50, rate=10.0)] * count


def test_tokens_are_known_when_their_step_has_ended() -> None:
    streams = SimulatedStreams(requests())
    streams.arrive(0, 0.0, 0.0)
    streams.arrive(1, 0.0, 0.0)
    results = StepResults(streams)
    results.add(np.array([0, 1]), np.array([1.0, 2.0, 3.0]))
    results.add(np.array([1]), np.array([4.0]))
    assert streams.generated.tolist() == [3, 4]
    assert streams.known.tolist() == [0, 0] and np.isnan(streams.first_text).all()
    results.arrive(2.0)
    assert streams.known.tolist() == [2, 2]
    assert streams.due.tolist() == pytest.approx([2.1, 2.1])
    results.arrive(3.5)
    assert streams.known.tolist() == [3, 3]
    results.arrive(4.0)
    assert streams.known.tolist() == streams.generated.tolist() == [3, 4]


@pytest.mark.parametrize("overlap", [True, False])
def test_a_policy_sees_the_tokens_of_the_steps_that_have_ended(
    times_of, trace, device, options, overlap
) -> None:
    watching = Watching()
    done = simulate(trace((0.0, 100, 30)), device, options(overlap=overlap), policy=watching)
    times = np.array(times_of(done)[0])
    assert len(watching.seen) > 3
    for now, generated, due in watching.seen:
        assert generated == np.count_nonzero(times <= now + 1e-9)
        if generated:
            assert due > times[generated - 1]


def test_a_prefill_is_copied_when_its_result_is_there() -> None:
    memory = KVMemory(1000, 1000, Prefixes(requests(), {}))
    memory.allocate(100)
    copies, ends = PrefillCopies(memory), iter([7.0])
    copies.add(0, 100)
    # It counts as written: no proactive write repeats it.
    assert memory.unwritten(np.array([0]), np.array([100])).tolist() == [0]
    copies.start(lambda tokens: pytest.fail("its step is under way"), at_once=False)
    assert copies
    started: list[int] = []
    copies.start(lambda tokens: started.append(tokens) or next(ends), at_once=False)
    assert started == [100] and not copies
    # And until it has landed the stream's KV cannot be evicted.
    memory.release(0, 100, lambda tokens: pytest.fail("all of it is copied"))
    memory.settle(6.9)
    assert memory.free == 900
    memory.settle(7.0)
    assert memory.free == 1000


def test_nothing_is_copied_twice_or_without_a_host() -> None:
    memory = KVMemory(1000, 0, Prefixes(requests(), {}))
    copies = PrefillCopies(memory)
    copies.add(0, 100)
    assert not copies
    both = PrefillCopies(KVMemory(1000, 1000, Prefixes(requests(), {})))
    both.add(0, 60)
    both.add(0, 60)
    started: list[int] = []
    both.start(lambda tokens: started.append(tokens) or 1.0, at_once=True)
    assert started == [60]
