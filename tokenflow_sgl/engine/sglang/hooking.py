"""Hooks on SGLang that are in place, or the start is refused.

SGLang's registry skips a target that it has patched before, and only logs what fails. So a plugin
that was there first would switch ours off without a word. Two things keep that from happening:

- ours are registered under a spelling of their own, `module:Class.method`, which SGLang resolves
  as it does dots. It remembers what it has patched by the spelling, so ours come on top of theirs;
- each is looked for where it should be, from the outermost wrapper in.

What cannot be seen is a function of another plugin around ours that never calls it.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sglang.srt.plugins import hook_registry
from sglang.srt.plugins.hook_registry import HookRegistry, HookSource, HookType

from tokenflow_sgl.engine.sglang.seam_check import SeamError

OURS = HookSource("tokenflow", "tokenflow-sgl")
"""How SGLang's registry names us."""
_PACKAGE = __name__.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Held:
    """One hook of ours in this process.

    Attributes:
        target: What of SGLang it is on, as `module:attribute.path`.
        hook: The function, or the class that stands in its place.
        kind: When it runs.
        methods: Of a class: those of ours that stand for SGLang's.
    """

    target: str
    hook: Callable[..., Any]
    kind: HookType
    methods: tuple[str, ...] = ()


_held: list[Held] = []


def hold(
    target: str,
    hook: Callable[..., Any],
    kind: HookType,
    why: str,
    takes: tuple[str, ...] = (),
) -> None:
    """Declare a hook; `put_in_place` applies it, and refuses to go on if it is not there.

    A row of the ledger, which is read from the source: target, why and takes are constants.

    Args:
        target: As `module:attribute.path`.
        hook: As SGLang's registry takes it.
        kind: BEFORE, AFTER, AROUND or REPLACE.
        why: What breaks without it.
        takes: Names of parameters that the target must take.
    """
    if (held := Held(target, hook, kind, _own_methods(hook))) in _held:
        return  # an earlier engine of this process
    importlib.import_module(target.partition(":")[0])
    HookRegistry.register(spelled(target), hook, kind, source=OURS)
    _held.append(held)


def spelled(target: str) -> str:
    """The target for SGLang's registry, in a spelling that no other plugin uses.

    It is cut at the last dot, and what is before it resolved: the colon must stand there.
    """
    module, _, path = target.partition(":")
    if "." in path:
        return target
    package, _, name = module.rpartition(".")
    return f"{package}:{name}.{path}"


def put_in_place() -> None:
    """Apply the hooks that were declared, and check that each is in place.

    Raises:
        SeamError: A hook is not there; the message names it, and the plugin that keeps it out.
    """
    check_rivals(held.target for held in _held if held.kind is HookType.REPLACE)
    HookRegistry.apply_hooks()
    check_in_place()


def check_rivals(targets: Iterable[str]) -> None:
    """Make sure that no other plugin has declared to replace what we replace.

    Raises:
        SeamError: One has; the message names both.
    """
    for target in targets:
        if rivals := _replacing(target):
            raise SeamError(_both(target, f"replaced by {' and '.join(rivals)}, too"))


def standing(target: str, home: str) -> None:
    """Make sure that nothing was put in a target's place yet, by whichever means.

    Args:
        target: A class, as `module:Class`.
        home: How the name of its module begins.

    Raises:
        SeamError: Another class stands there; the message names it, and its plugin.
    """
    found = _at(target)
    if not found.__module__.startswith(home):
        who = _who(target, found)
        there = f"{found.__module__}.{found.__qualname__}"
        raise SeamError(
            _both(target, f"replaced by {there}" + (f" ({who})" if who != there else ""))
        )


