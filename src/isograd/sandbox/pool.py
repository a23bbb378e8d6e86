"""The pool: several lanes, leased to whoever has a job."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
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
        kept_back = 0
        crew = _Crew(self._result, self._lanes)
        try:
            more = True
            while more or crew.busy:
                while more and gone is None and crew.busy < 2 * self._lanes:
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
                        crew.begin(*next_one)
                if gone is not None:
                    more = False
                    crew.forget_waiting()
                if not crew.busy:
                    continue
                digest, result = crew.next_done()
                if isinstance(result, SandboxUnavailable):
                    gone = gone or result
                    continue
                if isinstance(result, BaseException):
                    raise result
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
            crew.dismiss()

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


class _Crew:
    """Threads that run the jobs of one batch, and the results as they come."""

    def __init__(self, run: Callable[[Job], Result], size: int) -> None:
        self._run = run
        self._todo: queue.SimpleQueue[tuple[Job, bytes | None] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[bytes | None, Result | BaseException]]
        self._done = queue.SimpleQueue()
        self.busy = 0
        """Jobs that have begun, or wait, and whose result has not been taken."""
        # Daemons: who drops a batch in the middle must be able to leave.
        self._threads = [
            threading.Thread(target=self._work, name=f"isograd-{n}", daemon=True)
            for n in range(size)
        ]
        for thread in self._threads:
            thread.start()

    def _work(self) -> None:
        while (item := self._todo.get()) is not None:
            job, digest = item
            try:
                self._done.put((digest, self._run(job)))
            except BaseException as error:
                self._done.put((digest, error))

    def begin(self, job: Job, digest: bytes | None) -> None:
        """Has a job run as soon as a thread is free."""
        self.busy += 1
        self._todo.put((job, digest))

    def next_done(self) -> tuple[bytes | None, Result | BaseException]:
        """The next result, or what the job raised; waits for it."""
        done = self._done.get()
        self.busy -= 1
        return done

    def forget_waiting(self) -> None:
        """Drops the jobs that have not begun."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._todo.get_nowait()
                self.busy -= 1

    def dismiss(self) -> None:
        """Waits for the jobs that run, and ends the threads."""
        self.forget_waiting()
        for _ in self._threads:
            self._todo.put(None)
        for thread in self._threads:
            thread.join()


class _Gate:
    """Lets many jobs run at once, or one alone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._running = 0
        self._waiting = 0
        self._taken: int | None = None

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        with self._lock:
            if self._taken is not None or self._waiting:
                self._changed.wait_for(lambda: self._taken is None and not self._waiting)
            self._running += 1
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1
                if self._waiting:
                    self._changed.notify_all()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """For who is inside ``shared``: until the end of the block, nobody else is."""
        if self._taken == threading.get_ident():
            yield
            return
        with self._lock:
            self._running -= 1
            self._waiting += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._taken is None and self._running == 0)
            self._waiting -= 1
            self._taken = threading.get_ident()
        try:
            yield
        finally:
            with self._lock:
                self._taken = None
                self._running += 1
                self._changed.notify_all()
