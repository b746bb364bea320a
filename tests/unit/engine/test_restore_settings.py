"""`--tokenflow-restore`: what it takes, with what it is refused, and planners of the user's."""

from __future__ import annotations

import argparse
import logging
from types import SimpleNamespace

import pytest

from tokenflow_sgl.engine.config import restoring_planner
from tokenflow_sgl.engine.flags import add_arguments, attach_restore, planner_from
from tokenflow_sgl.engine.refusal import UnsupportedError
from tokenflow_sgl.engine.restore.leader_figures import LeaderFigures
from tokenflow_sgl.engine.restore.planners import make_planner
from tokenflow_sgl.engine.unsupported import check_prefill
from tokenflow_sgl.policy import ConfigError
from tokenflow_sgl.restoration import head_tokens

STORED = {
    "enable_hierarchical_cache": True,
    "hicache_storage_backend": "file",
    "hicache_write_policy": "write_through",
}
ASKED = {
    "compute": lambda prefix, tokens: tokens * 1e-3,
    "fetch": lambda tokens: tokens * 1e-3,
    "page": 16,
    "lead": 0.0,
    "wait": 0.0,
}


def args(**other: object) -> SimpleNamespace:
    return SimpleNamespace(**{**STORED, **other})


def test_it_is_off_unless_asked_for() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert planner_from(parser.parse_args([])) == "off"
    assert planner_from(parser.parse_args(["--tokenflow-restore", "auto"])) == "auto"
    assert restoring_planner(args()) == "off"


def test_it_rides_on_the_servers_options() -> None:
    server = args()
    attach_restore(server, "auto")
    assert restoring_planner(server) == "auto"


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"hicache_storage_backend": None}, "--hicache-storage-backend"),
        ({"enable_hierarchical_cache": False}, "--enable-hierarchical-cache"),
        ({"hicache_write_policy": "write_through_selective"}, "write_through_selective"),
        ({"pp_size": 2}, "--pp-size 2"),
        ({"speculative_algorithm": "EAGLE"}, "--speculative-algorithm EAGLE"),
    ],
)
def test_what_it_cannot_work_with_is_refused_in_a_sentence(other, named) -> None:
    with pytest.raises(UnsupportedError) as refused:
        attach_restore(args(**other), "auto")
    message = str(refused.value)
    assert message.startswith("--tokenflow-restore")
    assert named in message
    assert message.endswith(".")


@pytest.mark.parametrize("size", [None, -1, 0])
def test_without_chunked_prefill_it_is_refused(size) -> None:
    with pytest.raises(UnsupportedError, match="--chunked-prefill-size"):
        check_prefill(size)
    check_prefill(4096)


@pytest.mark.parametrize("name", ["on", "no_such_module:Class", "collections:OrderedDict"])
def test_a_planner_that_is_none_is_refused(name) -> None:
    with pytest.raises(ConfigError, match="restore"):
        make_planner(name)


class Half:
    def head_tokens(self, prefix: int, gap: int, *, page: int, **known: object) -> int:
        return gap // 2 // page * page


class Wrong:
    def head_tokens(self, prefix: int, gap: int, *, page: int, **known: object) -> int:
        return gap + page


class Failing:
    def head_tokens(self, prefix: int, gap: int, **known: object) -> int:
        raise RuntimeError("no plan")


def test_a_planner_of_ones_own_decides() -> None:
    assert make_planner(f"{__name__}:Half").head_tokens(0, 320, **ASKED) == 160


@pytest.mark.parametrize("name", ["Wrong", "Failing"])
def test_a_planner_that_fails_is_replaced_and_said_once(name, caplog) -> None:
    planner = make_planner(f"{__name__}:{name}")
    with caplog.at_level(logging.ERROR):
        heads = [planner.head_tokens(0, 320, **ASKED) for _ in range(3)]
    assert heads == [head_tokens(0, 320, **ASKED)] * 3
    assert [name in record.getMessage() for record in caplog.records] == [True]


class Stubborn(Half):
    def alone(self, *given: object, **known: object) -> bool:
        raise RuntimeError("no idea")


def test_computing_alone_is_chosen_by_planners_that_can(caplog) -> None:
    slow = {**ASKED, "fetch": lambda tokens: tokens * 1.0}
    slow.pop("wait")
    asked = (0, 320, 320, 20)
    assert make_planner("auto").alone(*asked, **slow)
    assert not make_planner(f"{__name__}:Half").alone(*asked, **slow), "what it plans is done"
    stubborn = make_planner(f"{__name__}:Stubborn")
    assert stubborn.alone(*asked, **slow) == stubborn.alone(*asked, **slow) is True
    assert len(caplog.records) == 1


def test_chunks_of_a_head_cost_what_their_steps_cost() -> None:
    figures = LeaderFigures(prefill=(0.004, 2e-5, 1e-9))
    chunks = [(0, 4096), (4096, 4096), (8192, 1000)]
    of_each = sum(figures.compute(prefix, tokens, 4096) for prefix, tokens in chunks)
    assert figures.compute(0, 9192, 4096) == pytest.approx(of_each)
    assert figures.compute(100, 0, 4096) == 0.0
    assert LeaderFigures().compute(0, 4096, 4096) == 0.0, "not known"


def test_a_short_step_takes_as_long_as_a_decode_step() -> None:
    figures = LeaderFigures(prefill=(0.0, 2e-5, 1e-9), shortest=0.005)
    assert figures.compute(2048, 64, 4096) == 0.005
    whole = figures.compute(0, 4096, 4096)
    assert whole == pytest.approx(2e-5 * 4096 + 1e-9 * 4096**2 / 2)
    assert figures.compute(0, 4096 + 64, 4096) == pytest.approx(whole + 0.005)
