"""benchmarks/gpu/serve without servers: what is kept and repeated, judged, compared and packed."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import gpu_serve
import pytest


@pytest.fixture
def journal() -> Iterator[ModuleType]:
    with gpu_serve.modules("journal") as (found,):
        yield found


@pytest.fixture
def page() -> Iterator[ModuleType]:
    with gpu_serve.modules("page") as (found,):
        yield found


@pytest.fixture
def packing() -> Iterator[ModuleType]:
    with gpu_serve.modules("packing") as (found,):
        yield found


@pytest.fixture
def same() -> Iterator[ModuleType]:
    with gpu_serve.modules("same_tokens") as (found,):
        yield found


def part(journal: ModuleType, name: str, did: list[str], minutes: float = 1.0, error: Any = None):
    def run(folder: Path) -> dict[str, Any]:
        did.append(name)
        (folder / "raw").write_text(str(len(did)))
        if error is not None:
            raise error
        return {"found": len(did), "unknown": math.nan}

    return journal.Part(name, minutes, run)


def test_a_part_that_is_done_is_not_repeated(journal, tmp_path) -> None:
    did: list[str] = []
    first = journal.Journal(tmp_path).do(part(journal, "same/paused", did))
    again = journal.Journal(tmp_path).do(part(journal, "same/paused", did))
    assert did == ["same/paused"]
    assert again == first
    assert (again.state, again.figures["found"]) == (journal.State.DONE, 1)
    text = (tmp_path / "parts" / "same.paused.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail)["figures"]["unknown"] is None


@pytest.mark.parametrize("broken", ["failed", "wrong"])
def test_what_failed_is_kept_and_repeated(journal, tmp_path, broken) -> None:
    did: list[str] = []
    errors = {"failed": RuntimeError("no GPU"), "wrong": journal.WrongError("odd", {"found": 7})}
    before = journal.Journal(tmp_path).do(part(journal, "link/steps", did, error=errors[broken]))
    assert before.state.value == broken
    assert before.figures == ({"found": 7} if broken == "wrong" else {})
    after = journal.Journal(tmp_path).do(part(journal, "link/steps", did))
    assert after.state is journal.State.DONE
    assert (tmp_path / "link" / "steps" / "raw").read_text() == "2"
    assert (tmp_path / "link" / "steps.before-1" / "raw").read_text() == "1"


def test_a_part_that_does_not_fit_is_left_out_and_others_go_on(journal, tmp_path) -> None:
    did: list[str] = []
    now = SimpleNamespace(seconds=0.0)
    kept = journal.Journal(tmp_path, minutes=9.0, clock=lambda: now.seconds)
    long, short = part(journal, "a/long", did, 8.0), part(journal, "a/short", did, 2.0)
    now.seconds = 120.0
    left = kept.do(long)
    assert left.state is journal.State.LEFT_OUT
    assert left.why == "takes about 8 minutes, 7 are left"
    assert kept.do(short).state is journal.State.DONE
    assert did == ["a/short"]
    assert journal.Journal(tmp_path).do(long).state is journal.State.DONE, "the next call has time"


def test_a_part_that_exits_takes_no_other_with_it(journal, tmp_path) -> None:
    did: list[str] = []
    kept = journal.Journal(tmp_path)
    entry = kept.do(part(journal, "a/exits", did, error=SystemExit(2)))
    assert (entry.state, entry.why) == (journal.State.FAILED, "SystemExit: 2")
    assert "SystemExit" in (tmp_path / "a" / "exits" / "error.txt").read_text()
    assert kept.do(part(journal, "a/next", did)).state is journal.State.DONE


def test_exit_codes_tell_the_truth(journal) -> None:
    def code(*states: str) -> int:
        entries = [journal.Entry("a/b", journal.State[state]) for state in states]
        return journal.exit_code(entries)

    assert code("DONE", "UNFIT") == 0
    assert code("DONE", "WRONG", "LEFT_OUT") == 1
    assert code("FAILED") == 1
    assert code("DONE", "LEFT_OUT") == 3


FELT = {
    "ttft_mean": 1.0,
    "ttft_p99": 3.0,
    "stall_seconds": 0.2,
    "stalled_share": 0.1,
    "effective_tokens_per_s": 900.0,
    "tokens_per_s": 2000.0,
    "tpot_mean": 0.02,
    "tbt_p99": 0.05,
    "e2e_mean": 20.0,
    "served_well": 0.9,
}


def test_a_figure_is_compared_with_what_was_simulated(page) -> None:
    near = page.compared("ttft_mean", {"ttft_mean": 1.05}, {"ttft_mean": 1.0})
    assert near == ("1.00 s", "1.05", "yes")
    far = page.compared("tbt_p99", {"tbt_p99": 0.06}, {"tbt_p99": 0.05})
    assert far == ("50.00 ms", "1.20", "**no**")
    little = page.compared("stall_seconds", {"stall_seconds": 0.4}, {"stall_seconds": 0.1})
    assert little == ("0.10 s", "", ""), "of so little a ratio says nothing"
    unknown = page.compared("ttft_mean", {"ttft_mean": None}, {"ttft_mean": 1.0})
    assert unknown == ("1.00 s", "", "")
    assert page.compared("ttft_mean", {"ttft_mean": 1.0}, {}) == ("", "", "")


def test_the_page_has_what_was_done_and_ratios_over_stock(page, journal) -> None:
    def measured(name: str, factor: float) -> Any:
        felt = {key: factor * value for key, value in FELT.items()}
        figures = {"felt": felt, "shares": {"scheduler_cpu": 0.3}, "contender": name}
        return journal.Entry(f"workload/200000-{name}", journal.State.DONE, figures=figures)

    failed = journal.Entry("kernels/reference", journal.State.FAILED, "two\nlines | a bar", 60.0)
    entries = [measured("tokenflow", 0.5), measured("stock", 1.0), failed]
    steps = {"kernels": "first", "workload": "then"}
    text = page.page({"device": "X"}, entries, steps, {"simulated": lambda found: FELT})
    assert "| kernels/reference | failed | 1.0 | two lines / a bar |" in text
    assert text.index("kernels/reference") < text.index("workload/200000-stock")
    assert "| 200000-stock | first text, mean | 1.00 s | 1.00 s | 1.00 | yes |" in text
    assert "| 200000-tokenflow | first text, mean | 0.50x | 1.00x |" in text
    assert "| 200000-tokenflow | 30% |" in text
    (said,) = page.left(entries)
    assert said == "kernels/reference: failed (two lines / a bar)"


def test_what_is_packed_comes_out_again(packing, tmp_path) -> None:
    folder = tmp_path / "folder"
    (folder / "a" / "__pycache__").mkdir(parents=True)
    (folder / "a" / "__pycache__" / "x.pyc").write_text("bytecode")
    (folder / "a" / "text").write_text("".join(map(str, range(20_000))))
    sizes = (4000, 30, 10**6)
    parts = packing.pack(folder, tmp_path / "out", "site", lambda number: sizes[number])
    assert [each.name for each in parts] == ["site.00", "site.01", "site.02"]
    assert [each.stat().st_size for each in parts[:2]] == [4000, 30]
    packing.unpack(tmp_path / "out", tmp_path / "there", "site")
    whole = (folder / "a" / "text").read_text()
    assert (tmp_path / "there" / "a" / "text").read_text() == whole
    assert not (tmp_path / "there" / "a" / "__pycache__").exists()
    parts[1].unlink()
    with pytest.raises(packing.MissingError, match=r"3 parts are needed; there: site.00, site.02"):
        packing.unpack(tmp_path / "out", tmp_path / "there", "site")
    parts[1].write_text("another archive's")
    with pytest.raises(packing.MissingError, match="not those of one archive"):
        packing.unpack(tmp_path / "out", tmp_path / "there", "site")


def said_by(same: ModuleType, **servers: list[list[int]]) -> Any:
    return {
        name.replace("_", " "): [same.Answer(tokens, 0.1, 1.0) for tokens in answers]
        for name, answers in servers.items()
    }


STOCK = [[*range(10)], [*range(20, 30)]]
OTHER = [[*range(10)], [*range(20, 24), 9, *range(25, 30)]]


def judged(same: ModuleType, case: Any, regrets: dict[str, float], **servers: Any) -> Any:
    """Faults where one token of each server's second answer has so much regret."""
    said = said_by(same, **servers)
    each = {name: [[0.0] * 10, [0.0] * 4 + [regrets.get(name, 0.0)] + [0.0] * 5] for name in said}
    figures = same.judgement(case, said, each) | {"counters": {"preemptions_total": 3}}
    return figures, same.faults(case, figures)


