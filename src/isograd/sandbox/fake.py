"""The fake wall: scripted verdicts and no processes, for tests of everything above a wall."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar

from isograd.contract import Envelope, Job, Measurement, Result
from isograd.errors import SandboxError
from isograd.sandbox.base import Sandbox, Stream

Outcome = Envelope | SandboxError


class FakeSandbox(Sandbox):
    """Gives scripted envelopes and keeps the jobs that it was asked to run.

    ``script`` is one envelope for every job, a function of the job, or an iterable used up one
    job at a time. An outcome that is a SandboxError is raised. ``jobs`` holds what was asked.
    """

    backend: ClassVar[str] = "fake"

    def __init__(self, script: Outcome | Callable[[Job], Outcome] | Iterable[Outcome]) -> None:
        super().__init__()
        self.jobs: list[Job] = []
        self._one = script if isinstance(script, Envelope | SandboxError) else None
        self._function = script if callable(script) else None
        self._rest: Iterator[Outcome] = iter(())
        if not isinstance(script, Envelope | SandboxError) and isinstance(script, Iterable):
            self._rest = iter(script)
        self._script_lock = threading.Lock()

    def _open(self) -> tuple[Stream, dict[str, object]]:
        raise AssertionError("a fake has no lane")

    def _settle(self, job: Job, then: Job | None) -> Result:
        with self._script_lock:
            self.jobs.append(job)
            if self._one is not None:
                outcome: Outcome = self._one
            elif self._function is not None:
                outcome = self._function(job)
            else:
                outcome = next(self._rest)
        if isinstance(outcome, SandboxError):
            raise outcome
        return self._result(job, outcome, Measurement(), 0)

    def warm_up(self) -> None:
        """Nothing to start."""

    def facts(self) -> dict[str, object]:
        return {"python": "fake", "layers": (), "packages": {}}
