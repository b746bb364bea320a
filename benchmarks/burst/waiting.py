"""Whether long prompts starve: how long requests wait for their first token, by prompt length.

    python benchmarks/burst/waiting.py --mooncake conversation_trace.jsonl

Simulates the Mooncake workload of the burst benchmark, with unknown lengths, under stock SGLang and
under tokenflow with its two orders of prefills. Writes docs/images/waiting-by-prompt.png and prints
the longest waits. A request's own prefill is that of its whole prompt on an idle device.
"""

from __future__ import annotations

import argparse
import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from devices import simulated_device
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from simulated import FIRST_COME, SIMULATED
from suite import LOADS

from tokenflow_sgl.cli.chosen_trace import TraceChoice
from tokenflow_sgl.costs import attention_work
from tokenflow_sgl.lab.sim import simulate
from tokenflow_sgl.policy import WorkingSetConfig

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "images" / "waiting-by-prompt.png"
RUNS: dict[str, tuple[str, WorkingSetConfig | None]] = {
    "stock SGLang": (SIMULATED["stock"], None),
    "tokenflow, first come first served": ("tokenflow", FIRST_COME),
    "tokenflow": ("tokenflow", None),
}
COLOURS = ("#9aa3b2", "#e0803a", "#3b82d6")
EDGES = 2.0 ** np.arange(9, 18)
"""Prompt lengths between which requests are taken together."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Of each request: prompt tokens, seconds to the first token, seconds of its own prefill."""

    prompt: NDArray[np.float64]
    ttft: NDArray[np.float64]
    own: NDArray[np.float64]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mooncake", metavar="FILE", required=True, help="conversation trace")
    file = parser.parse_args().mooncake
    found = {name: waits(file, *run) for name, run in track(RUNS.items(), "simulating")}
    draw(found)
    print(f"{'prompt':>16}  longest time to first token, s (over its own prefill)")
    for low, high in itertools.pairwise(EDGES.tolist()):
        cells = []
        for each in found.values():
            chosen = (each.prompt >= low) & (each.prompt < high)
            if chosen.any():
                worst = int(np.argmax(np.where(chosen, each.ttft, -1.0)))
                cells.append(f"{each.ttft[worst]:7.1f} ({each.ttft[worst] / each.own[worst]:.0f}x)")
        print(f"{low:7.0f} to {high:6.0f}  {'  '.join(cells)}")


def waits(file: str, policy: str, config: WorkingSetConfig | None) -> Waits:
    """Simulate one run."""
    load = LOADS["mooncake"]
    given = dict(zip(load.replay[::2], load.replay[1::2], strict=True))
    trace = TraceChoice(window=given["--window"], rate=given["--rate"]).open(
        f"mooncake:{file}", Console(stderr=True)
    )
    profile, options = simulated_device(load.device, load.kv_tokens, load.link)
    done = simulate(trace, profile, options, policy=policy, config=config).run
    tokens, requests = done.tokens.to_pandas(), done.requests.to_pandas().set_index("index")
    ttft = tokens.groupby("request")["time_s"].min() - requests["sent_s"]
    ttft = ttft.dropna()
    prompt = requests.loc[ttft.index, "prompt_tokens"].to_numpy(dtype=np.float64)
    own = [profile.prefill_seconds(int(n), attention_work(n, 0)) for n in prompt]
    return Waits(prompt, ttft.to_numpy(), np.array(own))


def draw(found: dict[str, Waits]) -> None:
    """A panel for each run: every request, and the median and the longest wait by length."""
    figure = Figure(figsize=(12, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(found), sharex=True, sharey=True)
    for axes, colour, (name, each) in zip(panels, COLOURS, found.items(), strict=True):
        axes.scatter(each.prompt, each.ttft / each.own, s=5, color=colour, alpha=0.5, linewidths=0)
        bins = np.digitize(each.prompt, EDGES)
        there = [number for number in range(1, len(EDGES)) if (bins == number).any()]
        middle = np.sqrt(EDGES[:-1] * EDGES[1:])[np.array(there) - 1]
        for label, figure_of, style in (("longest", np.max, "--"), ("median", np.median, "-")):
            values = [figure_of((each.ttft / each.own)[bins == number]) for number in there]
            axes.plot(middle, values, style, color="black", linewidth=1.2, label=label)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_title(name)
        axes.set_xlabel("prompt, tokens")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("time to first token over own prefill")
    panels[0].legend(frameon=False, loc="lower left")
    figure.savefig(PICTURE, dpi=110)


if __name__ == "__main__":
    main()
