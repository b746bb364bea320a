"""One release of SGLang as source text: where a seam is defined there, and what of it is told."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from porting.meaning import Function, text_of
from tokenflow_sgl.engine.sglang.seam import Seam
from tokenflow_sgl.engine.sglang.seam_source import MissingError, SglangSource, UndecidedError

_SPREAD = {"sglang.srt.server_args:ServerArgs": "srt/arg_groups"}
"""Classes that SGLang makes of fields of other classes when it is imported, and where these lie."""
_PROPERTIES = ("property", ".setter")
"""How decorators end that make a function one that is read or written as an attribute."""


@dataclass(frozen=True)
class Definition:
    """What a seam stands for in one release.

    Attributes:
        module: The module where it is made, by its whole name.
        node: The statement; of an attribute that methods assign, the first of them.
        owner: The class that it is part of; None: of a module.
        name: Its name there.
        assigned: Statements in the methods of its class that assign attributes, by their names.
    """

    module: str
    node: ast.stmt
    owner: ast.ClassDef | None
    name: str
    assigned: Mapping[str, list[ast.stmt]] = field(default_factory=dict, repr=False)

    @property
    def place(self) -> str:
        """Where it is made, without the file's line: "module:Class.name"."""
        inside = f"{self.owner.name}." if self.owner is not None else ""
        return f"{self.module}:{inside}{self.name}"

    @property
    def function(self) -> Function | None:
        """The function; None: it is none, or one that is read as an attribute."""
        node = self.node
        if not isinstance(node, Function):
            return None
        if node.name != self.name or any(
            ast.unparse(each).endswith(_PROPERTIES) for each in node.decorator_list
        ):
            return None
        return node

    def text(self) -> str:
        """What is compared: a body, or all statements of a class that assign an attribute."""
        node = self.node
        if self.owner is None or not isinstance(node, Function):
            return text_of(node)
        if node.name != self.name:
            found = [text_of(each) for each in self.assigned[self.name]]
        else:  # a property has several
            same = [each for each in self.owner.body if isinstance(each, Function)]
            found = [text_of(each) for each in same if each.name == self.name] or [text_of(node)]
        return "\n".join(dict.fromkeys(found))