def test_rounding_is_no_fault_and_a_wrong_token_is_one(same) -> None:
    case = same.Case((), ("preemptions_total",), streams=2, tokens=10, control=True)
    servers = {"stock": STOCK, "stock_again": STOCK, "ours": OTHER, "broken": OTHER}
    figures, faults = judged(same, case, {"ours": 0.01, "broken": 1.3}, **servers)
    assert faults == []
    assert figures["same_as_stock"] == {"stock again": 2, "ours": 1, "broken": 1}
    assert figures["first_differences"]["ours"] == [4]
    assert judged(same, case, {"ours": 0.4, "broken": 1.3}, **servers)[1] == [
        "1 tokens of 'ours' are not what stock SGLang would say"
    ]
    # Stock SGLang's own answers say how far rounding goes.
    rough = {"stock": 0.3, "ours": 0.4, "broken": 1.3}
    assert judged(same, case, rough, **servers)[1] == []


def test_what_shows_nothing_is_a_fault(same) -> None:
    case = same.Case((), ("preemptions_total", "restorations_total"), tokens=12, control=True)
    servers = {"stock": STOCK, "stock_again": STOCK, "ours": STOCK, "broken": STOCK}
    _, faults = judged(same, case, {}, **servers)
    assert faults == [
        "8 answers have another length than was asked for",
        "restorations_total is 0: nothing is shown",
        "copies that are broken on purpose went unnoticed: nothing is shown",
    ]


