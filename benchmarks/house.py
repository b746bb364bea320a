"""How the house is built: figures of its structure, of this checkout and of another one.

    python benchmarks/house.py
    python benchmarks/house.py --against /path/to/other/checkout
    python benchmarks/house.py --list

Read from the sources, but for what a plain server (`--scheduler tokenflow` alone) imports and what
that takes: for that a process imports what SGLang's scheduler process imports, and then ours.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SCHEDULER = "Scheduler"
EXTENSIONS = ("restore", "layerwise", "decode_server")
EXTENSION_FILES = ("group_", "host_room", "memory_ledger", "ledger_seams", "stream_pages")
LONG, MANY = 70, 6
"""Lines and parameters of a function that is to be looked at."""

PLAIN = """
import json, os, resource, sys, time, warnings
warnings.simplefilter("ignore")
import sglang.srt.managers.scheduler
import psutil
me, others = psutil.Process(), set(sys.modules)  # the emulated platform has imported profiles
memory, began = me.memory_info().rss, time.process_time()
import tokenflow_sgl.engine.plugin
try:
    import tokenflow_sgl.engine.shell
except ImportError:
    import tokenflow_sgl.engine.scheduler
    import tokenflow_sgl.engine.kv.state_slots
else:
    import tokenflow_sgl.engine.kv.state_slots
seconds, more = time.process_time() - began, me.memory_info().rss - memory
files = {
    name: module.__file__ for name, module in sys.modules.items()
    if name.partition(".")[0] == "tokenflow_sgl" and getattr(module, "__file__", None)
    and not (name in others and (".lab" in name or "profiles" in name))
}
lines = sum(len(open(file).read().splitlines()) for file in files.values())
print(json.dumps({"files": len(files), "lines": lines, "seconds": seconds, "bytes": more,
    "names": sorted(files)}))
"""
FLAGS = """
import argparse, json
from tokenflow_sgl.engine.flags import add_arguments
parser = argparse.ArgumentParser()
add_arguments(parser)
names = [a.option_strings[0] for a in parser._actions if a.help != argparse.SUPPRESS]
print(json.dumps([name for name in names if name not in ("-h", "--help")]))
"""


def trees(folder: Path) -> dict[Path, ast.Module]:
    """The sources below a folder."""
    return {path: ast.parse(path.read_text()) for path in sorted(folder.rglob("*.py"))}


def schedulers(engine: dict[Path, ast.Module]) -> dict[str, int]:
    """Classes of ours over SGLang's scheduler, and how many of ours each is above it."""
    bases = {
        node.name: [base.id for base in node.bases if isinstance(base, ast.Name)]
        for tree in engine.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }

    def depth(name: str) -> int:
        if name == SCHEDULER:
            return 0
        below = [depth(base) for base in bases.get(name, ())]
        return 1 + max(each for each in below if each >= 0) if any(d >= 0 for d in below) else -1

    return {name: depth(name) for name in bases if depth(name) > 0}


def attributes(engine: dict[Path, ast.Module], classes: dict[str, int]) -> set[str]:
    """Names of ours that are set on SGLang's scheduler."""
    found = set()
    for tree in engine.values():
        for node in ast.walk(tree):
            if not isinstance(node, ast.ClassDef) or node.name not in classes:
                continue
            for each in ast.walk(node):
                name = ""
                if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name):
                    name = each.attr if each.value.id == "self" else ""
                elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                    name = each.target.id
                if name.startswith(("tf_", "tokenflow")):
                    found.add(name)
    return found


def circles(checkout: Path) -> tuple[int, int]:
    """Rooms of engine/ that are in a circle of imports, and all of them."""
    import grimp

    sys.path.insert(0, str(checkout))
    graph = grimp.build_graph("tokenflow_sgl", cache_dir=None)
    sys.path.remove(str(checkout))
    prefix = "tokenflow_sgl.engine."
    arrows: dict[str, set[str]] = {}
    for module in graph.modules:
        if module.startswith(prefix):
            room = module.removeprefix(prefix).partition(".")[0]
            others = graph.find_modules_directly_imported_by(module)
            named = {
                each.removeprefix(prefix).partition(".")[0]
                for each in others
                if each.startswith(prefix)
            }
            arrows.setdefault(room, set()).update(named - {room})

    def reach(room: str) -> set[str]:
        seen: set[str] = set()
        left = [room]
        while left:
            for other in arrows.get(left.pop(), ()):
                if other not in seen:
                    seen.add(other)
                    left.append(other)
        return seen

    return sum(room in reach(room) for room in arrows), len(arrows)


class Function(NamedTuple):
    """A function: `folder/file.py:name`, its lines, and its parameters without `self` and `cls`."""

    name: str
    lines: int
    parameters: int

    @property
    def large(self) -> bool:
        """Whether it is to be looked at."""
        return self.lines > LONG or self.parameters > MANY


