"""Searches the policy's parameters for a trace, a device and an objective."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenflow_sgl.choices import Objective
from tokenflow_sgl.lab.sim.engine_options import SimulationError
from tokenflow_sgl.lab.sim.study.spread import Spread
from tokenflow_sgl.lab.sim.study.sweep import Row, Setting, Setup, row_of
from tokenflow_sgl.pip_hints import pip_install
from tokenflow_sgl.policy import WorkingSetConfig

SPACE: Mapping[str, tuple[float, float]] = {
    "eta": (0.7, 1.4),
    "burst_eta": (0.8, 2.0),
    "cycle": (0.05, 1.0),
    "hysteresis": (2.0, 20.0),
    "safety": (0.5, 5.0),
    "band": (0.03, 0.3),
    "band_seconds": (1.0, 10.0),
    "urgent": (1.0, 10.0),
    "prefill_chunk": (256, 8192),
    "prefill_guard": (0.25, 4.0),
    "park_floor": (0.6, 1.0),
}
"""Where each parameter is searched; on a logarithmic scale."""

OBJECTIVES: Mapping[str, tuple[str, bool]] = {
    Objective.effective: ("effective_throughput", True),
    Objective.waiting: ("mean_waiting_s", False),
    Objective.p99_ttft: ("p99_ttft_s", False),
}
"""What is searched for, by name: a column of the sweep, and whether more of it is better."""

KEPT = 0.99
"""Share of the shipped parameters' token and effective throughput that others must keep."""
KEEPS = ("token_throughput", "effective_throughput")
AT_ONCE = 4
"""Runs between two looks at what was found; fixed, so that all machines find the same."""
EXPLORED = 12
"""Runs with parameters drawn at random before the search goes by what was found."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """What a search for parameters found: the best ones, and all runs.

    shipped: The run with the parameters as shipped. best: Its best run. setting: The parameters of
    that; empty if none was better than those shipped. rows: All runs, in order.
    """

    shipped: Row
    best: Row
    setting: Setting
    rows: list[Row]


def allowed(found: Row, shipped: Row) -> bool:
    """Whether a run keeps both throughputs and lets no reader wait longer, on average."""
    keeps = all(found[name] >= KEPT * shipped[name] for name in KEEPS)
    return bool(keeps and found["mean_waiting_s"] <= shipped["mean_waiting_s"])


def tune(
    setup: Setup,
    *,
    objective: str,
    trials: int,
    seed: int,
    spread: Spread,
    done: Callable[[Row], None] | None = None,
) -> Tuned:
    """Search for better parameters than the shipped ones: tree-structured Parzen estimators.

    Args:
        setup: Trace, device and SGLang's settings.
        objective: One of `OBJECTIVES`; under the condition of `allowed`.
        trials: Runs in all, 2 at least.
        seed: Of the search.
        spread: Where the runs are done.
        done: Told of each run.

    Raises:
        SimulationError: Optuna is not installed, or an argument is outside its range.
    """
    if objective not in OBJECTIVES:
        raise SimulationError(f"objective is {objective!r}; allowed is {', '.join(OBJECTIVES)}")
    if trials < 2:
        raise SimulationError(f"trials is {trials!r}; allowed is 2 or more")
    column, more = OBJECTIVES[objective]
    study, distributions = _study(more, seed)
    rows: list[Row] = []
    shipped: Row = {}
    while len(rows) < trials:
        # The first one alone: all others are judged by it.
        count = min(AT_ONCE, trials - len(rows)) if rows else 1
        asked = [study.ask(distributions) for _ in range(count)]
        settings: list[Setting] = [dict(trial.params) for trial in asked]
        for trial, setting, found in zip(
            asked, settings, spread(row_of, setup, settings), strict=True
        ):
            shipped = shipped or found
            row: Row = {**setting, **found, "allowed": allowed(found, shipped)}
            rows.append(row)
            trial.set_constraint("allowed", 0.0 if row["allowed"] else 1.0)
            study.tell(trial, found[column])
            if done is not None:
                done(row)
    good = [row for row in rows if row["allowed"]]
    best = (max if more else min)(good, key=lambda row: row[column])
    setting = {} if best[column] == rows[0][column] else {name: best[name] for name in SPACE}
    return Tuned(rows[0], best, setting, rows)


def _study(more: bool, seed: int) -> tuple[Any, dict[str, Any]]:
    try:
        import optuna
    except ImportError:
        raise SimulationError(f"Optuna is not installed: {pip_install('optuna')}") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)

    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=EXPLORED)
    study = optuna.create_study(sampler=sampler, direction="maximize" if more else "minimize")
    shipped = dataclasses.asdict(WorkingSetConfig())
    distributions: dict[str, Any] = {}
    for name, (low, high) in SPACE.items():
        kind = optuna.distributions.FloatDistribution
        if isinstance(shipped[name], int):
            kind = optuna.distributions.IntDistribution
        distributions[name] = kind(low, high, log=True)
    study.enqueue_trial({name: shipped[name] for name in SPACE})
    return study, distributions
