"""Public benchmarks with known answers, read from beside the project."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from isograd import Job, Limits
from isograd.formats import SampleSet, TaskSet, load_samples, load_tasks
from isograd.scoring import job_of

STOPS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint", "\nassert")
NEED_MATH = {"98", "124", "137", "139", "163", "233", "246", "248", "276", "300"}
"""MBPP tasks whose file lacks the import that their reference solutions need."""


def humaneval(place: Path) -> TaskSet:
    return load_tasks(place / "humaneval.tasks.jsonl.gz")


def references(tasks: TaskSet) -> Iterator[Job]:
    """A job for each task's own solution."""
    for task in tasks.tasks.values():
        needs_math = tasks.format == "mbpp" and task.task_id in NEED_MATH
        code = ("import math\n" if needs_math else "") + task.prefix + (task.reference or "")
        yield Job(
            code=code,
            checks=task.checks,
            entry_point=task.entry_point,
            prompt=task.prefix,
            limits=Limits(timeout_s=10),  # one of MBPP's takes 2.7 s on a quiet machine
            task_id=task.task_id,
        )


def recorded(place: Path, model: str) -> tuple[TaskSet, SampleSet]:
    """A model's HumanEval samples; each has its recorded verdict in its metadata."""
    tasks = humaneval(place)
    return tasks, load_samples(place / f"humaneval-{model}.samples.jsonl.gz", tasks)


def codegen(place: Path) -> tuple[TaskSet, SampleSet]:
    """16,400 generations of CodeGen-16B, to be cut at STOPS."""
    tasks = load_tasks(place / "codet-humaneval.tasks.jsonl.gz")
    return tasks, load_samples(place / "humaneval-codegen16b.samples.jsonl.gz", tasks)


def sample_jobs(
    tasks: TaskSet, samples: SampleSet, stops: tuple[str, ...] = (), first: int | None = None
) -> Iterator[Job]:
    """A job for each sample, or for each task's first few."""
    for sample in samples:
        if first is None or sample.index < first:
            yield job_of(tasks.tasks[sample.task_id], sample, limits=Limits(), stops=stops)
