"""Parity: the same jobs on several sandboxes, compared byte by byte.

Every job runs once on every side. Where the envelopes differ, the job runs three times more on
each side, each time in an interpreter of its own, and the difference is named:

* ``nondeterministic``: a side varies, or the sides' sets of envelopes meet;
* ``environmental``: the candidate looks at the wall itself (uid, host name, processors, …) and
  the verdict fields agree;
* ``accepted``: it is on the list of accepted differences;
* ``divergent``: none of these, so it is a fault of ours.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal

from isograd.contract import Envelope, Job
from isograd.errors import InputError, SandboxCrashed
from isograd.parity.accepted import ACCEPTED, Accepted
from isograd.sandbox import Pool, Sandbox

Kind = Literal["nondeterministic", "environmental", "accepted", "divergent"]
Compare = Literal["bytes", "verdict"]

_RERUNS = 3

_LOOKS_AT_THE_WALL = re.compile(
    r"\b(getuid|geteuid|getgid|getegid|getresuid|getlogin|getpwuid|getuser|gethostname|uname"
    r"|platform\.node|cpu_count|sched_getaffinity|listdir|scandir|iterdir|walk|glob|rglob"
    r"|getpid|getppid|gettid|stat|statvfs|environ|getrlimit|getrusage|times|interface"
    r"|if_nameindex)\b|/proc\b|/sys\b|/dev\b|/etc\b|/tmp\b|/usr\b|/root\b|/home\b"
)


@dataclass(frozen=True)
class Difference:
    """One job on which the sides disagreed; the envelopes that each side gave, first first."""

    task_id: str
    sample: int
    kind: Kind
    envelopes: Mapping[str, tuple[Envelope, ...]]
    reason: str = ""


@dataclass
class Parity:
    """The outcome of a comparison. ``jobs`` is identical plus the differences plus faults."""

    sides: Mapping[str, Mapping[str, Any]]
    jobs: int = 0
    identical: int = 0
    differences: list[Difference] = field(default_factory=list)
    faults: list[tuple[str, int, str]] = field(default_factory=list)
    stale: list[Accepted] = field(default_factory=list)

    def count(self, kind: Kind) -> int:
        return sum(difference.kind == kind for difference in self.differences)

    @property
    def agrees(self) -> bool:
        """Whether nothing diverged and no accepted difference is stale."""
        return self.count("divergent") == 0 and not self.stale

    def as_json(self) -> dict[str, Any]:
        """The object that ``isograd parity --json`` prints."""
        return {
            "sides": {name: dict(facts) for name, facts in self.sides.items()},
            "jobs": self.jobs,
            "identical": self.identical,
            "nondeterministic": self.count("nondeterministic"),
            "environmental": self.count("environmental"),
            "accepted": self.count("accepted"),
            "divergent": self.count("divergent"),
            "stale": [f"{entry.task_id} {entry.sample}: {entry.reason}" for entry in self.stale],
            "infrastructure_faults": [
                {"task_id": task_id, "sample": sample, "fault": fault}
                for task_id, sample, fault in self.faults
            ],
            "differences": [
                {
                    "task_id": difference.task_id,
                    "sample": difference.sample,
                    "kind": difference.kind,
                    "reason": difference.reason,
                    "envelopes": {
                        side: [envelope.model_dump(mode="json") for envelope in envelopes]
                        for side, envelopes in difference.envelopes.items()
                    },
                }
                for difference in self.differences
            ],
        }


def verdict_of(envelope: Envelope) -> tuple[object, ...]:
    """The fields that make the verdict: exit code, reason, the result of each check."""
    return (envelope.exit_code, envelope.reason, envelope.per_assertion)


def compare(
    jobs: Iterable[Job],
    sides: Mapping[str, Callable[[], Sandbox]],
    *,
    again: Mapping[str, Callable[[], Sandbox]] | None = None,
    lanes: int = 1,
    by: Compare = "bytes",
    accepted: Sequence[Accepted] = ACCEPTED,
    progress: Callable[[int], None] = lambda done: None,
) -> Parity:
    """Runs ``jobs`` on every side and compares the envelopes.

    ``sides`` makes a sandbox for each side; ``again`` makes the sandboxes for the re-runs, each
    candidate in an interpreter of its own (by default the sides' own). ``by="verdict"`` compares
    verdict fields only, for walls that promise no more and for programs that have no fixed
    output. Raises InputError for fewer than two sides, SandboxUnavailable.
    """
    if len(sides) < 2:
        raise InputError("parity compares at least two sandboxes: give --sandbox twice")
    key: Callable[[Envelope], object] = Envelope.canonical if by == "bytes" else verdict_of
    pools = {name: Pool(make, lanes=lanes) for name, make in sides.items()}
    fresh = {name: Pool(make, lanes=1) for name, make in (again or sides).items()}
    try:
        outcome = Parity({name: _facts(pool) for name, pool in pools.items()})
        occurred: set[Accepted] = set()
        lock = threading.Lock()

        def one(job: Job) -> None:
            difference = fault = None
            try:
                envelopes = {name: pool.run(job) for name, pool in pools.items()}
                if len({key(envelope) for envelope in envelopes.values()}) > 1:
                    difference = _name(job, envelopes, fresh, key, accepted, occurred)
            except SandboxCrashed as error:
                fault = (job.task_id, job.sample, str(error))
            with lock:
                outcome.jobs += 1
                if fault is not None:
                    outcome.faults.append(fault)
                elif difference is None:
                    outcome.identical += 1
                else:
                    outcome.differences.append(difference)
                progress(outcome.jobs)

        with ThreadPoolExecutor(lanes * len(pools)) as executor:
            try:
                _drain(executor, one, jobs, 4 * lanes * len(pools))
            except BaseException:  # an interrupt waits for no candidate
                executor.shutdown(wait=False, cancel_futures=True)
                for pool in [*pools.values(), *fresh.values()]:
                    pool.close()
                raise
        outcome.stale = [entry for entry in accepted if entry not in occurred]
        return outcome
    finally:
        for pool in [*pools.values(), *fresh.values()]:
            pool.close()


def _drain(
    executor: ThreadPoolExecutor, one: Callable[[Job], None], jobs: Iterable[Job], window: int
) -> None:
    """Runs ``one`` on every job with at most ``window`` of them waiting; raises what it raises."""
    room = threading.Semaphore(window)
    failed: list[BaseException] = []

    def guarded(job: Job) -> None:
        try:
            if not failed:
                one(job)
        except BaseException as error:
            failed.append(error)
        finally:
            room.release()

    for job in jobs:
        room.acquire()
        if failed:
            break
        executor.submit(guarded, job)
    executor.shutdown(wait=True)
    if failed:
        raise failed[0]


def _facts(pool: Pool) -> dict[str, Any]:
    with pool.lease() as sandbox:
        return sandbox.facts()


def _name(
    job: Job,
    first: Mapping[str, Envelope],
    fresh: Mapping[str, Pool],
    key: Callable[[Envelope], object],
    accepted: Sequence[Accepted],
    occurred: set[Accepted],
) -> Difference:
    """Runs a job again on every side and says what kind of difference it is."""
    seen = {
        name: (envelope, *(fresh[name].run(job) for _ in range(_RERUNS)))
        for name, envelope in first.items()
    }
    keys = {name: {key(envelope) for envelope in envelopes} for name, envelopes in seen.items()}
    for entry in accepted:
        if (entry.task_id, entry.sample) == (job.task_id, job.sample):
            occurred.add(entry)
            return Difference(job.task_id, job.sample, "accepted", seen, entry.reason)
    varies = any(len(side) > 1 for side in keys.values())
    kind: Kind = "divergent"
    if varies or set.intersection(*keys.values()):
        kind = "nondeterministic"
    elif _looks_at_the_wall(job) and _agree_on_verdicts(seen):
        kind = "environmental"
    return Difference(job.task_id, job.sample, kind, seen)


def _looks_at_the_wall(job: Job) -> bool:
    return _LOOKS_AT_THE_WALL.search(job.code or "") is not None


def _agree_on_verdicts(seen: Mapping[str, Sequence[Envelope]]) -> bool:
    verdicts = Counter(verdict_of(envelope) for side in seen.values() for envelope in side)
    return len(verdicts) == 1


def differing_facts(sides: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Which facts about the environments differ between sides, in words."""
    found = []
    for name in ("python", "packages"):
        values = {side: facts.get(name) for side, facts in sides.items()}
        if len({repr(value) for value in values.values()}) > 1:
            found.append(
                f"{name}: " + ", ".join(f"{side} has {value}" for side, value in values.items())
            )
    return found
