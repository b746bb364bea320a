"""States for tests of pure decisions, from a few plain numbers."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from tokenflow_sgl.contract import Memory, Phase, Pool, Standing, State, Streams, Tier
from tokenflow_sgl.costs import StepCosts

# About an 8B model on an H200: 8 ms + 20 us a row + 20 ns a KV token; 60 us a prefilled token.
COSTS = StepCosts(decode=(0.008, 2e-5, 2e-8), prefill=(0.004, 6e-5, 1e-9), load=(0.001, 3e-6))
FIRST_SLOT = 10
"""Slot of the first stream: slots differ from indices, so that a mix-up shows."""


def stream(phase: Phase = Phase.RUNNING, **given: Any) -> dict[str, Any]:
    """One stream; by default it runs, is 100 tokens into 400, and has 5 s of slack at now=100."""
    started = phase is not Phase.WAITING
    row = {
        "phase": phase,
        "arrival": 90.0 if started else 99.0,
        "rate": 10.0,
        "slack": 5.0 if started else None,
        "prompt": 100,
        "generated": 100 if started else 0,
        "expected": 400.0,
        "since": 90.0 if started else 99.0,
        "admitted": started,
        "preemptible": started,
        "streaming": True,
        "ready": False,
        "unwritten": 0,
        "to_load": 0,
        "thinking": False,
        "visible": None,
        "on_device": 0,
        "on_host": 0,
        "shared": 0,
        "weight": 1.0,
        "tolerance": 0.0,
        "tenant": None,
        "tenant_weight": 1.0,
        "tbt_slo": math.nan,
        "tpot_slo": math.nan,
        "first_text": None,
    }
    row.update(given)
    if row["visible"] is None:
        row["visible"] = 0 if row["thinking"] else row["generated"]
    if row["first_text"] is None:
        row["first_text"] = row["arrival"] if row["visible"] else math.nan
    return row


def state(
    rows: list[dict[str, Any]],
    *,
    now: float = 100.0,
    total: int = 10_000,
    free: int | None = None,
    promised: int = 0,
    host: int = 20_000,
    page: int = 1,
    rows_limit: int = 512,
    ahead: int = 0,
    costs: StepCosts = COSTS,
    tokens_per_step: float = 1.0,
    **rest: Any,
) -> State:
    """A state of these streams; `free` defaults to what the running ones leave."""
    held = sum(
        r["prompt"] + r["generated"] for r in rows if r["phase"] in (Phase.RUNNING, Phase.DRAINING)
    )
    due = [r["arrival"] if r["slack"] is None else now + r["slack"] for r in rows]

    def column(name: str, dtype: Any) -> Any:
        return np.array([r[name] for r in rows], dtype=dtype)

    return State(
        now=now,
        streams=Streams(
            standing=Standing(
                slot=np.arange(len(rows), dtype=np.int64) + FIRST_SLOT,
                phase=column("phase", np.int8),
                since=column("since", np.float64),
            ),
            arrival=column("arrival", np.float64),
            rate=column("rate", np.float64),
            next_due=np.array(due, dtype=np.float64),
            prompt=column("prompt", np.int64),
            generated=column("generated", np.int64),
            limit=column("expected", np.int64),
            kind=np.zeros(len(rows), dtype=np.int64),
            admitted=column("admitted", np.bool_),
            preemptible=column("preemptible", np.bool_),
            streaming=column("streaming", np.bool_),
            ready=column("ready", np.bool_),
            unwritten=column("unwritten", np.int64),
            to_load=column("to_load", np.int64),
            visible=column("visible", np.int64),
            thinking=column("thinking", np.bool_),
            on_device=column("on_device", np.int64),
            on_host=column("on_host", np.int64),
            shared=column("shared", np.int64) if any(r["shared"] for r in rows) else None,
            weight=column("weight", np.float64),
            tolerance=column("tolerance", np.float64),
            tenant=column("tenant", np.int64)
            if any(r["tenant"] is not None for r in rows)
            else None,
            tenant_weight=column("tenant_weight", np.float64),
            tbt_slo=column("tbt_slo", np.float64),
            tpot_slo=column("tpot_slo", np.float64),
            first_text=column("first_text", np.float64),
        ),
        memory=Memory(
            device=Tier(kv=Pool(total, total - held if free is None else free, promised)),
            host=Tier(kv=Pool(host)),
            page_size=page,
            max_running=rows_limit,
            ahead=ahead,
        ),
        costs=dataclasses.replace(costs, tokens_per_step=tokens_per_step),
        **rest,
    )
