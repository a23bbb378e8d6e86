"""Checks: what counts as one, and what it says of a candidate."""

from __future__ import annotations

import ast
import builtins
import contextlib
import marshal
import sys
import warnings
from collections.abc import Callable
from types import CodeType
from typing import Any, NamedTuple

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


class NotACheck(Exception):
    """The text cannot fail, so it checks nothing."""


Check = Callable[[dict[str, Any]], bool]
Compiled = tuple[CodeType | None, CodeType | None, bool]
"""One check: statements, then perhaps an expression, and whether None is no truth."""


class Names(NamedTuple):
    """What checks mean by the names that they use."""

    classes: frozenset[str]
    """Classes that they or the prompt name, and so test: ``7 in Stack().push(7)``."""
    modules: frozenset[str]
    """Standard modules that they use as modules only: ``math.isclose(…)``."""
    imported: frozenset[str]
    """Modules that they import themselves."""
    aliases: bool
    """Whether they use other names as one uses modules: ``np.allclose(…)``."""


class Prepared(NamedTuple):
    """The checks of a job, compiled, and what can be said of them without a candidate.

    A tuple: what shares a process with a candidate should not be changeable by it. ``packed`` is
    the same as bytes, for ``unpack``; None if some of it is no Python.
    """

    codes: tuple[Any, ...]
    """For each check a program's code, a Compiled, or the exception that it raises."""
    setup: Any
    entry_point: str | None
    names: Names
    prompt: tuple[CodeType, ...]
    """Ways to load the prompt, of which the first that works counts; empty if no check asks."""
    packed: bytes | None = None

    def ready(self, base: dict[str, Any], entry: Callable[[str], Any]) -> list[Check]:
        """The checks as functions of a namespace that is a copy of ``base``.

        ``entry`` gives the candidate's function of a name. The setup runs now, into ``base``.
        """
        failed: list[BaseException] = []
        try:
            if isinstance(self.setup, Exception):
                raise self.setup
            if self.setup is not None:
                exec(self.setup, base)
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
                return holds(code, namespace)

            return check

        return [one(code) for code in self.codes]

    def load_prompt(self) -> dict[str, Any]:
        """What the prompt defines, loaded here."""
        namespace: dict[str, Any] = {"__name__": "prompt"}
        for code in self.prompt:
            try:
                exec(code, namespace)
            except Exception:
                continue
            return namespace
        return namespace


def holds(check: Compiled, namespace: dict[str, Any]) -> bool:
    """Runs a check; whether it holds. What it raises, it raises."""
    body, expression, needs_truth = check
    if body is not None:
        exec(body, namespace)
    if expression is None:
        return True
    value = eval(expression, namespace)
    return True if value is None and not needs_truth else bool(value)


def unpack(packed: bytes) -> Prepared:
    """Prepared checks from their bytes."""
    codes, setup, entry_point, names, prompt = marshal.loads(packed)
    return Prepared(codes, setup, entry_point, Names(*names), prompt, packed)


def prepare(given: dict[str, Any], entry_point: str | None, prompt: str) -> Prepared:
    """Compiles the checks of a job, without its candidate. Raises NotACheck.

    What the compiler warns of is said to nobody: it would be said for the first sample only.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _prepare(given, entry_point, prompt)


def _prepare(given: dict[str, Any], entry_point: str | None, prompt: str) -> Prepared:
    helpers = given.get("setup", "")
    if given["kind"] == "program":
        setup = None
        codes = [_compiled(compile_program, given["source"], "test")]
        entry_point = given["entry_point"]
    else:
        if not given["checks"]:
            raise NotACheck("there are no checks")
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
    texts = [given["source"]] if given["kind"] == "program" else [*given["checks"], helpers]
    nodes, prompt_nodes = nodes_of(*texts), nodes_of(prompt)
    with_body = prompt + "\n    pass\n"  # for a prompt that ends in a bare header
    whole = prompt_nodes or nodes_of(with_body)
    asks = _asks_prompt(nodes, whole)
    of_prompt = whole if _asks_prompt(nodes, whole, but=entry_point) else []
    loaders = [_compiled(_compile, text, "prompt") for text in (prompt, with_body) if asks]
    names = _names_in(nodes, prompt_nodes, of_prompt)
    ways = tuple(code for code in loaders if isinstance(code, CodeType))
    try:
        packed = marshal.dumps((tuple(codes), setup, entry_point, tuple(names), ways))
    except ValueError:  # an exception: a check that is no Python
        return Prepared(tuple(codes), setup, entry_point, names, ways)
    return unpack(packed)  # as the next job with these checks will have them


_DYNAMIC = frozenset({"eval", "exec", "compile", "globals", "locals", "vars", "__import__"})


def _asks_prompt(nodes: list[ast.AST], prompt: list[ast.AST], but: str | None = None) -> bool:
    """Whether checks may use a name that the prompt binds, ``but`` not counted."""
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    bound: set[str] = set()
    for node in prompt:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
    return "*" in bound or bool((bound - {but} | _DYNAMIC) & used)


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
        for node in [*ast.walk(check), *nodes_of(helpers)]
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


def nodes_of(*sources: str) -> list[ast.AST]:
    """The syntax of checks or a prompt, flat; of what is no Python, nothing."""
    found: list[ast.AST] = []
    for source in sources:
        with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            found += ast.walk(ast.parse(source.lstrip(" \t\r\n\f\ufeff")))
    return found


def _names_in(nodes: list[ast.AST], prompt: list[ast.AST], helpers: list[ast.AST]) -> Names:
    """The names in a job's checks, which may use ``helpers`` of the prompt's."""
    names = [node for node in nodes if isinstance(node, ast.Name)]
    owners = {
        id(node.value): node.value.id
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    others = {node.id for node in names if id(node) not in owners}
    used = set(owners.values()) - others
    standard = used & sys.stdlib_module_names
    imported: set[str] = set()
    for node in (*nodes, *helpers):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported.add(node.module)
    read = [node for node in names if isinstance(node.ctx, ast.Load)]
    return Names(
        _classes_named(read, prompt),
        frozenset(standard),
        frozenset(imported),
        any(not hasattr(builtins, name) for name in used - standard),
    )


def _classes_named(used: list[ast.Name], prompt: list[ast.AST]) -> frozenset[str]:
    """A name counts that the prompt defines as a class, or that a check uses and that is written
    as classes are. A function of the prompt's never counts, whatever the candidate makes of it.
    """
    named = {node.id for node in used if node.id.lstrip("_")[:1].isupper()}
    functions: set[str] = set()
    for node in prompt:
        if isinstance(node, ast.ClassDef):
            named.add(node.name)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions.add(node.name)
    return frozenset(named - functions)