def functions(package: dict[Path, ast.Module], root: Path) -> Iterator[Function]:
    """Each function, with the class that it is in; paths are relative to `root`."""

    def within(node: ast.AST, name: str) -> Iterator[Function]:
        for each in ast.iter_child_nodes(node):
            inner = name
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = f"{name}{'' if name.endswith(':') else '.'}{each.name}"
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                given = [*each.args.posonlyargs, *each.args.args, *each.args.kwonlyargs]
                own = [one for one in given if one.arg not in ("self", "cls")]
                yield Function(inner, (each.end_lineno or 0) - each.lineno + 1, len(own))
            yield from within(each, inner)

    for path, tree in package.items():
        yield from within(tree, f"{path.relative_to(root).as_posix()}:")


def twice(package: dict[Path, ast.Module]) -> list[str]:
    """Class names that stand more than once."""
    names = Counter(
        node.name
        for tree in package.values()
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    )
    return sorted(name for name, count in names.items() if count > 1)


def untyped(engine: dict[Path, ast.Module]) -> tuple[int, int]:
    """Parameters that are `Any`, and all."""
    found = [
        each.annotation is not None and ast.unparse(each.annotation) == "Any"
        for tree in engine.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for each in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        if each.arg not in ("self", "cls")
    ]
    return sum(found), len(found)


def asked(code: str, checkout: Path) -> object:
    """What a process says that has this version."""
    paths = os.pathsep.join([str(checkout), str(checkout / "emulator" / "src")])
    env = {**os.environ, "PYTHONPATH": paths, "SGLANG_PLATFORM": "tokenflow_emu"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, cwd=checkout
    )
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def figures(checkout: Path) -> dict[str, str]:
    """Of one version, by what they are of."""
    package = trees(checkout / "tokenflow_sgl")
    engine = trees(checkout / "tokenflow_sgl" / "engine")
    own = {
        path: tree
        for path, tree in engine.items()
        if not set(EXTENSIONS) & set(path.parts) and not path.name.startswith(EXTENSION_FILES)
    }
    classes = schedulers(engine)
    plain = asked(PLAIN, checkout)
    assert isinstance(plain, dict)
    flags = asked(FLAGS, checkout)
    assert isinstance(flags, list)
    around, rooms = circles(checkout)
    found = list(functions(package, checkout))
    loose, parameters = untyped(engine)

    def lines(paths: dict[Path, ast.Module]) -> int:
        return sum(len(path.read_text().splitlines()) for path in paths)

    return {
        "scheduler classes over SGLang's": str(len(classes)),
        "deepest chain of them": str(max(classes.values())),
        "attributes of ours on SGLang's scheduler": str(len(attributes(engine, classes))),
        "engine/ without extensions": f"{len(own)} files, {lines(own):,} lines",
        "engine/ in all": f"{len(engine)} files, {lines(engine):,} lines",
        "what a plain server imports": f"{plain['files']} files, {plain['lines']:,} lines",
        "of these of lab/ or an extension": str(sum(is_beside(each) for each in plain["names"])),
        "CPU time of that import": f"{plain['seconds']:.2f} s",
        "memory of that import": f"{plain['bytes'] / 2**20:.1f} MiB",
        "rooms of engine/ in circles": f"{around} of {rooms}",
        "flags of the server": str(len(flags)),
        f"functions of more than {LONG} lines": str(sum(each.lines > LONG for each in found)),
        f"functions of more than {MANY} parameters": str(
            sum(each.parameters > MANY for each in found)
        ),
        "most parameters of a function": str(max(each.parameters for each in found)),
        "class names that stand twice": str(len(twice(package))),
        "parameters in engine/ that are `Any`": f"{loose} of {parameters}",
    }


def is_beside(module: str) -> bool:
    """Whether a plain server has no use for it."""
    lab = ["sim", "traces", "profiles", "replay", "runs", "report", "observe", "demo", "lab"]
    parts = module.split(".")
    if parts[1:2] and parts[1] in lab:
        return True
    return parts[1:2] == ["engine"] and (
        (len(parts) > 3 and parts[2] in EXTENSIONS and parts[3] != "layerwise_settings")
        or parts[-1].startswith(EXTENSION_FILES)
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", type=Path, help="checkout of another version")
    parser.add_argument(
        "--list", action="store_true", help="print the functions and class names to be looked at"
    )
    given = parser.parse_args()
    if given.list:
        package = trees(ROOT / "tokenflow_sgl")
        for each in functions(package, ROOT):
            if each.large:
                print(f"{each.name}: {each.lines} lines, {each.parameters} parameters")
        print("class names that stand twice:", ", ".join(twice(package)) or "none")
        return
    now = figures(ROOT)
    if given.against is None:
        print("| | now |\n| --- | --- |")
        for what, figure in now.items():
            print(f"| {what} | {figure} |")
        return
    before = figures(given.against.resolve())
    print("| | before | now |\n| --- | --- | --- |")
    for what, figure in now.items():
        print(f"| {what} | {before[what]} | {figure} |")


if __name__ == "__main__":
    main()