class Release:
    """The source of one release.

    Attributes:
        version: What it is called.
        root: The folder of its package `sglang`.
        source: Resolves names.
    """

    def __init__(self, version: str, root: Path) -> None:
        self.version, self.root = version, root
        self.source = SglangSource(root)
        self._trees: dict[str, list[ast.stmt]] = {}
        self._assigned: dict[int, dict[str, list[ast.stmt]]] = {}
        self._at: dict[str, dict[tuple[int, str], tuple[ast.stmt, ast.ClassDef | None]]] = {}

    @cached_property
    def files(self) -> dict[str, bytes]:
        """The text of all modules of the runtime, by their paths below the package."""
        return {
            path.relative_to(self.root).as_posix(): path.read_bytes()
            for path in sorted(Path(self.root, "srt").rglob("*.py"))
        }

    def tree(self, module: str) -> list[ast.stmt]:
        """The statements of a module; empty: there is no such module."""
        if module not in self._trees:
            path = self.source.source_of(module)
            self._trees[module] = [] if path is None else ast.parse(path.read_bytes()).body
        return self._trees[module]

    def find(self, seam: Seam) -> Definition:
        """Where a seam is defined.

        Raises:
            MissingError: There is no such module or name.
            UndecidedError: The source alone does not tell.
        """
        name = seam.target.rpartition(":")[2].rpartition(".")[2]
        try:
            where, node = self.source.find(seam)
        except UndecidedError:
            return self._made_at_import(seam, name)
        statement, owner = self._whole(where, node)
        if owner is None and isinstance(statement, ast.ClassDef | Function):
            name = statement.name  # an import may have renamed it
        return Definition(where, statement, owner, name, self._assignments(owner))

    def _assignments(self, owner: ast.ClassDef | None) -> dict[str, list[ast.stmt]]:
        """What methods of a class assign, to their object or another, by name."""
        if owner is None:
            return {}
        if id(owner) not in self._assigned:
            self._assigned[id(owner)] = _assignments(owner)
        return self._assigned[id(owner)]

    def _whole(self, module: str, node: ast.stmt) -> tuple[ast.stmt, ast.ClassDef | None]:
        """A statement with its body, and the class that it is in."""
        if module not in self._at:
            self._at[module] = {
                (each.lineno, type(each).__name__): (each, owner)
                for each, owner in _statements(self.tree(module), None)
            }
        return self._at[module][node.lineno, type(node).__name__]

    def _made_at_import(self, seam: Seam, name: str) -> Definition:
        """What an import makes of a variable with a known class, or of a class of many fields."""
        module, _, path = seam.target.partition(":")
        first, _, rest = path.partition(".")
        for made in _variable_classes(self.tree(module), first):
            inner = f".{rest}" if rest else ""
            target = f"{module}:{made}{inner}"
            if target == seam.target:
                found = self._in_class(module, made, rest)
                if found is not None:
                    return found
                continue
            try:
                return self.find(Seam(target, "use", seam.why))
            except (MissingError, UndecidedError):
                continue
        found = self._spread(f"{module}:{first}", name)
        if found is None:
            raise UndecidedError
        return found

    def _in_class(self, module: str, made: str, name: str) -> Definition | None:
        """A member of a class whose name another statement binds once more."""
        for node in self.tree(module):
            if isinstance(node, ast.ClassDef) and node.name == made:
                if not name:
                    return Definition(module, node, None, made)
                for each, owner in _statements(node.body, node):
                    if owner is node and name in _names(each):
                        return Definition(module, each, node, name)
        return None

    def _spread(self, target: str, name: str) -> Definition | None:
        """A field of a class that is made of others' fields."""
        folder = _SPREAD.get(target)
        for path, text in self.files.items():
            if folder is None or not path.startswith(folder) or name.encode() not in text:
                continue
            for node, owner in _statements(self.tree(module_of(path)), None):
                if owner is not None and isinstance(node, ast.AnnAssign) and name in _names(node):
                    return Definition(module_of(path), node, owner, name)
        return None

    def elsewhere(self, name: str) -> list[str]:
        """Files that define a class, a function or a field by this name; for a hint only."""
        pattern = re.compile(rb"(?:class|def) %b\b" % name.encode())
        return [path for path, text in self.files.items() if pattern.search(text)]


def module_of(path: str) -> str:
    """The name of the module in a file, which is given by its path below the package."""
    parts = Path("sglang", path).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _statements(
    body: list[ast.stmt], owner: ast.ClassDef | None
) -> Iterator[tuple[ast.stmt, ast.ClassDef | None]]:
    """All statements outside of functions, with the class that they are in."""
    for node in body:
        yield node, owner
        if isinstance(node, ast.ClassDef):
            yield from _statements(node.body, node)
        elif isinstance(node, ast.If | ast.Try | ast.With):
            for part in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(node, part, []), owner)
            for handler in getattr(node, "handlers", []):
                yield from _statements(handler.body, owner)


def _names(node: ast.stmt) -> set[str]:
    """Names that a statement binds."""
    if isinstance(node, ast.ClassDef | Function):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {each.id for each in targets if isinstance(each, ast.Name)}


def _variable_classes(body: list[ast.stmt], name: str) -> Iterator[str]:
    """Names of classes that a module's variable may be an object of, or be itself."""
    for node, owner in _statements(body, None):
        if owner is not None or name not in _names(node):
            continue
        if isinstance(node, ast.ClassDef):
            yield name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.annotation, ast.Name):
            yield node.annotation.id
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            made = node.value.func
            if isinstance(made, ast.Name) and made.id != name:
                yield made.id


def _assignments(owner: ast.ClassDef) -> dict[str, list[ast.stmt]]:
    """Statements in the methods of a class that assign attributes, by their names."""
    found: dict[str, list[ast.stmt]] = {}
    for node in ast.walk(owner):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for each in ast.walk(target):
                    if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store):
                        found.setdefault(each.attr, []).append(node)
    return found
