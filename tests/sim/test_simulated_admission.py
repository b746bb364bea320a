"""The rules of admission in the simulator: it asks the very policy that runs live."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tokenflow_sgl.policy import WorkingSetConfig
from tokenflow_sgl.qos.classes import SHIPPED, QosClass, QosClasses
from tokenflow_sgl.sim import simulate

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
        done = simulate(asked, device, settings, config=config, classes=CLASSES).run
        owner, times = (done.tokens[name].to_numpy() for name in ("request", "time_s"))
        first = np.searchsorted(owner, np.arange(len(asked.requests)))
        last = np.append(first[1:], len(owner)) - 1
        wait = times[first] - done.requests["scheduled_s"].to_numpy()
        return wait, (times[last] - times[first]) / (last - first)

    return {rule: run(rule) for rule in ("demand", "slo", "both")}


def test_the_rules_admit_differently(found) -> None:
    waits = {rule: wait.mean() for rule, (wait, _) in found.items()}
    assert waits["slo"] < waits["demand"] <= waits["both"]


def test_objectives_are_kept(found) -> None:
    for rule in ("slo", "both"):
        assert (found[rule][1] <= 1.1 * TPOT_SLO).mean() > 0.95
