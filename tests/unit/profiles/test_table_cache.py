"""Step times kept in the user's cache folder: used as they are, and never if anything is wrong."""

from __future__ import annotations

import json
import os

import pytest

from tokenflow_sgl.lab.profiles import table_cache
from tokenflow_sgl.lab.profiles.table_cache import StepTimes, kept


@pytest.fixture
def ask(small, tmp_path, monkeypatch):
    """Asks for step times; returns them and how often they were made so far."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    code = tmp_path / "code"
    code.mkdir()
    (code / "asks.py").write_text("first")
    made = []

    def make() -> StepTimes:
        made.append(1)
        return StepTimes(small.decode, small.prefill, "made by hand")

    def now(system: str = "h200", package: str = "pytest") -> tuple[StepTimes, int]:
        return kept(package, {"system": system}, code, make), len(made)

    now.code = code
    return now


def file_of() -> os.PathLike[str]:
    (path,) = table_cache.folder().glob("*.json")
    return path


def test_what_was_made_is_read_the_next_time(ask, small) -> None:
    first, _ = ask()
    again, made = ask()
    assert made == 1
    assert (again.decode, again.prefill, again.source) == (
        small.decode,
        small.prefill,
        first.source,
    )
    assert [path.suffix for path in table_cache.folder().iterdir()] == [".json"]


def test_another_question_or_another_code_is_made_anew(ask) -> None:
    ask()
    assert ask("h100")[1] == 2
    assert ask()[1] == 2
    (ask.code / "asks.py").write_text("second")
    assert ask()[1] == 3


def test_a_package_without_a_list_of_files_is_asked_each_time(ask) -> None:
    ask(package="no-such-package")
    assert ask(package="no-such-package")[1] == 2


def damaged(value: dict, how: str) -> str:
    text = json.dumps(value)
    if how == "cut":
        return text[: len(text) // 2]
    if how == "changed":
        value["decode"]["seconds"][0][0] *= 2.0
    elif how == "nan":
        value["decode"]["seconds"][0][0] = float("nan")
    elif how == "falling":
        value["decode"]["seconds"][0][0] = 1e9
        value["sha256"] = table_cache._digest(
            {name: value[name] for name in ("source", "decode", "prefill")}
        )
    elif how == "more":
        value["more"] = 1
    elif how == "deep":
        return "[" * 100_000
    elif how == "words":
        return '"words"'
    return json.dumps(value)


@pytest.mark.parametrize("how", ["cut", "changed", "nan", "falling", "more", "deep", "words"])
def test_a_damaged_file_counts_as_none_and_is_written_anew(ask, how) -> None:
    ask()
    path = file_of()
    before = path.read_text()
    path.write_text(damaged(json.loads(before), how))
    assert ask()[1] == 2
    assert path.read_text() == before


def test_a_file_that_others_can_write_or_a_link_is_not_read(ask, tmp_path) -> None:
    ask()
    path = file_of()
    path.chmod(0o666)
    assert ask()[1] == 2
    assert path.stat().st_mode & 0o022 == 0
    elsewhere = tmp_path / "elsewhere.json"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    assert ask()[1] == 3
    assert not path.is_symlink()


def test_one_that_is_too_large_or_no_file_is_not_read(ask, monkeypatch) -> None:
    ask()
    monkeypatch.setattr(table_cache, "LARGEST", 10)
    assert ask()[1] == 2
    path = file_of()
    path.unlink()
    os.mkfifo(path)
    assert ask()[1] == 3


def test_a_folder_that_cannot_be_written_is_no_error(ask, tmp_path) -> None:
    (tmp_path / "caches").write_text("a file")
    ask()
    assert ask()[1] == 2
