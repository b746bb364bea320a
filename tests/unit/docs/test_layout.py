"""docs/architecture.md on names and sizes: what is searched for stands once, and is not large."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "tokenflow_sgl"
MODULES = [
    path
    for folder in (PACKAGE, ROOT / "emulator/src/tokenflow_sgl_emulator")
    for path in folder.rglob("*.py")
    if path.name != "__init__.py"
]

PUBLIC = "a public call, whose keywords have defaults and read as options"
FORMULA = "the terms of a formula"
INNER = "an inner loop that numba compiles, which takes arrays and numbers only"
PLANNER = "the interface of planners, which users' classes have"
SGLANGS = "the signature of SGLang's method that it stands for"
BASE = "makes a class whose base is known when it is called"
SEARCH = "hands one search's inputs on as they are"
OPTIONS = "the options of a command, which typer reads from its parameters"
LARGE = {
    "cli/demo.py:demo": OPTIONS,
    "cli/serve_emulated.py:serve_emulated": OPTIONS,
    "engine/kv/group_allocators.py:GroupPagedAllocator.alloc_extend": SGLANGS,
    "engine/prefill_adder.py:adder_class": BASE,
    "engine/prefill_adder.py:adder_class.NeedBasedAdder.__init__": SGLANGS,
    "engine/restore/restorations.py:Restorations.__init__": "parts that one place and tests give",
    "engine/restore/restore_adder.py:restoring_adder": BASE,
    "lab/demo/server.py:SglangServer.__init__": PUBLIC,
    "lab/replay/replayer.py:replay": PUBLIC,
    "lab/sim/run.py:simulate": PUBLIC,
    "offload/write_through.py:plan_writes": FORMULA,
    "placement/branch_and_bound.py:branch": INNER,
    "placement/chosen_pauses.py:Pauses.__init__": SEARCH,
    "placement/controller.py:next_plan": SEARCH,
    "placement/local_search.py:two_exchanged": INNER,
    "placement/lp_bound.py:add_plane": INNER,
    "placement/lp_bound.py:bound": INNER,
    "placement/planner.py:plan": PUBLIC,
    "placement/solver.py:_searched": SEARCH,
    "policy/admission.py:_passes": FORMULA,
    "policy/selection.py:utilities": FORMULA,
    "qos/stream_qos.py:evaluate_stream": PUBLIC,
    "restoration/layer_wise.py:best_layers": FORMULA,
    "restoration/layer_wise.py:layers_are_sooner": PLANNER,
    "restoration/layer_wise.py:more_layers": PLANNER,
    "restoration/next_head.py:HeadPlanner.alone": PLANNER,
    "restoration/next_head.py:HeadPlanner.by_layers": PLANNER,
    "restoration/next_head.py:HeadPlanner.head_tokens": PLANNER,
    "restoration/next_head.py:HeadPlanner.more_layers": PLANNER,
    "restoration/next_head.py:next_head": FORMULA,
    "restoration/pipeline_schedule.py:play_stages": FORMULA,
    "restoration/token_wise.py:alone_is_sooner": PLANNER,
    "restoration/token_wise.py:head_tokens": PLANNER,
}
"""Functions above the limits, and why each is so. To grow this list is to have a reason."""


@pytest.fixture(scope="module")
def house() -> ModuleType:
    """`benchmarks/house.py`, which measures."""
    found = importlib.util.spec_from_file_location("house", ROOT / "benchmarks/house.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules["house"] = module
    found.loader.exec_module(module)
    return module


def room(path: Path) -> Path:
    """The package that a module's import path names; `engine/sglang` is one: SGLang's own words."""
    parts = path.relative_to(ROOT).parts[:-1]
    inner = ("lab",), ("engine", "sglang")
    deep = parts[1:2] in inner or parts[1:3] in inner
    return Path(*parts[: 3 if deep else 2])


def test_a_module_has_a_name_of_its_own_in_its_package() -> None:
    names = Counter((room(path), path.name) for path in MODULES)
    assert [name for name, count in names.items() if count > 1] == []


def test_a_class_has_a_name_of_its_own(house: ModuleType) -> None:
    assert house.twice(house.trees(PACKAGE)) == []


def test_only_functions_with_a_reason_are_large(house: ModuleType) -> None:
    found = house.functions(house.trees(PACKAGE), PACKAGE)
    assert {each.name for each in found if each.large} == set(LARGE)


def test_what_is_too_large_is_noticed(house: ModuleType, tmp_path: Path) -> None:
    """The control: a long function, one with many parameters, and a class twice."""
    body = "    pass\n" * house.LONG
    given = ", ".join(f"p{number}" for number in range(house.MANY + 1))
    (tmp_path / "one.py").write_text(f"class A:\n    def f(self, {given}):\n        pass\n")
    (tmp_path / "two.py").write_text(f"class A: pass\ndef g():\n{body}def h():\n    pass\n")
    made = house.trees(tmp_path)
    large = [each.name for each in house.functions(made, tmp_path) if each.large]
    assert large == ["one.py:A.f", "two.py:g"]
    assert house.twice(made) == ["A"]
