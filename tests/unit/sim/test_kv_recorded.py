"""What a simulated run says of its KV memory, for the first line of a report."""

from __future__ import annotations

import pytest

from tokenflow_sgl.lab.sim import simulate


def test_the_fullest_moment_is_recorded(trace, device, options) -> None:
    """Two requests of 100 and 50 tokens; the KV of an answer's last token is never computed."""
    rows = trace((0.0, 100, 11), (0.0, 50, 11))
    run = simulate(rows, device, options(), policy="fcfs", known_lengths=True).run
    assert run.info.target["kv_memory"] == {
        "tokens": 1000,
        "peak_tokens": 170,
        "host_bytes": 0,
        "host_peak_bytes": 0,
    }


def test_one_after_the_other_does_not_add_up(trace, device, options) -> None:
    rows = trace((0.0, 100, 11), (9.0, 50, 11))
    run = simulate(rows, device, options(), policy="fcfs", known_lengths=True).run
    assert run.info.target["kv_memory"]["peak_tokens"] == 110


def test_the_host_is_that_of_all_servers_and_the_device_the_fullest(trace, device, options) -> None:
    rows = trace((0.0, 100, 11), (0.0, 50, 11))
    host = options(host_tokens=2000)
    done = simulate(rows, device, host, policy="tokenflow", replicas=2, router="round-robin")
    kv = done.run.info.target["kv_memory"]
    assert (kv["tokens"], kv["peak_tokens"]) == (1000, 110)
    assert kv["host_bytes"] == 2 * 2000 * device.kv_bytes_per_token
    assert 0 < kv["host_peak_bytes"] <= 170 * device.kv_bytes_per_token


@pytest.mark.parametrize("policy", ["fcfs", "tokenflow"])
def test_no_more_is_held_than_there_is(trace, device, options, policy) -> None:
    rows = trace(*((0.0, 200, 100) for _ in range(12)))
    host = options(host_tokens=2000)
    run = simulate(rows, device, host, policy=policy, known_lengths=True).run
    assert 600 < run.info.target["kv_memory"]["peak_tokens"] <= 1000
