"""A release is written down as proved when all of the checks have passed, and not before."""

from __future__ import annotations

import json

import pytest

from porting import prove
from tokenflow_sgl.engine.sglang import version
from tokenflow_sgl.engine.sglang.seam import UNPROVED_VARIABLE


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(prove, "installed_sglang", lambda: "0.5.24+cu130")
    monkeypatch.setattr(prove, "ROOT", tmp_path)
    monkeypatch.setattr(prove, "git", lambda verb, *_: "" if verb == "status" else "c0ffee")
    path = tmp_path / "proved.json"
    path.write_text('{"0.5.9": {}, "0.5.100": {}}')
    return path


def passing(monkeypatch, counts) -> list[str]:
    """The checks that were run; they pass so many tests, or fail where it says None."""
    ran: list[str] = []

    def run(name: str, release: str) -> int | None:
        ran.append(name)
        found: int | None = counts.get(name, 7)
        return found

    monkeypatch.setattr(prove, "run", run)
    return ran


def test_it_is_written_when_all_passed(file, monkeypatch, capsys) -> None:
    ran = passing(monkeypatch, {"identity": 100})
    assert prove.main(["--proved", str(file)]) == 0
    assert ran == list(prove.CHECKS)
    rows = json.loads(file.read_text())
    assert list(rows) == ["0.5.9", "0.5.24", "0.5.100"], "by number"
    assert rows["0.5.24"]["passed"] == {
        "seams": 7,
        "conformance": 7,
        "identity": 100,
        "attacks": 7,
    }
    assert "SGLang 0.5.24+cu130 is proved" in capsys.readouterr().out


def test_nothing_is_written_when_one_failed(file, monkeypatch, capsys) -> None:
    before = file.read_text()
    ran = passing(monkeypatch, {"conformance": None})
    assert prove.main(["--proved", str(file)]) == 1
    assert ran == ["seams", "conformance"], "the others are not worth the time"
    assert file.read_text() == before
    assert "is not proved: conformance failed" in capsys.readouterr().out


def test_it_goes_on_where_it_was_cut_off(file, monkeypatch, capsys) -> None:
    before = file.read_text()
    passing(monkeypatch, {"attacks": 9})
    assert prove.main(["attacks", "--proved", str(file)]) == 0
    assert file.read_text() == before, "the others have not run"
    assert "left, before it is proved: seams, conformance, identity" in capsys.readouterr().out
    ran = passing(monkeypatch, {})
    assert prove.main(["--proved", str(file)]) == 0
    assert ran == ["seams", "conformance", "identity"]
    assert json.loads(file.read_text())["0.5.24"]["passed"]["attacks"] == 9


@pytest.mark.parametrize("said", [{"status": " M file.py"}, {"rev-parse": ""}])
def test_what_passed_on_other_files_counts_for_nothing(file, monkeypatch, said) -> None:
    passing(monkeypatch, {})
    assert prove.main(["attacks", "--proved", str(file)]) == 0
    monkeypatch.setattr(prove, "git", lambda verb, *_: said.get(verb, ""))
    ran = passing(monkeypatch, {})
    assert prove.main(["--proved", str(file)]) == 0
    assert ran == list(prove.CHECKS)


def test_an_unknown_check_is_refused(file) -> None:
    with pytest.raises(SystemExit):
        prove.main(["moods"])


@pytest.mark.parametrize(("body", "passed"), [("pass", 1), ("assert False", None)])
def test_a_check_runs_its_tests(tmp_path, monkeypatch, body, passed) -> None:
    test = tmp_path / "test_it.py"
    test.write_text(
        f"import os\ndef test_it():\n    os.environ[{UNPROVED_VARIABLE!r}]\n    {body}\n"
    )
    monkeypatch.setitem(prove.CHECKS, "it", (str(test),))
    assert prove.run("it", "0.5.24") == passed


def test_what_passed_is_counted(tmp_path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        "<testsuites><testsuite>"
        "<testcase name='a'/><testcase name='b'><system-out>words</system-out></testcase>"
        "<testcase name='c'><skipped/></testcase><testcase name='d'><failure/></testcase>"
        "</testsuite></testsuites>"
    )
    assert prove.passed_in(report) == 2


def test_every_folder_and_file_is_there() -> None:
    for paths in prove.CHECKS.values():
        for path in paths:
            assert (prove.ROOT / path).exists(), path


def test_the_start_reads_what_is_written(file, monkeypatch) -> None:
    monkeypatch.setattr(version, "PROVED", file)
    version.proved_sglang.cache_clear()
    assert version.proved_sglang() == ("0.5.9", "0.5.100")
    version.proved_sglang.cache_clear()
