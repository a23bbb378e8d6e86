"""A batch: every sample of a file graded once, kept as it comes, and counted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isograd.contract import DEFAULT_DENYLIST, Job, Limits, Result
from isograd.formats import SampleSet, TaskSet
from isograd.report import ResultsFile, Summary
from isograd.sandbox import Pool, Sandbox
from isograd.scoring import job_of


@dataclass(frozen=True)
class Batch:
    """What to grade, and how. Everything here but the lanes decides verdicts."""

    tasks: TaskSet
    samples: SampleSet
    limits: Limits = Limits()
    extraction: str = "auto"
    stops: tuple[str, ...] = ()

    def jobs(self, done: set[tuple[str, int]]) -> Iterator[Job]:
        """The job of each sample that is not in ``done``, in the file's order."""
        for sample in self.samples:
            if (sample.task_id, sample.index) not in done:
                yield job_of(
                    self.tasks.tasks[sample.task_id],
                    sample,
                    limits=self.limits,
                    extraction=self.extraction,
                    stops=self.stops,
                )

    def settings(self, facts: dict[str, Any]) -> dict[str, Any]:
        """What the verdicts depend on, for the results file's digest."""
        return {
            "tasks": self.tasks.sha256,
            "samples": self.samples.sha256,
            "limits": self.limits.model_dump(mode="json"),
            "extraction": self.extraction,
            "stops": list(self.stops),
            "denylist": list(DEFAULT_DENYLIST),
            "grading": "shared",
            "python": facts["python"],
            "packages": facts["packages"],
            "image": facts.get("image", ""),
        }


def run_batch(
    batch: Batch,
    make: Callable[[], Sandbox],
    *,
    lanes: int,
    out: Path | None = None,
    resume: bool = False,
    on_result: Callable[[Result], None] = lambda result: None,
) -> Summary:
    """Grades a batch on ``lanes`` lanes; results are appended to ``out`` as they come.

    With ``resume`` what ``out`` holds is counted and not graded again. Raises InputError,
    SandboxUnavailable; what was graded until then is kept.
    """
    summary = Summary()
    with Pool(make, lanes=lanes) as pool, contextlib.ExitStack() as stack:
        file = None
        done: set[tuple[str, int]] = set()
        if out is not None:
            with pool.lease() as sandbox:
                facts = sandbox.facts()
            file = stack.enter_context(ResultsFile(out, batch.settings(facts), resume=resume))
            for result in file.done:
                done.add((result.task_id, result.sample))
                summary.add(result)
                on_result(result)
            file.done.clear()
        for result in pool.grade(batch.jobs(done)):
            if file is not None:
                file.append(result)
            summary.add(result)
            on_result(result)
    return summary


def parse_ks(text: str) -> Sequence[int]:
    """The numbers of ``--k``, such as "1,10,100". Raises ValueError."""
    ks = sorted({int(word) for word in text.split(",") if word.strip()})
    if not ks or ks[0] < 1:
        raise ValueError(text)
    return ks
