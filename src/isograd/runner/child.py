"""The process of one candidate: it puts on its limits, loads the program and runs the checks.

It reads its job from a socket of its own and writes events to it, each a frame that carries the
job's key: ``started``, then ``loaded``, then one ``check`` for each, then ``end``. A program that
does not get as far as the checks gives ``end`` at once. What the supervisor makes of them stands
there.
"""

from __future__ import annotations

import base64
import builtins
import io
import mmap
import os
import signal
import sys
import types
from collections.abc import Callable
from typing import Any, NamedTuple

from . import checks, denylist, guard, kernel, split, wire
from .words import SOURCE, describe, is_a, reason_of

CHANNEL, LINK, SOURCES, RULES = 3, 4, 5, 40
"""Descriptors of a child, and of Landlock's rules in the zygote too."""

ruleset: int | None = None
"""Landlock's ruleset for this lane's children, made by the zygote."""
size = 0
"""The bytes of a child at its start, without its reserve."""
_LARGEST_KEPT = 256 << 10
_LEAVING = (SystemExit, KeyboardInterrupt, GeneratorExit)

REASONS = (
    "denied",
    "memory",
    "processes",
    "scratch",
    "early_exit",
    "tampered",
    "raised",
    "no_checks",
    "import_missing",
)
"""The reasons that a child may give; the others are the supervisor's to find."""


def set_aside(now: int) -> None:
    """Told how many bytes a child has at its start; they all start with the reserve."""
    global size  # noqa: PLW0603
    size = now
    _reserve.take()


class Order(NamedTuple):
    """What a child is told, all at once: its part of a job."""

    key: str
    """Stands in each event that it sends."""
    role: str
    """``shared``, ``candidate`` or ``grader``."""
    limits: list[tuple[int, int, int]]
    scratch: str
    code: str
    denylist: list[str] | None
    """None for the lane's own, which is in force."""
    prepared: bytes | None = None
    """The checks as they were prepared for an earlier job; else as the contract has them:"""
    checks: Any = None
    entry_point: str | None = None
    prompt: str = ""


def take_place(*fds: int) -> None:
    """Makes this forked process the leader of a session with just these descriptors:
    stdin, stdout, stderr, channel and perhaps the link, in their places. None has such a number
    itself: the zygote has its own there."""
    os.setsid()
    for place, fd in enumerate(fds):
        os.dup2(fd, place)
    os.closerange(len(fds), RULES)
    os.closerange(RULES + (ruleset is not None), 64)


def main(own_uid: int | None) -> None:
    """Runs one part of one job in this process and never returns."""
    try:
        job = Order(*wire.read_order(CHANNEL))
        send = _Sender(CHANNEL, job.key)
        is_grader = job.role == "grader"
        group = own_uid - 1 if own_uid and is_grader else own_uid
        try:
            kernel.confine(own_uid, group, ruleset, readable=not is_grader)
            os.chdir(job.scratch)
            os.umask(0o002 if is_grader else 0o022)
            if job.role == "candidate":  # the program comes when the grader is ready
                job = job._replace(code=wire.read_order(CHANNEL))
            kernel.limit_this_process(job.limits, size)
        except BaseException as error:
            send("unfit", detail=f"{type(error).__name__}: {error}")
            return
        {"shared": _shared, "candidate": _candidate, "grader": _grader}[job.role](job, send)
    finally:
        os._exit(0)


class _Sender:
    """Sends a job's events to the supervisor, each with the child's key."""

    __slots__ = ("_channel", "_held", "_key", "_leader")

    def __init__(self, channel: int, key: str) -> None:
        self._channel = channel
        self._key = key
        self._leader = os.getpid()
        self._held = b""

    def __call__(self, event: str, *, hold: bool = False, **fields: Any) -> None:
        """Sends an event; what is to be held goes with the next: each wakes the supervisor."""
        if os.getpid() != self._leader:
            os._exit(0)  # a fork of the candidate's came back into the runner
        self._held += wire.pack({"key": self._key, "event": event, **fields})
        if not hold:
            wire.write_all(self._channel, self._held)
            self._held = b""


def look_ordinary() -> None:
    """Makes this interpreter look as one does that runs a program and nothing else.

    Done before the fork, for all children: each has its standard streams on the descriptors 0 to
    2, whatever these are by then.
    """
    guard.take_own_copies()
    for name in [name for name in sys.modules if name.split(".")[0] == "_isograd"]:
        denylist.friends.append(id(vars(sys.modules.pop(name))))
    sys.modules["__main__"] = types.ModuleType("__main__")
    sys.argv[:] = [SOURCE]
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), encoding="utf-8")
    # Line by line, so that what was printed before a timeout or a kill is there to be seen.
    stdout = io.BufferedWriter(io.FileIO(1, "w", closefd=False))
    sys.stdout = io.TextIOWrapper(stdout, encoding="utf-8", line_buffering=True)
    sys.stderr = io.TextIOWrapper(
        io.FileIO(2, "w", closefd=False),
        encoding="utf-8",
        errors="backslashreplace",
        write_through=True,
    )
    for name in ("stdin", "stdout", "stderr"):
        setattr(sys, f"__{name}__", getattr(sys, name))


