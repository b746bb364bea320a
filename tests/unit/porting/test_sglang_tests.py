"""SGLang's own tests are run in three modes, and what fails with ours only is told.

On a made-up folder of tests: pytest runs them, no server is started.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from porting import sglang_tests
from porting.case_outcomes import outcomes
from porting.sglang_launch import (
    COLD,
    HOST,
    LAUNCHER,
    LENGTH,
    MODULE,
    command_of,
    launching,
    ours_where_built,
    read_at_import,
)
from porting.sglang_tests import MODES, FileRun, main

PYTHON = (sys.executable, "-m")
TESTS = {
    "registered/test_flags.py": """
import json, os, unittest

class TestFlags(unittest.TestCase):
    flags = json.loads(os.environ["TOKENFLOW_TESTS_FLAGS"])

    def test_always(self): pass
    def test_never(self): self.fail("a model that speaks is needed")
    def test_stock_only(self): self.assertEqual(self.flags, [])
    def test_no_pauses(self): self.assertNotIn("--tokenflow-policy", self.flags)
    @unittest.skip("no GPU")
    def test_skipped(self): pass
""",
    "registered/test_broken.py": "import none_such",
    "registered/helper.py": "raise AssertionError('it is no test')",
}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A clone's tests; nothing imports SGLang."""
    root = tmp_path / "tests"
    for name, text in TESTS.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    @contextlib.contextmanager
    def no_forks(_folder: Path) -> Iterator[tuple[str, ...]]:
        yield PYTHON

    monkeypatch.setattr(sglang_tests, "warm_forks", no_forks)
    monkeypatch.setattr(sglang_tests, "make_tiny_model", lambda path, *_, **__: path)
    monkeypatch.setattr(sglang_tests, "PLUGINS", ("porting.case_outcomes",))
    return root


