"""Reference solutions of public benchmarks pass, behind every wall."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from isograd import Pool, Sandbox
from isograd.formats import load_tasks
from support.benchmarks import humaneval, references


def failures(make: Callable[[], Sandbox], jobs: list[object]) -> list[tuple[str, str]]:
    """Who did not pass; a timeout counts only if it is one alone, too."""
    by_id = {job.task_id: job for job in jobs}  # type: ignore[attr-defined]
    failed = []
    with Pool(make, lanes=2) as pool:
        for result in pool.grade(jobs):  # type: ignore[arg-type]
            envelope = result.envelope
            if envelope is not None and envelope.exit_code == "timeout":
                envelope = pool.run_alone(by_id[result.task_id]).envelope
            if envelope is None or envelope.exit_code != "pass":
                failed.append((result.task_id, envelope.detail if envelope else str(result.fault)))
    return failed


@pytest.mark.parametrize("backend", ["subprocess", "docker"])
def test_humanevals_canonical_solutions_pass(
    backend: str, make_sandbox: Callable[[str], Callable[[], Sandbox]], shared_data: Path
) -> None:
    """164 of 164."""
    jobs = list(references(humaneval(shared_data)))
    assert len(jobs) == 164
    assert failures(make_sandbox(backend), jobs) == []


@pytest.mark.parametrize("backend", ["subprocess", "docker"])
def test_mbpps_reference_solutions_pass(
    backend: str, make_sandbox: Callable[[str], Callable[[], Sandbox]], shared_data: Path
) -> None:
    """427 of 427, ten of them with the import that their file lacks."""
    jobs = list(references(load_tasks(shared_data / "mbpp.tasks.jsonl.gz")))
    assert len(jobs) == 427
    assert failures(make_sandbox(backend), jobs) == []
