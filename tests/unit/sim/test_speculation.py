"""Decode steps of several tokens in the simulator."""

from __future__ import annotations

import numpy as np
import pytest

from tokenflow_sgl.lab.sim import SimulationError, engine, simulate
from tokenflow_sgl.lab.sim.speculation import Acceptance

DRAFTS = {"speculative_num_draft_tokens": 4, "acceptance": 2.5}
ROWS = [(0.1 * number, 60 + 7 * number, 120, 12.0) for number in range(12)]
"""Twelve streams that need twice the memory of the toy device."""


@pytest.mark.parametrize(("mean", "most"), [(1.0, 4), (2.5, 4), (3.9, 4), (4.0, 4), (1.7, 12)])
def test_steps_give_as_many_tokens_as_asked_for_on_average(mean, most) -> None:
    stream = np.repeat(np.arange(200), 100)
    made = Acceptance(mean, most).tokens(stream, np.tile(np.arange(100), 200))
    assert made.min() >= 1 and made.max() <= most
    assert made.mean() == pytest.approx(mean, rel=0.02)


def test_what_is_accepted_depends_on_the_stream_and_its_place_alone() -> None:
    drafts = Acceptance(2.5, 4)
    stream, place = np.arange(50), np.arange(50) * 3
    made = drafts.tokens(stream, place)
    order = np.random.default_rng(0).permutation(50)
    assert (drafts.tokens(stream[order], place[order]) == made[order]).all()
    assert len(set(drafts.tokens(np.zeros(50, dtype=np.int64), place).tolist())) > 1


def test_steps_taken_together_end_with_the_first_stream_that_does() -> None:
    drafts = Acceptance(2.5, 4)
    stream, answer = np.arange(3), np.array([40, 11, 40])
    generated = np.ones(3, dtype=np.int64)
    made = drafts.steps(stream, generated, answer, 512)
    assert made.sum(axis=0)[1] == 10, "not a token more than its answer has"
    for step in made:
        expected = np.minimum(drafts.tokens(stream, generated), answer - generated)
        assert (step == expected).all()
        generated = generated + step
    assert len(drafts.steps(stream, np.ones(3, dtype=np.int64), answer, 2)) == 2


def test_an_answer_takes_fewer_steps_and_comes_in_bursts(times_of, trace, device, options) -> None:
    done = simulate(trace((0.0, 100, 101)), device, options(**DRAFTS), policy="fcfs")
    times = times_of(done)[0]
    assert len(times) == 101
    # Without the prefill, and without the last one, which SGLang runs before it knows of the end.
    steps = done.steps - 2
    assert steps == pytest.approx(100 / 2.5, rel=0.2)
    assert len(set(times)) == 1 + steps, "a step's tokens come together"
    assert times[-1] == pytest.approx(0.1 + 0.01 * steps)


@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("policy", ["fcfs", "tokenflow"])
def test_each_stream_gets_every_token_under_pressure(
    times_of, trace, device, options, policy, page
) -> None:
    settings = options(**DRAFTS, host_tokens=4000, page_size=page, max_total_tokens=1024)
    done = simulate(trace(*ROWS), device, settings, policy=policy)
    assert [len(times) for times in times_of(done).values()] == [row[2] for row in ROWS]
    assert (done.preempted > 0) == (policy == "tokenflow")


def test_the_policy_lets_no_stream_be_thrown_out(trace, device, options) -> None:
    """It keeps the slots of the drafts free, too."""
    done = simulate(trace(*ROWS), device, options(**DRAFTS, host_tokens=4000), policy="tokenflow")
    assert done.retracted == 0


def test_steps_taken_together_are_the_same_steps(
    times_of, trace, device, options, monkeypatch
) -> None:
    def run():
        return times_of(simulate(trace(*ROWS[:3]), device, options(**DRAFTS), policy="fcfs"))

    together = run()
    monkeypatch.setattr(engine, "MOST_AT_ONCE", 1)
    one_by_one = run()
    for stream, times in together.items():
        assert one_by_one[stream] == pytest.approx(times)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"acceptance": 2.5}, "acceptance is 2.5; allowed is 1 to 1"),
        ({"acceptance": 4.5, "speculative_num_draft_tokens": 4}, "acceptance is 4.5"),
        ({"speculative_num_draft_tokens": 0}, "speculative_num_draft_tokens is 0"),
        ({**DRAFTS, "enable_mixed_chunk": True}, "enable_mixed_chunk is True"),
    ],
)
def test_settings_out_of_range_are_refused(options, given, message) -> None:
    with pytest.raises(SimulationError, match=message):
        options(**given)
