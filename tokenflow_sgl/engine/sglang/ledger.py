"""The ledger of everything of SGLang that this package holds on to, read from its own source.

Nothing is listed by hand. What the engine takes from SGLang is said where it is taken:

- `from sglang... import X`, and attributes of X;
- `hold(target, hook, kind, why)`: a hook;
- `@overrides(why)`: a method that stands for one of SGLang's;
- `@of("module:Class")` on a Protocol: attributes and methods of SGLang's objects.

Reading does not import what is read, so `tokenflow doctor` knows the ledger without SGLang. An
SGLang upgrade is a walk through it; `seam_check` holds it against an installed SGLang.
"""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from tokenflow_sgl.engine.sglang.seam import Seam
from tokenflow_sgl.engine.sglang.seam_source import source_of
from tokenflow_sgl.engine.sglang.version import for_installed

_ENGINE = __name__.rpartition(".")[0].rpartition(".")[0]
_SIGNS = ("from sglang", f"{_ENGINE}.sglang.")
"""What stands in the text of a module that holds on to something."""
_STRONGEST = ("hook", "override", "use", "import")
"""Kinds of seams; of a name that is held in several ways the first is told."""
Scope = dict[str, str]
"""Names and the text that they stand for."""


class LedgerError(Exception):
    """Something of SGLang is held in a way that cannot be read; the message has file and line."""


def sources() -> dict[str, str]:
    """The engine's modules that are for the installed SGLang, by name: their text."""
    root = Path(__file__).parent.parent
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if for_installed(name := ".".join((_ENGINE, *parts))):
            found[name] = path.read_text(encoding="utf-8")
    return found


@cache
def ledger() -> tuple[Seam, ...]:
    """All seams of the engine, each target once, in the order of their targets."""
    collecting = gc.isenabled()
    gc.disable()  # trees are many objects, for which all of SGLang's would be searched
    try:
        return collect(sources())
    finally:
        if collecting:
            gc.enable()


def collect(modules: Mapping[str, str]) -> tuple[Seam, ...]:
    """The seams of these modules.

    Args:
        modules: By name: their text. What they import of ours is looked for among them.

    Raises:
        LedgerError: A hook's target or an override's class cannot be read.
    """
    read = _Modules(modules)
    holding = [name for name, text in modules.items() if any(each in text for each in _SIGNS)]
    return joined(seam for name in holding for seam in _Reader(read[name], read).rows())


def joined(seams: Iterable[Seam]) -> tuple[Seam, ...]:
    """Each target once, in the order of the targets."""
    found: dict[str, Seam] = {}
    for seam in seams:
        before = found.get(seam.target)
        found[seam.target] = seam if before is None else _both(before, seam)
    return tuple(_shortened(found[target]) for target in sorted(found))


def _shortened(seam: Seam) -> Seam:
    """Rows with an import's first file only, where many have it."""
    first, *more = seam.why.split("; ")
    if seam.kind != "import" or not more:
        return seam
    return replace(seam, why=f"{first} and {len(more)} more")


def _both(one: Seam, other: Seam) -> Seam:
    """One seam for two ways in which a name is held."""
    if _STRONGEST.index(other.kind) < _STRONGEST.index(one.kind):
        one, other = other, one
    whys = one.why.split("; ")
    if one.kind == other.kind:
        whys += other.why.split("; ")
    return Seam(
        one.target,
        one.kind,
        "; ".join(dict.fromkeys(whys)),
        tuple(dict.fromkeys((*one.parameters, *other.parameters))),
        max(one.places, other.places),
    )


class _Module:
    """One source file: its tree, and what its names stand for.

    Attributes:
        imported: Names from SGLang, as "module" of a module, else as "module:name".
        ours: Names from other modules of ours, as (module, name).
        constants: Strings and tuples of strings.
        classes: Classes of the module's outermost level.
    """

    def __init__(self, name: str, text: str) -> None:
        self.name, self.tree = name, ast.parse(text)
        self.nodes = list(ast.walk(self.tree))
        self.imported: dict[str, str] = {}
        self.ours: dict[str, tuple[str, str]] = {}
        for node in self.nodes:
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                for alias in node.names:
                    self._import(node.module, alias)
        self.constants: dict[str, ast.expr] = {}
        self.classes: dict[str, ast.ClassDef] = {}
        for statement in self.tree.body:
            if isinstance(statement, ast.ClassDef):
                self.classes[statement.name] = statement
            elif isinstance(statement, ast.Assign):
                for target in statement.targets:
                    if isinstance(target, ast.Name):
                        self.constants[target.id] = statement.value

    def _import(self, module: str, alias: ast.alias) -> None:
        name = alias.asname or alias.name
        if module.partition(".")[0] == "sglang":
            whole = f"{module}.{alias.name}"
            is_module = source_of(whole) is not None
            self.imported[name] = whole if is_module else f"{module}:{alias.name}"
        else:
            self.ours[name] = module, alias.name


