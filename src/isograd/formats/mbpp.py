"""MBPP: one JSON object a task, a list of ``assert`` statements.

Three files share one reader: the full set (``text``, ``test_setup_code``), the sanitized set
(``prompt``, ``test_imports``) and EvalPlus's mbppplus (as sanitized, with a ``test`` program,
which is kept as metadata and not run: the checks are ``test_list``).

The program that runs is set-up and imports + code + assertions. Set-up code that names what
the solution defines (``root = Node(1)``) runs after the candidate instead of before. The
imports are there for the assertions, so they run again before the first of them: a
self-contained solution, which is not prefixed, is checked alike. Code is kept as it is, CRLF
and all.
"""

from __future__ import annotations

import ast
import builtins
import warnings
from typing import ClassVar

from pydantic import Field

from isograd.contract import Assertions, Task
from isograd.formats.record import FieldError, Format, TaskId, TaskRecord


class MbppRecord(TaskRecord):
    """A line of mbpp.jsonl or sanitized-mbpp.json; unknown fields are kept as metadata."""

    rules: ClassVar = {
        "task_id": "an integer of at most 63 bits or a non-empty string",
        "text": "a string",
        "prompt": "a string",
        "code": "a string",
        "test_list": "a non-empty list of strings",
        "test_list.*": "a string",
        "test_imports": "a list of strings",
        "test_imports.*": "a string",
        "test_setup_code": "a string",
        "challenge_test_list": "a list of strings",
        "challenge_test_list.*": "a string",
    }

    task_id: TaskId = Field(min_length=1)
    text: str | None = None
    prompt: str | None = None
    code: str
    test_list: list[str] = Field(min_length=1)
    test_imports: list[str] = Field(default=[])
    test_setup_code: str = ""
    challenge_test_list: list[str] = Field(default=[])

    def to_task(self) -> Task:
        prompt = self.text if self.text is not None else self.prompt
        if prompt is None:
            raise FieldError("text", "is missing: one of text and prompt must be a string")
        defined = _defined_names(self.code)
        before = _joined(self.test_imports)
        after = before
        if _loaded_names(self.test_setup_code) & defined:
            after += _joined([self.test_setup_code])
        else:
            before += _joined([self.test_setup_code])
        called = {name for check in self.test_list for name in _called_names(check)}
        wanted = called & defined
        if len(wanted) > 1:  # a task may ask for a function with a builtin's name, if no other
            wanted -= set(dir(builtins))
        challenge = {"challenge_test_list": self.challenge_test_list}
        return Task(
            task_id=self.task_id,
            prompt=prompt,
            prefix=before,
            entry_point=wanted.pop() if len(wanted) == 1 else None,
            checks=Assertions(self.test_list, setup=after),
            reference=self.code,
            timeout_s=None,
            memory_mb=None,
            metadata=self.extra | (challenge if self.challenge_test_list else {}),
        )


def _joined(sources: list[str]) -> str:
    return "".join(f"{source}\n" for source in sources if source.strip())


def _parse(source: str) -> ast.Module:
    """The syntax tree of a source, empty where it has none: judging it is the runner's task."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module(body=[], type_ignores=[])


def _defined_names(source: str) -> set[str]:
    names: set[str] = set()
    for node in _parse(source).body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.Assign():
                names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def _loaded_names(source: str) -> set[str]:
    return {node.id for node in ast.walk(_parse(source)) if isinstance(node, ast.Name)}


def _called_names(source: str) -> set[str]:
    return {
        node.func.id
        for node in ast.walk(_parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }


FORMAT = Format(
    name="mbpp",
    record=MbppRecord,
    marks=(
        frozenset({"test_list"}),
        frozenset({"code", "text"}),
        frozenset({"code", "prompt"}),
    ),
)
