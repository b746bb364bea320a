"""What one release of SGLang changes of what we hold on to, compared with another."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from porting.callers import Callers, ChangedCaller
from porting.meaning import text_of
from porting.release import Definition, Release
from porting.signatures import Parameter, differences, fields, parameters, way_of_call
from tokenflow_sgl.engine.sglang.seam import Seam
from tokenflow_sgl.engine.sglang.seam_source import MissingError, UndecidedError

RISKS = ("gone", "signature", "body", "callers", "used", "attribute", "moved", "far")
"""Kinds of changes, the most dangerous first.

gone: it is not there. signature: it takes something else, or is called in another way. body: what
we hook or override does something else. callers: so do functions that call it. used: what we call
does something else. attribute: it is assigned something else. moved: it is made in another module.
far: a function that calls it changed, but not next to the call.
"""


@dataclass(frozen=True)
class Change:
    """One change of one seam.

    Attributes:
        risk: One of RISKS.
        told: What changed, in one line.
        base: The text before, for a diff; empty: none is to be shown.
        new: The text now.
    """

    risk: str
    told: str
    base: str = ""
    new: str = ""


@dataclass(frozen=True)
class Finding:
    """All that changed of one seam.

    Attributes:
        seam: The row of the ledger.
        place: Where it is made, in the new release if it is there.
        changes: The most dangerous first; not empty.
    """

    seam: Seam
    place: str
    changes: tuple[Change, ...]

    @property
    def risk(self) -> str:
        """That of its most dangerous change."""
        return self.changes[0].risk


@dataclass(frozen=True)
class Comparison:
    """Two releases, held against the ledger.

    Attributes:
        base: The version that is known.
        new: The other one.
        seams: How many of the ledger are in the base.
        findings: Seams to look at, the most dangerous first.
        absent: Targets that neither release has.
        arrived: Targets that only the new one has.
        undecided: Targets of which the source does not tell in both.
    """

    base: str
    new: str
    seams: int
    findings: tuple[Finding, ...]
    absent: tuple[str, ...] = ()
    arrived: tuple[str, ...] = ()
    undecided: tuple[str, ...] = ()

    def count(self, risk: str) -> int:
        """Seams whose most dangerous change is this one."""
        return sum(each.risk == risk for each in self.findings)


Found = Definition | str
"""A definition; or "missing" or "undecided"."""


def compare(base: Release, new: Release, seams: Sequence[Seam]) -> Comparison:
    """What the new release changes of these seams."""
    held = [each for each in seams if each.kind in ("hook", "override")]
    callers = Callers(base, new, {_called(each) for each in held})
    found: list[Finding] = []
    absent: list[str] = []
    arrived: list[str] = []
    undecided: list[str] = []
    for seam in seams:
        one, other = _find(base, seam), _find(new, seam)
        if one == "missing" or (one == "undecided" and isinstance(other, Definition)):
            (absent if other == "missing" else arrived).append(seam.target)
        elif one == "undecided" and other == "undecided":
            undecided.append(seam.target)
        else:
            changes = [*_changes(seam, one, other, base, new)]
            if seam in held and other != "missing":
                changes += [_told(each) for each in callers.of(*_called(seam))]
            if changes:
                place = next((e.place for e in (other, one) if isinstance(e, Definition)), "")
                changes.sort(key=lambda each: RISKS.index(each.risk))
                found.append(Finding(seam, place, tuple(changes)))
    found.sort(key=lambda each: (RISKS.index(each.risk), each.seam.kind, each.seam.target))
    known = len(seams) - len(absent) - len(arrived)
    return Comparison(
        base.version,
        new.version,
        known,
        tuple(found),
        tuple(absent),
        tuple(arrived),
        tuple(undecided),
    )


def _find(release: Release, seam: Seam) -> Found:
    try:
        return release.find(seam)
    except MissingError:
        return "missing"
    except UndecidedError:
        return "undecided"


def _called(seam: Seam) -> tuple[str, str | None]:
    """The name by which a seam is called, and its class; None: it is of a module."""
    *owner, name = seam.target.partition(":")[2].split(".")
    if name == "__init__":
        return owner[-1], None
    return name, owner[-1] if owner else None


def _told(caller: ChangedCaller) -> Change:
    """The change that a caller is."""
    how = {"new": "calls it now", "gone": "no longer calls it", "changed": "calls it, and changed"}
    told = f"{caller.place} {how[caller.how]} {'next to the call' if caller.near else 'elsewhere'}"
    if caller.how != "changed":
        told = f"{caller.place} {how[caller.how]}"
    return Change("callers" if caller.near else "far", told, caller.base, caller.new)


def _changes(seam: Seam, one: Found, other: Found, base: Release, new: Release) -> Iterator[Change]:
    """What changed of a seam itself."""
    if isinstance(other, str) or isinstance(one, str):
        if other == "missing":
            yield Change("gone", _where_now(seam, new))
        else:
            yield Change("signature", "the source alone no longer tells of it")
        return
    yield from _taken(seam, one, other, base, new)
    before, after = _text(seam, one, base), _text(seam, other, new)
    if before != after:
        if seam.kind in ("hook", "override"):
            risk, what = "body", "does something else"
        elif isinstance(other.node, ast.ClassDef) or other.function is not None:
            risk, what = "used", "does something else"
        else:
            risk, what = "attribute", "is assigned or computed in another way"
        yield Change(risk, what, before, after)
    if one.place != other.place:
        yield Change("moved", f"from {one.place} to {other.place}")


def _where_now(seam: Seam, new: Release) -> str:
    """Says that something is gone, with places of the same name."""
    *owner, name = seam.target.partition(":")[2].split(".")
    places = new.elsewhere(owner[-1] if owner else name)
    hint = f"; {(owner or [name])[-1]} is in {', '.join(places[:3])}" if places else ""
    return f"is not in {new.version}{hint}"


def _taken(
    seam: Seam, one: Definition, other: Definition, base: Release, new: Release
) -> Iterator[Change]:
    """What changed of what a callable takes."""
    problem = _problem(seam, new)
    if problem is not None and _problem(seam, base) is None:
        yield Change("signature", f"our use of it fails: {problem}")
    if (one.function is None) != (other.function is None) or isinstance(
        one.node, ast.ClassDef
    ) != isinstance(other.node, ast.ClassDef):
        yield Change("signature", "is another kind of thing: a class, a function or an attribute")
        return
    if one.function is not None and other.function is not None:
        taken = [parameters(one.function), parameters(other.function)]
        ways = [way_of_call(one.function), way_of_call(other.function)]
        if ways[0] != ways[1]:
            yield Change("signature", f"was {ways[0]}, is {ways[1]}")
    elif isinstance(one.node, ast.ClassDef) and isinstance(other.node, ast.ClassDef):
        if not (_is_made(seam)):
            return
        taken = [_constructor(seam, one.node, base), _constructor(seam, other.node, new)]
    else:
        return
    placed = {each.name for each in taken[0][: seam.places + 1]}  # the first may be self
    given = {*seam.parameters, *placed} if seam.places else {*seam.parameters}
    for each in differences(*taken):
        # What SGLang may give to a hook or an override is all of it.
        concerned = seam.kind in ("hook", "override") or each.required or each.names & given
        yield Change("signature" if concerned else "used", each.told)


def _problem(seam: Seam, release: Release) -> str | None:
    try:
        return release.source.problem(seam)
    except UndecidedError:
        return None


def _is_made(seam: Seam) -> bool:
    """Whether we make objects of a class, or let SGLang make others in place of it."""
    return bool(seam.parameters or seam.places) or seam.kind == "hook"


def _init(seam: Seam, release: Release) -> Definition | None:
    """The constructor of a class, its own or inherited."""
    found = _find(release, Seam(f"{seam.target}.__init__", "use", seam.why))
    return found if isinstance(found, Definition) and found.function is not None else None


def _constructor(seam: Seam, made: ast.ClassDef, release: Release) -> list[Parameter]:
    """What a class takes: its constructor's parameters, or its fields."""
    init = _init(seam, release)
    return fields(made) if init is None or init.function is None else parameters(init.function)


def _text(seam: Seam, found: Definition, release: Release) -> str:
    """What of a definition is compared: of a class how it is made, as its members have own rows."""
    if not isinstance(found.node, ast.ClassDef):
        return found.text()
    made = found.node
    bases = ", ".join(ast.unparse(each) for each in (*made.bases, *made.keywords))
    lines = [f"@{ast.unparse(each)}" for each in made.decorator_list]
    lines.append(f"class {made.name}({bases}):")
    if _is_made(seam):
        init = _init(seam, release)
        parts = (
            [each for each in made.body if isinstance(each, ast.AnnAssign | ast.Assign)]
            if init is None
            else [init.node]
        )
        for each in parts:
            lines += [f"    {line}" for line in text_of(each).splitlines()]
    return "\n".join(lines)
