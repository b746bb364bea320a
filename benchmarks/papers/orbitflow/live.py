"""Objectives, pauses and token deposit in real SGLang on an emulated A5000, and simulated.

    python benchmarks/papers/orbitflow/live.py --scales 1.5 2.5
    python benchmarks/papers/orbitflow/live.py --scales 2.5 --only slo --seed 2

Both executors pause and resume whole streams; no layer of one moves without the others. Time is
virtual, so figures repeat, whatever else runs. There a server does not wait before it delivers:
each token comes with the moment at which it was generated, and `delivery_times` says when the
deposit delivers it, live and simulated alike. That a server's own deposit delivers so is what
`benchmarks/deposit_gaps.py` and `tests/live/test_live_deposit.py` are about. The servers see the
client's limit of each answer and not its length. The figures go to benchmarks/results/orbitflow/,
and from there into README.md's table beside this file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from live_beside_simulated import Column, keep, table
from reproduce import BLOCK, PAGE, RESULTS, SERVERS, objective
from run import measure, warm_up_burst
from suite import Load, tuning
from table import replace_table

from tokenflow_sgl.contract import FloatArray
from tokenflow_sgl.lab.profiles import load_profile
from tokenflow_sgl.lab.profiles.pool import chunked_prefill_size
from tokenflow_sgl.lab.runs import Run, read_run
from tokenflow_sgl.lab.sim import EngineOptions, simulate
from tokenflow_sgl.lab.traces import Accounting, Trace, TraceRequest, write_native
from tokenflow_sgl.placement.deposit import delivery_times
from tokenflow_sgl.policy import WorkingSetConfig
from tokenflow_sgl.qos.classes import SHIPPED, QosClass, QosClasses

SERVER = SERVERS["a5000"]
DEVICE, MODEL, ALONE = SERVER.device, SERVER.model, SERVER.tokens
HOST = 8
"""KV tokens on the host per one on the device."""
REQUESTS, PER_SECOND, LIMIT = 50, 0.6, 2000
"""Of a load: how many, arrivals per second, and output tokens that clients allow."""
PAGED = ("--page-size", str(BLOCK))
TOKENFLOW = (*PAGED, "--scheduler", "tokenflow", "--hicache-ratio", str(HOST))
LIVE = {
    "fcfs": PAGED,
    "demand": TOKENFLOW,
    "slo": (*TOKENFLOW, *tuning("admission-slo")),
}
"""SGLang's options by contender."""
SIMULATED: Mapping[str, tuple[str, WorkingSetConfig | None]] = {
    "fcfs": ("fcfs", None),
    "demand": ("tokenflow", None),
    "slo": ("tokenflow", WorkingSetConfig(admission="slo")),
}
"""Policy and its parameters by contender."""
COLUMNS = (
    Column("ttft mean", "TTFT, mean, s"),
    Column("ttft p99", "P99, s"),
    Column("tbt", "TBT kept", "{:.1%}"),
    Column("tbt delivered", "with deposit", "{:.1%}"),
    Column("tpot", "TPOT kept", "{:.1%}"),
    Column("tbt p99", "TBT P99, ms", "{:.0f}", 1e3),
    Column("tpot mean", "TPOT, mean, ms", "{:.1f}", 1e3),
    Column("tokens", "tokens/s", "{:.1f}"),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scales", type=float, nargs="+", default=[1.5, 2.5])
    parser.add_argument("--only", choices=LIVE, nargs="+", default=list(LIVE))
    parser.add_argument("--seed", type=int, default=1, help="of lengths and arrivals")
    parser.add_argument("--output", type=Path, default=Path("orbitflow-results"))
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    trace = requests(given.seed)
    draw = f", draw {given.seed}" if given.seed != 1 else ""
    path = given.output / "requests.jsonl"
    write_native(path, trace)
    for scale in given.scales:
        asked = even(scale * objective(load_profile(DEVICE, MODEL), ALONE))
        classes = given.output / f"classes-{scale:g}.toml"
        classes.write_text(declared(asked))
        told = ("--classes", str(classes))
        load = Load(str(path), DEVICE, ALONE, 1.0, told, model=MODEL)
        for name in given.only:
            folder = given.output / f"{scale:g}-{name}"
            known = () if name == "fcfs" else ("--tokenflow-classes", str(classes.resolve()))
            measure(load, str(path), name, (*LIVE[name], *known), folder, None)
            keep(
                RESULTS / f"live-{scale:g}{draw}.json",
                name,
                LIVE,
                len(trace.requests),
                live=attained(read_run(folder), asked.interval),
                simulated=attained(
                    simulated(trace, name, asked, warm_up_burst(load)), asked.interval
                ),
            )
            write()


def requests(seed: int) -> Trace:
    """Log-normal lengths that a few at a time fill the device, at Poisson times."""
    chance = np.random.default_rng(seed)
    prompts = np.clip(chance.lognormal(np.log(1600), 0.9, REQUESTS), 64, 9000)
    answers = np.clip(chance.lognormal(np.log(350), 0.8, REQUESTS), 64, LIMIT)
    times = np.cumsum(chance.exponential(1.0 / PER_SECOND, REQUESTS))
    made = tuple(
        TraceRequest(
            float(time), int(prompt), int(answer), limit_tokens=LIMIT, qos_class=even(1.0).name
        )
        for time, prompt, answer in zip(times, prompts, answers, strict=True)
    )
    return Trace("a5000", made, Accounting(REQUESTS, REQUESTS))


def even(seconds: float) -> QosClass:
    """The class of all requests: a token per so many seconds, from a deposit."""
    return QosClass("even", 1.0 / seconds, tbt_slo=seconds, tpot_slo=seconds, deposit=True)


def declared(asked: QosClass) -> str:
    """The same as a file of classes says it."""
    return (
        f"[classes.{asked.name}]\nrate = {asked.rate!r}\ntbt_slo = {asked.tbt_slo!r}\n"
        f"tpot_slo = {asked.tpot_slo!r}\ndeposit = true\n"
    )


def simulated(trace: Trace, name: str, asked: QosClass, burst: int) -> Run:
    """The run of a contender in the simulator, behind such a warm-up burst as the measured one."""
    profile = load_profile(DEVICE, MODEL)
    options = EngineOptions(
        max_total_tokens=ALONE,
        host_tokens=HOST * ALONE,
        chunked_prefill_size=chunked_prefill_size(profile.device_memory),
        page_size=BLOCK,
    )
    policy, config = SIMULATED[name]
    classes = QosClasses({**SHIPPED, asked.name: asked}, SHIPPED["reading"])
    return simulate(
        trace,
        profile,
        options,
        policy=policy,
        config=config,
        classes=classes,
        warm_up_burst=burst,
    ).run


def attained(run: Run, seconds: float) -> dict[str, float]:
    """What came of an objective of so many seconds per token."""
    sent, answers = answers_of(run)
    gaps = np.concatenate([np.diff(each) for each in answers])
    delivered = np.concatenate([np.diff(delivery_times(each, seconds)) for each in answers])
    ttft = np.array([each[0] for each in answers]) - sent
    tpot = np.array([(each[-1] - each[0]) / (len(each) - 1) for each in answers])
    within = seconds + 1e-9
    return {
        "ttft mean": float(ttft.mean()),
        "ttft p99": float(np.percentile(ttft, 99)),
        "tbt": float((gaps <= within).mean()),
        "tbt delivered": float((delivered <= within).mean()),
        "tpot": float((tpot <= within).mean()),
        "tbt p99": float(np.percentile(gaps, 99)),
        "tpot mean": float(tpot.mean()),
        "tokens": sum(map(len, answers)) / float(max(each[-1] for each in answers) - sent.min()),
    }


def answers_of(run: Run) -> tuple[FloatArray, list[FloatArray]]:
    """When each request of a run was sent, and when each of its tokens came, seconds."""
    sent = run.requests["scheduled_s"].to_numpy()
    owner, times = (run.tokens[name].to_numpy() for name in ("request", "time_s"))
    return sent, np.split(times, np.searchsorted(owner, np.arange(1, len(sent))))


def write() -> None:
    """Write the table of what is there into the page."""
    paths = {path.stem.partition("-")[2]: path for path in sorted(RESULTS.glob("live-*.json"))}
    page = replace_table(PAGE.read_text(), "live", table("SLO scale", paths, COLUMNS))
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