def test_where_two_answers_part(same) -> None:
    assert same.differs_at([1, 2, 3], [1, 2, 3]) is None
    assert same.differs_at([1, 2, 3], [1, 5, 3]) == 1
    assert same.differs_at([1, 2, 3], [1, 2]) == 2


@pytest.mark.long
def test_sglang_takes_the_options_of_all_servers(tmp_path) -> None:
    """Those of a GPU, which the dry run on a CPU leaves out."""
    from sglang.srt.server_args import ServerArgs

    from tokenflow_sgl.engine.flags import add_arguments

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    if "--scheduler" not in parser._option_string_actions:
        add_arguments(parser)
    names = ("machine", "parts", "same_tokens", "attack", "workload")
    with gpu_serve.modules(*names) as (machine, parts, same_tokens, attack, workload):
        gpu = machine.Machine(False, "llama3-8b", tmp_path)
        lines = [
            (*options, *same_tokens.STEADY)
            for _, case in parts.cases(gpu)
            for options in (
                *((*case.both, *case.ours), case.both),
                *((*case.both, *more) for _, more in case.beside),
            )
        ]
        lines += [*attack.ARENAS.values(), attack.STOCK]
        lines += [
            (*workload.options(workload.Workload("h200-b", memory), contender),)
            for memory in (None, 200_000)
            for contender in workload.CONTENDERS
        ]
        common = ("--model-path", "m", *gpu.options())
    for line in lines:
        parser.parse_args([*common, *line])
    assert len(lines) > 15


@pytest.mark.long
def test_a_gpu_is_known_by_its_name() -> None:
    with gpu_serve.modules("run") as (run,):
        assert run.device_of("NVIDIA H200, 580.1, 143771") == "h200"
        assert run.device_of("NVIDIA GeForce RTX 4090, 580.1, 24564") == "rtx4090"
        assert run.device_of("NVIDIA A100-SXM4-80GB, 580.1, 81920") == "a100"
        assert run.device_of("NVIDIA B300 SXM6 AC, 580.1, 1") == "b300"
        assert run.device_of("NVIDIA T4, 580.1, 15360") is None


def test_a_bare_machine_finds_the_plugins(tmp_path) -> None:
    with gpu_serve.modules("bare.prepare", "bare.assemble") as (prepare, assemble):
        for project in (prepare.ROOT, prepare.ROOT / "emulator"):
            prepare.declare(project, tmp_path)
        said = assemble.script(tmp_path / "a home")
    (ours,) = distributions(name="tokenflow-sgl", path=[str(tmp_path)])
    points = {(point.group, point.value) for point in ours.entry_points}
    assert ("sglang.srt.plugins", "tokenflow_sgl.engine.plugin:register") in points
    assert ("console_scripts", "tokenflow_sgl.cli:main") in points
    (emulator,) = distributions(name="tokenflow-sgl-emulator", path=[str(tmp_path)])
    groups = {point.group for point in emulator.entry_points}
    assert groups >= {"sglang.srt.platforms", "sglang.srt.plugins"}
    assert "export SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND=python" in said
    assert f"export TRITON_CACHE_DIR='{tmp_path}/a home/triton'" in said
