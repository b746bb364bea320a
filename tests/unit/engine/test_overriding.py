"""Methods of ours that stand for SGLang's take what SGLang calls them with."""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from typing import Any

import pytest

import tokenflow_sgl.engine
from tokenflow_sgl.engine.sglang.overriding import check_overrides, checked, overrides, undeclared
from tokenflow_sgl.engine.sglang.seam_check import SeamError

PREFIX = "tokenflow_sgl.engine."
NEEDS_A_LAUNCH = f"{PREFIX}worker_app"


def classes() -> list[type]:
    """All of ours that derive from one of SGLang's, but those that a function makes."""
    found: list[type] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module("sglang.srt.managers.scheduler")
        for module in pkgutil.walk_packages(tokenflow_sgl.engine.__path__, PREFIX):
            if module.name != NEEDS_A_LAUNCH:
                for each in vars(importlib.import_module(module.name)).values():
                    if isinstance(each, type) and each.__module__ == module.name:
                        found.append(each)
    return [
        each
        for each in found
        if any(base.__module__.partition(".")[0] == "sglang" for base in each.__mro__)
    ]


def test_all_of_ours_fit_the_installed_sglang() -> None:
    found = classes()
    names = {each.__name__ for each in found}
    assert names >= {"TokenFlowScheduler", "ExtendedScheduler", "LayerwisePool"}
    assert len(found) > 10
    for each in found:
        check_overrides(each)


def test_all_of_ours_are_declared() -> None:
    assert not [name for each in classes() for name in undeclared(each)]


def ours(base: type, source: str) -> type:
    space: dict[str, Any] = {}
    exec(source, space)
    return type("Ours", (base,), {"say": space["say"], "__module__": f"{PREFIX}made_up"})


class Theirs:
    def say(self, word, *, aloud=False):
        return word


@pytest.mark.parametrize(
    "source",
    [
        "def say(self, word, *, aloud=False): ...",
        "def say(self, word, aloud=False, more=None): ...",
        "def say(self, *args, **kwargs): ...",
        "def say(self, sentence, **kwargs): ...",
        "def say(own, word, **kwargs): ...",
    ],
)
def test_what_can_be_called_alike_fits(source) -> None:
    checked(ours(Theirs, source))


@pytest.mark.parametrize(
    ("source", "trouble"),
    [
        ("def say(self, word): ...", "takes no aloud"),
        ("def say(self, *args): ...", "takes no aloud"),
        ("def say(self, *, aloud=False): ...", "takes no word"),
        ("def say(self, word, tone, *, aloud=False): ...", "asks for tone"),
        ("def say(self, word, *, aloud=False, tone): ...", "asks for tone"),
    ],
)
def test_what_lacks_a_parameter_or_wants_one_more_is_refused(source, trouble) -> None:
    with pytest.raises(SeamError, match=rf"Ours\.say {trouble}, which SGLang's own Theirs\.say"):
        checked(ours(Theirs, source))


def test_a_parameter_that_sglang_adds_to_what_our_scheduler_overrides_is_noticed(
    monkeypatch,
) -> None:
    from sglang.srt.managers.scheduler import Scheduler

    from tokenflow_sgl.engine.shell import TokenFlowScheduler

    def newer(self, running_batch, urgency): ...

    monkeypatch.setattr(Scheduler, "get_new_batch_prefill", newer)
    with pytest.raises(SeamError, match="get_new_batch_prefill takes no urgency"):
        check_overrides(TokenFlowScheduler)


def test_an_override_that_is_not_declared_is_noticed() -> None:
    found = ours(Theirs, "def say(self, word, *, aloud=False): ...")
    assert undeclared(found) == ["Ours.say"]
    vars(found)["say"].__dict__.update(vars(overrides("a reason")(lambda: None)))
    assert undeclared(found) == []


def test_one_that_stands_for_nothing_any_more_is_refused_by_name(monkeypatch) -> None:
    monkeypatch.setattr(Theirs, "__module__", "sglang.made_up")
    made = type(
        "Ours",
        (Theirs,),
        {"shout": overrides("a reason")(lambda self: None), "__module__": f"{PREFIX}made_up"},
    )
    with pytest.raises(SeamError, match=r"Ours\.shout stands for Theirs\.shout, which is missing"):
        checked(made)


def test_what_stands_for_a_method_that_takes_anything_may_ask_for_more() -> None:
    class Anything:
        def say(self, *args, **kwargs): ...

    checked(ours(Anything, "def say(self, word, *args, aloud, **kwargs): ..."))
