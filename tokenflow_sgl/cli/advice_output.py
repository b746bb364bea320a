"""What ``tokenflow advise`` says: the verdict, what it costs, how to start, and the figures."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from tokenflow_sgl.lab.profiles import MODELS
from tokenflow_sgl.lab.sim.study.advice import Effect
from tokenflow_sgl.lab.sim.study.own_settings import DEFAULTS, SETTINGS, TOKENFLOW

if TYPE_CHECKING:
    from tokenflow_sgl.lab.sim.study.advice import Advice, AdviceSetup, LoadFound
    from tokenflow_sgl.lab.sim.study.own_settings import Felt

WIDTH = 80


def verdict(setup: AdviceSetup, found: Advice) -> list[str]:
    """Sentences: whether it helps and from what load on, what it costs, and how to start."""
    return [
        _answer(setup, found),
        f"Served well is who gets {setup.goal}, in seconds.",
        _costs(setup, found.judged),
        *_starts(setup, found),
        *_cautions(setup, found),
    ]


def print_advice(setup: AdviceSetup, found: Advice) -> None:
    """Print the verdict, then the table, in 80 columns at most."""
    console = Console()
    console.width = min(console.width, WIDTH)
    for sentence in verdict(setup, found):
        console.print(sentence, markup=False, highlight=False)
    console.print()
    console.print(_table(found))


def object_of(setup: AdviceSetup, found: Advice) -> dict[str, Any]:
    """The advice as plain values."""
    return {
        "helps": found.helps,
        "verdict": verdict(setup, found),
        "trace": setup.trace.name,
        "requests": len(setup.trace.requests),
        "device": setup.profile.device,
        "model": setup.profile.model,
        "server_args": dataclasses.asdict(setup.options),
        "known_lengths": setup.known_lengths,
        "goal": dict(setup.goal.limits),
        "host_gb_per_rank": setup.host_gb,
        "loads": [
            {
                "load": each.load,
                "requests_per_second": each.rate,
                "effect": each.effect.value,
                "best_of_sglang": each.best,
                "settings": {
                    name: {
                        key: value if math.isfinite(value) else None for key, value in run.items()
                    }
                    for name, run in each.runs.items()
                },
            }
            for each in found.loads
        ],
        "flags": {
            name: {"flags": setting.flags, "environment": setting.environment}
            for name, setting in SETTINGS.items()
        },
    }


# ---- sentences ----------------------------------------------------------------------------


def _answer(setup: AdviceSetup, found: Advice) -> str:
    helps, harms = found.those(Effect.helps), found.those(Effect.harms)
    on = f"{setup.profile.model} on {setup.profile.device}"
    if not helps and not harms:
        return (
            f"No: for {on} it makes no difference to how many readers are served well, at "
            f"{_loads(found.loads)}."
        )
    if not helps:
        return f"No: for {on} it serves fewer readers well at {_loads(harms)}: {_shares(harms[0])}."
    onward = helps == found.loads[-len(helps) :] and len(helps) < len(found.loads)
    if len(helps) == len(found.loads):
        where = f"at {_loads(helps)}"
    elif onward:
        where = f"from {load_title(helps[0])} on"
    else:
        where = f"at {_loads(helps)}"
    but = f" It harms at {_loads(harms)}: {_shares(harms[0])}." if harms else ""
    return f"Yes: for {on} it helps {where}: {_shares(helps[0])}.{but}"


def _shares(at: LoadFound) -> str:
    ours, best = at.runs[TOKENFLOW], at.runs[at.best]
    return (
        f"{ours['served_well']:.0%} of the readers are served well there, "
        f"{best['served_well']:.0%} with the best of SGLang's own settings ({at.best})"
    )


def _costs(setup: AdviceSetup, at: LoadFound) -> str:
    ours, best = at.runs[TOKENFLOW], at.runs[at.best]
    pairs = (
        ("gaps between tokens (ITL P99)", "tbt_p99", _milliseconds),
        ("whole answers on average (end to end)", "e2e_mean", _seconds),
    )
    said = [f"{name} {show(best[key])} → {show(ours[key])}" for name, key, show in pairs]
    return (
        f"What it costs at {load_title(at)}, beside that setting: {', '.join(said)}, and "
        f"{setup.host_gb:.0f} GB of host memory per rank."
    )


def _starts(setup: AdviceSetup, found: Advice) -> list[str]:
    shape = MODELS.get(setup.profile.model)
    path = shape.hub_id if shape is not None else setup.profile.model
    ranks = f" --tp {setup.ranks}" if setup.ranks > 1 else ""
    launch = f"python -m sglang.launch_server --model-path {path}{ranks}"
    best = SETTINGS[found.judged.best]
    stock = " ".join(part for part in (best.environment, launch, best.flags) if part)
    ours = f"Start with it: {launch} {SETTINGS[TOKENFLOW].flags}"
    without = f"The best of SGLang's own settings ({found.judged.best}): {stock}"
    return [ours, without] if found.helps else [without]


def _cautions(setup: AdviceSetup, found: Advice) -> list[str]:
    said = []
    if len(found.loads) == 1:
        said.append("All requests arrive at once, so there is one load.")
    unknown = sum(request.rate is None for request in setup.trace.requests)
    if unknown:
        said.append(
            f"{unknown:,} of {len(setup.trace.requests):,} requests say no reading rate: the "
            "default is taken, --rate sets another."
        )
    said.append(
        "Simulated, all settings as SGLang would serve them on this device; lengths are "
        f"{'known' if setup.known_lengths else 'unknown'} to the server."
    )
    return said


def load_title(at: LoadFound) -> str:
    """A load in words, with its requests per second."""
    rate = f" ({at.rate:.3g} requests/s)" if at.rate else ""
    own = "this traffic's load" if at.load == 1.0 else f"{at.load:g} times its load"
    return own + rate


def _loads(those: tuple[LoadFound, ...]) -> str:
    if len(those) == 1:
        return load_title(those[0])
    few = ", ".join(f"{each.load:g}" for each in those[:-1])
    return f"{few} and {those[-1].load:g} times its load"


# ---- the table ----------------------------------------------------------------------------


def _milliseconds(value: float) -> str:
    return f"{1e3 * value:,.0f} ms" if math.isfinite(value) else "-"


def _seconds(value: float) -> str:
    if not math.isfinite(value):
        return "-"
    if value < 1.0:
        return _milliseconds(value)
    return f"{value:,.0f} s" if value >= 100 else f"{value:.3g} s"


COLUMNS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("served well", "served_well", "{:.0%}".format),
    ("TTFT P99", "ttft_p99", _seconds),
    ("stall", "stalled_share", "{:.0%}".format),
    ("ITL P99", "tbt_p99", _milliseconds),
    ("end to end", "e2e_mean", _seconds),
)
"""Heading, figure and how it is written; shares are of the readers, the last one is a mean."""


def rows(at: LoadFound) -> list[tuple[str, Felt]]:
    """What is shown of a load: SGLang's defaults, the best of its own settings, and ours."""
    names = dict.fromkeys((DEFAULTS, at.best, TOKENFLOW))
    return [(name, at.runs[name]) for name in names]


def _table(found: Advice) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("load and setting", overflow="fold")
    for heading, _, _ in COLUMNS:
        table.add_column(heading, justify="right", no_wrap=True)
    for at in found.loads:
        rate = f", {at.rate:.3g} requests/s" if at.rate else ""
        table.add_row(f"{at.load:g}x{rate}", style="bold")
        for name, run in rows(at):
            table.add_row(name, *(show(run[key]) for _, key, show in COLUMNS))
    return table
