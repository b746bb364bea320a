from tokenflow_sgl.lab.demo.burst import RATES, SPREAD_S, Burst


def test_it_is_what_was_asked_for() -> None:
    trace = Burst(readers=30).trace()
    assert len(trace.requests) == 30
    for request in trace.requests:
        assert 0 <= request.arrival_s <= SPREAD_S
        assert request.rate in RATES.rates


def test_equal_seeds_give_equal_bursts_and_other_seeds_others() -> None:
    assert Burst().trace() == Burst().trace()
    assert Burst().trace().requests != Burst(seed=1).trace().requests


def test_it_needs_far_more_memory_than_there_is() -> None:
    burst = Burst()
    demand = sum(each.prompt_tokens + each.output_tokens for each in burst.trace().requests)
    assert demand > 2 * burst.kv_tokens
