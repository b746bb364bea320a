"""Our tables against aiconfigurator-core itself, at sizes that are no grid points."""

from __future__ import annotations

import logging
import math
import random
import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from tokenflow_sgl.costs import attention_work
from tokenflow_sgl.lab.profiles import (
    DEVICES,
    MODELS,
    DeviceProfile,
    Launch,
    load_profile,
    roofline,
)
from tokenflow_sgl.lab.profiles import aiconfigurator as ours

core = pytest.importorskip(
    "aiconfigurator_core.sdk.engine", reason="aiconfigurator-core is not installed"
)

pytestmark = pytest.mark.long

PAIRS = [
    ("h200", "llama3-8b"),
    ("h200", "qwen3-32b"),
    ("a100", "qwen3-8b"),
    ("b200", "llama3-8b"),
    ("h100", "qwen3-30b-a3b"),
    ("l40s", "qwen2.5-7b"),
    ("rtxpro6000", "llama3-8b"),
    ("h100x4", "llama3-70b"),
    ("h100x8", "qwen3-235b-a22b"),
]
POINTS = 300


@cache
def engine(device: str, model: str) -> ours.EngineHandle:
    system = DEVICES[device].system
    assert system is not None
    return ours.engine(MODELS[model], system, DEVICES[device].ranks)


@cache
def profile(device: str, model: str) -> DeviceProfile:
    # What the CPU takes to launch a step is not aiconfigurator's.
    return replace(load_profile(device, model), launch=Launch())


def errors(point: Callable[[random.Random], tuple[float, float]]) -> tuple[float, float]:
    """Mean and 95th percentile of |table / truth - 1| over random points."""
    source = random.Random(11)
    pairs = [point(source) for _ in range(POINTS)]
    all_errors = sorted(abs(table / truth - 1.0) for table, truth in pairs)
    return statistics.mean(all_errors), all_errors[int(0.95 * POINTS)]


def between(source: random.Random, low: int, high: int) -> int:
    """Log-uniform."""
    return round(math.exp(source.uniform(math.log(low), math.log(high))))


@pytest.mark.parametrize(("device", "model"), PAIRS)
def test_decode(device: str, model: str) -> None:
    def point(source: random.Random) -> tuple[float, float]:
        batch, context = between(source, 1, 512), between(source, 32, 16384)
        truth = engine(device, model).predict_decode_latency(batch, context) / 1e3
        return profile(device, model).decode_seconds(batch, batch * context), truth

    mean, high = errors(point)
    assert mean < 0.015
    assert high < 0.04