def test_what_fails_with_ours_only_is_told(folder, tmp_path, capsys) -> None:
    data = tmp_path / "cases.json"
    assert main([str(folder), "--json", str(data), "--logs", str(tmp_path / "logs")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2 of the 3 cases that pass as stock fail with --scheduler tokenflow"
    assert all(len(line) <= 80 for line in lines)
    rows = [line.split() for line in lines]
    assert ["5", "3", "2", "1", "registered/test_flags.py"] in rows
    assert ["1", "0", "-", "-", "registered/test_broken.py"] in rows
    told = lines[lines.index("Passes as stock, and otherwise:") + 1 :]
    case = "registered/test_flags.py::TestFlags::test_"
    assert told == [
        f"ours, failed: {case}stock_only",
        f"pauses, failed: {case}no_pauses",
        f"pauses, failed: {case}stock_only",
    ]
    found = json.loads(data.read_text())["registered/test_flags.py"]["stock"]
    assert found["test_flags.py::TestFlags::test_skipped"] == "skipped"
    assert found["test_flags.py::TestFlags::test_never"] == "failed"
    log = tmp_path / "logs" / "registered.test_flags.py.pauses.log"
    assert "no_pauses" in log.read_text()


def test_it_ends_well_where_nothing_differs(folder, capsys) -> None:
    (folder / "registered/test_flags.py").write_text("def test_always(): pass")
    assert main([str(folder), "--modes", "ours", "--only", "*/test_flags.py"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "None of the 1 cases that pass as stock fails with --scheduler tokenflow"


def test_cases_are_chosen_as_pytest_chooses_them(folder, tmp_path) -> None:
    data = tmp_path / "cases.json"
    chosen = ("--cases", "always or never", "--json", str(data))
    assert main([str(folder), "--modes", "ours", "--only", "*/test_flags.py", *chosen]) == 0
    found = json.loads(data.read_text())["registered/test_flags.py"]["ours"]
    case = "test_flags.py::TestFlags::test_"
    assert found == {f"{case}always": "passed", f"{case}never": "failed"}


@pytest.mark.parametrize("pattern", ["none_such.py", "*/helper.py", "*/test_broken.py"])
def test_it_does_not_end_well_where_nothing_was_run(folder, pattern) -> None:
    assert main([str(folder), "--only", pattern]) == 2


def test_a_file_that_does_not_end_has_the_outcomes_so_far(folder, tmp_path, monkeypatch) -> None:
    path = folder / "registered/test_flags.py"
    path.write_text("import time\ndef test_one(): pass\ndef test_two(): time.sleep(600)")
    monkeypatch.setattr(sglang_tests, "FILE_CASES", 0.5)
    env = sglang_tests.environment(PYTHON, Path("tiny"), ())
    found = sglang_tests.run_file(PYTHON, path, env, tmp_path / "log", case_seconds=20)
    assert found == {"test_flags.py::test_one": "passed"}


def test_a_case_that_is_gone_differs() -> None:
    run = FileRun("test.py", {"stock": {"case": "passed"}, "ours": {}})
    assert list(run.differing) == [("ours", "case", "not run")]


def test_a_case_whose_end_fails_has_failed(tmp_path) -> None:
    path = tmp_path / "outcomes"
    path.write_text('["a.py::T::b", "passed"]\n["a.py::T::b", "failed"]\n["a.py::T::c", "skipped"]')
    assert outcomes(path) == {"a.py::T::b": "failed", "a.py::T::c": "skipped"}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (
            ["sglang", "serve", "--model-path", "Qwen/Qwen3", "--device", "cuda", "--port", "1"],
            ["--model-path", "tiny", "--port", "1", *LENGTH],
        ),
        (
            ["python3", "-m", MODULE, "--model", "a/b", "--cuda-graph-bs", "1", "2", "--tp", "2"],
            ["--model", "tiny", "--tp", "2", *LENGTH],
        ),
        (
            ["sglang", "serve", "--attention-backend=fa3", "--context-length=-1"],
            ["--context-length", "-1"],
        ),
        (
            ["sglang", "serve", "--enable-hierarchical-cache", "--json", "-1"],
            ["--enable-hierarchical-cache", "--json", "-1", *LENGTH, *HOST],
        ),
    ],
)
def test_a_server_is_launched_on_the_platform_with_the_tiny_model(given, wanted) -> None:
    assert command_of(given, "tiny", ()) == [MODULE, *wanted]


def test_flags_of_the_mode_come_last() -> None:
    given = ["sglang", "serve", "--port", "1", "--hicache-size", "1"]
    flags = MODES["pauses"]
    assert command_of(given, "tiny", flags) == [MODULE, *given[2:], *LENGTH, *flags]
    bare = command_of(given[:4], "tiny", flags)
    assert bare == [MODULE, "--port", "1", *LENGTH, *HOST, *flags]


def test_options_of_every_mode_give_way_to_a_tests_own() -> None:
    given = ["sglang", "serve", "--port", "1"]
    more = ("--allow-auto-truncate", "--context-length", "8192")
    assert command_of(given, "tiny", (), more) == [MODULE, *more, "--port", "1"]
    own = (*given, "--context-length", "512", "--base-gpu-id", "1")
    wanted = [MODULE, *more, "--port", "1", "--context-length", "512"]
    assert command_of(own, "tiny", (), more) == wanted
    env = sglang_tests.environment(PYTHON, Path("tiny"), (), "--allow-auto-truncate")
    assert env["TOKENFLOW_TESTS_OPTIONS"] == "--allow-auto-truncate"


def test_a_server_whose_variables_are_read_at_import_is_no_fork(tmp_path, monkeypatch) -> None:
    (tmp_path / "scheduler.py").write_text(
        'RETRACT: bool = get("SGLANG_RETRACT")\ndef late():\n    return get("SGLANG_LATE")\n'
    )
    at_import = read_at_import(tmp_path)
    assert at_import == {"SGLANG_RETRACT"}
    monkeypatch.setenv(LAUNCHER, '["fork"]')
    launch = launching(lambda *given: given, list, at_import)
    assert launch(["m"], env=None, return_stdout_stderr=()) == (["fork", "m"], None, ())
    late = {"SGLANG_LATE": "1"}
    assert launch(["m"], env=late, return_stdout_stderr=())[0] == ["fork", "m"]
    early = {"SGLANG_RETRACT": "1"}
    assert launch(["m"], env=early, return_stdout_stderr=()) == ([*COLD, "m"], early, ())


def test_a_model_that_is_here_is_served(tmp_path) -> None:
    given = ["sglang", "serve", "--model-path", str(tmp_path)]
    assert command_of(given, "tiny", ()) == [MODULE, *given[2:], *LENGTH]


@pytest.mark.filterwarnings("ignore")  # SGLang's imports warn about third parties
def test_a_scheduler_that_is_built_without_init_is_sglangs_own() -> None:
    from sglang.srt.managers.scheduler import Scheduler

    built = ours_where_built(Scheduler)
    assert type(built.__new__(built)) is Scheduler
    assert type(built.__new__(built, "server_args", port_args="port_args")) is built
