"""What the metrics cost: the reporting of each step, with metrics and without, paired.

    python benchmarks/metrics_cost.py [--streams 500] [--steps 4000]

Both reporters account the same deliveries of the same streams, step by step, one after the other
and in turns; Prometheus writes to files, as it does under SGLang. Shown are the difference per
step, what is handed on once a second included, and its share of a decode step of an H200 that
serves these streams: of token throughput it would cost that much if nothing of it were hidden
behind the device's work.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time

import numpy as np
from policy_pass import Request, build

from tokenflow_sgl.contract import Phase
from tokenflow_sgl.costs import StepTimer
from tokenflow_sgl.engine.telemetry.prometheus import PrometheusRecorder, Recorder
from tokenflow_sgl.engine.telemetry.sampling import DeliveryReporter, Effort
from tokenflow_sgl.lab.profiles import load_profile

CLASSES = ("reading", "listening", "agent", "custom")
CONTEXT = 1500
"""Tokens per stream."""
LABELS = {"model_name": "m", "engine_type": "unified", "tp_rank": 0, "pp_rank": 0}


def reporter(streams: int, recorder: Recorder) -> tuple[DeliveryReporter, list[Request]]:
    """Streams of four classes that all run, and who reports of them."""
    table, _ = build(streams, stress=False)
    live = table.requests(Phase.RUNNING)
    table.class_names[:] = CLASSES
    for number, request in enumerate(live):
        table.class_number[table.slot(request)] = number % len(CLASSES)
    return DeliveryReporter(table, recorder, StepTimer(lag=0), Effort()), live


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--steps", type=int, default=4000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = scratch  # before anything imports its client
        measure(options.streams, options.steps)


def measure(streams: int, steps: int) -> None:
    """Print what a step's reporting takes, with and without metrics."""
    profile = load_profile("h200", "llama3-8b")
    step = float(profile.decode_seconds(streams, CONTEXT * streams))
    pair = [reporter(streams, recorder) for recorder in (Recorder(), PrometheusRecorder(LABELS))]
    taken = np.zeros((steps, 2))
    for number in range(steps):
        now = 20.0 + number * step
        for which in (0, 1) if number % 2 else (1, 0):
            reports, live = pair[which]
            for request in live:
                request.output_ids.append(1)
            begun = time.perf_counter()
            reports.iteration(now)
            taken[number, which] = time.perf_counter() - begun
    taken = taken[steps // 10 :]  # series are made on their first use
    without, with_metrics = taken.mean(axis=0) * 1e6
    cost = np.median(np.diff(taken, axis=1)) * 1e6
    print(
        f"{streams} running streams, a step of {1e3 * step:.1f} ms: "
        f"{without:.0f} us of reporting per step without metrics, {with_metrics:.0f} with "
        f"(means; a step that hands on costs more: the median difference is {cost:.0f} us); "
        f"{(with_metrics - without) / 1e6 / step:.2%} of the step"
    )


if __name__ == "__main__":
    main()
