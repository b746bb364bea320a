"""Chat beyond what a server carries: who is refused, and how well the others are served.

    python benchmarks/overload/refuse.py

Simulated; needs no server. First the rate is searched at which 95 % of the streams keep the goal
under tokenflow. Then so many times as much comes, with requests refused by their expected wait,
with SGLang's limit of the queue, and with none refused. Some of the refused are let in after all,
each in a run of its own in which all others are as before: would it have been served in time? Runs
are kept in benchmarks/results/overload; the tables go into README.md beside this file. Forty
minutes on one core.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tokenflow_sgl.choices import Contender
from tokenflow_sgl.cli.chosen_engine import SimulatedServer
from tokenflow_sgl.lab.report.goal import parse_goal
from tokenflow_sgl.lab.runs import Run
from tokenflow_sgl.lab.sim.run import Simulation, simulate
from tokenflow_sgl.lab.sim.simulated_streams import SimulatedStreams
from tokenflow_sgl.lab.sim.study.capacity_search import CapacitySetup, at_speed, capacity
from tokenflow_sgl.lab.sim.study.spread import on_cores
from tokenflow_sgl.lab.traces import open_trace
from tokenflow_sgl.lab.traces.repeat import period_s
from tokenflow_sgl.lifecycle.door import retry_after
from tokenflow_sgl.policy import WorkingSetConfig
from tokenflow_sgl.qos.classes import SHIPPED_CLASSES, QosClass

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "burst"))
from table import replace_table

PAGE = Path(__file__).with_name("README.md")
RESULTS = Path(__file__).resolve().parents[1] / "results" / "overload"
GOAL, SHARE = "ttft<=2,stall<=0.5", 0.95
MOST = 2.0
"""Seconds that a request may wait."""
LOADS = (1.0, 1.5, 2.0, 4.0)
"""Times what the server carries."""
SEEDS = (0, 1, 2)
"""The trace's own draw, and two others."""
MODEL = "llama3-8b"
LONG = 60.0
"""Seconds after which a wait is not looked at any further."""
PATIENT = QosClass("patient", 20.0, max_wait=0.0)
"""Reads as all others do, and is never refused."""
CLASSES = dataclasses.replace(SHIPPED_CLASSES, known={PATIENT.name: PATIENT})


@dataclass(frozen=True, slots=True)
class Place:
    """A device, its memory, and the chat that comes to it.

    Attributes:
        device: Of the profiles.
        kv_tokens: KV on the device; None: as many as SGLang would allocate.
        spec: The trace; its arrivals are sped up or slowed down.
    """

    device: str
    kv_tokens: int | None
    spec: str

    def server(self) -> tuple[Any, Any]:
        """The profile and the settings, with HiCache's default size of the host's memory."""
        return SimulatedServer(kv_tokens=self.kv_tokens, hicache_ratio=2.0).open(self.device, MODEL)


PLACES = {
    "h200-200k": Place("h200", 200_000, "h200-c?duration=200&readers=20&share=0.5"),
    "h200": Place("h200", None, "h200-c?duration=300&readers=20&share=0.5"),
}
TITLES = {
    "h200-200k": "H200 with 200,000 KV tokens, 400,000 on the host",
    "h200": "H200 with its own memory, twice as much on the host",
}
WAYS: dict[str, tuple[Contender, float, int]] = {
    "tokenflow, none refused": (Contender.tokenflow, 0.0, 0),
    "tokenflow, `--tokenflow-max-wait 2`": (Contender.tokenflow, MOST, 0),
    "stock, none refused": (Contender.fcfs, 0.0, 0),
    "stock, `--max-queued-requests 8`": (Contender.fcfs, 0.0, 8),
    "hrrn, `--max-queued-requests 8`": (Contender.hrrn, 0.0, 8),
}
"""The scheduler, the wait in seconds beyond which a request is refused, and the longest queue."""


