"""What prompts share, by the blocks and the sessions of their trace."""

from __future__ import annotations

import pytest

from tokenflow_sgl.lab.sim import simulate
from tokenflow_sgl.lab.sim.prefixes import Prefixes
from tokenflow_sgl.lab.traces import Accounting, PrefixBlock, Trace, TraceRequest


def asked(*blocks: int, own: int = 0, at: float = 0.0, output: int = 5) -> TraceRequest:
    """A prompt of blocks of 50 tokens and `own` more."""
    prefix = tuple(PrefixBlock(number, 50) for number in blocks)
    prompt = 50 * len(blocks) + own
    return TraceRequest(at, prompt, output, rate=10.0, prefix=prefix)


def test_a_chain_without_a_branch_is_one_stretch() -> None:
    found = Prefixes([asked(1, 2, 3), asked(1, 2, 4), asked(1, 2, 3, 5), asked(9)], {})
    stem, branch = found.paths[0]
    assert found.paths == [(stem, branch), (stem,), (stem, branch), ()]
    assert (found.tokens[stem], found.tokens[branch]) == (100, 50)
    assert found.shared.tolist() == [150, 100, 150, 0]
    # Own: what is left of the prompt, and all of the answer but its last token.
    assert found.tokens[:4] == [4, 54, 54, 54]


def test_the_same_block_after_another_prefix_is_another() -> None:
    found = Prefixes([asked(1, 2), asked(3, 2)], {})
    assert found.paths == [(), ()]
    assert not found.any


def test_a_later_turn_goes_on_after_the_answer() -> None:
    turns = [
        TraceRequest(0.0, 100, 20, session="a", turn=0),
        TraceRequest(1.0, 150, 30, session="a", turn=1),
        TraceRequest(2.0, 181, 5, session="a", turn=2),
        TraceRequest(3.0, 180, 5, session="a", turn=3),
    ]
    found = Prefixes(turns, {1: 0, 2: 1, 3: 2})
    assert found.paths == [(), (0,), (0, 1), ()]  # the last one's prompt is too short for it
    assert found.shared.tolist() == [0, 119, 179, 0]
    assert found.tokens == [119, 60, 6, 184]


def test_only_whole_pages_are_shared() -> None:
    found = Prefixes([asked(1, 2, 3), asked(1, 2, 4), asked(1, 2, 3, 5), asked(9)], {}, 16)
    stem, branch = found.paths[0]
    # 100 tokens, of which 96 are whole pages; 150, of which 144 are.
    assert (found.tokens[stem], found.tokens[branch]) == (96, 48)
    assert found.shared.tolist() == [144, 96, 144, 0]
    assert found.tokens[:4] == [0, 48, 48, 48]


def test_a_block_that_ends_in_the_page_of_the_one_before_it_is_none() -> None:
    small = [PrefixBlock(1, 20), PrefixBlock(2, 8)]
    requests = [TraceRequest(0.0, 40, 5, prefix=tuple(small[:count])) for count in (1, 1, 2, 2)]
    found = Prefixes(requests, {}, 16)
    assert [len(path) for path in found.paths] == [1, 1, 1, 1]
    assert found.shared.tolist() == [16, 16, 16, 16]


def test_a_later_turn_finds_the_full_pages_before_it() -> None:
    turns = [
        TraceRequest(0.0, 100, 20, session="a", turn=0),
        TraceRequest(1.0, 150, 30, session="a", turn=1),
    ]
    found = Prefixes(turns, {1: 0}, 16)
    assert found.shared.tolist() == [0, 112]
    assert found.tokens == [112, 64]


def test_what_is_shared_is_computed_once(times_of, device, options) -> None:
    requests = (asked(1, 2, own=20, output=1), asked(1, 2, own=30, at=1.0, output=1))
    done = simulate(Trace("twice", requests, Accounting(2, 2)), device, options(), policy="fcfs")
    # 120 tokens at a millisecond; then the 30 that are new.
    assert times_of(done)[0] == pytest.approx([0.12])
    assert times_of(done)[1] == pytest.approx([1.03])


def test_a_prompt_that_is_there_already_costs_a_token(times_of, device, options) -> None:
    requests = (asked(1, 2, output=1), asked(1, 2, at=1.0, output=1))
    done = simulate(
        Trace("twice", requests, Accounting(2, 2)),
        device,
        options(),
        policy="fcfs",
        known_lengths=True,
    )
    # A prefill of one token is a decode step to the device.
    assert times_of(done)[1] == pytest.approx([1.01])


def test_turns_of_a_session_find_the_answer_before_them(times_of, device, options) -> None:
    turns = (
        TraceRequest(0.0, 100, 11, rate=10.0, session="a", turn=0),
        TraceRequest(0.0, 200, 1, rate=10.0, session="a", turn=1, think_s=1.0),
    )
    done = simulate(Trace("turns", turns, Accounting(2, 2)), device, options(), policy="fcfs")
    # 0.1 s of prefill, ten decode steps, a second of thought; 110 tokens are there.
    assert times_of(done)[1] == pytest.approx([1.2 + 0.09])


@pytest.mark.parametrize("policy", ["fcfs", "tokenflow"])
def test_sharing_lets_more_streams_run(device, options, policy) -> None:
    def served(requests: tuple[TraceRequest, ...]) -> float:
        trace = Trace("many", requests, Accounting(len(requests), len(requests)))
        done = simulate(trace, device, options(host_tokens=4000), policy=policy, known_lengths=True)
        return done.run.info.duration_s

    alike = tuple(asked(1, 2, 3, 4, 5, 6, own=10, output=50) for _ in range(8))
    apart = tuple(asked(own=310, output=50) for _ in range(8))
    assert served(alike) < 0.6 * served(apart)


def test_a_cached_prompt_goes_before_one_that_came_earlier(times_of, device, options) -> None:
    def starts(later: TraceRequest) -> tuple[float, float]:
        """First tokens of a prompt of 500 new tokens, and of a later one as long."""
        requests = (
            asked(1, 2, 3, 4, 5, 6, 7, 8, 9, output=1),
            *(asked(own=400, at=1.0, output=100) for _ in range(2)),
            asked(own=500, at=1.01, output=5),  # when there is room it is too late for both
            later,
        )
        trace = Trace("queue", requests, Accounting(len(requests), len(requests)))
        done = simulate(trace, device, options(host_tokens=4000), policy="tokenflow")
        times = times_of(done)
        return times[3][0], times[4][0]

    again = asked(1, 2, 3, 4, 5, 6, 7, 8, 9, own=50, at=1.02, output=5)
    first, second = starts(again)
    assert second < first
    first, second = starts(asked(own=500, at=1.02, output=5))
    assert first < second
