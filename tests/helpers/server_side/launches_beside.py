"""Launches beside another plugin, up to where the scheduler would be built: a JSON line for each.

Each is a fork of this process. Arguments: the mode, by name, and the moments and kinds to try.
A line has the target, the moment, the kind, whether SGLang skipped the other plugin's hook, the
sentence of a refusal or null, and whether calling the target reaches our hook.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import json
import os
import pkgutil
import sys
import tempfile
from typing import Any

import rival_plugin
from sglang.srt.managers import data_parallel_controller  # noqa: F401  as in the real process
from sglang.srt.plugins import load_plugins
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.runtime_context import publish
from sglang.srt.server_args import prepare_server_args

BASE = ("--model-path", "dummy", "--scheduler", "tokenflow")
PARSING = "sglang.srt.server_args.ServerArgs."
MODES = {
    "plain": BASE,
    "stripped": (*BASE, "--strip-thinking-cache", "--reasoning-parser", "qwen3"),
    "groups": (*BASE, "--tokenflow-tuning", "{tuning}"),
    "decode": (*BASE, "--disaggregation-mode", "decode"),
    "restore": (
        *("--model-path", "dummy", "--tokenflow-restore", "auto", "--enable-hierarchical-cache"),
        *("--hicache-storage-backend", "file", "--chunked-prefill-size", "64"),
    ),
    "layers": ("--model-path", "dummy", "--tokenflow-layerwise", "auto", "--disable-radix-cache"),
}


def main() -> None:
    """Print what becomes of each launch."""
    mode, moments, kinds = sys.argv[1], sys.argv[2].split(","), sys.argv[3].split(",")
    os.environ["SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY"] = "1"  # its hooks, too
    for name in ("shell", "extended", "body.decode", "body.placed", "restore.restore_extension"):
        importlib.import_module(f"tokenflow_sgl.engine.{name}")
    targets = json.loads(in_fork(lambda: list_targets(mode)))
    for target in targets:
        for moment in moments:
            for kind in kinds:
                print(in_fork(lambda t=target, m=moment, k=kind: launch(mode, t, m, k)), flush=True)


def in_fork(action: Any) -> str:
    """What `action` says in a fork of this process."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(reader)
        said = json.dumps("it ended without a word")
        try:
            said = json.dumps(action())
        except BaseException as error:
            said = json.dumps({"error": f"{type(error).__name__}: {error}"})
        finally:
            os.write(writer, said.encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        said = answer.read()
    os.wait()
    return said


def list_targets(mode: str) -> list[str]:
    """All that is held in a launch alone."""
    load_plugins()
    start(mode)
    from tokenflow_sgl.engine.sglang import hooking

    return sorted({held.target for held in hooking._held})


def start(mode: str) -> None:
    """As a launch does, in both processes: this one stands for the scheduler's, too."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as tuning:
        tuning.write("[engine]\nblock_groups = true\n")
        tuning.flush()
        options = [each.replace("{tuning}", tuning.name) for each in MODES[mode]]
        server_args = prepare_server_args(options)
    publish(server_args, role="scheduler")
    from tokenflow_sgl.engine import plugin

    plugin._before_configure_scheduler(server_args)


def launch(mode: str, target: str, moment: str, kind: str) -> dict[str, Any]:
    """One launch, with the rival's hook on one target."""
    dotted = target.replace(":", ".")
    refusal, skipped = None, False
    from tokenflow_sgl.engine.sglang import hooking

    if not dotted.startswith(PARSING) and inspect.isroutine(pkgutil.resolve_name(dotted)):
        # SGLang's own would fail with what `reached` calls it with, before a hook behind it runs.
        owner, _, name = dotted.rpartition(".")
        holder = pkgutil.resolve_name(owner)
        there = inspect.getattr_static(holder, name)
        quiet = stub(getattr(there, "__func__", there))
        setattr(holder, name, classmethod(quiet) if isinstance(there, classmethod) else quiet)
    try:
        if moment == "before":
            rival(dotted, kind)
        load_plugins()
        if moment == "after":
            skipped = rival(dotted, kind)
        start(mode)
        if moment == "late":
            skipped = rival(dotted, kind)
        hooking.check_in_place()  # as when the schedulers are ready
    except (SystemExit, hooking.SeamError) as error:
        refusal = str(error)
    return {
        "target": target,
        "moment": moment,
        "kind": kind,
        "skipped": skipped,
        "refusal": refusal,
        "reached": reached(target) if refusal is None else None,
    }


def rival(target: str, kind: str) -> bool:
    """Apply the rival's hook; whether SGLang skips it, since a third plugin has one there."""
    skipped = target in HookRegistry._patched
    rival_plugin.hook(target, HookType[kind])
    HookRegistry.apply_hooks()
    return skipped


def stub(original: Any) -> Any:
    """Stands for a function of SGLang's, takes anything and does nothing."""

    def nothing(*_args: Any, **_kwargs: Any) -> None: ...

    nothing.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    return nothing


def reached(target: str) -> bool:
    """Whether a call of what is at the target runs a hook of ours."""
    from tokenflow_sgl.engine.sglang import hooking

    if target.replace(":", ".").startswith(PARSING):
        return True  # the options would not have been known, or nothing would be held for them
    hooks = [held.hook for held in hooking._held if held.target == target]
    module, _, path = target.partition(":")
    found: Any = pkgutil.resolve_name(f"{module}:{path}")
    if inspect.isclass(found):
        return found in hooks
    wanted = {hook.__code__ for hook in hooks}
    ran = set()

    def look(frame: Any, event: str, _argument: Any) -> None:
        if event == "call":
            ran.add(frame.f_code)

    asked = inspect.signature(found).parameters.values()
    places = [each for each in asked if each.kind is each.POSITIONAL_OR_KEYWORD]
    named = [each.name for each in asked if each.kind is each.KEYWORD_ONLY]
    # Hooks name what they need: what SGLang gives by its place one takes so, another by its name.
    first, rest = places[:1], [each.name for each in places[1:]]
    for by_place, by_name in ((places, named), (first, [*rest, *named])):
        sys.setprofile(look)
        try:
            with contextlib.suppress(BaseException):
                made = found(*(object() for _ in by_place), **{each: object() for each in by_name})
                if inspect.isasyncgen(made):
                    asyncio.run(anext(made))
                elif inspect.isawaitable(made):
                    asyncio.run(made)
        finally:
            sys.setprofile(None)
    return bool(wanted & ran)


if __name__ == "__main__":
    main()
