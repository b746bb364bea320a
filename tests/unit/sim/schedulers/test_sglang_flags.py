"""SGLang's own flags against waiting readers: HiCache, decode intervals, queues, reservations."""

from __future__ import annotations

import numpy as np
import pytest

from tokenflow_sgl.choices import Contender
from tokenflow_sgl.lab.sim import SimulationError, simulate
from tokenflow_sgl.lab.sim.schedulers.by_name import DECODE_INTERVAL, POLICIES, settings_of
from tokenflow_sgl.lab.sim.schedulers.cache_aware import (
    MOST_SORTED,
    HrrnScheduler,
    LongestPrefixScheduler,
)
from tokenflow_sgl.lab.sim.schedulers.fcfs import FcfsScheduler
from tokenflow_sgl.lab.sim.schedulers.shortest import ShortestPrefillScheduler
from tokenflow_sgl.lab.sim.step import Step
from tokenflow_sgl.lab.sim.step_results import StepResults
from tokenflow_sgl.lab.traces import Accounting, PrefixBlock, Trace, TraceRequest


def asked(prompt: int, output: int = 50, at: float = 0.0) -> TraceRequest:
    return TraceRequest(at, prompt, output)


def test_the_choice_lists_what_can_be_simulated() -> None:
    assert tuple(Contender) == POLICIES


# ---- HiCache ----------------------------------------------------------------------------


def test_only_hicache_keeps_the_host_pool(options) -> None:
    given = options(host_tokens=500)
    assert settings_of("fcfs", given).host_tokens == 0
    assert settings_of("hrrn", given).host_tokens == 0
    assert settings_of("fcfs-hicache", given) == given
    assert settings_of("hrrn-hicache", given) == given


def test_a_later_turn_is_loaded_from_the_host(times_of, device, options) -> None:
    turns = [
        TraceRequest(0.0, 500, 20, session="a", turn=0),
        TraceRequest(0.0, 900, 20),  # takes the device's memory meanwhile
        TraceRequest(0.1, 700, 20, session="a", turn=1, think_s=2.0),
    ]
    trace = Trace("turns", tuple(turns), Accounting(3, 3))
    settings = options(host_tokens=5000)
    first = {}
    for policy in ("fcfs", "fcfs-hicache"):
        done = simulate(trace, device, settings, policy=policy, known_lengths=True)
        first[policy] = times_of(done)[2][0]
    # 519 of its 700 tokens are loaded at 0.1 ms each instead of computed at 1 ms each.
    assert first["fcfs"] - first["fcfs-hicache"] > 0.4


# ---- prefill-decode interval --------------------------------------------------------------


def prefills(core, scheduler, steps: int) -> list[bool]:
    """Which of the next steps are prefills."""
    kinds = []
    for number in range(steps):
        now = 0.1 * number
        step = scheduler.plan(now)
        kinds.append(bool(step.chunks))
        if step.chunks:
            core.allocate(core.prefilled(step.chunks), now)
            fresh = [chunk.stream for chunk in step.chunks if chunk.last]
        else:
            core.allocate(core.growth(step.decode, 1), now)
            scheduler.decoded(1)
            fresh = step.decode.tolist()
        StepResults(core.streams).add(np.array(fresh, dtype=np.int64), np.array([now]))
        core.advance(Step(step.decode, step.chunks), now)
    return kinds


def test_decode_steps_come_between_prefills(queued) -> None:
    core = queued(asked(30), asked(30), asked(30), chunked_prefill_size=30)
    plain = prefills(core, FcfsScheduler(core), 5)
    assert plain == [True, True, True, False, False]
    core = queued(
        asked(30), asked(30), asked(30), chunked_prefill_size=30, prefill_decode_interval=3
    )
    spread = prefills(core, FcfsScheduler(core), 10)
    assert spread == [True, False, False, False, True, False, False, False, True, False]


def test_nothing_waits_for_the_interval_while_nothing_runs(queued) -> None:
    core = queued(asked(90), chunked_prefill_size=30, prefill_decode_interval=5)
    assert prefills(core, FcfsScheduler(core), 4) == [True, True, True, False]


def test_steps_taken_together_count_for_the_interval(times_of, trace, device, options) -> None:
    # 40 decode steps and more run before the second comes: its prefill follows at once.
    rows = trace((0.0, 100, 200), (0.6, 100, 20))
    runs = {
        policy: times_of(simulate(rows, device, options(), policy=policy, known_lengths=True))
        for policy in ("fcfs", "prefill-interval")
    }
    assert runs["prefill-interval"] == runs["fcfs"]
    rows = trace((0.0, 100, 200), (0.15, 100, 20))
    apart = times_of(
        simulate(rows, device, options(), policy="prefill-interval", known_lengths=True)
    )
    before = sum(time < apart[1][0] - 0.1 + 1e-6 for time in apart[0])
    assert before == 1 + DECODE_INTERVAL


def test_an_interval_below_zero_is_refused(options) -> None:
    with pytest.raises(
        SimulationError, match="prefill_decode_interval is -1; allowed is 0 or more"
    ):
        options(prefill_decode_interval=-1)


