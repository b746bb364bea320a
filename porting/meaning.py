"""The text of a piece of source without what does not change its meaning.

Gone are comments, docstrings, the layout, annotations of functions and their variables, and log
lines. What is left is compared, and shown where it differs.
"""

from __future__ import annotations

import ast
import copy

Function = ast.FunctionDef | ast.AsyncFunctionDef
_LOGS = ("logger", "logging", "log", "warnings")
"""Names whose calls, as statements, only tell a person something."""
_RENAMED = {"List": "list", "Dict": "dict", "Tuple": "tuple", "Set": "set", "Type": "type"}
"""Types of `typing`, and what they are called today."""

_REMARKED = ("A", "Annotated")
"""Types with remarks behind them, such as the help text of an option."""


def text_of(node: ast.AST) -> str:
    """The text of a definition or a statement, to be compared."""
    return ast.unparse(_Plain().visit(copy.deepcopy(node)))


class _Plain(ast.NodeTransformer):
    """Takes away what has no meaning for a caller."""

    def __init__(self) -> None:
        self._functions = 0

    def _function(self, node: Function) -> ast.AST:
        self._functions += 1
        self.generic_visit(node)
        self._functions -= 1
        node.returns = None
        node.body = _without_talk(node.body)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._function(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        if not self._functions:  # of a field the type is what a reader of it gets
            node.annotation = _Modern().visit(node.annotation)
            return node
        self.generic_visit(node)
        if node.value is None:
            return None
        return ast.copy_location(ast.Assign([node.target], node.value), node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        called = node.value.func if isinstance(node.value, ast.Call) else None
        if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
            if called.value.id in _LOGS:
                return None
        elif isinstance(called, ast.Name) and called.id.startswith("log_"):
            return None
        return self.generic_visit(node)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        node = super().generic_visit(node)
        if isinstance(node, ast.If | ast.For | ast.While | ast.With | ast.ExceptHandler | ast.Try):
            node.body = node.body or [ast.Pass()]
        return node


class _Modern(ast.NodeTransformer):
    """Writes a type as it is written today: `X | None` for `Optional[X]`, no quotes, no remarks."""

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str):
            try:
                return _Modern().visit(ast.parse(node.value, mode="eval").body)  # type: ignore[no-any-return]
            except SyntaxError:
                return node
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(_RENAMED.get(node.id, node.id))

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        name = node.value.id if isinstance(node.value, ast.Name) else ""
        if name in _REMARKED and isinstance(node.slice, ast.Tuple):
            return self.visit(node.slice.elts[0])  # type: ignore[no-any-return]
        if name == "Literal":
            return node  # its strings are no types
        self.generic_visit(node)
        if name == "Optional":
            return ast.BinOp(node.slice, ast.BitOr(), ast.Constant(None))
        return node


def _without_talk(body: list[ast.stmt]) -> list[ast.stmt]:
    """Statements without the strings that stand for themselves."""
    kept = [
        node
        for node in body
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    ]
    return kept or [ast.Pass()]
