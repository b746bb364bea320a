"""benchmarks/papers/orbitflow/live_layers.py: what it makes of runs, and the engine's rules."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from tokenflow_sgl.choices import Staging
from tokenflow_sgl.lab.sim.layer_wise import BatchNewcomer
from tokenflow_sgl.placement import Machine, any_number, fits

FOLDER = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def scripts(monkeypatch):
    """The script and its rules; their neighbours have names that others may have, too."""
    monkeypatch.syspath_prepend(str(FOLDER / "papers" / "orbitflow"))
    before = set(sys.modules)
    import engine_rules
    import live_layers

    yield live_layers, engine_rules
    for name in set(sys.modules) - before:
        path = getattr(sys.modules[name], "__file__", None)
        if path is not None and FOLDER in Path(path).parents:
            del sys.modules[name]


def test_figures_against_each_objective(scripts) -> None:
    live_layers, _ = scripts
    # An objective of 29.4 ms, times 1, 1.5 and 2.5.
    answers = [1.0 + np.cumsum([0.0, 0.02, 0.02, 0.04]), 2.0 + np.cumsum([0.0, 0.1])]
    found = live_layers.figures(np.array([0.5, 1.0]), answers)
    assert [found[f"tbt {scale}"] for scale in ("1", "1.5", "2.5")] == [0.5, 0.75, 0.75]
    assert [found[f"tpot {scale}"] for scale in ("1", "1.5", "2.5")] == [0.5, 0.5, 0.5]
    assert found["tbt mean"] == pytest.approx(0.045)
    assert found["ttft mean"] == pytest.approx(0.75)
    assert found["tokens"] == pytest.approx(6 / 1.6)


def test_the_table_says_how_far_each_simulation_is_off(scripts, tmp_path) -> None:
    live_layers, _ = scripts
    names = [*live_layers.simulations()]
    figures = {column.key: 2.0 for column in live_layers.MEANS}
    run = {"live": {key: 1.0 for key in figures}} | {name: figures for name in names}
    path = tmp_path / "layers-1.json"
    path.write_text(json.dumps({"runs": {"request-wise": run}}))
    lines = live_layers.left_out({"1": path}).splitlines()
    assert len(lines) == 2 + len(names)
    assert lines[2].startswith("| 1 | as in reproduce.py | 2000.0 (+100.0%) |")


def machine(memory: float, rate: float = 1e6) -> Machine:
    """Eight layers of one millisecond."""
    return Machine(np.full(8, 1e-3), rate, memory, Staging.stream)


def test_even_offloads_as_few_layers_as_fit(scripts) -> None:
    _, rules = scripts
    layouts, sizes = any_number(8), np.array([10.0, 20.0])
    for memory, number in ((240.0, 0), (239.0, 2), (150.0, 4)):
        choice = rules.Even()(sizes, layouts, machine(memory))
        assert [len(layouts.choices[each]) for each in choice] == [number, number]
        assert fits(sizes, choice, layouts, machine(memory))


def test_a_prompt_waits_that_does_not_pay_until_half_have_ended(scripts) -> None:
    _, rules = scripts

    def asked(*batch: int, held: int = 100) -> BatchNewcomer:
        whole = np.full(len(batch), 100)
        return BatchNewcomer(9, 100, batch, np.full(len(batch), held), whole)

    slow = rules.Pays(lambda rows, tokens: machine(150.0, rate=100.0), 10)
    assert slow.joins(asked(1)), "no prompt waits for a single stream"
    assert slow.joins(asked(1, 2, 3, held=50)), "the link was not measured: nothing lay there yet"
    assert not slow.joins(asked(1, 2, 3))
    assert not slow.joins(asked(1, 2, 4, held=50))
    assert slow.joins(asked(1, 4, 5))
    fast = rules.Pays(lambda rows, tokens: machine(150.0), 10)
    assert fast.joins(asked(1, 2, 3)), "the link hides it"
    whole = rules.Pays(lambda rows, tokens: machine(400.0, rate=100.0), 10)
    assert whole.joins(asked(1, 2, 3)), "all fit"
