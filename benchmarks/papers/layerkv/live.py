"""LayerKV's admission in real SGLang on an emulated L20, beside the simulator's figures of it.

    python benchmarks/papers/layerkv/live.py --sharegpt LENGTHS.csv --rates 4 5
    python benchmarks/papers/layerkv/live.py --sharegpt LENGTHS.csv --model yi-34b --rates 2

The requests, settings and contenders of reproduce.py, each with a server of its own; time is
virtual, so figures repeat, whatever else runs. Both executors pause and resume whole streams. The
servers see the client's limit of each answer and not its length. The figures go to
benchmarks/results/layerkv/, and from there into README.md's table beside this file.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from live_beside_simulated import Column, keep, table
from reproduce import CONTENDERS, HOST, MODELS, NAMED, PAGE, RESULTS, measured, served, sharegpt
from run import measure, warm_up_burst
from suite import Load, tuning
from table import replace_table

from tokenflow_sgl.lab.profiles import load_profile
from tokenflow_sgl.lab.runs import read_run
from tokenflow_sgl.lab.traces import write_native

PAGED = ("--page-size", "16")
TOKENFLOW = (*PAGED, "--scheduler", "tokenflow", "--hicache-ratio", str(HOST))
LIVE = {
    "fcfs": PAGED,
    "demand": TOKENFLOW,
    "slo": (*TOKENFLOW, *tuning("admission-slo")),
    "both": (*TOKENFLOW, *tuning("admission-both")),
    "all admitted": (*TOKENFLOW, "--tokenflow-eta", "10", "--tokenflow-burst-eta", "10"),
}
"""SGLang's options by contender."""
COLUMNS = (
    Column("ttft mean", "TTFT, mean, s"),
    Column("ttft p99", "P99, s"),
    Column("tpot mean", "TPOT, mean, ms", "{:.1f}", 1e3),
    Column("tpot p99", "P99, ms", "{:.1f}", 1e3),
    Column("late", "TTFT missed", "{:.1%}"),
    Column("slow", "TPOT missed", "{:.1%}"),
    Column("tokens", "tokens/s", "{:.0f}"),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sharegpt", metavar="FILE", required=True)
    parser.add_argument("--model", choices=MODELS, default="llama2-7b")
    parser.add_argument("--rates", type=float, nargs="+", default=[4, 5])
    parser.add_argument("--only", choices=LIVE, nargs="+", default=list(LIVE))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path("layerkv-results"))
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    classes = given.output / "classes.toml"
    classes.write_text(declared())
    model, device = given.model, MODELS[given.model]
    tokens = load_profile(device, model).kv_pool_tokens
    for rate in given.rates:
        trace = sharegpt(given.sharegpt, rate, given.seed)
        path = given.output / f"sharegpt-{rate:g}.jsonl"
        write_native(path, trace)
        # Rates and objectives are the class's, and the client names it.
        load = Load(str(path), device, tokens, 1.0, ("--classes", str(classes)), model=model)
        for name in given.only:
            folder = given.output / f"{rate:g}-{name.replace(' ', '-')}"
            options = (*LIVE[name], *(_declared(classes) if name != "fcfs" else ()))
            measure(load, str(path), name, options, folder, None)
            keep(
                RESULTS / f"live-{model}-sharegpt-{rate:g}.json",
                name,
                LIVE,
                len(trace.requests),
                live=measured(read_run(folder)),
                simulated=served(trace, model, CONTENDERS[name], warm_up_burst(load)),
            )
            write()


def declared() -> str:
    """The class of all requests, as a file of classes says it."""
    return (
        f"[classes.{NAMED.name}]\nrate = {NAMED.rate:g}\n"
        f"ttft_slo = {NAMED.ttft_slo:g}\ntpot_slo = {NAMED.tpot_slo:g}\n"
    )


def _declared(classes: Path) -> tuple[str, str]:
    return "--tokenflow-classes", str(classes.resolve())


def write() -> None:
    """Write the table of what is there into the page."""
    paths = {
        f"{model}, {path.stem.rpartition('-')[2]}": path
        for model in MODELS
        for path in sorted(RESULTS.glob(f"live-{model}-sharegpt-*.json"))
    }
    page = replace_table(PAGE.read_text(), "live", table("model, requests/s", paths, COLUMNS))
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
