"""Checks: what counts as one, and what it says of a candidate."""

from __future__ import annotations

import ast
import builtins
import sys
from types import CodeType
from typing import Any

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


class NotACheck(Exception):
    """The text cannot fail, so it checks nothing."""


class Compiled:
    """One check, ready to run: statements, then perhaps an expression whose truth counts."""

    def __init__(self, body: CodeType | None, value: CodeType | None, needs_truth: bool) -> None:
        self._body = body
        self._value = value
        self._needs_truth = needs_truth

    def holds(self, namespace: dict[str, Any]) -> bool:
        """Runs the check. What it raises, it raises."""
        if self._body is not None:
            exec(self._body, namespace)
        if self._value is None:
            return True
        value = eval(self._value, namespace)
        return True if value is None and not self._needs_truth else bool(value)


def compile_check(source: str, filename: str, helpers: str = "") -> Compiled:
    """Compiles an expression, an ``assert``, or several statements that hold some.

    The truth of every expression at the top counts, but for bare calls among several statements:
    there only the last one's does, and it may give None. Raises NotACheck where the text cannot
    fail, SyntaxError (or what ``compile`` raises) where it is no Python.
    """
    tree = ast.parse(source.lstrip(" \t\r\n\f"), filename)
    if not any(_can_fail(statement) for statement in tree.body):
        raise NotACheck("it cannot fail")
    if len(tree.body) > 1:
        tree.body = [_as_assertion(statement) for statement in tree.body]
    last = tree.body[-1]
    if not isinstance(last, ast.Expr):
        return Compiled(compile(tree, filename, "exec", dont_inherit=True), None, False)
    body = None
    if len(tree.body) > 1:
        first = ast.Module(tree.body[:-1], tree.type_ignores)
        body = compile(first, filename, "exec", dont_inherit=True)
    value = compile(ast.Expression(last.value), filename, "eval", dont_inherit=True)
    return Compiled(body, value, body is None or _asks_candidate(last.value, tree, helpers))


def _asks_candidate(value: ast.expr, check: ast.Module, helpers: str) -> bool:
    """Whether an expression is a bare call of what neither the check nor its setup defines: the
    candidate's answer, which None is not."""
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Name):
        return False
    own = {
        getattr(node, "name", None) or getattr(node, "id", "")
        for node in [*ast.walk(check), *_walk(helpers)]
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.alias)
        or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    }
    return value.func.id not in own and not hasattr(builtins, value.func.id)


def _as_assertion(statement: ast.stmt) -> ast.stmt:
    """An expression among several statements, as an assertion; bare calls and text stay."""
    if not isinstance(statement, ast.Expr) or isinstance(statement.value, ast.Call | ast.Constant):
        return statement
    return ast.copy_location(ast.Assert(statement.value, None), statement)


def compile_program(source: str, filename: str) -> CodeType:
    """Compiles a test program that defines ``check``; raises as ``compile_check`` does."""
    tree = ast.parse(source, filename)
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == "check"
    ]
    binds = found or any(
        isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == "check"
        for node in ast.walk(tree)
    )
    if not binds:
        raise NotACheck("it defines no check()")
    if found and not any(_asks_anything(node) for node in found):
        raise NotACheck("its check() cannot fail")
    return compile(tree, filename, "exec", dont_inherit=True)


def _asks_anything(function: ast.AST) -> bool:
    return any(
        isinstance(node, ast.Raise | ast.Call)
        or (isinstance(node, ast.Assert) and not _is_constant(node.test))
        for node in ast.walk(function)
    )


def _can_fail(statement: ast.AST) -> bool:
    """Whether running a statement at the top of a check can decide anything."""
    if isinstance(statement, ast.Assert):
        return not _is_constant(statement.test)
    if isinstance(statement, ast.Raise):
        return True
    if isinstance(statement, ast.Expr):
        return not _is_constant(statement.value)
    if isinstance(statement, _DEFINITIONS):
        return False
    return any(
        _can_fail(child) for child in ast.iter_child_nodes(statement) if isinstance(child, ast.stmt)
    ) or any(
        _can_fail(inner)
        for child in ast.iter_child_nodes(statement)
        if isinstance(child, ast.ExceptHandler | ast.match_case)
        for inner in child.body
    )


def _is_constant(value: ast.AST) -> bool:
    """Whether an expression's truth is settled before the candidate is asked."""
    if isinstance(value, ast.UnaryOp):
        return _is_constant(value.operand)
    if isinstance(value, ast.BoolOp):
        return all(_is_constant(operand) for operand in value.values)
    if isinstance(value, ast.NamedExpr):
        return _is_constant(value.value)
    return isinstance(
        value,
        ast.Constant
        | ast.Tuple
        | ast.List
        | ast.Dict
        | ast.Set
        | ast.Lambda
        | ast.GeneratorExp
        | ast.JoinedStr,
    )


class Scope(dict[str, Any]):
    """The builtins of a check: the candidate's globals first, as in one program, then Python's.

    It stands where a namespace has its builtins, so that a check's own names come first and
    bind nothing in the candidate.
    """

    def __init__(self, candidate: dict[str, Any]) -> None:
        super().__init__(vars(builtins))
        self._candidate = candidate

    def __getitem__(self, name: str) -> Any:
        if name in self._candidate and not name.startswith("__"):
            return self._candidate[name]
        return super().__getitem__(name)


def classes_named(sources: list[str], prompt: str) -> frozenset[str]:
    """The classes that checks or a prompt name, and so test: ``7 in Stack().push(7)``.

    A name counts that the prompt defines as a class, or that a check uses and that is written
    as classes are. A function of the prompt's never counts, whatever the candidate makes of it.
    """
    named: set[str] = set()
    functions: set[str] = set()
    for source in sources:
        named |= {
            node.id
            for node in _walk(source)
            if isinstance(node, ast.Name) and node.id.lstrip("_")[:1].isupper()
        }
    for node in _walk(prompt):
        if isinstance(node, ast.ClassDef):
            named.add(node.name)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions.add(node.name)
    return frozenset(named - functions)


def modules_named(sources: list[str]) -> frozenset[str]:
    """The names of standard modules that checks use as modules only: ``math.isclose(…)``."""
    used: set[str] = set()
    owners: set[int] = set()
    others: set[str] = set()
    for node in (node for source in sources for node in _walk(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            used.add(node.value.id)
            owners.add(id(node.value))
        elif isinstance(node, ast.Name) and id(node) not in owners:
            others.add(node.id)
    return frozenset((used - others) & sys.stdlib_module_names)


def _walk(source: str) -> list[ast.AST]:
    try:
        return list(ast.walk(ast.parse(source.lstrip(" \t\r\n\f\ufeff"))))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
