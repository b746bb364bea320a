"""What sharing the engine among readers costs complete answers, by arithmetic.

    python benchmarks/burst/sharing.py

An engine that does nothing but decode steps, as long as its profile says, with the device's own
memory: no prefills, no pauses to pay for, and every length is known. Under *run to completion*
streams start in the order of arrival as soon as their whole context fits beside the whole contexts
of those that run. Under *shared* each stream starts when it comes, and those run that are least
ahead of their readers, as many as fit. Both decode the same tokens; the rest is when. Prints the
mean end-to-end latency of both beside what own_memory.py has recorded of tokenflow and of the best
of SGLang's settings, whose ratio cannot be much below that of the arithmetic while newcomers start
at once. Writes the table into docs/benchmarks.md.
"""

from __future__ import annotations

import json

import numpy as np
from compared import FIGURES, TOKENFLOW, between, table
from own_memory_tables import DATA, PAGE
from served import machine

from tokenflow_sgl.contract import FloatArray, IntArray
from tokenflow_sgl.lab.profiles import DeviceProfile
from tokenflow_sgl.lab.traces import open_trace

MODEL = "llama3-8b"
LOADS = [f"{device}-{letter}" for device in ("h200", "4090") for letter in "abcd"]
DEVICES = {"h200": "h200", "4090": "rtx4090"}
STEP = 0.1
"""Seconds at a time."""


def main() -> None:
    recorded = json.loads(DATA.read_text())["workloads"]
    end_to_end = next(figure for figure in FIGURES if figure.name == "whole answer, mean")
    rows = []
    for name in LOADS:
        profile, options = machine(DEVICES[name.split("-")[0]], MODEL)
        trace = open_trace(name)
        columns = ("arrival_s", "prompt_tokens", "output_tokens", "rate")
        arrival, prompt, answer, rate = (
            np.array([getattr(each, column) for each in trace.requests], np.float64)
            for column in columns
        )
        kv_tokens = float(options.max_total_tokens or 0)
        done = to_completion(profile, kv_tokens, arrival, prompt, answer)
        turns = shared(profile, kv_tokens, arrival, prompt, answer, rate)
        means = [float((ends - arrival).mean()) for ends in (done, turns)]
        runs = recorded[name]["draws"]["0"]
        best = runs[end_to_end.best(runs)]
        rows.append(
            [
                f"`{name}`",
                *(f"{mean:,.0f} s" for mean in means),
                f"{means[1] / means[0]:.2f}x",
                f"{end_to_end.ratio(runs, end_to_end.best(runs)):.2f}x",
                f"{end_to_end.of(best):,.0f} s",
                f"{end_to_end.of(runs[TOKENFLOW]):,.0f} s",
            ]
        )
    heads = ["workload", "run to completion", "shared", "shared over the other"]
    heads += ["simulated: tokenflow over the best", "the best", "tokenflow"]
    text = table(heads, rows, left=1)
    PAGE.write_text(between(PAGE.read_text(), "sharing", text))
    print(text, end="")


def to_completion(
    profile: DeviceProfile,
    kv_tokens: float,
    arrival: FloatArray,
    prompt: FloatArray,
    answer: FloatArray,
) -> FloatArray:
    """When each answer ends, first come first served; all in seconds and tokens, shape (n,)."""
    made, ends = np.zeros(len(arrival)), np.full(len(arrival), np.inf)
    order = np.argsort(arrival, kind="stable")
    now, begun = float(arrival.min()), 0
    while np.isinf(ends).any():
        running = order[:begun]
        running = running[np.isinf(ends[running])]
        held = float((prompt + answer)[running].sum())
        while begun < len(order) and arrival[order[begun]] <= now:
            one = order[begun]
            if len(running) and held + prompt[one] + answer[one] > kv_tokens:
                break
            running, begun = np.append(running, one), begun + 1
            held += float(prompt[one] + answer[one])
        now = _decode(profile, now, running, made, ends, prompt, answer)
    return ends


def shared(
    profile: DeviceProfile,
    kv_tokens: float,
    arrival: FloatArray,
    prompt: FloatArray,
    answer: FloatArray,
    rate: FloatArray,
) -> FloatArray:
    """The same where all streams run in turns, the one least ahead of its reader first."""
    made, ends = np.zeros(len(arrival)), np.full(len(arrival), np.inf)
    now = float(arrival.min())
    while np.isinf(ends).any():
        here = np.flatnonzero((arrival <= now) & np.isinf(ends))
        ahead = made[here] / rate[here] - (now - arrival[here])
        here = here[np.argsort(ahead, kind="stable")]
        fits = int(np.searchsorted(np.cumsum((prompt + made)[here]), kv_tokens, side="right"))
        now = _decode(profile, now, here[: max(fits, 1)], made, ends, prompt, answer)
    return ends


def _decode(
    profile: DeviceProfile,
    now: float,
    running: IntArray,
    made: FloatArray,
    ends: FloatArray,
    prompt: FloatArray,
    answer: FloatArray,
) -> float:
    """Let these run for `STEP` seconds; the time then."""
    if len(running):
        context = int((prompt + made)[running].sum())
        made[running] += STEP / profile.decode_seconds(len(running), context)
        ended = running[made[running] >= answer[running]]
        ends[ended] = now + STEP
    return now + STEP


if __name__ == "__main__":
    main()