@pytest.mark.parametrize(("device", "model"), PAIRS)
def test_prefill_of_equal_requests(device: str, model: str) -> None:
    def point(source: random.Random) -> tuple[float, float]:
        requests = source.choice((1, 1, 2, 3, 5, 8))
        length = between(source, 64, 8192 // requests)
        prefix = source.choice((0, between(source, 16, 16384)))
        handle = engine(device, model)
        truth = handle.predict_prefill_latency(requests, length + prefix, prefix) / 1e3
        tokens = requests * length
        table = profile(device, model).prefill_seconds(tokens, tokens * (prefix + length / 2))
        return table, truth

    mean, high = errors(point)
    assert mean < 0.02
    assert high < 0.06


@pytest.mark.parametrize(("device", "model"), PAIRS)
def test_prefill_of_unequal_requests(device: str, model: str) -> None:
    def attention(requests: int, length: int, prefix: int) -> float:
        context, _ = engine(device, model).run_static_per_op(
            batch_size=requests, isl=length + prefix, osl=1, prefix=prefix, mode="static_ctx"
        )
        return next(entry[1] for entry in context if entry[0] == "context_attention")

    def point(source: random.Random) -> tuple[float, float]:
        requests = source.choice((2, 3, 5, 8))
        lengths = [between(source, 64, 8192 // requests) for _ in range(requests)]
        prefixes = [source.choice((0, between(source, 16, 8192))) for _ in lengths]
        tokens = sum(lengths)
        # aiconfigurator knows equal requests only: everything but attention by the total, and of
        # attention each request's part in a batch of its like.
        truth = engine(device, model).predict_prefill_latency(1, tokens, 0)
        truth -= attention(1, tokens, 0)
        shape = list(zip(lengths, prefixes, strict=True))
        truth += sum(attention(requests, *request) for request in shape) / requests
        work = sum(length * (prefix + length / 2) for length, prefix in shape)
        return profile(device, model).prefill_seconds(tokens, work), truth / 1e3

    mean, high = errors(point)
    assert mean < 0.02
    assert high < 0.06


@pytest.mark.parametrize(("device", "model"), PAIRS)
def test_mixed(device: str, model: str) -> None:
    def point(source: random.Random) -> tuple[float, float]:
        # A whole prompt beside rows whose context is half of `osl` longer than it.
        tokens, batch, ahead = (
            between(source, 64, 4096),
            between(source, 1, 256),
            between(source, 1, 4000),
        )
        handle = engine(device, model)
        truth = handle.mixed_step_latency(tokens, batch, tokens, 2 * ahead, 0) / 1e3
        context = batch * (tokens + ahead)
        table = profile(device, model).mixed_seconds(tokens, tokens * tokens / 2, batch, context)
        return table, truth

    mean, high = errors(point)
    assert mean < 0.05
    assert high < 0.10


@pytest.mark.parametrize("device", ["h200", "rtx4090"])
def test_a_mixed_step_never_takes_longer_than_its_two_parts(device: str) -> None:
    # Why no policy chooses between mixing and alternating; launching is part of the times.
    made = load_profile(device, "llama3-8b")
    shares = [
        made.mixed_seconds(tokens, attention_work(tokens, prefix), rows, rows * context)
        / (
            made.prefill_seconds(tokens, attention_work(tokens, prefix))
            + made.decode_seconds(rows, rows * context)
        )
        for tokens in (1, 16, 256, 2048, 8192)
        for prefix in (0, 2048, 16384)
        for rows in (1, 16, 64, 128, 256, 400)
        for context in (200, 1000, 4000)
        if rows * context <= made.kv_pool_tokens
    ]
    assert min(shares) > 0.5
    assert max(shares) < 1.0


@pytest.mark.parametrize("model", ["llama3-8b", "qwen3-8b", "qwen3-32b"])
def test_shape_gives_what_the_packaged_model_gives(model: str) -> None:
    packaged = core.EngineHandle.compile(MODELS[model].hub_id, "h200_sxm", "sglang")
    built = engine("h200", model)
    for batch, length in ((1, 100), (64, 1000), (300, 5000)):
        expected = packaged.predict_decode_latency(batch, length)
        assert built.predict_decode_latency(batch, length) == pytest.approx(expected, rel=1e-9)
    for length, prefix in ((100, 0), (3000, 1000)):
        expected = packaged.predict_prefill_latency(1, length, prefix)
        assert built.predict_prefill_latency(1, length, prefix) == pytest.approx(expected, rel=1e-9)


def test_the_shape_of_a_group_gives_what_the_packaged_model_gives() -> None:
    packaged = core.EngineHandle.compile(
        MODELS["qwen3-235b-a22b"].hub_id, "h100_sxm", "sglang", tp_size=8, moe_tp_size=8
    )
    built = engine("h100x8", "qwen3-235b-a22b")
    for batch, length in ((1, 100), (64, 1000), (300, 5000)):
        expected = packaged.predict_decode_latency(batch, length)
        assert built.predict_decode_latency(batch, length) == pytest.approx(expected, rel=1e-9)
    expected = packaged.predict_prefill_latency(1, 3000, 1000)
    assert built.predict_prefill_latency(1, 3000, 1000) == pytest.approx(expected, rel=1e-9)


def test_a_group_is_faster_than_one_device_by_less_than_their_number() -> None:
    one, four = profile("h100", "llama3-8b"), profile("h100x4", "llama3-8b")
    assert "h100_sxm, 4 of them with their all-reduces, kernels" in four.source
    for ratio in (
        one.decode_seconds(64, 64 * 4000) / four.decode_seconds(64, 64 * 4000),
        one.prefill_seconds(8192, 8192 * 4096.0) / four.prefill_seconds(8192, 8192 * 4096.0),
    ):
        assert 1.5 < ratio < 4.0


ALONE = [name for name, item in DEVICES.items() if item.system and item.ranks == 1]


@pytest.mark.parametrize("device", ALONE)
def test_roofline_is_near(device: str) -> None:
    """A wrong unit or factor would be far outside of this; the page gives the real differences."""
    hardware, model = DEVICES[device], MODELS["llama3-8b"]
    measured = profile(device, "llama3-8b")
    for batch, context in ((1, 1000), (32, 1000), (128, 2000), (256, 500)):
        ratio = roofline.decode_seconds(hardware, model, batch, context)
        ratio /= measured.decode_seconds(batch, batch * context)
        assert 0.5 < ratio < 1.5
    for tokens, attended in ((512, 256), (2048, 1024), (2048, 9000), (8192, 4096)):
        ratio = roofline.prefill_seconds(hardware, model, tokens, attended)
        ratio /= measured.prefill_seconds(tokens, tokens * attended)
        assert 0.5 < ratio < 1.5


def test_is_quiet_and_leaves_logging_alone(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("aiconfigurator_core")
    before = logger.level
    built = load_profile("h100", "qwen3-8b")
    assert logger.level == before
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")
    assert built.source.startswith("aiconfigurator-core ")
    assert "h100_sxm, kernels measured under SGLang " in built.source
