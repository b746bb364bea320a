"""Hooks of ours beside those of other plugins: in place, or refused with both names."""

from __future__ import annotations

import functools
import sys
from collections import defaultdict
from types import ModuleType
from typing import Any

import pytest
from sglang.srt.plugins import hook_registry
from sglang.srt.plugins.hook_registry import HookRegistry, HookSource, HookType

from tokenflow_sgl.engine.sglang import hooking
from tokenflow_sgl.engine.sglang.hooking import check_in_place, hold, put_in_place, standing
from tokenflow_sgl.engine.sglang.seam_check import SeamError

RIVAL = HookSource("rival", "rival-dist")
METHOD, CLASSMETHOD, FUNCTION = (
    "made_up.inner:Thing.say",
    "made_up.inner:Thing.make",
    "made_up.inner:say",
)
WHY = "a test"
TARGETS = (METHOD, CLASSMETHOD, FUNCTION)
WRAPPING = (HookType.BEFORE, HookType.AFTER, HookType.AROUND)


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An engine of two functions and a class, whose hooks say here that they ran."""
    monkeypatch.setattr(HookRegistry, "_hooks", defaultdict(list))
    monkeypatch.setattr(HookRegistry, "_patched", set())
    monkeypatch.setattr(hooking, "_held", [])
    # It looks through all modules for names of what is patched; there are none of these.
    monkeypatch.setattr(hook_registry, "_propagate_patch", lambda *_: 0)
    package, inner = ModuleType("made_up"), ModuleType("made_up.inner")
    exec(  # a module of its own, as SGLang's are
        "def say(word):\n    return word\n"
        "class Thing:\n"
        "    def say(self, word):\n        return word\n"
        "    @classmethod\n    def make(cls, word):\n        return word\n",
        vars(inner),
    )
    package.inner = inner  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "made_up", package)
    monkeypatch.setitem(sys.modules, "made_up.inner", inner)
    return []


def call(target: str) -> Any:
    inner = sys.modules["made_up.inner"]
    if target == FUNCTION:
        return inner.say("word")
    return inner.Thing.make("word") if target == CLASSMETHOD else inner.Thing().say("word")


def hook_of(kind: HookType, name: str, heard: list[str]) -> Any:
    def around(original, *args, **kwargs):
        heard.append(name)
        return original(*args, **kwargs)

    def beside(*_args, **_kwargs) -> None:
        heard.append(name)

    def instead(*args, **_kwargs):
        heard.append(name)
        return args[-1]

    return {HookType.AROUND: around, HookType.REPLACE: instead}.get(kind, beside)


def dotted(target: str) -> str:
    return target.replace(":", ".")


def theirs(target: str, kind: HookType, heard: list[str]) -> None:
    HookRegistry.register(dotted(target), hook_of(kind, "theirs", heard), kind, source=RIVAL)


@pytest.mark.parametrize("ours", [*WRAPPING, HookType.REPLACE])
@pytest.mark.parametrize("kind", WRAPPING)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("order", ["applied before", "declared before", "declared after", "after"])
def test_both_run(heard, target, kind, ours, order) -> None:
    if order in ("applied before", "declared before"):
        theirs(target, kind, heard)
    if order == "applied before":
        HookRegistry.apply_hooks()
    hold(target, hook_of(ours, "ours", heard), ours, WHY)
    if order == "declared after":
        theirs(target, kind, heard)
    put_in_place()
    if order == "after":
        theirs(target, kind, heard)
        HookRegistry.apply_hooks()
    check_in_place()
    assert call(target) == "word"
    # What we replace, their hooks were around: that is refused for their own replacements only.
    inside = ours is HookType.REPLACE and order in (
        "applied before",
        "declared before",
        "declared after",
    )
    assert set(heard) == ({"ours"} if inside else {"ours", "theirs"})


@pytest.mark.parametrize("ours", WRAPPING)
@pytest.mark.parametrize("target", TARGETS)
def test_theirs_instead_of_sglangs_runs_below_ours(heard, target, ours) -> None:
    theirs(target, HookType.REPLACE, heard)
    HookRegistry.apply_hooks()
    hold(target, hook_of(ours, "ours", heard), ours, WHY)
    put_in_place()
    assert call(target) == "word"
    assert set(heard) == {"ours", "theirs"}


@pytest.mark.parametrize("ours", [*WRAPPING, HookType.REPLACE])
@pytest.mark.parametrize("target", TARGETS)
def test_theirs_instead_of_ours_is_refused_with_both_names(heard, target, ours) -> None:
    hold(target, hook_of(ours, "ours", heard), ours, WHY)
    put_in_place()
    theirs(target, HookType.REPLACE, heard)
    HookRegistry.apply_hooks()
    call(target)
    assert heard == ["theirs"]
    with pytest.raises(SeamError, match=f"'tokenflow' needs its hook on {target}.*'rival'"):
        check_in_place()


@pytest.mark.parametrize("order", ["before", "after"])
def test_two_that_replace_the_same_are_refused_with_both_names(heard, order) -> None:
    if order == "before":
        theirs(METHOD, HookType.REPLACE, heard)
    hold(METHOD, hook_of(HookType.REPLACE, "ours", heard), HookType.REPLACE, WHY)
    if order == "after":
        theirs(METHOD, HookType.REPLACE, heard)
    with pytest.raises(SeamError, match=r"'tokenflow'.*replaced by the plugin 'rival', too"):
        put_in_place()


def test_control_under_the_usual_spelling_ours_would_be_skipped(heard) -> None:
    theirs(METHOD, HookType.AROUND, heard)
    HookRegistry.apply_hooks()
    HookRegistry.register(dotted(METHOD), hook_of(HookType.AROUND, "ours", heard), HookType.AROUND)
    HookRegistry.apply_hooks()
    call(METHOD)
    assert heard == ["theirs"]


def test_a_patch_that_goes_around_the_registry_is_named(heard) -> None:
    hold(METHOD, hook_of(HookType.AROUND, "ours", heard), HookType.AROUND, WHY)
    put_in_place()
    thing = sys.modules["made_up.inner"].Thing

    def patched(self, word):
        return word

    thing.say = patched
    with pytest.raises(SeamError, match=r"kept out by .*test_hooking.*patched"):
        check_in_place()


def test_a_decorator_around_ours_is_no_reason_to_refuse(heard) -> None:
    hold(METHOD, hook_of(HookType.AROUND, "ours", heard), HookType.AROUND, WHY)
    put_in_place()
    thing = sys.modules["made_up.inner"].Thing
    inner = thing.say

    @functools.wraps(inner)
    def timed(*args, **kwargs):
        return inner(*args, **kwargs)

    thing.say = timed
    check_in_place()
    call(METHOD)
    assert heard == ["ours"]


def test_a_class_of_theirs_with_a_method_of_its_own_is_refused(heard) -> None:
    hold(METHOD, hook_of(HookType.AROUND, "ours", heard), HookType.AROUND, WHY)
    put_in_place()
    thing = sys.modules["made_up.inner"].Thing
    other = type("Other", (thing,), {"say": lambda self, word: word})
    HookRegistry.register("made_up.inner.Thing", other, HookType.REPLACE, source=RIVAL)
    HookRegistry.apply_hooks()
    with pytest.raises(SeamError, match="kept out by the plugin 'rival'"):
        check_in_place()


def test_a_hook_is_declared_once(heard) -> None:
    hook = hook_of(HookType.AROUND, "ours", heard)
    for _ in range(2):  # two engines in a process
        hold(METHOD, hook, HookType.AROUND, WHY)
        put_in_place()
    call(METHOD)
    assert heard == ["ours"]


def test_a_hook_that_sglang_failed_to_apply_is_refused(heard) -> None:
    hold(METHOD, hook_of(HookType.AROUND, "ours", heard), HookType.AROUND, WHY)
    hold("made_up.inner:Thing.moon", hook_of(HookType.AROUND, "ours", heard), HookType.AROUND, WHY)
    with pytest.raises((SeamError, AttributeError), match="moon"):
        put_in_place()


def stock() -> type:
    """Stands for SGLang's."""

    def say(_self: Any) -> str:
        return "stock"

    space = {"step": say, "rest": say, "__module__": "sglang.srt.managers.scheduler"}
    return type("Scheduler", (), space)