class _Modules(dict[str, _Module]):
    """Modules by name, each parsed when it is asked for."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        super().__init__()
        self._texts = texts

    def __missing__(self, name: str) -> _Module:
        module = self[name] = _Module(name, self._texts[name])
        return module

    def __contains__(self, name: object) -> bool:
        return name in self._texts


class _Reader:
    """Finds the seams of one module, with the others to look names up in."""

    def __init__(self, module: _Module, others: _Modules) -> None:
        self._module, self._others = module, others
        self._file = f"{module.name.removeprefix(_ENGINE + '.').replace('.', '/')}.py"

    def rows(self) -> Iterator[Seam]:
        """All of them; a target may come several times."""
        yield from self._imports()
        yield from self._statements(self._module.tree.body, {}, {})

    # ---- imports --------------------------------------------------------------------

    def _imports(self) -> Iterator[Seam]:
        why = f"in {self._file}"
        for target in self._module.imported.values():
            if ":" in target:
                yield Seam(target, "import", why)
        for node in self._module.nodes:
            if isinstance(node, ast.Attribute) and (found := self._of_sglang(node)):
                yield Seam(found, "import", why)
            elif isinstance(node, ast.Call) and (found := self._of_sglang(node.func)):
                given = tuple(each.arg for each in node.keywords if each.arg is not None)
                starred = any(isinstance(each, ast.Starred) for each in node.args)
                yield Seam(found, "import", why, given, 0 if starred else len(node.args))

    def _of_sglang(self, node: ast.expr) -> str | None:
        """What an imported name, or an attribute of one, stands for."""
        if isinstance(node, ast.Name):
            target = self._module.imported.get(node.id)
            return target if target is not None and ":" in target else None
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            target = self._module.imported.get(node.value.id)
            if target is not None:
                return f"{target}.{node.attr}" if ":" in target else f"{target}:{node.attr}"
        return None

    # ---- what is declared -----------------------------------------------------------

    def _statements(
        self, body: list[ast.stmt], scope: Scope, bases: dict[str, ast.expr]
    ) -> Iterator[Seam]:
        """Hooks, overrides and Protocols in these statements.

        scope: What loops around them let names stand for. bases: names that are some class.
        """
        for node in body:
            if isinstance(node, ast.ClassDef):
                yield from self._protocol(node)
                yield from self._overrides(node, bases)
                yield from self._statements(node.body, scope, bases)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                inner = {**bases, **_classes_in(node)}
                yield from self._statements(node.body, scope, inner)
            elif isinstance(node, ast.For):
                for each in self._rounds(node, scope):
                    yield from self._statements(node.body, each, bases)
            elif isinstance(node, ast.If | ast.With | ast.Try):
                for part in ("body", "orelse", "finalbody"):
                    yield from self._statements(getattr(node, part, []), scope, bases)
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                yield from self._hook(node.value, scope)

    def _rounds(self, loop: ast.For, scope: Scope) -> Iterator[Scope]:
        """What a loop over a constant tuple lets its name stand for; else one round."""
        found = self._constant(loop.iter)
        if isinstance(found, ast.Tuple) and isinstance(loop.target, ast.Name):
            for each in found.elts:
                text = self._text(each, scope)
                yield scope if text is None else {**scope, loop.target.id: text}
        else:
            yield scope

    def _hook(self, call: ast.Call, scope: Scope) -> Iterator[Seam]:
        if not self._calls(call, "hooking", "hold"):
            return
        given = {f"{place}": each for place, each in enumerate(call.args)}
        given |= {each.arg: each.value for each in call.keywords if each.arg is not None}
        target = self._text(given["0"], scope)
        why = self._text(given.get("why", given.get("3")), scope)
        if target is None or not why:
            what = "target of this hook" if target is None else "reason for this hook"
            raise LedgerError(f"{self._file}:{call.lineno}: the {what} is no constant")
        takes = given.get("takes", given.get("4"))
        names = takes.elts if isinstance(takes, ast.Tuple) else []
        yield Seam(target, "hook", why, tuple(self._text(each, scope) or "" for each in names))

    def _overrides(self, made: ast.ClassDef, bases: dict[str, ast.expr]) -> Iterator[Seam]:
        for node in made.body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            why = self._decorated(node, "overriding", "overrides")
            if why is None:
                continue
            base = self._base(made, bases)
            if base is None or not why:
                raise LedgerError(
                    f"{self._file}:{node.lineno}: {made.name}.{node.name} says that it stands for "
                    f"a method of SGLang's, and {made.name} has no class of SGLang's as its base"
                )
            takes = _parameters(node, required=True)
            yield Seam(f"{base}.{node.name}", "override", why[0], takes)

    def _protocol(self, made: ast.ClassDef) -> Iterator[Seam]:
        takes: tuple[str, ...]
        classes = self._decorated(made, "protocol", "of")
        if classes is None:
            return
        about = (ast.get_docstring(made) or "").partition("\n")[0]
        for place, node in enumerate(made.body):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                name, takes = node.name, _parameters(node)
                said = (ast.get_docstring(node) or "").partition("\n")[0]
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                name, takes = node.target.id, ()
                said = _said(made.body[place + 1 : place + 2])
            else:
                continue
            for each in classes if name not in vars(object) else ():
                yield Seam(f"{each}.{name}", "use", said or about, takes)

    # ---- names ----------------------------------------------------------------------

    def _calls(self, call: ast.Call, module: str, name: str) -> bool:
        """Whether a function of ours is called: that of `engine.sglang.<module>`."""
        if not isinstance(call.func, ast.Name):
            return False
        return self._module.ours.get(call.func.id) == (f"{_ENGINE}.sglang.{module}", name)

    def _decorated(
        self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, module: str, name: str
    ) -> list[str] | None:
        """The strings that a decorator of ours is given; None: there is none."""
        for each in node.decorator_list:
            if isinstance(each, ast.Call) and self._calls(each, module, name):
                return [text for given in each.args if (text := self._text(given, {}))]
        return None

    def _base(self, made: ast.ClassDef, bases: dict[str, ast.expr]) -> str | None:
        """The class of SGLang's that one of ours derives from: its own bases', then ours'."""
        of_ours = []
        for each in made.bases:
            expression = bases.get(each.id, each) if isinstance(each, ast.Name) else each
            found = self._of_sglang(expression)
            if found is not None:
                return found
            if isinstance(expression, ast.Name):
                of_ours.append(expression.id)
        for name in of_ours:
            reader, there = self._class(name)
            if there is not None and (found := reader._base(there, {})) is not None:
                return found
        return None

    def _class(self, name: str) -> tuple[_Reader, ast.ClassDef | None]:
        """A class of ours by the name that it has here, and a reader of the module it is in."""
        if name in self._module.classes:
            return self, self._module.classes[name]
        where, original = self._module.ours.get(name, ("", ""))
        if where not in self._others:
            return self, None
        return _Reader(self._others[where], self._others)._class(original)

    def _constant(self, node: ast.expr) -> ast.expr:
        """What a name was assigned, here or where it is imported from."""
        if not isinstance(node, ast.Name):
            return node
        if node.id in self._module.constants:
            return self._module.constants[node.id]
        where, original = self._module.ours.get(node.id, ("", ""))
        if where not in self._others:
            return node
        return self._others[where].constants.get(original, node)

    def _text(self, node: ast.expr | None, scope: Scope) -> str | None:
        """The string that an expression makes; None: that is not known here."""
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else None
        if isinstance(node, ast.Name) and node.id in scope:
            return scope[node.id]
        if isinstance(node, ast.Name):
            found = self._constant(node)
            if found is node:
                return None
            where = self._module.ours.get(node.id)
            if node.id not in self._module.constants and where is not None:
                return _Reader(self._others[where[0]], self._others)._text(found, {})
            return self._text(found, scope)
        if isinstance(node, ast.JoinedStr):
            parts = [self._text(each, scope) for each in node.values]
            return None if None in parts else "".join(each for each in parts if each is not None)
        if isinstance(node, ast.FormattedValue):
            return self._text(node.value, scope)
        return None


