"""Tells maintainers what a release of SGLang changes of what this package holds on to.

    make upstream VERSION=0.5.24            # against the release that this package was proved on
    python -m porting.upstream 0.5.23 --base 0.5.22 --brief

Both releases are read as text: nothing of them is installed, imported or run. docs/porting.md says
what to do with the report.
"""

from __future__ import annotations

import argparse
import difflib
import gc
import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from porting.changes import RISKS, Change, Comparison, Finding, compare
from porting.release import Release
from porting.wheels import FetchError, cache_folder, package_of
from tokenflow_sgl.engine.sglang.ledger import ledger
from tokenflow_sgl.engine.sglang.version import proved_sglang

WIDTH = 80
"""Columns of the report; a longer line of source is shown in parts."""
_MEANING = {
    "gone": "It is not there",
    "signature": "It takes something else, or is called in another way",
    "body": "What we hook or override does something else",
    "callers": "Functions that call it changed next to the call",
    "used": "What we call does something else",
    "attribute": "It is assigned something else",
    "moved": "It is made in another module, and still found",
    "far": "Functions that call it changed, but not next to the call",
}


def main(arguments: list[str] | None = None) -> int:
    """Prints the report; returns 0: nothing to look at, 1: something, 2: it could not be made."""
    given = _options().parse_args(arguments)
    try:
        base, new = (
            Release(version, _package(version, given.cache))
            for version in (given.base, given.version)
        )
    except FetchError as error:
        print(f"upstream: {error}", file=sys.stderr)
        return 2
    gc.disable()  # trees are many objects, and none of them goes before the end
    found = compare(base, new, ledger())
    gc.enable()
    if given.json is not None:
        given.json.write_text(json.dumps(as_data(found), indent=0) + "\n", encoding="utf-8")
    for line in report(found, diffs=not given.brief):
        print(line)
    return 1 if found.findings else 0


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="upstream", description=__doc__.partition("\n")[0])
    parser.add_argument("version", help="a release of SGLang, or the folder of its package sglang")
    parser.add_argument(
        "--base", default=proved_sglang()[-1], help="what to compare with; by default %(default)s"
    )
    parser.add_argument("--brief", action="store_true", help="leave the diffs out")
    parser.add_argument("--json", type=Path, help="a file for the report without diffs, as JSON")
    parser.add_argument("--cache", type=Path, default=cache_folder(), help="where wheels are kept")
    return parser


def _package(version: str, cache: Path) -> Path:
    """The folder of package `sglang`, which may be given by its path."""
    if "/" not in version:
        return package_of(version, cache)
    if not Path(version).is_dir():
        raise FetchError(f"{version} is no folder")
    return Path(version)


# ---- the report -------------------------------------------------------------------------


def verdict(found: Comparison) -> str:
    """The first line: how much there is to look at."""
    if not found.findings:
        return f"SGLang {found.new}: none of {found.seams} seams changed since {found.base}"
    far = found.count("far")
    return (
        f"SGLang {found.new}: {len(found.findings) - far} of {found.seams} seams need a look since "
        f"{found.base}, {found.count('gone')} are gone; {far} more only have callers that changed "
        "far from the call"
    )


def report(found: Comparison, *, diffs: bool) -> Iterator[str]:
    """Lines of the report, the most dangerous changes first."""
    yield from textwrap.wrap(verdict(found), WIDTH)
    yield ""
    for risk in RISKS:
        if found.count(risk):
            yield f"{found.count(risk):5} {risk:10} {_MEANING[risk]}"
    for told, targets in (
        (f"new in {found.new}, not in {found.base}", found.arrived),
        ("in neither release", found.absent),
        ("not told by the source alone, in both", found.undecided),
    ):
        if targets:
            yield f"{len(targets):5} {told}:"
            yield from (f"      {each}" for each in targets)
    shown: set[tuple[str, str]] = set()
    for risk in RISKS:
        having = [each for each in found.findings if each.risk == risk]
        if having:
            yield from ("", f"== {risk}: {_MEANING[risk]}", "")
        for each in having:
            yield from _finding(each, found, shown if diffs else None)


def _finding(
    finding: Finding, found: Comparison, shown: set[tuple[str, str]] | None
) -> Iterator[str]:
    """Lines on one seam; shown: diffs that stand above, None: diffs are not wanted."""
    seam = finding.seam
    yield f"{seam.kind} {seam.target}"
    yield from textwrap.wrap(f"why: {seam.why}", WIDTH, initial_indent="  ", subsequent_indent="  ")
    if finding.place and finding.place != seam.target:
        yield f"  where: {finding.place}"
    for change in finding.changes:
        yield f"  {change.risk}: {change.told}{_size(change)}"
        if shown is not None and change.base != change.new:
            text = (change.base, change.new)
            if text in shown:
                yield "    (its diff stands above)"
            else:
                shown.add(text)
                yield from (f"    {line}" for line in _diff(change, found))
    yield ""


def _diff(change: Change, found: Comparison) -> Iterator[str]:
    """The two texts as a unified diff, without comments, docstrings and annotations."""
    before, after = _lines(change.base), _lines(change.new)
    return difflib.unified_diff(before, after, found.base, found.new, lineterm="")


def _lines(text: str) -> list[str]:
    """Lines of a text; of a long one, such as a call with many arguments, its parts."""
    found = []
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()))
        parts = line.split(", ") if len(line) > WIDTH else [line]
        found += [f"{each}," for each in parts[:1] if parts[1:]]
        found += [f"{indent}    {each}," for each in parts[1:-1]]
        found.append(f"{indent}    {parts[-1]}" if parts[1:] else line)
    return found


def _changed_lines(change: Change) -> tuple[int, int]:
    """Lines that were added, and lines that were removed."""
    lines = difflib.unified_diff(change.base.splitlines(), change.new.splitlines(), n=0)
    signs = [line[:1] for line in lines if not line.startswith(("+++", "---"))]
    return signs.count("+"), signs.count("-")


def _size(change: Change) -> str:
    if change.base == change.new:
        return ""
    added, removed = _changed_lines(change)
    return f" (+{added} -{removed})"


def as_data(found: Comparison) -> dict[str, object]:
    """The report without diffs: no source of SGLang is in it."""
    return {
        "base": found.base,
        "new": found.new,
        "seams": found.seams,
        "arrived": [_short(each) for each in found.arrived],
        "absent": len(found.absent),
        "undecided": [_short(each) for each in found.undecided],
        "counts": {risk: found.count(risk) for risk in RISKS},
        "findings": {
            risk: {
                _short(each.seam.target): _summary(each)
                for each in found.findings
                if each.risk == risk
            }
            for risk in RISKS
        },
    }


def _short(target: str) -> str:
    """A target without the package that nearly all are in."""
    return target.removeprefix("sglang.srt.")


def _summary(finding: Finding) -> str | int:
    """The most dangerous changes of a seam in a line; of one with callers only: how many."""
    own = [each for each in finding.changes if each.risk == finding.risk]
    if finding.risk in ("callers", "far"):
        return len(own)
    if finding.risk == "moved":
        return f"to {_short(finding.place)}"
    callers = sum(each.risk in ("callers", "far") for each in finding.changes)
    told = [_size(each).strip() or each.told.replace("sglang.srt.", "") for each in own]
    return "; ".join([*told, f"{callers} callers"] if callers else told)


if __name__ == "__main__":
    sys.exit(main())
