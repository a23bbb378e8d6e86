"""Checks: what counts as one, and what it says of a candidate."""

from __future__ import annotations

import ast
import builtins
import marshal
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


class NotACheck(Exception):
    """The text cannot fail, so it checks nothing."""


Check = Callable[[dict[str, Any]], bool]
Compiled = tuple[CodeType | None, CodeType | None, bool]
"""One check: statements, then perhaps an expression, and whether None is no truth."""


class Prepared:
    """The checks of a job, compiled, and what can be said of them without a candidate.

    ``packed`` is the same as bytes, from which ``Prepared`` makes it anew; None if some of it is
    no Python. ``classes`` and ``modules`` are the names of classes that the checks test and of
    standard modules that they use.
    """

    def __init__(self, packed: bytes) -> None:
        self.packed: bytes | None = packed
        self._take(*marshal.loads(packed))

    def _take(
        self,
        codes: list[Any],
        setup: Any,
        entry_point: str | None,
        classes: frozenset[str],
        modules: frozenset[str],
        prompt: list[CodeType],
    ) -> None:
        self._codes = codes
        self._setup = setup
        self.entry_point = entry_point
        self.classes = classes
        self.modules = modules
        self._prompt = prompt

    @classmethod
    def of(cls, *parts: Any) -> Prepared:
        """Prepared checks, as they come out of their bytes: the same the first time and later."""
        try:
            return cls(marshal.dumps(parts))
        except ValueError:  # an exception: a check that is no Python
            prepared = cls.__new__(cls)
            prepared.packed = None
            prepared._take(*parts)
            return prepared

    def ready(self, base: dict[str, Any], entry: Callable[[str], Any]) -> list[Check]:
        """The checks as functions of a namespace that is a copy of ``base``.

        ``entry`` gives the candidate's function of a name. The setup runs now, into ``base``.
        """
        failed: list[BaseException] = []
        try:
            if isinstance(self._setup, Exception):
                raise self._setup
            if self._setup is not None:
                exec(self._setup, base)
        except BaseException as error:
            failed.append(error)

        def one(code: Any) -> Check:
            def check(namespace: dict[str, Any]) -> bool:
                for error in failed:
                    raise error
                if isinstance(code, Exception):
                    raise code
                if isinstance(code, CodeType):
                    exec(code, namespace)
                    function = namespace["check"]
                    function(entry(str(self.entry_point)))
                    return True
                body, value, needs_truth = code
                if body is not None:
                    exec(body, namespace)
                if value is None:
                    return True
                found = eval(value, namespace)
                return True if found is None and not needs_truth else bool(found)

            return check

        return [one(code) for code in self._codes]

    def load_prompt(self) -> dict[str, Any]:
        """What the prompt defines, loaded here."""
        namespace: dict[str, Any] = {"__name__": "prompt"}
        for code in self._prompt:
            try:
                exec(code, namespace)
            except Exception:
                continue
            return namespace
        return namespace


def prepare(given: dict[str, Any], entry_point: str | None, prompt: str) -> Prepared:
    """Compiles the checks of a job, without its candidate. Raises NotACheck."""
    if given["kind"] == "program":
        sources, setup = [given["source"]], None
        codes = [_compiled(compile_program, given["source"], "test")]
        entry_point = given["entry_point"]
    else:
        if not given["checks"]:
            raise NotACheck("there are no checks")
        sources, helpers = [*given["checks"], given["setup"]], given["setup"]
        codes = []
        for number, source in enumerate(given["checks"], 1):
            try:
                codes.append(
                    _compiled(
                        lambda source, name: compile_check(source, name, helpers),
                        source,
                        f"check {number}",
                    )
                )
            except NotACheck as error:
                raise NotACheck(f"check {number} is no check: {error}") from None
        setup = _compiled(_compile, helpers, "setup")
    # A prompt that ends in a bare header gets a body.
    loaders = [_compiled(_compile, text, "prompt") for text in (prompt, prompt + "\n    pass\n")]
    return Prepared.of(
        codes,
        setup,
        entry_point,
        classes_named(sources, prompt),
        modules_named(sources),
        [code for code in loaders if isinstance(code, CodeType)],
    )


def _compile(source: str, filename: str) -> CodeType:
    code: CodeType = compile(source, filename, "exec", dont_inherit=True)
    return code


def _compiled(compiler: Callable[[str, str], Any], source: str, filename: str) -> Any:
    """What a compiler gives, or the exception that it raises: such a check raises it."""
    try:
        return compiler(source.removeprefix("\ufeff"), filename)
    except NotACheck:
        raise
    except Exception as error:
        return error


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
        return compile(tree, filename, "exec", dont_inherit=True), None, False
    body = None
    if len(tree.body) > 1:
        first = ast.Module(tree.body[:-1], tree.type_ignores)
        body = compile(first, filename, "exec", dont_inherit=True)
    value = compile(ast.Expression(last.value), filename, "eval", dont_inherit=True)
    return body, value, body is None or _asks_candidate(last.value, tree, helpers)


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