def _classes_in(function: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, ast.expr]:
    """Names in a function that are annotated to be a class: of `base: type[X]` the X."""
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    annotated = [(each.arg, each.annotation) for each in arguments]
    for node in function.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            annotated.append((node.target.id, node.annotation))
    return {
        name: each.slice
        for name, each in annotated
        if isinstance(each, ast.Subscript)
        and isinstance(each.value, ast.Name)
        and each.value.id == "type"
    }


def _parameters(
    function: ast.FunctionDef | ast.AsyncFunctionDef, *, required: bool = False
) -> tuple[str, ...]:
    """Names of parameters but the first of a method, and but *args and **kwargs.

    required: Only of those without a default.
    """
    given = function.args
    placed = [*given.posonlyargs, *given.args]
    static = any(
        isinstance(e, ast.Name) and e.id == "staticmethod" for e in function.decorator_list
    )
    if required:
        placed = placed[: len(placed) - len(given.defaults)]
    named = [
        each
        for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
        if default is None or not required
    ]
    return tuple(each.arg for each in (*placed[0 if static else 1 :], *named))


def _said(after: list[ast.stmt]) -> str:
    """The first line of the string that stands behind an attribute; empty: there is none."""
    for node in after:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return str(node.value.value).partition("\n")[0]
    return ""
