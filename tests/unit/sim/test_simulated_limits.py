"""What the simulated server knows of an answer's length, and where answers end nevertheless."""

import dataclasses

import pytest

from tokenflow_sgl.lab.sim import simulate

LONG = 20_000
ROWS = tuple((0.01 * number, 60, 40 + 7 * number) for number in range(12))


@pytest.mark.parametrize("policy", ["fcfs", "chunked", "priority", "vtc", "tokenflow"])
@pytest.mark.parametrize("known", [False, True])
def test_answers_end_at_their_length_whoever_knows_it(trace, device, options, policy, known):
    roomy = options(host_tokens=LONG)
    done = simulate(trace(*ROWS), device, roomy, policy=policy, known_lengths=known)
    found = done.run.requests
    assert found["output_tokens"].to_pylist() == [row[2] for row in ROWS]
    reason = "length" if known else "stop"
    assert set(found["finish_reason"].to_pylist()) == {reason}
    assert done.run.info.options["known_lengths"] is known


def limited(rows, limit):
    """The same requests, whose clients allow `limit` tokens, or just what they get."""
    requests = tuple(
        dataclasses.replace(request, limit_tokens=limit or request.output_tokens)
        for request in rows.requests
    )
    return dataclasses.replace(rows, requests=requests)


@pytest.mark.parametrize("policy", ["fcfs", "tokenflow"])
def test_known_lengths_are_limits_that_are_the_lengths(trace, device, options, policy):
    rows, roomy = trace(*ROWS), options(host_tokens=LONG)
    known = simulate(rows, device, roomy, policy=policy, known_lengths=True)
    stated = simulate(limited(rows, None), device, roomy, policy=policy)
    assert stated.run.tokens.equals(known.run.tokens)


def test_stock_starts_fewer_where_clients_allow_more(times_of, trace, device, options):
    def started(limit):
        done = simulate(limited(trace(*ROWS), limit), device, options(), policy="fcfs")
        return sum(times[0] < 0.5 for times in times_of(done).values())

    assert started(900) < started(200) < started(None)


def test_a_limit_beyond_the_cache_is_cut_as_sglang_does(trace, device, options):
    rows = trace(*ROWS)
    beyond = simulate(limited(rows, 100_000), device, options(), policy="fcfs")
    cut = simulate(limited(rows, 938), device, options(), policy="fcfs")
    assert beyond.run.tokens.equals(cut.run.tokens)
