"""Tasks: find a benchmark's file, tell its format, validate every line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from isograd.contract import Task
from isograd.errors import InputError
from isograd.formats import code_exec, humaneval, mbpp
from isograd.formats.jsonl import ErrorList, JsonlFile, LineError, shown
from isograd.formats.record import FieldError, Format

FORMATS: Mapping[str, Format] = MappingProxyType(
    {module.FORMAT.name: module.FORMAT for module in (humaneval, mbpp, code_exec)}
)
"""The formats by name, as ``--format`` takes them."""

FOREIGN: Mapping[str, frozenset[str]] = {
    "HumanEvalPack, whose languages differ": frozenset({"buggy_solution", "declaration"}),
    "BigCodeBench": frozenset({"libs", "complete_prompt", "instruct_prompt", "code_prompt"}),
    "LiveCodeBench": frozenset({"question_id", "public_test_cases"}),
    "EvalPlus's own problem file, which has inputs and no test": frozenset({"base_input"}),
}
"""Keys that give away a file that has another format's keys too, and would be misread."""

ADVICE = "nothing was run; --allow-bad-tasks (allow_bad=True) leaves the bad lines out"


@dataclass(frozen=True)
class TaskSet:
    """The tasks of one file, in its order, and what was left out of it.

    ``sha256`` is the digest of the file's raw bytes. ``rejected`` has an error for each bad
    line and ``rejected_ids`` what those lines called themselves; both are empty unless bad
    lines were allowed.
    """

    format: str
    path: Path
    sha256: str
    tasks: Mapping[str, Task]
    rejected: tuple[InputError, ...] = ()
    rejected_ids: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(self.tasks)


def load_tasks(
    source: str | Path, format: str | None = None, *, allow_bad: bool = False
) -> TaskSet:
    """Read and validate a benchmark's file.

    ``source`` is a path, or as a string the name of a format whose file a package ships
    (``"humaneval"``; ``"./humaneval"`` is a file). The format is told from the first record's
    keys unless it is named. Raises InputError that lists the bad lines; with ``allow_bad``
    they are left out and returned in ``rejected``, as long as one good task is left.
    """
    path = Path(source)
    wanted = _named(format) if format is not None else None
    if isinstance(source, str) and source in FORMATS:
        known = FORMATS[source]
        if known.packaged is not None:
            path, wanted = known.packaged(), wanted or known
        elif not path.exists():
            raise InputError(f"{source}: no package ships this benchmark: give its file's path")

    file = JsonlFile(path)
    wanted = wanted or _detect(file)
    tasks: dict[str, Task] = {}
    lines: dict[str, int] = {}
    rejected: list[LineError] = []
    for number, fields in file.records():
        if isinstance(fields, LineError):
            rejected.append(fields)
            continue
        try:
            task = wanted.record.parse(fields).to_task()
            if task.task_id in tasks:
                first = lines[task.task_id]
                raise FieldError(
                    "task_id", f"duplicate: {shown(task.task_id)} is already on line {first}"
                )
        except FieldError as error:
            name = fields.get("task_id")
            task_id = str(name) if isinstance(name, (str, int)) else None
            rejected.append(LineError(path, number, error.rule, field=error.field, task_id=task_id))
            continue
        tasks[task.task_id] = task
        lines[task.task_id] = number

    if not tasks and not rejected:
        raise InputError(f"{path}: holds no tasks: the file is empty or has only blank lines")
    if rejected and not (allow_bad and tasks):
        errors = ErrorList()
        for bad in rejected:
            errors.add(bad)
        errors.raise_if_any("no good task is left" if allow_bad else ADVICE)
    return TaskSet(
        format=wanted.name,
        path=path,
        sha256=file.sha256,
        tasks=MappingProxyType(tasks),
        rejected=tuple(rejected),
        rejected_ids=frozenset(bad.task_id for bad in rejected if bad.task_id) - tasks.keys(),
    )


def _named(name: str) -> Format:
    if name not in FORMATS:
        raise InputError(f"no such format: '{name}'; it is one of {', '.join(FORMATS)}")
    return FORMATS[name]


def _detect(file: JsonlFile) -> Format:
    """The format of the first record that has the keys of one."""
    unknown: LineError | None = None
    errors = ErrorList()
    advice = f"name the format with --format ({', '.join(FORMATS)})"
    for line, fields in file.records():
        if isinstance(fields, LineError):
            errors.add(fields)
            continue
        keys = set(fields)
        guesses = [format for format in FORMATS.values() if format.matches(keys)]
        if guesses == [FORMATS["humaneval"]]:
            for name, marks in FOREIGN.items():
                if marks & keys:
                    raise LineError(file.path, line, f"looks like {name}; if it is not, {advice}")
        if guesses:
            return guesses[-1]
        found = ", ".join(shown(key) for key in sorted(keys)[:20]) or "none"
        hint = "this may be a samples file; " if keys & {"completion", "generation"} else ""
        rule = f"cannot tell the format from the keys ({found}): {hint}{advice}"
        unknown = unknown or LineError(file.path, line, rule)
    if unknown:
        raise unknown
    errors.raise_if_any()
    raise InputError(f"{file.path}: holds no tasks: the file is empty or has only blank lines")
