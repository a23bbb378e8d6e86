"""The pool: several lanes, leased to whoever has a job."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, Self

from isograd.contract import Envelope, Job, Result
from isograd.errors import InputError, SandboxCrashed, SandboxUnavailable
from isograd.sandbox.base import Sandbox
from isograd.sandbox.repeats import Repeats

_END: Any = object()
_MOST_KEPT_BACK = 1_000


class Pool:
    """``lanes`` sandboxes made by ``make``, used from any number of threads.

    ``make`` is a class or any callable without arguments that gives a Sandbox; it is called when
    a lane is first needed. Lanes that die are replaced by their sandbox.
    """

    def __init__(self, make: Callable[[], Sandbox], lanes: int = 2) -> None:
        if lanes < 1:
            raise InputError(f"a pool has at least 1 lane, not {lanes}")
        self._make = make
        self._lanes = lanes
        self._made: list[Sandbox] = []
        self._idle: queue.LifoQueue[Sandbox | None] = queue.LifoQueue()
        for _ in range(lanes):
            self._idle.put(None)
        self._gate = _Gate()
        self._lock = threading.Lock()
        self._closed = False

    @contextlib.contextmanager
    def lease(self) -> Iterator[Sandbox]:
        """A sandbox for as long as the block lasts; waits for one. Raises SandboxUnavailable."""
        sandbox = self._idle.get()
        try:
            if sandbox is None:
                sandbox = self._make()
                sandbox.alone = self._gate.alone
                with self._lock:
                    self._made.append(sandbox)
                    closed = self._closed
                if closed:
                    sandbox.close()
            with self._gate.shared():
                yield sandbox
        finally:
            self._idle.put(sandbox)

    def run(self, job: Job) -> Envelope:
        """The verdict on one job; raises as ``Sandbox.run`` does."""
        with self.lease() as sandbox:
            return sandbox.run(job)

    def _result(
        self,
        job: Job,
        how: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> Result:
        try:
            with self.lease() as sandbox, how():
                return sandbox.run_measured(job)
        except SandboxCrashed as error:
            return Result(task_id=job.task_id, sample=job.sample, envelope=None, fault=str(error))

    def run_alone(self, job: Job) -> Result:
        """One job while no other runs, for verdicts that a busy machine may have changed."""
        return self._result(job, self._gate.alone)

    def grade(self, jobs: Iterable[Job], *, dedupe: bool = False) -> Iterator[Result]:
        """The results of ``jobs``, in the order in which they finish.

        ``jobs`` is read as lanes get free, so it may be endless; what is kept in memory does not
        grow with it. A job that fails by our fault gives a result without an envelope. With
        ``dedupe`` jobs that differ in their labels only run once: the others get the same
        envelope, and a measurement that says ``merged``. Raises SandboxUnavailable, after the
        results that there are, when no lane can be had.
        """
        repeats = Repeats()
        todo: Iterator[tuple[Job, bytes | None] | Result | None]
        todo = repeats.sift(jobs) if dedupe else ((job, None) for job in jobs)
        gone: SandboxUnavailable | None = None
        pending: dict[Future[Result], bytes | None] = {}
        executor = ThreadPoolExecutor(self._lanes, thread_name_prefix="isograd")
        kept_back = 0
        try:
            more = True
            while more or pending:
                while more and gone is None and len(pending) < 2 * self._lanes:
                    next_one = next(todo, _END)
                    if next_one is _END:
                        more = False
                    elif next_one is None:
                        kept_back += 1
                        if kept_back >= _MOST_KEPT_BACK:
                            break
                    elif isinstance(next_one, Result):
                        yield next_one
                    else:
                        job, digest = next_one
                        pending[executor.submit(self._result, job)] = digest
                if gone is not None:
                    more = False
                    pending = {one: of for one, of in pending.items() if not one.cancel()}
                done, _ = wait(pending, return_when=FIRST_COMPLETED)
                for future in done:
                    digest = pending.pop(future)
                    try:
                        result = future.result()
                    except SandboxUnavailable as error:
                        gone = gone or error
                        continue
                    yield result
                    if digest is not None:
                        shared = repeats.settle(digest, result)
                        kept_back -= len(shared)
                        yield from shared
            if gone is not None:
                raise gone
        except BaseException as error:
            if not isinstance(error, Exception | GeneratorExit):
                self.close()  # an interrupt waits for no candidate
            raise
        finally:
            for future in pending:
                future.cancel()
            executor.shutdown(wait=True)

    def close(self) -> None:
        """Ends every lane, also in the middle of a job. May be called twice."""
        with self._lock:
            self._closed = True
            made, self._made = self._made, []
        for sandbox in made:
            sandbox.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Gate:
    """Lets many jobs run at once, or one alone."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._running = 0
        self._waiting = 0
        self._taken: int | None = None

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        self._enter()
        try:
            yield
        finally:
            self._leave()

    def _enter(self) -> None:
        with self._condition:
            self._condition.wait_for(lambda: self._taken is None and not self._waiting)
            self._running += 1

    def _leave(self) -> None:
        with self._condition:
            self._running -= 1
            self._condition.notify_all()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """For who is inside ``shared``: until the end of the block, nobody else is."""
        if self._taken == threading.get_ident():
            yield
            return
        with self._condition:
            self._running -= 1
            self._waiting += 1
            self._condition.notify_all()
            self._condition.wait_for(lambda: self._taken is None and self._running == 0)
            self._waiting -= 1
            self._taken = threading.get_ident()
        try:
            yield
        finally:
            with self._condition:
                self._taken = None
                self._running += 1
                self._condition.notify_all()
