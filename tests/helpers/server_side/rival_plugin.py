"""Another plugin of SGLang, with hooks on what the tests name; see `rivals.py`.

RIVAL_HOOKS: JSON list of [target, kind]. RIVAL_HEARD: a file that gets a line for each target that
was called, once for each process. RIVAL_KEEPS: names of the plugins that child processes load.
It applies its hooks itself as soon as it is loaded, as some plugins do.
"""

from __future__ import annotations

import inspect
import json
import os
import pkgutil
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookSource, HookType

NAME = "rival"


def register() -> None:
    """SGLang's entry point."""
    for target, kind in json.loads(os.environ.get("RIVAL_HOOKS", "[]")):
        hook(target, HookType[kind])
    HookRegistry.apply_hooks()
    if kept := os.environ.get("RIVAL_KEEPS"):
        os.environ["SGLANG_PLUGINS"] = kept  # child processes load these only


def hook(target: str, kind: HookType) -> None:
    """A harmless hook; one that replaces does what SGLang's own function did."""
    heard: set[str] = set()

    def hear() -> None:
        path = os.environ.get("RIVAL_HEARD")
        if path and target not in heard:
            heard.add(target)
            with open(path, "a") as file:
                file.write(f"{target}\n")

    def around(original: Any, *args: Any, **kwargs: Any) -> Any:
        hear()
        return original(*args, **kwargs)

    def beside(*_args: Any, **_kwargs: Any) -> None:
        hear()

    if kind is HookType.REPLACE:
        owner, _, name = target.rpartition(".")
        there = inspect.getattr_static(pkgutil.resolve_name(owner), name)
        if isinstance(there, (classmethod, staticmethod)):
            there = there.__func__
        if inspect.isclass(there):
            instead: Any = type(f"Rival{name}", (there,), {"__module__": __name__})
        else:

            def instead(*args: Any, **kwargs: Any) -> Any:
                hear()
                return there(*args, **kwargs)

        HookRegistry.register(target, instead, kind, source=HookSource(NAME, NAME))
        return
    function = around if kind is HookType.AROUND else beside
    HookRegistry.register(target, function, kind, source=HookSource(NAME, NAME))