# ---- shortest prefill first ---------------------------------------------------------------


def test_short_prompts_come_first(queued) -> None:
    core = queued(asked(300), asked(20), asked(100), asked(20))
    assert ShortestPrefillScheduler(core).offered() == [1, 3, 2, 0]


def test_what_is_on_the_host_counts_as_computed(queued) -> None:
    core = queued(asked(300), asked(200), host_tokens=1000)
    scheduler = ShortestPrefillScheduler(core)
    assert scheduler.offered() == [1, 0]
    core.memory.host.keep(0, 250)
    assert scheduler.offered() == [0, 1]


def test_a_long_prompt_leaves_room_for_shorter_ones(queued) -> None:
    core = queued(asked(500), chunked_prefill_size=100)
    scheduler = ShortestPrefillScheduler(core)
    first = scheduler.plan(0.0)
    assert [(chunk.stream, chunk.tokens) for chunk in first.chunks] == [(0, 100)]
    core = queued(asked(500), asked(40), asked(70), chunked_prefill_size=100)
    core.waiting = [0]
    scheduler = ShortestPrefillScheduler(core)
    scheduler.plan(0.0)
    core.waiting = [1, 2]
    # 40 of the 100 tokens are kept for the short one; 70 more would not fit.
    second = scheduler.plan(0.1)
    assert [(chunk.stream, chunk.tokens) for chunk in second.chunks] == [(0, 60), (1, 40)]


def test_a_prompt_that_another_is_about_to_compute_goes_behind(queued) -> None:
    stem = (PrefixBlock(1, 200),)
    first = TraceRequest(0.0, 250, 5, prefix=stem)
    second = TraceRequest(0.0, 210, 5, prefix=stem)
    core = queued(first, second, asked(400))
    assert ShortestPrefillScheduler(core).offered() == [0, 2, 1]


# ---- highest response ratio next, longest prefix ------------------------------------------


def test_the_queue_goes_by_prefilled_tokens_over_uncached_ones(queued) -> None:
    core = queued(asked(400), asked(50), asked(200), asked(40))
    core.waiting = [0, 1, 2]
    scheduler = HrrnScheduler(core)
    scheduler.offered()
    scheduler._prefilled = 100  # 0.25, 2 and 0.5 tokens per token
    core.waiting.append(3)
    assert scheduler.offered() == [1, 2, 0, 3]
    scheduler._prefilled = 200  # the newcomer has 2.5 now, the first ones 0.5, 4 and 1
    assert scheduler.offered() == [1, 3, 2, 0]


def test_a_retracted_request_waits_anew(queued) -> None:
    core = queued(asked(100), asked(200))
    scheduler = HrrnScheduler(core)
    scheduler.offered()
    scheduler._prefilled = 100
    core.waiting = [1]  # the other one is admitted
    assert scheduler.offered() == [1]
    core.waiting = [1, 0]
    assert scheduler.offered() == [1, 0]


def test_a_mixed_step_counts_its_decoding_rows(queued) -> None:
    core = queued(asked(30), asked(30), chunked_prefill_size=30, enable_mixed_chunk=True)
    scheduler = HrrnScheduler(core)
    prefills(core, scheduler, 1)
    assert scheduler._prefilled == 30
    step = scheduler.plan(0.1)
    assert (len(step.decode), sum(chunk.tokens for chunk in step.chunks)) == (1, 29)
    assert scheduler._prefilled == 60


@pytest.mark.parametrize("scheduler", [HrrnScheduler, LongestPrefixScheduler])
def test_a_long_queue_is_not_sorted(queued, scheduler) -> None:
    core = queued(*[asked(10)] * (MOST_SORTED + 1), host_tokens=1000)
    core.memory.host.keep(MOST_SORTED, 9)  # it would come first in both orders
    made = scheduler(core)
    assert made.offered() == list(range(MOST_SORTED + 1))
    core.waiting.remove(0)
    ordered = made.offered()
    assert len(ordered) == MOST_SORTED
    assert sorted(ordered) == list(range(1, MOST_SORTED + 1))
    if scheduler is LongestPrefixScheduler:
        assert ordered == [MOST_SORTED, *range(1, MOST_SORTED)]


def test_the_longest_prefix_comes_first(queued) -> None:
    core = queued(asked(300), asked(200), asked(100), host_tokens=1000)
    core.memory.host.keep(2, 50)
    core.memory.host.keep(1, 70)
    assert LongestPrefixScheduler(core).offered() == [1, 2, 0]


# ---- what is reserved for an answer -------------------------------------------------------


def test_a_clip_reserves_less_than_the_limit(queued) -> None:
    def admitted(**given: int) -> int:
        core = queued(*[asked(100, 400)] * 3, **given)
        return len(FcfsScheduler(core).plan(0.0).chunks)

    assert admitted() == 1
    assert admitted(clip_max_new_tokens=100) == 3


def test_a_clip_below_one_is_refused(options) -> None:
    with pytest.raises(SimulationError, match="clip_max_new_tokens is 0; allowed is 1 or more"):
        options(clip_max_new_tokens=0)
