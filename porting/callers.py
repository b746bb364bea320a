"""Functions of SGLang that call what we hook or override, and that changed between two releases.

The same method with another caller may be asked at other times, or with other things in its
arguments. Which object a call is made on is not known from the source: a call counts by the
name, and one on `self` only where the class can be the one that we hold on to.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from porting.meaning import Function, text_of
from porting.release import Release, module_of

COMMON = 6
"""Definitions of one name, above which a call elsewhere says little: only those in files that name
the class are told."""


NEAR = 3
"""Lines between a call and a change, up to which the change is told to be next to the call."""


class Caller:
    """A function that calls something.

    Attributes:
        place: As "module:Class.function".
        calls: Names of what it calls.
    """

    def __init__(self, place: str, node: Function, calls: frozenset[str]) -> None:
        self.place, self.calls = place, calls
        self._node = node

    @cached_property
    def text(self) -> str:
        """What is compared."""
        return text_of(self._node)


@dataclass(frozen=True)
class ChangedCaller:
    """A caller that is not what it was.

    Attributes:
        place: As "module:Class.function".
        how: changed, new, or gone: it calls no longer, or is not there.
        near: Whether the call itself is another one, or a line next to it.
        base: Its text before; empty: it did not call, or was not there.
        new: Its text now.
    """

    place: str
    how: str
    near: bool
    base: str
    new: str


class Callers:
    """Changed callers between two releases, of some names.

    Args:
        base: The release that is known.
        new: The other one.
        asked: What may be asked for: names of methods, functions and classes, with their classes.
    """

    def __init__(
        self, base: Release, new: Release, asked: Collection[tuple[str, str | None]]
    ) -> None:
        self._definitions = _definitions(new, {name for name, _ in asked})
        self._owners: dict[str, set[str]] = {name: set() for name, _ in asked}
        for name, owner in asked:
            self._owners[name] |= {owner} if owner is not None else set()
        self._base_files = _changed(base, new)
        self._new_files = _changed(new, base)
        self._base = self._of(self._base_files)
        self._new = self._of(self._new_files)

    def of(self, name: str, owner: str | None) -> list[ChangedCaller]:
        """Changed callers of a name, of a class or, with None, of a module."""
        found = []
        before, after = self._calling(self._base, name), self._calling(self._new, name)
        moved = {_inside(each): each for each in before.values() if each.place not in after}
        arrived = {_inside(each) for each in after.values() if each.place not in before}
        for place in sorted(before.keys() | after.keys()):
            one, other = before.get(place), after.get(place)
            if one is None and other is not None and place not in self._base:
                one = moved.get(_inside(other))
            elif other is None and one is not None and _inside(one) in arrived:
                continue  # told where it is now
            change = _compared(name, place, one, other)
            if change is not None and self._near(name, owner, place):
                found.append(change)
        return found

    def _calling(self, callers: Mapping[str, Caller], name: str) -> dict[str, Caller]:
        return {place: each for place, each in callers.items() if name in each.calls}

    def _near(self, name: str, owner: str | None, place: str) -> bool:
        """Whether a call by this name is likely one of what we hold on to."""
        if owner is None or self._definitions[name] <= COMMON:
            return True
        module = place.partition(":")[0]
        text = self._new_files.get(module) or self._base_files.get(module) or b""
        return re.search(rb"\b%b\b" % owner.encode(), text) is not None

    def _of(self, files: Mapping[str, bytes]) -> dict[str, Caller]:
        """All functions in these modules that call one of the names."""
        any_name = "|".join(sorted(map(re.escape, self._owners))) or "(?!)"
        called = re.compile(rb"\b(%b)\(" % any_name.encode())
        found = {}
        for module, text in files.items():
            names = {each.decode() for each in called.findall(text)}
            names = {each for each in names if self._may_be_ours(each, text)}
            if names:
                for inside, function in _functions(ast.parse(text).body, ""):
                    calls = _calls(function, names)
                    if calls:
                        place = f"{module}:{inside}"
                        found[place] = Caller(place, function, calls)
        return found

    def _may_be_ours(self, name: str, text: bytes) -> bool:
        """Whether calls by this name in a module are worth a look."""
        owners = self._owners[name]
        return self._definitions[name] <= COMMON or any(each.encode() in text for each in owners)


def _calls(function: Function, names: Collection[str]) -> frozenset[str]:
    """Which of these names a function calls."""
    called = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    return frozenset(getattr(each, "attr", getattr(each, "id", "")) for each in called) & {*names}


def _compared(
    name: str, place: str, one: Caller | None, other: Caller | None
) -> ChangedCaller | None:
    """How a caller differs; None: it does not."""
    if one is not None and other is not None:
        if one.text == other.text:
            return None
        near = _next_to(name, one.text, other.text)
        return ChangedCaller(place, "changed", near, one.text, other.text)
    if other is not None:
        return ChangedCaller(place, "new", True, "", other.text)
    assert one is not None  # one of both is there
    return ChangedCaller(place, "gone", True, one.text, "")


def _next_to(name: str, base: str, new: str) -> bool:
    """Whether a call of this name is in a changed line, or next to one."""
    called = re.compile(rf"\b{re.escape(name)}\(")
    lines = base.splitlines(), new.splitlines()
    matcher = difflib.SequenceMatcher(None, *lines, autojunk=False)
    for group in matcher.get_grouped_opcodes(NEAR):
        first, last = group[0], group[-1]
        shown = [*lines[0][first[1] : last[2]], *lines[1][first[3] : last[4]]]
        if any(called.search(line) for line in shown):
            return True
    return False


def _inside(caller: Caller) -> str:
    """Its name in its module."""
    return caller.place.partition(":")[2]


def _changed(release: Release, other: Release) -> dict[str, bytes]:
    """Modules of the runtime whose text is another one in the other release."""
    return {
        module_of(path): text
        for path, text in release.files.items()
        if path.startswith("srt/") and other.files.get(path) != text
    }


def _definitions(release: Release, names: Collection[str]) -> dict[str, int]:
    """How many definitions of each of these names there are."""
    pattern = re.compile(rb"def (\w+)\(")
    found = dict.fromkeys(names, 0)
    for text in release.files.values():
        for name in pattern.findall(text):
            if name.decode() in found:
                found[name.decode()] += 1
    return found


def _functions(body: list[ast.stmt], inside: str) -> Iterator[tuple[str, Function]]:
    """Functions outside of others, by their names with those of their classes."""
    for node in body:
        if isinstance(node, Function):
            yield f"{inside}{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{inside}{node.name}.")
        elif isinstance(node, ast.If | ast.Try | ast.With):
            for part in ("body", "orelse", "finalbody"):
                yield from _functions(getattr(node, part, []), inside)
