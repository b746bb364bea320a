from __future__ import annotations

import pytest

from tokenflow_sgl.lab.profiles import DEVICES, MODELS, load_profile
from tokenflow_sgl.lab.profiles.roofline import decode_seconds, prefill_seconds, reduce_seconds

RTX4090, LLAMA = DEVICES["rtx4090"], MODELS["llama3-8b"]


def test_decode_limited_by_memory_by_hand() -> None:
    # 16.0605 GB of weights + 8 * 1000 * 131072 bytes of KV at 0.85 * 1008 GB/s, and 1.5 ms
    assert decode_seconds(RTX4090, LLAMA, 8, 1000) == pytest.approx(
        (16_060_522_496 + 1_048_576_000) / 856.8e9 + 0.0015
    )
    assert decode_seconds(RTX4090, LLAMA, 8, 1000) == pytest.approx(0.021469, rel=1e-4)


def test_decode_limited_by_compute_by_hand() -> None:
    # 256 rows * 16.0605 GFLOP at 0.6 * 165 TFLOPS = 41.53 ms; memory would take 18.9 ms
    assert decode_seconds(RTX4090, LLAMA, 256, 4) == pytest.approx(0.04303, rel=1e-4)


def test_prefill_by_hand() -> None:
    # 16.0605 GFLOP * 2048 + 524288 FLOP * 2048 * 1024, at 99 TFLOPS, and 2 ms
    work = 16_060_522_496 * 2048 + 524_288 * 2048 * 1024
    assert prefill_seconds(RTX4090, LLAMA, 2048, 1024) == pytest.approx(work / 99e12 + 0.002)
    # One token still reads all weights: 18.74 ms
    assert prefill_seconds(RTX4090, LLAMA, 1, 0.5) == pytest.approx(0.020745, rel=1e-4)


@pytest.mark.parametrize("device", ["rtx4090", "a6000", "a5000", "l20", "l20x4"])
def test_table_stands_for_the_formula(device: str) -> None:
    profile = load_profile(device, "llama3-8b")
    hardware = DEVICES[device]
    for batch in (1, 3, 11, 50, 120, 135, 200, 300):
        for context in (10, 300, 900, 3000, 9000):
            truth = decode_seconds(hardware, LLAMA, batch, context)
            assert profile.decode_seconds(batch, batch * context) == pytest.approx(truth, rel=0.03)
    for tokens in (1, 40, 90, 105, 140, 700, 3000, 9000):
        for attended in (40, 700, 3000, 20000):
            truth = prefill_seconds(hardware, LLAMA, tokens, attended)
            predicted = profile.prefill_seconds(tokens, tokens * attended)
            assert predicted == pytest.approx(truth, rel=0.03)


def test_needs_nothing_installed_and_says_its_source() -> None:
    profile = load_profile("a6000", "llama3-8b")
    assert profile.source.startswith("roofline from data-sheet figures (768 GB/s, 155 TFLOPS")
    assert profile.host_to_device.bandwidth == 25e9


def test_a_group_divides_the_work_and_reduces_twice_a_layer() -> None:
    one, four = DEVICES["a6000"], DEVICES["a6000x4"]
    model = MODELS["llama3-70b"]
    # 8 tokens of 16 KiB, three quarters of them twice: 196,608 bytes at 10 GB/s, and 30 us.
    reduces = 2 * 80 * (30e-6 + 1.5 * 8 * 16384 / 10e9)
    assert reduce_seconds(four, model, 8) == pytest.approx(reduces)
    assert reduce_seconds(one, model, 8) == 0.0
    alone = decode_seconds(one, model, 8, 1000) - 0.0015
    assert decode_seconds(four, model, 8, 1000) == pytest.approx(alone / 4 + reduces + 0.0015)
    alone = prefill_seconds(one, model, 2048, 1024) - 0.002
    reduces = 2 * 80 * (30e-6 + 1.5 * 2048 * 16384 / 10e9)
    assert prefill_seconds(four, model, 2048, 1024) == pytest.approx(alone / 4 + reduces + 0.002)


def test_a_group_has_the_memory_and_the_links_of_all() -> None:
    alone, group = load_profile("l20", "llama2-7b"), load_profile("l20x4", "llama2-7b")
    # What is not kept back holds the weights once, and KV; of each device of the group 640 MiB more
    # is kept back.
    budget = alone.kv_pool_tokens * alone.kv_bytes_per_token + alone.weight_bytes
    held = group.kv_pool_tokens * group.kv_bytes_per_token + group.weight_bytes
    assert held == pytest.approx(4 * (budget - (640 << 20)), rel=1e-3)
    # Two devices share a connection.
    assert group.host_to_device.bandwidth == 2 * alone.host_to_device.bandwidth
    assert DEVICES["l20x2"].link == DEVICES["l20"].link
    assert DEVICES["a6000x2"].link.bandwidth == 2 * DEVICES["a6000"].link.bandwidth
    assert "4 of them with estimated all-reduces" in group.source