def derived(base: type) -> type:
    """Stands for ours."""
    space: dict[str, Any] = {"__name__": "tokenflow_sgl.engine.made_up"}
    exec("def step(self):\n    return 'ours'\n", space)
    return type("Ours", (base,), {"step": space["step"], "__module__": space["__name__"]})


@pytest.mark.parametrize("kind", [*WRAPPING, HookType.REPLACE])
def test_methods_of_our_scheduler_that_are_replaced_are_refused(heard, kind) -> None:
    inner = sys.modules["made_up.inner"]
    inner.Scheduler = stock()
    for name in ("step", "rest"):  # the other one is SGLang's own, and theirs to replace
        theirs(f"made_up.inner:Scheduler.{name}", kind, heard)
    hold("made_up.inner:Scheduler", derived(inner.Scheduler), HookType.REPLACE, WHY)
    if kind is not HookType.REPLACE:
        put_in_place()
        return
    with pytest.raises(
        SeamError, match=r"Scheduler\.step, which is kept out by the plugin 'rival'"
    ):
        put_in_place()


def test_another_scheduler_in_the_place_is_refused(heard) -> None:
    inner = sys.modules["made_up.inner"]
    inner.Scheduler = stock()
    standing("made_up.inner:Scheduler", "sglang.")
    mine = type("Mine", (inner.Scheduler,), {"__module__": "rival.scheduling"})
    HookRegistry.register("made_up.inner.Scheduler", mine, HookType.REPLACE, source=RIVAL)
    HookRegistry.apply_hooks()
    with pytest.raises(
        SeamError, match=r"replaced by rival.scheduling.Mine \(the plugin 'rival'\)"
    ):
        standing("made_up.inner:Scheduler", "sglang.")
