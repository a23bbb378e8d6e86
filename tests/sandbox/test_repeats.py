"""Identical jobs of a batch run once, and nobody gets another's verdict."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

import pytest

from isograd import (
    Assertions,
    Envelope,
    FakeSandbox,
    Job,
    Limits,
    Pool,
    SandboxCrashed,
    SubprocessSandbox,
)

SAME = Job(code="def f():\n    return 1\n", checks=Assertions(["f() == 1"]), task_id="a")
OTHERS = {
    "code": SAME.model_copy(update={"code": "def f():\n    return 2\n"}),
    "checks": SAME.model_copy(update={"checks": Assertions(["f() == 2"])}),
    "limits": SAME.model_copy(update={"limits": Limits(timeout_s=2)}),
    "denylist": SAME.model_copy(update={"denylist": ()}),
    "prompt": SAME.model_copy(update={"prompt": "import math\n"}),
    "entry point": SAME.model_copy(update={"entry_point": "f"}),
    "grading": SAME.model_copy(update={"grading": "shared"}),
}


def verdict(passed: bool) -> Envelope:
    return Envelope(
        exit_code="pass" if passed else "assertion_fail",
        score=float(passed),
        passed=int(passed),
        total=1,
        per_assertion=(passed,),
    )


class Counting:
    """Answers by what the code is, and counts what it was asked."""

    def __init__(self, fails_first: int = 0) -> None:
        self.asked: Counter[str] = Counter()
        self._fails = fails_first

    def __call__(self, job: Job) -> Envelope:
        self.asked[str(job.code)] += 1
        if self._fails:
            self._fails -= 1
            raise SandboxCrashed("a lane died")
        return verdict("return 1" in str(job.code))

    def pool(self, lanes: int = 2) -> Pool:
        return Pool(lambda: FakeSandbox(self), lanes=lanes)


def test_identical_jobs_run_once_and_each_has_its_result() -> None:
    """Every label comes back once, and all but one say that they were merged."""
    counting = Counting()
    jobs = [SAME.model_copy(update={"sample": n}) for n in range(50)]
    with counting.pool() as pool:
        results = list(pool.grade(jobs, dedupe=True))
    assert counting.asked.total() == 1
    assert sorted(result.sample for result in results) == list(range(50))
    assert {result.envelope for result in results} == {verdict(True)}
    assert sum(bool(r.measurement and r.measurement.merged) for r in results) == 49


def test_without_dedupe_each_job_runs() -> None:
    """Merging is asked for, not a habit."""
    counting = Counting()
    with counting.pool() as pool:
        list(pool.grade([SAME] * 5))
    assert counting.asked.total() == 5


@pytest.mark.parametrize("name", OTHERS)
def test_jobs_that_differ_are_not_merged(name: str) -> None:
    """Whatever may change a verdict tells two jobs apart."""
    counting = Counting()
    with counting.pool(lanes=1) as pool:
        list(pool.grade([SAME, OTHERS[name], SAME, OTHERS[name]], dedupe=True))
    assert counting.asked.total() == 2


def test_labels_do_not_tell_jobs_apart() -> None:
    """Two tasks with the same program and the same checks are one piece of work."""
    counting = Counting()
    with counting.pool(lanes=1) as pool:
        list(pool.grade([SAME, SAME.model_copy(update={"task_id": "b"})], dedupe=True))
    assert counting.asked.total() == 1


def test_a_fault_of_ours_is_a_fault_for_all_that_are_alike() -> None:
    """Nobody who waited for a job without a verdict is scored."""
    counting = Counting(fails_first=1)
    jobs = [SAME.model_copy(update={"sample": n}) for n in range(4)]
    with counting.pool(lanes=1) as pool:
        results = list(pool.grade(jobs, dedupe=True))
    assert sorted(result.sample for result in results) == [0, 1, 2, 3]
    faults = [result for result in results if result.envelope is None]
    assert faults and {result.fault for result in faults} == {"a lane died"}
    assert len(faults) == 4 or counting.asked.total() > 1


def test_text_that_is_no_utf8_can_be_told_apart() -> None:
    """Lone surrogates, which models do write, end no batch."""
    counting = Counting()
    codes = ["x = '\ud800'", "x = '\ud801'", "x = '\ud800'"]
    with counting.pool(lanes=1) as pool:
        jobs = [SAME.model_copy(update={"code": code}) for code in codes]
        assert len(list(pool.grade(jobs, dedupe=True))) == 3
    assert counting.asked.total() == 2


def test_an_endless_stream_of_identical_jobs_gives_results() -> None:
    """What is kept back for a job that runs is bounded."""
    counting = Counting()
    with counting.pool() as pool:
        results = pool.grade(itertools.repeat(SAME), dedupe=True)
        first = list(itertools.islice(results, 5_000))
        results.close()  # type: ignore[attr-defined]
    assert {result.envelope for result in first} == {verdict(True)}


def test_what_is_remembered_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdicts used last are kept, up to a number."""
    monkeypatch.setattr("isograd.sandbox.pool.Repeats", lambda: Repeats(kept=2))
    from isograd.sandbox.repeats import Repeats

    counting = Counting()
    codes = ["1", "2", "3", "1", "3"]
    with counting.pool(lanes=1) as pool:
        jobs = (SAME.model_copy(update={"code": code}) for code in codes)
        results = pool.grade(jobs, dedupe=True)
        assert len(list(results)) == len(codes)
    assert counting.asked["2"] == 1
    assert counting.asked.total() <= len(codes)


@pytest.mark.parametrize("make", [lambda: SubprocessSandbox(allow_code_exec=True)])
def test_merged_results_have_the_envelope_that_a_run_gives(
    make: Callable[[], SubprocessSandbox],
) -> None:
    """Byte for byte the same as without merging."""
    jobs = [
        Job(code=f"print({n % 3})\ndef f():\n    return {n % 3}\n",
            checks=Assertions(["f() == 1"]), sample=n)
        for n in range(12)
    ]  # fmt: skip
    with Pool(make, lanes=2) as pool:
        merged = {r.sample: r.envelope for r in pool.grade(jobs, dedupe=True)}
        each = {r.sample: r.envelope for r in pool.grade(jobs)}
    assert merged == each
