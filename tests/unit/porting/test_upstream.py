"""The report: its verdict, its diffs and its exit codes."""

from __future__ import annotations

import json
import zipfile

import pytest

from porting import upstream, wheels
from porting.wheels import FetchError, package_of
from tokenflow_sgl.engine.sglang.seam import Seam

BASE = "class Thing:\n    def run(self):\n        return 1\n"
HELD = (Seam("sglang.srt.one:Thing.run", "hook", "why we hold it"),)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Wheels of three releases, the second of which says the same in other words."""
    monkeypatch.setattr(upstream, "ledger", lambda: HELD)
    texts = {"1.0": BASE, "1.1": f"# newer\n{BASE}", "2.0": BASE.replace("1", "2")}
    for version, text in texts.items():
        with zipfile.ZipFile(tmp_path / f"sglang-{version}-py3-none-any.whl", "w") as wheel:
            wheel.writestr("sglang/srt/one.py", text)
            wheel.writestr("sglang/kernel.so", "not Python")
    return tmp_path


def run(cache, *arguments: str) -> int:
    return upstream.main([*arguments, "--base", "1.0", "--cache", str(cache)])


def test_nothing_to_look_at_ends_with_0(cache, capsys) -> None:
    assert run(cache, "1.1") == 0
    assert capsys.readouterr().out == "SGLang 1.1: none of 1 seams changed since 1.0\n\n"


def test_a_change_ends_with_1_and_has_verdict_reason_and_diff(cache, capsys) -> None:
    assert run(cache, "2.0") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("SGLang 2.0: 1 of 1 seams need a look since 1.0, 0 are gone")
    assert "  why: why we hold it" in lines
    assert "    -    return 1" in lines
    assert "    +    return 2" in lines


def test_a_long_call_is_shown_by_its_arguments(cache, capsys, tmp_path) -> None:
    call = ", ".join(f"argument_{number}={number}" for number in range(9))
    for name, given in (("a", call), ("b", call.replace("=4", "=5"))):
        module = tmp_path / name / "srt" / "one.py"
        module.parent.mkdir(parents=True)
        module.write_text(f"class Thing:\n    def run(self):\n        go({given})\n")
    assert upstream.main([str(tmp_path / "b"), "--base", str(tmp_path / "a")]) == 1
    changed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("    -")]
    assert changed[1:] == ["    -        argument_4=4,"]


def test_a_brief_report_has_no_source(cache, capsys) -> None:
    data = cache / "report.json"
    assert run(cache, "2.0", "--brief", "--json", str(data)) == 1
    out = capsys.readouterr().out
    assert "body: does something else (+1 -1)" in out
    assert "return" not in out + data.read_text()
    assert json.loads(data.read_text())["counts"]["body"] == 1


def test_only_python_is_unpacked_and_only_once(cache) -> None:
    package = package_of("1.0", cache)
    assert [path.name for path in package.rglob("*") if path.is_file()] == ["one.py"]
    (package / "mark").touch()
    assert (package_of("1.0", cache) / "mark").exists()


def test_what_cannot_be_fetched_ends_with_2(cache, capsys, monkeypatch) -> None:
    def absent(version, cache):
        raise FetchError(f"SGLang {version} could not be fetched: no wheel")

    package_of("1.0", cache)
    monkeypatch.setattr(wheels, "_wheel", absent)
    assert run(cache, "9.9") == 2
    assert "SGLang 9.9 could not be fetched" in capsys.readouterr().err
    assert run(cache, "no/such/folder") == 2
    with pytest.raises(SystemExit) as caught:
        upstream.main([])
    assert caught.value.code == 2


def test_a_broken_wheel_leaves_nothing(cache, capsys) -> None:
    (cache / "sglang-3.0-py3-none-any.whl").write_text("half a file")
    assert run(cache, "3.0") == 2
    assert not [path for path in cache.iterdir() if path.is_dir() and "3.0" in path.name]
