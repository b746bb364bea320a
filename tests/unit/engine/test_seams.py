"""The ledger of what we hold on to, checked against the installed SGLang."""

from __future__ import annotations

import importlib
import inspect
import os
import warnings
from functools import cache

import pytest

from tokenflow_sgl.engine.sglang import release, seam_check, version
from tokenflow_sgl.engine.sglang.ledger import ledger
from tokenflow_sgl.engine.sglang.seam import UNPROVED_VARIABLE, Seam
from tokenflow_sgl.engine.sglang.seam_check import (
    SeamError,
    check_seams,
    problem,
    resolve,
)
from tokenflow_sgl.engine.sglang.version import for_installed, installed_sglang, proved_sglang

SEAMS = ledger()
SCHEDULER = "sglang.srt.managers.scheduler:Scheduler"


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """SGLang's modules, whose imports warn about third parties."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seam in SEAMS:
            problem(seam)


@pytest.mark.skipif(UNPROVED_VARIABLE in os.environ, reason="it is being proved")
def test_a_proved_sglang_is_installed() -> None:
    assert installed_sglang() in proved_sglang()


@pytest.mark.parametrize(
    ("installed", "since", "before"),
    [
        ("0.5.22", False, True),
        ("0.5.23", True, False),
        ("0.5.23.post1", True, False),
        ("0.5.100", True, False),
        ("0.6.0", True, False),
        (None, True, False),
    ],
)
def test_modules_are_for_releases(monkeypatch, installed, since, before) -> None:
    monkeypatch.setattr(version, "installed_sglang", lambda: installed)
    assert for_installed("tokenflow_sgl.engine.sglang.since_0_5_23") is since
    assert for_installed("tokenflow_sgl.engine.sglang.before_0_5_23") is before
    assert for_installed("tokenflow_sgl.engine.sglang.tree")


def test_modules_of_releases_have_the_same_names() -> None:
    """What one of them lacks would be missed on the other release only."""
    since, before = (
        importlib.import_module(f"tokenflow_sgl.engine.sglang.{side}_0_5_23")
        for side in ("since", "before")
    )
    for name in release.__all__:
        ours, theirs = getattr(since, name), getattr(before, name)
        assert type(ours) is type(theirs)
        if callable(ours):
            assert inspect.signature(ours) == inspect.signature(theirs)


@pytest.mark.parametrize("seam", SEAMS, ids=lambda seam: seam.target.rpartition(":")[2])
def test_every_seam_holds(seam) -> None:
    assert problem(seam) is None
    assert seam.kind in ("hook", "override", "use", "import")
    assert seam.why


def test_every_seam_is_listed_once() -> None:
    assert len({seam.target for seam in SEAMS}) == len(SEAMS)


def test_the_start_is_allowed() -> None:
    check_seams()


@pytest.mark.parametrize(
    "target",
    [
        "sglang.no_such_module:Thing",
        f"{SCHEDULER}.no_such_method",
        "sglang.srt.managers.scheduler:NoSuchClass.method",
    ],
)
def test_a_missing_target_is_reported(target) -> None:
    found = problem(Seam(target, "call", "a test"))
    assert found is not None
    assert found.startswith(f"{target} is missing (")


def test_missing_parameters_are_reported_and_present_ones_are_not() -> None:
    target = f"{SCHEDULER}.get_next_batch_to_run"
    seam = Seam(target, "override", "a test", ("running_batch", "moon", "tide"))
    assert problem(seam) == f"{target} no longer takes moon, tide"


def test_resolve_follows_the_path() -> None:
    assert resolve("tokenflow_sgl.engine.sglang.seam:Seam.__init__") is Seam.__init__


@pytest.mark.parametrize("other", ["0.5.24", "0.5.21", "0.5.23.post1", "0.5.23rc1", "0.6.0", None])
def test_every_other_release_is_refused_in_a_sentence(monkeypatch, other) -> None:
    monkeypatch.setattr(version, "installed_sglang", lambda: other)
    monkeypatch.delenv(UNPROVED_VARIABLE, raising=False)
    with pytest.raises(SeamError) as caught:
        check_seams()
    assert str(caught.value) == (
        f"tokenflow cannot start on SGLang {other}, which it was not proved on. It supports "
        f"SGLang {version.proved()}; install that version (pip install "
        f"sglang=={proved_sglang()[-1]}) or start without --scheduler tokenflow"
    )


def test_it_starts_where_it_is_told_to_and_warns_once(monkeypatch, caplog) -> None:
    monkeypatch.setattr(version, "installed_sglang", lambda: "0.5.99")
    monkeypatch.setattr(seam_check, "_warn_of", cache(seam_check._warn_of.__wrapped__))
    monkeypatch.setenv(UNPROVED_VARIABLE, "1")
    check_seams()
    check_seams()
    [said] = caplog.messages
    assert said.startswith("tokenflow was not proved on SGLang 0.5.99: answers may be wrong")
    # Nothing is silently off: what it needs must be there.
    broken = Seam(f"{SCHEDULER}.no_such_method", "override", "a test")
    monkeypatch.setattr(seam_check, "ledger", lambda: (*SEAMS, broken))
    with pytest.raises(SeamError, match=r"cannot start on SGLang 0\.5\.99: .*is missing"):
        check_seams()


@pytest.mark.parametrize("value", ["0", "true", ""])
def test_other_values_let_nothing_start(monkeypatch, value) -> None:
    monkeypatch.setattr(version, "installed_sglang", lambda: "0.5.99")
    monkeypatch.setenv(UNPROVED_VARIABLE, value)
    with pytest.raises(SeamError, match="not proved on"):
        check_seams()


def test_a_build_of_the_release_is_not_another_one(monkeypatch) -> None:
    monkeypatch.setattr(version, "installed_sglang", lambda: f"{proved_sglang()[0]}+cu130")
    check_seams()


def test_a_start_on_another_sglang_is_refused_with_the_seam_and_the_version(monkeypatch) -> None:
    broken = Seam(f"{SCHEDULER}.no_such_method", "override", "a test")
    monkeypatch.setattr(seam_check, "ledger", lambda: (*SEAMS, broken))
    with pytest.raises(SeamError) as caught:
        check_seams()
    message = str(caught.value)
    assert f"cannot start on SGLang {installed_sglang()}: {broken.target} is missing" in message
    assert f"It supports SGLang {version.proved()};" in message
