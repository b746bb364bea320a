"""Made-up runs for tests and for looking at pages: a toy server, never a measurement.

The server has memory for `slots` streams at once and decodes `speed` tokens/s for all of them
together, in steps. `stock` serves in the order of arrival, each to its end. `tokenflow` gives each
step's slots to the streams whose readers are closest to running dry.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tokenflow_sgl.lab.runs import REQUEST_SCHEMA, TOKEN_SCHEMA, Run, RunInfo

SYNTHETIC = "synthetic: a toy server, not a measurement"


def make_run(
    policy: str = "stock",
    *,
    name: str | None = None,
    readers: int = 60,
    slots: int = 16,
    speed: float = 900.0,
    step_s: float = 0.25,
    span_s: float = 6.0,
    tokens: tuple[int, int] = (80, 240),
    ttft_slo_s: float | None = 5.0,
    tbt_slo_s: float | None = 0.5,
    seed: int = 0,
    **info: Any,
) -> Run:
    """Run the toy server over `readers` requests that arrive within `span_s` seconds."""
    rng = np.random.default_rng(seed)
    due = np.sort(rng.uniform(0, span_s, readers))
    wanted = rng.integers(*tokens, readers)
    rate = np.round(rng.uniform(8, 20, readers), 1)
    times = _serve(policy, due, wanted, rate, slots, speed, step_s, rng)
    rows = [
        request_row(
            index,
            scheduled_s=float(due[index]),
            requested_tokens=int(wanted[index]),
            times=times[index],
            rate=float(rate[index]),
            ttft_slo_s=ttft_slo_s,
            tbt_slo_s=tbt_slo_s,
        )
        for index in range(readers)
    ]
    fields = {"target": {"model": "toy", "policy": policy}, **info}
    return run_of(rows, times, name=name or policy, **fields)


def request_row(index: int, times: Any = (), **changes: Any) -> dict[str, Any]:
    """A row of a request that completed when its last token came, unless `changes` say else."""
    scheduled = changes.get("scheduled_s", 0.0)
    return {
        "index": index,
        "session": None,
        "turn": 0,
        "warm_up": False,
        "scheduled_s": scheduled,
        "sent_s": scheduled,
        "ended_s": float(times[-1]) if len(times) else None,
        "prompt_tokens": 100,
        "requested_tokens": len(times),
        "output_tokens": len(times),
        "rate": 10.0,
        "ttft_slo_s": None,
        "tbt_slo_s": None,
        "priority": None,
        "finish_reason": "length" if len(times) else None,
        "error": None,
        **changes,
    }


def run_of(rows: list[dict[str, Any]], times: list[Any], **info: Any) -> Run:
    """A run of these rows; `times[i]` are the token times of row i."""
    owners = [np.full(len(part), row["index"]) for row, part in zip(rows, times, strict=True)]
    tokens = pa.table(
        {
            "request": np.concatenate([*owners, []]).astype(np.int32),
            "time_s": np.concatenate([*[np.asarray(part, float) for part in times], []]),
        },
        schema=TOKEN_SCHEMA,
    )
    ends = [row["ended_s"] or row["scheduled_s"] or 0.0 for row in rows]
    fields: dict[str, Any] = {
        "name": "run",
        "source": "simulate",
        "trace": {"name": "toy", "notes": [SYNTHETIC]},
        "target": {"model": "toy"},
        "options": {"note": SYNTHETIC},
        "duration_s": max(ends, default=0.0) + 1.0,
        **info,
    }
    return Run(RunInfo(**fields), pa.Table.from_pylist(rows, schema=REQUEST_SCHEMA), tokens)


def _serve(
    policy: str, due: Any, wanted: Any, rate: Any, slots: int, speed: float, step_s: float, rng: Any
) -> list[Any]:
    count = due.size
    done = np.zeros(count)
    dry_at = due.astype(float)  # when the reader needs the next token
    arrived: list[list[float]] = [[] for _ in range(count)]
    now = 0.0
    while (done < wanted).any():
        now += step_s * rng.uniform(0.9, 1.1)
        open_ = np.flatnonzero((due <= now) & (done < wanted))
        if not open_.size:
            continue
        order = open_ if policy == "stock" else open_[np.argsort(dry_at[open_])]
        chosen = order[:slots]
        share = speed * step_s / max(chosen.size, 4)
        for one in chosen:
            target = min(done[one] + share, wanted[one])
            fresh = int(target) - int(done[one])
            done[one] = target
            if fresh:
                # Decoded evenly over the step, as if the chunks were small.
                chunk = now + step_s * np.arange(fresh) / fresh * 0.9
                arrived[one].extend(chunk.tolist())
                dry_at[one] = max(dry_at[one], now) + fresh / rate[one]
    return [np.array(part) for part in arrived]
