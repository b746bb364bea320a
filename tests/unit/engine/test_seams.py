"""The ledger of what we hold on to, checked against the installed SGLang."""

from __future__ import annotations

import warnings
from functools import cache

import pytest

from tokenflow_sgl.engine.sglang import seam_check
from tokenflow_sgl.engine.sglang.ledger import ledger
from tokenflow_sgl.engine.sglang.seam import SUPPORTED_SGLANG, UNPROVED_VARIABLE, Seam
from tokenflow_sgl.engine.sglang.seam_check import (
    SeamError,
    check_seams,
    installed_sglang,
    problem,
    resolve,
)

SEAMS = ledger()
SCHEDULER = "sglang.srt.managers.scheduler:Scheduler"


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """SGLang's modules, whose imports warn about third parties."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seam in SEAMS:
            problem(seam)


def test_the_supported_sglang_is_installed() -> None:
    assert installed_sglang() == SUPPORTED_SGLANG


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


@pytest.mark.parametrize(
    "version", ["0.5.24", "0.5.22", "0.5.23.post1", "0.5.23rc1", "0.6.0", None]
)
def test_every_other_release_is_refused_in_a_sentence(monkeypatch, version) -> None:
    monkeypatch.setattr(seam_check, "installed_sglang", lambda: version)
    with pytest.raises(SeamError) as caught:
        check_seams()
    assert str(caught.value) == (
        f"tokenflow cannot start on SGLang {version}, which it was not proved on. It supports "
        f"SGLang {SUPPORTED_SGLANG}; install that version (pip install "
        f"sglang=={SUPPORTED_SGLANG}) or start without --scheduler tokenflow"
    )


def test_it_starts_where_it_is_told_to_and_warns_once(monkeypatch, caplog) -> None:
    monkeypatch.setattr(seam_check, "installed_sglang", lambda: "0.5.99")
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
    monkeypatch.setattr(seam_check, "installed_sglang", lambda: "0.5.99")
    monkeypatch.setenv(UNPROVED_VARIABLE, value)
    with pytest.raises(SeamError, match="not proved on"):
        check_seams()


def test_a_build_of_the_release_is_not_another_one(monkeypatch) -> None:
    monkeypatch.setattr(seam_check, "installed_sglang", lambda: f"{SUPPORTED_SGLANG}+cu130")
    check_seams()


def test_a_start_on_another_sglang_is_refused_with_the_seam_and_the_version(monkeypatch) -> None:
    broken = Seam(f"{SCHEDULER}.no_such_method", "override", "a test")
    monkeypatch.setattr(seam_check, "ledger", lambda: (*SEAMS, broken))
    with pytest.raises(SeamError) as caught:
        check_seams()
    message = str(caught.value)
    assert f"cannot start on SGLang {SUPPORTED_SGLANG}: {broken.target} is missing" in message
    assert f"It supports SGLang {SUPPORTED_SGLANG};" in message
