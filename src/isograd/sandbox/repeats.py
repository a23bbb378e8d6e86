"""Identical jobs in a batch: each runs once, and its verdict counts for all."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator

from isograd.contract import Envelope, Job, Measurement, Result
from isograd.runner import wire

_KEPT = 32_768
_LARGEST_OUTPUT = 2_048
_MERGED = Measurement(merged=True)


class Repeats:
    """Verdicts of earlier jobs, by what the runner is given of a job: all but its labels.

    At most ``kept`` of them, the latest used, and none whose candidate printed more than 2 KiB,
    so that memory does not grow with the batch.
    """

    def __init__(self, kept: int = _KEPT) -> None:
        self._kept = kept
        self._known: OrderedDict[bytes, Result] = OrderedDict()
        self._same: dict[Envelope, Envelope] = {}
        self._running: dict[bytes, list[Job]] = {}

    def digest(self, job: Job) -> bytes:
        """16 bytes that identical jobs share."""
        return hashlib.blake2b(wire.pack(job.to_wire()), digest_size=16).digest()

    def known(self, digest: bytes, job: Job) -> Result | None:
        """The result that this job shares with one that has been graded."""
        found = self._known.get(digest)
        if found is None:
            return None
        self._known.move_to_end(digest)
        return _for(job, found)

    def sift(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, bytes] | Result | None]:
        """The jobs that have to run, and at once the results of those that need not.

        A job that is like one that runs is kept back, for which None is given: ``settle`` gives
        its result.
        """
        for job in jobs:
            digest = self.digest(job)
            if (known := self.known(digest, job)) is not None:
                yield known
            elif digest in self._running:
                self._running[digest].append(job)
                yield None
            else:
                self._running[digest] = []
                yield job, digest

    def settle(self, digest: bytes, result: Result) -> list[Result]:
        """The results of the jobs that waited for this one, which has run; a fault of ours is
        theirs too."""
        self.keep(digest, result)
        return [_for(job, result) for job in self._running.pop(digest)]

    def keep(self, digest: bytes, result: Result) -> None:
        """Remembers a verdict for the jobs that are like this one."""
        envelope = result.envelope
        if envelope is None or len(envelope.stdout) + len(envelope.stderr) > _LARGEST_OUTPUT:
            return
        if len(self._same) > self._kept:
            self._same.clear()
        shared = self._same.setdefault(envelope, envelope)
        self._known[digest] = result.model_copy(update={"envelope": shared, "measurement": None})
        if len(self._known) > self._kept:
            self._known.popitem(last=False)


def _for(job: Job, result: Result) -> Result:
    labels = {"task_id": job.task_id, "sample": job.sample}
    return result.model_copy(update={**labels, "measurement": _MERGED})