def main() -> None:
    """Make the runs that are missing, then the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("places", nargs="*", help=f"of {', '.join(PLACES)}; default: all")
    parser.add_argument("--again", action="store_true", help="repeat the runs that are kept")
    parser.add_argument(
        "--tried", type=int, default=20, help="how many of the refused are let in at each load"
    )
    given = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name in given.places or PLACES:
        kept = RESULTS / f"{name}.json"
        rows = json.loads(kept.read_text()) if kept.exists() and not given.again else measured(name)
        if "let_in" not in rows:
            rows["let_in"] = [
                each for load in LOADS[1:] for each in let_in(rows, name, load, given.tried)
            ]
        kept.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
        page = replace_table(
            PAGE.read_text(encoding="utf-8"), name, f"**{TITLES[name]}.** {table(rows)}"
        )
        PAGE.write_text(page, encoding="utf-8")


def measured(name: str) -> dict[str, Any]:
    """All runs of a place."""
    place = PLACES[name]
    profile, options = place.server()
    trace = open_trace(place.spec)
    setup = CapacitySetup((trace,), profile, options, parse_goal(GOAL), SHARE, whole=False)
    with on_cores(1) as spread:
        [found] = capacity(setup, [Contender.tokenflow], spread=spread)
    assert found.best is not None, "it carries some rate"
    print(f"{name}: {found.rate:.2f} streams/s", flush=True)
    rows: dict[str, Any] = {"capacity": found.rate, "runs": []}
    for load in LOADS:
        for way in WAYS:
            for seed in SEEDS:
                rows["runs"].append(one(place, load * found.best.speed, way, seed))
                print({**rows["runs"][-1], "load": load}, flush=True)
                rows["runs"][-1]["load"] = load
    return rows


def one(place: Place, speed: float, way: str, seed: int) -> dict[str, Any]:
    """One run, as figures."""
    policy, most, queue = WAYS[way]
    profile, options = place.server()
    trace = at_speed(open_trace(f"{place.spec}&seed={seed}" if seed else place.spec), speed)
    options = dataclasses.replace(options, max_queued_requests=queue)
    config = WorkingSetConfig(max_wait=most)
    done = simulate(trace, profile, options, policy=policy, config=config)
    met = parse_goal(GOAL).met(done.run)
    refused = np.array([each is not None for each in done.run.requests["error"].to_pylist()])
    return {
        "way": way,
        "seed": seed,
        "streams": len(met),
        "seconds": period_s(trace),
        "good": int(met.sum()),
        "refused": int(refused.sum()),
        **(waits(done, refused) if most else {}),
    }


def let_in(rows: dict[str, Any], name: str, load: float, tried: int) -> list[dict[str, Any]]:
    """Real waits of some who were refused at this load, if each alone had been let in.

    tried: How many, evenly over the run.
    """
    place = PLACES[name]
    plain = open_trace(place.spec)
    speed = rows["capacity"] * period_s(plain) / len(plain.requests)
    profile, options = place.server()
    trace = at_speed(plain, load * speed)

    def run(requests: Any, watch: Any = None) -> Simulation:
        return simulate(
            dataclasses.replace(trace, requests=requests),
            profile,
            options,
            policy=Contender.tokenflow,
            config=WorkingSetConfig(max_wait=MOST),
            classes=CLASSES,
            watch=watch,
        )

    done = run(trace.requests)
    errors = done.run.requests["error"].to_pylist()
    refused = [number for number, error in enumerate(errors) if error is not None]
    chosen = [refused[at] for at in np.linspace(0, len(refused) - 1, tried).astype(int)]
    found = []
    for number in chosen:
        watch = Until(number)
        requests = list(trace.requests)
        requests[number] = dataclasses.replace(requests[number], qos_class=PATIENT.name)
        with contextlib.suppress(Seen):
            run(tuple(requests), watch)
        expected, likely = float(done.expected[number]), float(done.likely[number])
        again = retry_after(likely, MOST)
        found.append({"load": load, "told": expected, "again": again, "waited": watch.waited})
        print(f"{name} {found[-1]}", flush=True)
    return found


class Seen(Exception):
    """What a run was made for has been seen."""


class Until:
    """Ends a run when a request has its first token, or has waited for a minute.

    Attributes:
        waited: Seconds until then.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self.waited = LONG

    def __call__(self, now: float, streams: SimulatedStreams) -> None:
        """Look at the streams at a moment whose tokens have all been given."""
        sent = float(streams.sent[self._number])
        came = float(streams.first_text[self._number]) - sent
        if not math.isnan(came):
            self.waited = came
            raise Seen
        if now - sent > LONG:
            raise Seen


