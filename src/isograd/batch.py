"""A batch: every sample of a file graded once, kept as it comes, and counted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isograd.contract import DEFAULT_DENYLIST, ExitCode, Grading, Job, Limits, Result, Sample
from isograd.formats import SampleSet, TaskSet
from isograd.report import ResultsFile, Summary
from isograd.sandbox import Pool, Sandbox
from isograd.sandbox.repeats import Repeats
from isograd.scoring import job_of


@dataclass(frozen=True)
class Batch:
    """What to grade, and how. Everything here but the lanes decides verdicts."""

    tasks: TaskSet
    samples: SampleSet
    limits: Limits = field(default_factory=Limits)
    extraction: str = "auto"
    stops: tuple[str, ...] = ()
    grading: Grading = "auto"

    def jobs(self, wanted: Callable[[Sample], bool] = lambda sample: True) -> Iterator[Job]:
        """The job of each sample that is ``wanted``, in the file's order."""
        for sample in filter(wanted, self.samples):
            yield job_of(
                self.tasks.tasks[sample.task_id],
                sample,
                limits=self.limits,
                extraction=self.extraction,
                stops=self.stops,
                grading=self.grading,
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
            "grading": self.grading,
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
    retry_timeouts: bool = False,
    dedupe: bool = True,
    on_result: Callable[[Result], None] = lambda result: None,
) -> Summary:
    """Grades a batch on ``lanes`` lanes; results are appended to ``out`` as they come.

    With ``resume`` what ``out`` holds is counted and not graded again. With ``retry_timeouts``
    what timed out runs once more at the end, alone, and that verdict counts. With ``dedupe``
    identical samples of a task run once, and the summary says how many did not. Raises InputError,
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
            done = {(result.task_id, result.sample) for result in file.done}

        def keep(result: Result, *, graded: bool = True) -> None:
            if file is not None and graded:
                file.append(result)
            summary.add(result)
            on_result(result)

        for result in file.done if file is not None else ():
            keep(result, graded=False)
        late: set[tuple[str, int]] = set()
        wanted = batch.jobs(lambda s: (s.task_id, s.index) not in done)
        results = pool.grade(wanted, dedupe=dedupe)
        try:
            for result in results:
                if retry_timeouts and _timed_out(result):
                    late.add((result.task_id, result.sample))
                else:
                    keep(result)
        except BaseException:
            pool.close()  # before the generator's end, which waits for the running jobs
            raise
        summary.retried = len(late)
        repeats = Repeats()
        for job in batch.jobs(lambda s: (s.task_id, s.index) in late):
            digest = repeats.digest(job)
            result = (repeats.known(digest, job) if dedupe else None) or pool.run_alone(job)
            repeats.keep(digest, result)
            summary.retries_changed += not _timed_out(result)
            keep(result)
    return summary


def _timed_out(result: Result) -> bool:
    return result.envelope is not None and result.envelope.exit_code is ExitCode.TIMEOUT


def parse_ks(text: str) -> Sequence[int]:
    """The numbers of ``--k``, such as "1,10,100". Raises ValueError."""
    ks = sorted({int(word) for word in text.split(",") if word.strip()})
    if not ks or ks[0] < 1:
        raise ValueError(text)
    return ks
