"""A server that serves nothing any more shows nothing of what it served as of now."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import pytest
from servers.client import IDLE_SECONDS

from tokenflow_sgl.metrics import METRICS

pytestmark = pytest.mark.engine


def zero(value: float) -> bool:
    return value == 0.0


IDLE: dict[str, Callable[[float], bool]] = {
    **dict.fromkeys(
        (
            *("running_streams", "paused_streams", "waiting_streams", "working_set_streams"),
            *("reading_streams", "stalled_streams", "deposit_tokens", "demand_tokens_per_second"),
            *("link_queue_tokens",),
        ),
        zero,
    ),
    "buffer_percentile_seconds": math.isnan,
    "headroom_tokens": lambda value: value > 0.0,
    "expected_wait_seconds": lambda value: 0.0 <= value < 5.0,
    "promised_share": zero,
    "lost_deadlines": zero,
}
"""What each gauge of now says when nothing is served."""
LEARNED = {"capacity_tokens_per_second", "link_tokens_per_second"}
"""Gauges of what is known from before: it is not forgotten."""
ELSEWHERE = {"layers_host_share", "tenant_streams", "tenant_kv_share"}
"""Of layer-wise KV and of tenants, which this server does not have; other tests look at them."""


def test_every_gauge_is_known() -> None:
    gauges = {name for name, metric in METRICS.items() if metric.kind == "gauge"}
    assert gauges == {*IDLE, "mode"} | LEARNED | ELSEWHERE


def test_every_gauge_of_now_is_idle_when_all_streams_have_ended(start, prompts) -> None:
    flags = ("--scheduler", "tokenflow", "--max-total-tokens", "700", "--hicache-ratio", "4")
    # A copy lands only when it was asked for so many times: also after the last stream has ended.
    with start(*flags, env={"TOKENFLOW_EMU_LATE_COPIES": "40"}) as served:

        def ask(number: int) -> None:
            chosen = {"tokenflow_rate": 15.0} if number % 2 else {"tokenflow_class": "listening"}
            params = {**chosen, "tokenflow_deposit": number % 4 == 1}
            prompt = prompts[number % len(prompts)]
            if number % 5 == 4:  # whose client goes away
                served.leave(prompt, 1.0, sampling_params={"max_new_tokens": 200})
            else:
                served.generate(prompt, stream=True, max_new_tokens=120, custom_params=params)

        served.together([lambda number=number: ask(number) for number in range(16)])
        assert served.total("tokenflow:preemptions_total") > 0
        end = time.monotonic() + IDLE_SECONDS
        while (late := busy(left := served.metrics())) and time.monotonic() < end:
            time.sleep(0.2)
    assert late == {}
    assert {name for name, _ in left} >= {f"tokenflow:{name}" for name in IDLE}
    assert left["tokenflow:mode", (("mode", "idle"),)] == 1.0


def busy(samples: dict[tuple[str, tuple[tuple[str, str], ...]], float]) -> dict[str, float]:
    """Gauges that do not say what an idle server's do."""
    return {
        f"{name}{dict(labels)}": value
        for (name, labels), value in samples.items()
        if (says := IDLE.get(name.removeprefix("tokenflow:"))) and not says(value)
    }
