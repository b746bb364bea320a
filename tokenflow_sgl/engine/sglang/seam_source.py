"""Holds the ledger of seams against SGLang's source, without importing it.

Importing what the seams lie in takes ten times as long as parsing it. What the text alone does not
decide (a base class of another package, a name that a call makes) is left to `seam_check`, which
imports; every start is checked that way, too. `porting/` reads other releases than the installed
one in the same way.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenflow_sgl.engine.sglang.seam import Seam

Node = ast.stmt
"""A statement that binds a name: a definition, an assignment or an import."""


_FROM_PYTHON = {"NamedTuple": ("_replace",), "Enum": ("name",), "IntEnum": ("name",)}
"""What classes of Python's own library give those that derive from them, by their names."""


class UndecidedError(Exception):
    """The source alone does not tell."""


class MissingError(Exception):
    """There is no such module or name."""


class SglangSource:
    """The source of one SGLang, each module parsed once.

    Attributes:
        root: The folder of its package `sglang`; None: of the installed one.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = root
        self._bindings: dict[str, dict[str, Node]] = {}
        self._assigned: dict[str, dict[str, dict[str, Node]]] = {}

    def problem(self, seam: Seam) -> str | None:
        """What is wrong with a seam in this source; None if it holds.

        Raises:
            UndecidedError: It has to be imported.
        """
        try:
            found = self.find(seam)
        except MissingError as error:
            return f"{seam.target} is missing ({error})"
        if seam.parameters or seam.places:
            taken, placed = self._parameters(found)
            absent = [name for name in seam.parameters if name not in taken]
            if absent and isinstance(found[1], ast.ClassDef):
                raise UndecidedError  # a decorator or a base class may take them
            if absent:
                return f"{seam.target} no longer takes {', '.join(absent)}"
            if placed < seam.places:
                return f"{seam.target} takes {placed} arguments by place, not {seam.places}"
        return None

    def find(self, seam: Seam) -> tuple[str, Node]:
        """Where a seam is bound, and by what: (module, statement).

        The statement of a function has no body: the cache does not keep it.

        Raises:
            MissingError: There is no such module or name.
            UndecidedError: It has to be imported.
        """
        module, _, path = seam.target.partition(":")
        return self._resolve(module, path.split("."), seam.kind)

    def _resolve(self, module: str, path: Sequence[str], kind: str) -> tuple[str, Node]:
        """Where a name is bound, and by what: (module, statement).

        What an object is asked for may be a field without a value, or assigned in a method.
        """
        name, *rest = path
        where, node = self._global(module, name)
        for part in rest:
            if not isinstance(node, ast.ClassDef):
                raise UndecidedError
            where, node = self._member(where, node, part, assigned=kind == "use")
        if isinstance(node, ast.AnnAssign) and node.value is None and kind != "use":
            raise UndecidedError  # a field without a value is an attribute of some classes
        return where, node

    def _global(self, module: str, name: str) -> tuple[str, Node]:
        """A name of a module, followed through imports to where it is made."""
        names = self._names(module)
        node = names.get(name)
        if node is None:
            if self.source_of(f"{module}.{name}") is not None:
                raise UndecidedError  # a module in a package
            if "*" in names or "__getattr__" in names:
                raise UndecidedError
            raise MissingError(f"{module} has no {name}")
        if isinstance(node, ast.ImportFrom):
            original = next(each.name for each in node.names if (each.asname or each.name) == name)
            return self._global(self._imported(module, node), original)
        if isinstance(node, ast.Import):
            raise UndecidedError
        return module, node

    def _member(
        self, module: str, owner: ast.ClassDef, name: str, *, assigned: bool = False
    ) -> tuple[str, Node]:
        """An attribute of a class, its own or inherited; assigned: or of its objects."""
        own = _bound(owner.body)
        if name in own:
            return module, own[name]
        if assigned and name in (stored := self._stored(module).get(owner.name, {})):
            return module, stored[name]
        undecided = "__getattr__" in own or bool(owner.keywords)  # a metaclass may make it
        for base in owner.bases:
            inner = base.value if isinstance(base, ast.Subscript) else base
            if not isinstance(inner, ast.Name):
                undecided = True
                continue
            if name in _FROM_PYTHON.get(inner.id, ()):
                return module, owner
            if inner.id in ("object", "Generic", "Protocol", "ABC"):
                continue
            try:
                where, node = self._global(module, inner.id)
                if not isinstance(node, ast.ClassDef):
                    raise UndecidedError
                return self._member(where, node, name, assigned=assigned)
            except UndecidedError:
                undecided = True
            except MissingError:
                continue
        if undecided:
            raise UndecidedError
        raise MissingError(f"{owner.name} has no {name}")

    def _stored(self, module: str) -> dict[str, dict[str, Node]]:
        """What methods assign, to their object or another, by class and name, with the method."""
        if module in self._assigned:
            return self._assigned[module]
        path = self.source_of(module)
        assert path is not None  # a class was found there
        found = self._assigned.setdefault(module, {})
        for made in ast.parse(path.read_bytes()).body:
            if isinstance(made, ast.ClassDef):
                methods = [each for each in made.body if isinstance(each, ast.FunctionDef)]
                found[made.name] = {
                    node.attr: method
                    for method in methods
                    for node in ast.walk(method)
                    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
                }
        return found

    def _parameters(self, found: tuple[str, Node]) -> tuple[set[str], int]:
        """Names of what a callable takes, and how many arguments by their places."""
        where, node = found
        bound = 0
        if isinstance(node, ast.ClassDef):
            if "__init__" not in (own := _bound(node.body)):
                return self._fields(
                    where, node
                ), sys.maxsize  # how many, a decorator or a base class says
            node, bound = own["__init__"], 1
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            raise UndecidedError
        if any(isinstance(e, ast.Name) and e.id == "classmethod" for e in node.decorator_list):
            bound = 1
        taken = node.args
        placed = [*taken.posonlyargs, *taken.args]
        every = [*placed, *taken.kwonlyargs, taken.vararg, taken.kwarg]
        count = sys.maxsize if taken.vararg is not None else len(placed) - bound
        return {each.arg for each in every if each is not None}, count

    def _fields(self, module: str, owner: ast.ClassDef) -> set[str]:
        """Names that a class without a constructor of its own declares, and those of its bases."""
        found = {
            name for name, each in _bound(owner.body).items() if isinstance(each, ast.AnnAssign)
        }
        for base in owner.bases:
            if isinstance(base, ast.Name) and base.id in self._names(module):
                try:
                    where, node = self._global(module, base.id)
                except (UndecidedError, MissingError):
                    continue
                if isinstance(node, ast.ClassDef):
                    found |= self._fields(where, node)
        return found

    def _names(self, module: str) -> dict[str, Node]:
        """What a module binds, by name; "*" for all of another module.

        Raises:
            MissingError: There is no such module.
            UndecidedError: It is not one of SGLang's, or has no source.
        """
        if module in self._bindings:
            return self._bindings[module]
        if module.partition(".")[0] != "sglang":
            raise UndecidedError
        path = self.source_of(module)
        if path is None:
            raise MissingError(f"No module named {module!r}")
        try:
            found = self._bindings[module] = _bound(ast.parse(path.read_bytes()).body)
        except (OSError, SyntaxError, ValueError):
            raise UndecidedError from None
        return found

    def source_of(self, module: str) -> Path | None:
        """The file of one of SGLang's modules; None: there is none."""
        package, *parts = module.split(".")
        for folder in self._folders(package):
            place = Path(folder, *parts)
            for path in (place / "__init__.py", place.with_suffix(".py")):
                if path.is_file():
                    return path
        return None

    def _folders(self, package: str) -> Sequence[str | Path]:
        """Where the modules of a package of the outermost level lie."""
        if self.root is not None:
            return [self.root] if package == "sglang" else []
        spec = importlib.util.find_spec(package)  # of a top-level name: imports nothing
        return (spec.submodule_search_locations or ()) if spec is not None else ()

    def _imported(self, module: str, node: ast.ImportFrom) -> str:
        """The module that a statement imports from, by its whole name."""
        if not node.level:
            return node.module or ""
        path = self.source_of(module)
        package = path is not None and path.name == "__init__.py"
        parts = module.split(".")
        kept = parts[: len(parts) - node.level + package]
        return ".".join([*kept, *([node.module] if node.module else [])])


def _bound(body: Sequence[ast.stmt]) -> dict[str, Node]:
    """What statements bind, the last wins; of branches all, because which runs is not known."""
    found: dict[str, Node] = {}
    for node in body:
        for name in _binds(node):
            found[name] = node
        for inner in _branches(node):
            found.update(_bound(inner))
    return found


def _binds(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        node.body = []  # nearly all of a module's tree, which the cache need not keep
        yield node.name
    elif isinstance(node, ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        for alias in node.names:
            yield alias.asname or alias.name
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            for each in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(each, ast.Name):
                    yield each.id


def _branches(node: ast.stmt) -> Iterator[Sequence[ast.stmt]]:
    if isinstance(node, ast.If):
        if "TYPE_CHECKING" not in ast.unparse(node.test):
            yield node.body
        yield node.orelse
    elif isinstance(node, ast.Try):
        yield node.body
        for handler in node.handlers:
            yield handler.body
        yield node.orelse
        yield node.finalbody
    elif isinstance(node, ast.With):
        yield node.body


INSTALLED = SglangSource()
"""The installed SGLang's."""
problem = INSTALLED.problem
source_of = INSTALLED.source_of
