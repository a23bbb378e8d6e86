"""The pool: several lanes, leased to whoever has a job."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Self

from isograd.contract import Envelope, Job, Result
from isograd.errors import InputError, SandboxCrashed, SandboxUnavailable
from isograd.sandbox.base import Sandbox
from isograd.sandbox.repeats import Repeats

_END: Any = object()
_MOST_KEPT_BACK = 1_000
_WINDOW = 4
"""Jobs that are read for each lane: one runs, one may be on its way, and the others wait."""


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
        self._queued = 0
        self._lock = threading.Lock()
        self._closed = False

    @contextlib.contextmanager
    def lease(self) -> Iterator[Sandbox]:
        """A sandbox for as long as the block lasts; waits for one. Raises SandboxUnavailable."""
        with self._lock:
            self._queued += 1
        try:
            sandbox = self._idle.get()
        finally:
            with self._lock:
                self._queued -= 1
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

    def run_alone(self, job: Job) -> Result:
        """One job while no other runs, for verdicts that a busy machine may have changed."""
        with self.lease() as sandbox, self._gate.alone():
            return _result(sandbox, job)

    def _work(self, crew: _Crew) -> None:
        """What each thread of a batch does. A sandbox is told its next job ahead, as long as
        nobody else waits for one, or to be alone."""
        item = crew.take()
        while item is not None:
            then = None
            try:
                with self.lease() as sandbox:
                    while item is not None:
                        wanted = self._queued or self._gate.is_wanted
                        then = None if wanted else crew.take_ahead()
                        crew.finish(item, _result(sandbox, item.job, then and then.job))
                        item, then = then, None
            except BaseException as error:
                assert item is not None
                crew.finish(item, error)
                item = then
            item = item or crew.take()

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
        crew = _Crew(self._work, self._lanes)
        try:
            more = True
            while more or crew.busy:
                while more and gone is None and crew.busy < _WINDOW * self._lanes:
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
                        crew.begin(_Item(*next_one))
                if gone is not None:
                    more = False
                    crew.forget_waiting()
                if not crew.busy:
                    continue
                (_, digest), result = crew.next_done()
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


def _result(sandbox: Sandbox, job: Job, then: Job | None = None) -> Result:
    """A job's result; one without an envelope where the fault is ours. Raises the rest."""
    try:
        return sandbox.run_measured(job, then)
    except SandboxCrashed as error:
        return Result(task_id=job.task_id, sample=job.sample, envelope=None, fault=str(error))


class _Item(NamedTuple):
    job: Job
    digest: bytes | None


class _Crew:
    """Threads that run the jobs of one batch by ``work``, and the results as they come."""

    def __init__(self, work: Callable[[_Crew], None], size: int) -> None:
        self._size = size
        self._todo: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[_Item, Result | BaseException]] = queue.SimpleQueue()
        self.busy = 0
        """Jobs that have begun, or wait, and whose result has not been taken."""
        # Daemons: who drops a batch in the middle must be able to leave.
        self._threads = [
            threading.Thread(target=work, args=(self,), name=f"isograd-{n}", daemon=True)
            for n in range(size)
        ]
        for thread in self._threads:
            thread.start()

    def begin(self, item: _Item) -> None:
        """Has a job run as soon as a thread is free."""
        self.busy += 1
        self._todo.put(item)

    def take(self) -> _Item | None:
        """For a thread: its next job; None at the end. Waits for it."""
        return self._todo.get()

    def take_ahead(self) -> _Item | None:
        """For a thread that has a job: one more, if there is another for each thread behind it,
        so that none idles while it waits here for a slow one."""
        if self._todo.qsize() <= self._size:
            return None
        with contextlib.suppress(queue.Empty):
            item = self._todo.get_nowait()
            if item is None:
                self._todo.put(None)
            return item
        return None

    def finish(self, item: _Item, result: Result | BaseException) -> None:
        """For a thread: tells what came of a job."""
        self._done.put((item, result))

    def next_done(self) -> tuple[_Item, Result | BaseException]:
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

    @property
    def is_wanted(self) -> bool:
        """Whether somebody waits to be alone."""
        return self._waiting > 0

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        with self._lock:
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