def rehearse() -> None:
    """Runs a harmless job of ours in this process, with either grading, so that its forks find
    that done.

    Python keeps in its objects what it has looked up and how a function ran before; what it
    writes there after a fork is a page to be copied, for each candidate anew. Leaves nothing
    behind.
    """
    given = {"kind": "program", "source": _REHEARSED_CHECKS, "entry_point": "f"}
    prepared = checks.prepare(given, "f", _REHEARSED.partition("    return")[0])
    order = Order("", "shared", kernel.limits_in_force(), os.getcwd(), _REHEARSED, None)
    order = order._replace(prepared=prepared.packed)
    friends = [*denylist.friends]
    null = os.open(os.devnull, os.O_WRONLY)
    inlet, outlet = os.pipe()
    ends = kernel.socket_pair()
    try:
        for role in ("shared", "split") * 4:
            os.write(outlet, wire.pack_order(tuple(order._replace(role=role))))
            job, send = Order(*wire.read_order(inlet)), _Sender(null, "")
            kernel.limit_this_process(job.limits, 0)
            os.chdir(job.scratch)
            if role == "shared":
                _shared(job, send)
                continue
            exam, module = _exam(job, send, ends[0]), _load(job, send)
            assert exam is not None
            assert module is not None
            split.rehearse(exam.end, split.CandidateEnd(ends[1], module, _flush))
            _run_checks(exam, send, job.scratch)
    finally:
        _reserve.release()
        sys.modules.pop("candidate", None)
        denylist.friends[:] = friends
        for fd in (null, inlet, outlet, *ends):
            os.close(fd)


_REHEARSED = """\
from typing import List
import math
def f(a: List[int], b: int = 0):
    return a[b]
"""

_REHEARSED_CHECKS = """\
METADATA = {}
def check(candidate):
    assert candidate([1, 2.5, 3], 1) == 2.5
    assert candidate("abc", 2) == "c", "message"
    assert candidate([[1], ["a"]], 1) == ["a"]
    assert candidate((1, 2), 1) == 2
    assert candidate({"a": 1}, "a") == 1
"""


Send = Callable[..., None]


class _Exam(NamedTuple):
    """A job's checks, and what stands between them and the candidate."""

    prepared: checks.Prepared
    end: split.GraderEnd
    scope: split.Scope


def _shared(job: Order, send: Send) -> None:
    """Shared grading: candidate and checks in this process, by the rules of split grading."""
    _deny(job.denylist)
    exam = _exam(job, send, None)
    if exam is None:
        return
    module = _load(job, send)
    if module is None:
        return
    exam.end.look()
    if exam.end.fault:
        send("end", exit_code="error", reason="tampered", detail=exam.end.fault)
        return
    split.join(exam.end, split.CandidateEnd(None, module, _flush))
    left = _run_checks(exam, send, job.scratch)
    _say_end(send, left)


def _candidate(job: Order, send: Send) -> None:
    """Split grading, the candidate's side: loads the program and answers for it."""
    _deny(job.denylist)
    module = _load(job, send)
    if module is not None:
        _reserve.release()
        split.CandidateEnd(LINK, module, _flush).serve()


def _grader(job: Order, send: Send) -> None:
    """Split grading, the grader's side: holds the checks and runs them on what crosses."""
    denylist.open_to_all()
    exam = _exam(job, send, LINK)
    if exam is None:
        return
    send("ready")  # there are checks, so the candidate may begin
    exam.end.meet()
    _say_end(send, _run_checks(exam, send, job.scratch))
    signal.pause()  # the candidate may still be loading: how that ends is the supervisor's to see


def _deny(patterns: list[str] | None) -> None:
    """Puts a job's denylist in force, if it is not the lane's, which is."""
    if patterns is not None:
        denylist.install(patterns)


def _exam(job: Order, send: Send, link: int | None) -> _Exam | None:
    """Made before the candidate runs; None, and the end is said, if there are no checks.

    Without a link the candidate is to run here, so what judges is watched.
    """
    prepared = _prepare_checks(job, send)
    if prepared is None:
        return None
    names = prepared.names
    if link is not None:
        end = split.GraderEnd(link, names.classes)
        return _Exam(prepared, end, split.Scope(end, prepared))
    watch = guard.Watch(names)
    end = split.GraderEnd(None, names.classes, watch.changed, at_once=watch.by_library)
    scope = split.Scope(end, prepared, watch.modules)
    scope.load_prompt()
    return _Exam(prepared, end, scope)


