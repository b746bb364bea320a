"""Bounds: by hand, and that nothing beats them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenflow_sgl.lab.profiles import DecodeTable, load_profile
from tokenflow_sgl.lab.report import figures
from tokenflow_sgl.lab.sim import SimulationError, simulate
from tokenflow_sgl.lab.sim.schedulers.by_name import POLICIES
from tokenflow_sgl.lab.sim.study.bounds import bounds, cheapest_decode, shortest_first
from tokenflow_sgl.lab.sim.study.clairvoyant import clairvoyant


def test_one_request_alone(trace, device, options) -> None:
    found = bounds(trace((3.0, 100, 11)), device, options())
    # 0.1 s of prefill, then ten steps of 0.01 s.
    assert found.makespan_s == pytest.approx(0.2)
    assert found.token_throughput == pytest.approx(55.0)
    assert found.mean_ttft_s == found.p99_ttft_s == pytest.approx(0.1)


def test_there_are_none_with_speculation(trace, device, options) -> None:
    drafts = options(speculative_num_draft_tokens=4, acceptance=4.0)
    for work_out in (bounds, clairvoyant):
        with pytest.raises(SimulationError, match="allowed for bounds is 1"):
            work_out(trace((0.0, 100, 11)), device, drafts)


def test_full_memory_bounds_the_makespan(trace, device, options) -> None:
    # A step reads at most 1,000 tokens in 0.01 s. 20 answers of 100 tokens after 100 prompt tokens
    # read 20 * 99 * 150 in all: 2.97 s.
    found = bounds(trace(*[(0.0, 100, 100)] * 20), device, options())
    assert found.makespan_s == pytest.approx(2.97)
    # Readers of 10 tokens/s: by then 29.7 - 1 tokens are read, and 15 are worth something unread.
    assert found.effective_throughput < 0.7 * found.token_throughput


def test_the_plane_lies_below_the_table() -> None:
    table = DecodeTable((1.0, 10.0), (10.0, 100.0), ((0.01, 0.02), (0.02, 0.11)))
    constant, per_row, per_token = cheapest_decode(table, 1000, 100.0, 5000.0, 5000.0)
    for batch in (1, 3, 10):
        for context in (10, 55, 100):
            bound = constant + per_row * batch + per_token * batch * context
            assert bound <= table.at(batch, context) + 1e-12
    assert constant + per_row + per_token > 0


def test_shortest_first_by_hand() -> None:
    # 5 s of work from 0 on; 1 s comes at 1: it goes first. Flow times 6 and 1.
    assert shortest_first(np.array([0.0, 1.0]), np.array([5.0, 1.0])) == pytest.approx(3.5)
    # A gap in between.
    assert shortest_first(np.array([0.0, 9.0]), np.array([5.0, 1.0])) == pytest.approx(3.0)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.floats(0.0, 5.0), st.integers(1, 300), st.integers(1, 200), st.floats(2.0, 80.0)
        ),
        min_size=1,
        max_size=25,
    ),
    policy=st.sampled_from(POLICIES),
    host=st.sampled_from([0, 5000]),
    mixed=st.booleans(),
)
def test_no_policy_beats_them(trace, device, options, rows, policy, host, mixed) -> None:
    requests = trace(*sorted(rows))
    settings = options(host_tokens=host, enable_mixed_chunk=mixed, chunked_prefill_size=128)
    check(requests, device, settings, policy)


@pytest.mark.parametrize("policy", ["fcfs", "tokenflow"])
@pytest.mark.parametrize("name", ["rtx4090", "h200"])
def test_no_policy_beats_them_on_real_tables(trace, options, name, policy) -> None:
    rng = np.random.default_rng(7)
    rows = [
        (float(at), int(prompt), int(output), 20.0)
        for at, prompt, output in zip(
            np.sort(rng.uniform(0, 20, 60)),
            rng.integers(50, 1500, 60),
            rng.integers(10, 800, 60),
            strict=True,
        )
    ]
    settings = options(max_total_tokens=20_000, host_tokens=100_000)
    check(trace(*rows), load_profile(name, "llama3-8b"), settings, policy)


def check(requests, device, settings, policy) -> None:
    limit = bounds(requests, device, settings)
    found = figures(simulate(requests, device, settings, policy=policy).run)
    little = 1 + 1e-9
    assert found.throughput.makespan * little >= limit.makespan_s
    assert found.throughput.token <= limit.token_throughput * little
    assert found.throughput.effective <= limit.effective_throughput * little
    assert found.latency.ttft.mean * little >= limit.mean_ttft_s
    assert found.latency.ttft.p99 * little >= limit.p99_ttft_s