def waits(done: Simulation, refused: np.ndarray) -> dict[str, float]:
    """How true the expected waits were of those that were let in."""
    real = first_tokens(done.run)[~refused]
    told = done.expected[~refused]
    return {
        "within": float((real <= told + 0.5).mean()),
        "told_p90": float(np.percentile(told, 90)),
        "real_p50": float(np.percentile(real, 50)),
        "real_p90": float(np.percentile(real, 90)),
        "real_p99": float(np.percentile(real, 99)),
    }


def first_tokens(run: Run) -> np.ndarray:
    """Seconds from each request to its first token; NaN: it got none."""
    sent = run.requests["sent_s"].to_numpy(zero_copy_only=False)
    owner, first = np.unique(run.tokens["request"].to_numpy(), return_index=True)
    seconds = np.full(len(sent), np.nan)
    seconds[owner] = run.tokens["time_s"].to_numpy()[first] - sent[owner]
    return seconds


def table(rows: dict[str, Any]) -> str:
    """Goodput of each way at each load, over what the server carries."""
    carried = rows["capacity"] * SHARE
    lines = [
        f"It carries {rows['capacity']:.2f} streams/s, {carried:.2f} of them within the goal.",
        "",
        "| | " + " | ".join(f"{load:g} times" for load in LOADS) + " | refused at 4 times |",
        "| --- |" + " ---: |" * (len(LOADS) + 1),
    ]
    for way in WAYS:
        cells = []
        for load in LOADS:
            good = [run["good"] / run["seconds"] / carried for run in _of(rows, way, load)]
            cells.append(f"{np.mean(good):.2f} ({min(good):.2f} to {max(good):.2f})")
        last = _of(rows, way, LOADS[-1])
        share = sum(run["refused"] for run in last) / sum(run["streams"] for run in last)
        lines.append(f"| {way} | " + " | ".join(cells) + f" | {share:.0%} |")
    told = [run for run in rows["runs"] if "within" in run]

    def most(name: str) -> float:
        return max(run[name] for run in told)

    within = min(run["within"] for run in told)
    lines += [
        "",
        f"Of those that were let in by their expected wait, {within:.1%} or more had their first "
        "token within it and half a second, in each run; P50, P90 and P99 of their real waits were "
        f"{most('real_p50'):.2f}, {most('real_p90'):.2f} and {most('real_p99'):.2f} s or less.",
        "",
        _of_the_refused(rows["let_in"]),
    ]
    return "\n".join(lines)


def _of_the_refused(tried: list[dict[str, Any]]) -> str:
    """How many of those that were refused would have been served in time."""
    waited = np.array([each["waited"] for each in tried])
    said = ", ".join(
        f"{sum(each['waited'] <= MOST for each in tried if each['load'] == load)} of "
        f"{sum(each['load'] == load for each in tried)} at {load:g} times"
        for load in LOADS[1:]
    )
    told, again = (np.median([each[name] for each in tried]) for name in ("told", "again"))
    there = np.mean([each["waited"] <= each["again"] + MOST for each in tried])
    return (
        f"Of {len(tried)} of the refused, each let in alone, {np.mean(waited <= MOST):.0%} would "
        f"have had their first token within {MOST:g} s ({said}). P50 of the waits that were "
        f"expected of them: {told:.1f} s; of the waits that they would have had: "
        f"{np.median(waited):.1f} s, where {LONG:g} is the longest that is looked at. "
        f"`Retry-After` said {again:.0f} s (P50), and {there:.0%} would have had it within "
        f"{MOST:g} s of that."
    )


def _of(rows: dict[str, Any], way: str, load: float) -> list[dict[str, Any]]:
    return [run for run in rows["runs"] if run["way"] == way and run["load"] == load]


if __name__ == "__main__":
    main()
