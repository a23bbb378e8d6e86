"""Grade a generation by running it: extract the program, put it together, run its checks."""

from __future__ import annotations

import ast
import atexit
import threading
import warnings
from collections.abc import Callable, Sequence

from isograd.contract import (
    Assertions,
    Checks,
    Envelope,
    Grading,
    Job,
    Limits,
    Program,
    Sample,
    Task,
)
from isograd.errors import InputError
from isograd.formats import truncate_at
from isograd.sandbox.base import Sandbox
from isograd.sandbox.subprocess import SubprocessSandbox
from isograd.scoring.extract import POLICIES, extract, names_called


def program_of(
    text: str,
    *,
    extraction: str = "auto",
    names: Sequence[str] = (),
    prefix: str = "",
    stops: Sequence[str] = (),
) -> str | None:
    """The program that a generation stands for, or None where there is none.

    The text is cut at the first of ``stops``, the code is extracted (``extract`` with the policy
    ``extraction`` and the ``names`` that checks call), and ``prefix`` is put in front of it: as
    it is where the generation continues it, on a line of its own where it was a block.
    Raises InputError for an unknown policy.
    """
    if extraction not in POLICIES:
        raise InputError(f"extraction is one of {', '.join(POLICIES)}, not {extraction!r}")
    text = truncate_at(text, stops) if stops else text
    code = extract(text, extraction, names)
    if code is None or not prefix:
        return code
    if code == text:
        return prefix + code
    return _joined(prefix if prefix.endswith("\n") else prefix + "\n", code)


def _joined(prefix: str, code: str) -> str:
    """A prefix and a block behind it. A prefix that ends in a bare header gets a body."""
    if not _parses(prefix + code) and _parses(code) and _parses(prefix + "    pass\n" + code):
        return prefix + "    pass\n" + code
    return prefix + code


def _parses(source: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def names_of(checks: Checks, entry_point: str | None) -> tuple[str, ...]:
    """The names that a candidate has to define for its checks, as far as they tell."""
    if entry_point:
        return (entry_point,)
    if isinstance(checks, Program):
        return (checks.entry_point,)
    return names_called(checks.checks)


def job_of(
    task: Task,
    sample: Sample,
    *,
    limits: Limits,
    extraction: str = "auto",
    stops: Sequence[str] = (),
    grading: Grading = "auto",
) -> Job:
    """The job of one sample. The task's own timeout and memory win over ``limits``."""
    own = {"timeout_s": task.timeout_s, "memory_mb": task.memory_mb}
    changed = {name: value for name, value in own.items() if value is not None}
    code = program_of(
        sample.text,
        extraction=extraction,
        names=names_of(task.checks, task.entry_point),
        prefix="" if sample.metadata.get("standalone") is True else task.prefix,
        stops=stops,
    )
    return Job(
        code=code,
        checks=task.checks,
        limits=Limits.model_validate({**limits.model_dump(), **changed}) if changed else limits,
        entry_point=task.entry_point,
        prompt=task.prefix,
        grading=grading,
        task_id=task.task_id,
        sample=sample.index,
    )


def grade(
    generation: str,
    checks: Checks | Sequence[str],
    *,
    sandbox: Sandbox | None = None,
    entry_point: str | None = None,
    prompt: str = "",
    extraction: str = "auto",
    limits: Limits | None = None,
    grading: Grading = "auto",
) -> Envelope:
    """Extracts a program from ``generation``, runs ``checks`` on it and gives the envelope.

    ``checks`` is a Checks value or a list of assertion strings. ``prompt`` is source that stands
    in front of the program, as HumanEval's prompts do. Without a ``sandbox`` the embedded
    subprocess lane is used, which needs the opt-in. Raises OptInRequired, SandboxError,
    InputError.
    """
    given = checks if isinstance(checks, Assertions | Program) else Assertions(checks)
    code = program_of(
        generation, extraction=extraction, names=names_of(given, entry_point), prefix=prompt
    )
    job = Job(
        code=code,
        checks=given,
        limits=limits or Limits(),
        entry_point=entry_point,
        prompt=prompt,
        grading=grading,
    )
    return (sandbox or _embedded()).run(job)


def run_candidate(
    code: str | None,
    assertions: Sequence[str],
    timeout_s: float = 3.0,
    *,
    sandbox: Sandbox | None = None,
) -> Envelope:
    """Runs a program, as it is, against assertion strings. Raises as ``grade`` does."""
    job = Job(code=code, checks=Assertions(assertions), limits=Limits(timeout_s=timeout_s))
    return (sandbox or _embedded()).run(job)


def score_code_exec(
    generation: str,
    targets: Sequence[str],
    timeout_s: float = 3.0,
    *,
    sandbox: Sandbox | None = None,
) -> float:
    """The fraction of ``targets`` that hold of the generation's first code block, 0.0 … 1.0.

    Raises as ``grade`` does: a fault of ours is never a score of 0.
    """
    return grade(
        generation,
        targets,
        sandbox=sandbox,
        extraction="first",
        limits=Limits(timeout_s=timeout_s),
    ).score


METRICS: dict[str, Callable[..., float]] = {"code_exec": score_code_exec}


def score(metric_name: str, generation: str, targets: Sequence[str], **settings: object) -> float:
    """The score that the metric of that name gives, 0.0 … 1.0. Raises InputError if unknown."""
    metric = METRICS.get(metric_name)
    if metric is None:
        raise InputError(f"no metric {metric_name!r}: there is {', '.join(sorted(METRICS))}")
    return metric(generation, targets, **settings)


_lock = threading.Lock()
_sandbox: SubprocessSandbox | None = None


def _embedded() -> SubprocessSandbox:
    """The subprocess lane that the functions of this module share, made when first needed."""
    global _sandbox  # noqa: PLW0603
    with _lock:
        if _sandbox is None:
            _sandbox = SubprocessSandbox()
            atexit.register(_sandbox.close)
        return _sandbox