def _prepare_checks(job: Order, send: Send) -> checks.Prepared | None:
    """The checks, ready before there is a candidate; None, and the end is said, if there are none.

    What it took to get there is offered to the supervisor, for the next job with these checks.
    """
    if job.prepared:
        return checks.unpack(job.prepared)
    try:
        prepared = checks.prepare(job.checks, job.entry_point, job.prompt)
    except checks.NotACheck as error:
        send("end", exit_code="error", reason="no_checks", detail=str(error))
        return None
    if prepared.packed is not None and len(prepared.packed) <= _LARGEST_KEPT:
        send("prepared", packed=base64.b64encode(prepared.packed).decode("ascii"))
    return prepared


def _load(job: Order, send: Send) -> types.ModuleType | None:
    """Compiles and runs the candidate's program; None, and the end is said, if that fails."""
    scratch = job.scratch
    _reserve.take()
    send("started")
    try:
        code = compile(job.code.removeprefix("\ufeff"), SOURCE, "exec", dont_inherit=True)
    except BaseException as error:
        _reserve.release()
        reason = "memory" if is_a(error, MemoryError) else None
        send("end", exit_code="syntax_error", reason=reason, detail=describe(error, scratch))
        return None
    module = _module(job.code, scratch)
    try:
        exec(code, module.__dict__)
    except BaseException as error:
        _reserve.release()
        reason = "early_exit" if is_a(error, *_LEAVING) else reason_of(error) or "raised"
        _flush()
        send("end", exit_code="error", reason=reason, detail=describe(error, scratch))
        return None
    send("loaded", hold=job.role == "shared")
    return module


def _run_checks(exam: _Exam, send: Send, scratch: str) -> str | None:
    """Runs the checks one by one; the first that the candidate left by raising SystemExit.

    What the last one says is held until the end is said.
    """
    end = exam.end
    base: dict[str, Any] = {"__builtins__": exam.scope, "__name__": "checks"}
    denylist.friends.append(id(base))
    left: str | None = None
    if end.gone or end.fault:
        _give_up(end, send, "before the checks")
    ready = exam.prepared.ready(base, exam.scope.entry_point)
    for number, check in enumerate(ready, 1):
        _reserve.take()
        held, reason, detail = False, None, "false"
        namespace = dict(base)
        denylist.friends.append(id(namespace))
        try:
            held = check(namespace)
        except BaseException as error:
            _reserve.release()
            reason, detail = reason_of(error), describe(error, scratch)
            if is_a(error, *_LEAVING):
                left = left or f"check {number}: {detail}"
        denylist.friends.pop()
        end.look()
        if end.gone or end.fault:
            _give_up(end, send, f"check {number}")
        if end.left:
            held = False
            left = left or f"check {number}: {end.left}"
        detail = "" if held else detail
        _flush()
        last = number == len(ready)
        send("check", hold=last, number=number, held=held, reason=reason, detail=detail)
    return left


def _give_up(end: split.GraderEnd, send: Send, where: str) -> None:
    """The link is closed or broken: waits for the supervisor, which sees how that went."""
    if end.fault and not end.gone:
        detail = f"{where}: {end.fault}"
        send("end", exit_code="error", reason="tampered", detail=detail)
    while True:
        signal.pause()


def _say_end(send: Send, left: str | None) -> None:
    if left is not None:
        send("end", exit_code="error", reason="early_exit", detail=left)
    else:
        send("end", exit_code=None, reason=None, detail="")


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:
            continue


class _Reserve:
    """Address space that is set aside: released when a candidate has used up the rest of it,
    so that the report of that still fits."""

    def __init__(self) -> None:
        self._held: mmap.mmap | None = None

    def take(self) -> None:
        if self._held is None:
            try:  # with no class of the library's: the candidate may have changed it
                self._held = mmap.mmap(-1, 4 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            except (OSError, MemoryError):
                self._held = None

    def release(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None


_reserve = _Reserve()


class _Source:
    """The loader of the candidate's module: gives its source to ``inspect`` and ``linecache``."""

    __module__ = "candidate"

    def __init__(self, source: str) -> None:
        self._source = source

    def __repr__(self) -> str:
        return "<loader of the candidate>"

    def get_source(self, name: str) -> str:
        return self._source


def _module(source: str, scratch: str) -> types.ModuleType:
    module = types.ModuleType("candidate")
    module.__file__ = f"{scratch}/{SOURCE}"
    module.__loader__ = _Source(source)  # type: ignore[assignment]
    module.__dict__["__builtins__"] = builtins
    sys.modules["candidate"] = module
    return module
