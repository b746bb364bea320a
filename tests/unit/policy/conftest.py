"""Streams and questions that tests of the policy share, with numbers worked by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from admitting import AS_MODELLED, COSTS
from exchanging import CONFIG, joined

from tokenflow_sgl.contract import Phase
from tokenflow_sgl.contract.reserve import DECODE_TARGET_STEPS
from tokenflow_sgl.policy import WorkingSetConfig, admission
from tokenflow_sgl.policy.admission import admissible
from tokenflow_sgl.policy.exchange import exchange


# Member: 200 tokens of context, 1000 to come at 10/s, no slack. Within h seconds it asks for
# n = min(10 h, 1000) tokens, n * (200 + n / 2) * 1e-4 seconds of the engine:
#
#   h             2     10    20    60    80    110   150
#   n             20    100   200   600   800   1000  1000
#   demand        0.42  2.5   6     30    48    70    70
#   demand / h    0.21  0.25  0.30  0.50  0.60  0.636 0.467
#
# The newcomer has 200 prompt tokens and 1000 to come: the same numbers. Both together need
# 140 / 110 = 1.2727 of the engine at the worst horizon.
@pytest.fixture
def member(make_stream):
    def make(phase=Phase.RUNNING, **given):
        return make_stream(phase, **{"slack": 0.0, "expected": 1100.0, **given})

    return make


@pytest.fixture
def newcomer(make_stream):
    def make(**given):
        return make_stream(Phase.WAITING, **{"prompt": 200, "expected": 1000.0, **given})

    return make


@pytest.fixture
def joins(make_state):
    def ask(rows, costs=COSTS, kv_rate=AS_MODELLED, **config):
        state = make_state(rows, total=1000, free=0, host=100_000, costs=costs)
        state = dataclasses.replace(state, kv_rate=kv_rate)
        # All of the time and no stock, unless a test is about them.
        config = {"eta": 1.0, "hysteresis": 0.0, **config}
        return admissible(state, WorkingSetConfig(**config)).join.tolist()

    return ask


@pytest.fixture
def one_margin(monkeypatch):
    """The same share of the time is promised at all horizons."""
    monkeypatch.setattr(admission, "FAR_MORE", 0.0)


@pytest.fixture
def plan(make_state):
    """(slots to run, slots to preempt) where one victim of 200 tokens makes room for one."""

    def ask(rows, config=CONFIG, keys=None, answer=None, **given):
        running = sum(r["phase"] in (Phase.RUNNING, Phase.DRAINING) for r in rows)
        # Reserve of the running ones and of the incomer: 200 more are missing.
        given.setdefault("free", DECODE_TARGET_STEPS * (running + 1))
        keys = None if keys is None else np.array(keys, dtype=np.float64)
        outcome = exchange(make_state(rows, **given), config, answer or joined(), keys)
        return [10 + i for i in outcome.run], [p.slot for p in outcome.preempt]

    return ask
