"""The rules of admission in the simulator: it asks the very policy that runs live."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tokenflow_sgl.lab.sim import simulate
from tokenflow_sgl.policy import WorkingSetConfig
from tokenflow_sgl.qos.classes import SHIPPED, QosClass, QosClasses

TPOT_SLO = 0.1
CHAT = QosClass("chat", 1.0 / TPOT_SLO, ttft_slo=3.0, tpot_slo=TPOT_SLO)
CLASSES = QosClasses({**SHIPPED, "chat": CHAT}, SHIPPED["reading"])
# Five answers a second with 200 tokens each. The memory has 1,000, and makes about 600 a second.
OVERLOAD = [(0.2 * number, 40, 200) for number in range(80)]


@pytest.fixture(scope="module")
def found(trace, device, options):
    """Times to the first token, and seconds per token, by rule."""
    asked = trace(*OVERLOAD)
    asked = replace(asked, requests=tuple(replace(r, qos_class="chat") for r in asked.requests))

    def run(rule: str):
        config = WorkingSetConfig(admission=rule)
        settings = options(host_tokens=20_000)
        # Of the rules alone: what they do not know of lengths is not their overshoot.
        known = {"known_lengths": True, "classes": CLASSES}
        done = simulate(asked, device, settings, config=config, **known).run
        owner, times = (done.tokens[name].to_numpy() for name in ("request", "time_s"))
        first = np.searchsorted(owner, np.arange(len(asked.requests)))
        last = np.append(first[1:], len(owner)) - 1
        wait = times[first] - done.requests["scheduled_s"].to_numpy()
        return wait, (times[last] - times[first]) / (last - first)

    return {rule: run(rule) for rule in ("demand", "slo")}


def test_what_streams_have_gained_is_spent_on_newcomers(found) -> None:
    (demanded, _), (spent, _) = found["demand"], found["slo"]
    assert spent.mean() < demanded.mean() / 2
    assert (demanded < 3.0).mean() < 0.97 < (spent < 3.0).mean()


def test_and_hardly_more_than_that(found) -> None:
    (_, demanded), (_, spent) = found["demand"], found["slo"]
    assert demanded.mean() < spent.mean() < TPOT_SLO
    assert spent.max() < 1.2 * TPOT_SLO