def check_in_place() -> None:
    """Look for every hook of this process where it should be.

    Where it is a class of ours, also for the methods by which it differs from SGLang's: hooks that
    other plugins have declared for methods of SGLang's class are put on ours.

    Raises:
        SeamError: One is not there; the message names it, and the plugin that keeps it out.
    """
    for held in _held:
        found = _at(held.target)
        if not any(each is held.hook for each in called(found)):
            raise SeamError(_both(held.target, f"kept out by {_who(held.target, found)}"))
        for name in held.methods:
            method = inspect.getattr_static(held.hook, name)
            if not any(_is_ours(_home(each)) for each in called(method)):
                target = f"{held.target}.{name}"
                raise SeamError(_both(target, f"kept out by {_who(target, method)}"))


def _own_methods(hook: Any) -> tuple[str, ...]:
    """Methods of a class of ours that stand for those of a class that it derives from."""
    if not isinstance(hook, type):
        return ()
    ours = [each for each in hook.__mro__ if _is_ours(each.__module__)]
    theirs = [each for each in hook.__mro__ if each not in ours and each is not object]
    return tuple(
        sorted(
            {
                name
                for each in ours
                for name, value in vars(each).items()
                if callable(value) and any(name in vars(base) for base in theirs)
            }
        )
    )


def called(found: Any) -> Iterator[Any]:
    """What runs when `found` is called, from the outermost function in, as far as can be told.

    A function that was put in the place of another one is the last.
    """
    while found is not None:
        if isinstance(found, (classmethod, staticmethod)):
            found = found.__func__
        inside = _wrapped_by_sglang(found)
        if inside is None:
            yield found
            found = getattr(found, "__wrapped__", None)
        else:
            yield inside["hook"]
            found = inside.get("original_fn")


def _wrapped_by_sglang(found: Any) -> dict[str, Any] | None:
    """What a wrapper that SGLang's registry has made closes over: hook, and what it goes around."""
    if not inspect.isfunction(found) or found.__globals__ is not vars(hook_registry):
        return None
    inside = dict(inspect.getclosurevars(found).nonlocals)
    return inside if "hook" in inside else None


def _at(target: str) -> Any:
    """What is at a target now, without binding it."""
    module, _, path = target.partition(":")
    owner, _, name = path.rpartition(".")
    holder = pkgutil.resolve_name(f"{module}:{owner}" if owner else module)
    return inspect.getattr_static(holder, name)


def _replacing(target: str) -> list[str]:
    """Other plugins that put something in the target's place; what they do not say is not known."""
    return [
        _named(source)
        for spelling, kind, source in _registered()
        if kind is HookType.REPLACE and source != OURS and _same(spelling, target)
    ]


def _who(target: str, found: Any) -> str:
    """Who keeps our hook out: plugins by name, or else the function that is there."""
    names = [
        _named(source)
        for spelling, _, source in _registered()
        if source not in (OURS, None)
        # or the class that has the method
        and (_same(spelling, target) or target.replace(":", ".").startswith(f"{spelling}."))
    ]
    if names:
        return " and ".join(dict.fromkeys(names))
    there = next(iter(called(found)))
    return f"{_home(there)}.{getattr(there, '__qualname__', type(there).__qualname__)}"


def _registered() -> Iterator[tuple[str, HookType, HookSource | None]]:
    for spelling, hooks in HookRegistry._hooks.items():
        for kind, _, source in hooks:
            yield spelling, kind, source


def _same(spelling: str, target: str) -> bool:
    return spelling.replace(":", ".") == target.replace(":", ".")


def _named(source: HookSource | None) -> str:
    return f"the plugin {source.plugin_name!r}" if source is not None else "another plugin"


def _home(function: Any) -> str:
    """The module that a function was written in, whatever its wrapper says of it."""
    names = getattr(function, "__globals__", None)
    return str(names["__name__"] if names else getattr(function, "__module__", "?"))


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == _PACKAGE


def _both(target: str, why: str) -> str:
    """The sentence that refuses a start beside another plugin."""
    return (
        f"the plugin {OURS.plugin_name!r} needs its hook on {target}, which is {why}. They do not "
        "work together: name the plugins to load in SGLANG_PLUGINS, without one of the two, or "
        f"start without options of {OURS.plugin_name}."
    )
