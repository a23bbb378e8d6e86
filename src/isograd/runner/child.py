"""The process of one candidate: it puts on its limits, loads the program and runs the checks.

It reads its job from a socket of its own and writes events to it, each a frame that carries the
job's key: ``started``, then ``loaded``, then one ``check`` for each, then ``end``. A program that
does not get as far as the checks gives ``end`` at once. What the supervisor makes of them stands
there.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import mmap
import os
import re
import signal
import sys
import types
from collections.abc import Callable
from typing import Any

from . import checks, denylist, kernel, wire

CHANNEL = 3
SOURCE = "candidate.py"
_DETAIL = 2_000
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


def take_place(stdin: int, stdout: int, stderr: int, channel: int) -> None:
    """Makes this forked process the leader of a session with just these four descriptors."""
    os.setsid()
    spare = [os.dup2(fd, 10 + index) for index, fd in enumerate((stdin, stdout, stderr, channel))]
    for index, fd in enumerate(spare):
        os.dup2(fd, index, inheritable=True)
    os.closerange(4, 64)


def main(own_uid: int | None) -> None:
    """Runs one job in this process and never returns."""
    try:
        _run(own_uid)
    finally:
        os._exit(0)


def _run(own_uid: int | None) -> None:
    job = wire.read_message(CHANNEL)
    key = job["key"]
    leader = os.getpid()

    def send(event: str, **fields: Any) -> None:
        if os.getpid() != leader:
            os._exit(0)  # a fork of the candidate's came back into the runner
        wire.write_all(CHANNEL, wire.pack({"key": key, "event": event, **fields}))

    try:
        kernel.limit_this_process(job["limits"], count_processes=job["count_processes"])
        kernel.become(own_uid)
        kernel.die_with_parent()
        kernel.set_dumpable(True)
        os.chdir(job["scratch"])
        _look_ordinary()
    except BaseException as error:
        send("unfit", detail=f"{type(error).__name__}: {error}")
        return
    grade(job, send)


def _look_ordinary() -> None:
    """Gives the candidate the interpreter that it would have as a program of its own."""
    os.umask(0o022)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    kernel.unblock_signals()
    for name in [name for name in sys.modules if name.split(".")[0] in ("_isograd", "isograd")]:
        del sys.modules[name]
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


def grade(job: dict[str, Any], send: Callable[..., None]) -> None:
    """Shared grading: candidate and checks in this process."""
    scratch = job["scratch"]
    namespaces = [globals(), *map(vars, (checks, denylist, kernel, wire))]
    try:
        program = _compile_checks(job["checks"])
    except checks.NotACheck as error:
        send("end", exit_code="error", reason="no_checks", detail=str(error))
        return
    denylist.install(job["denylist"], lambda asking: any(asking is ours for ours in namespaces))
    reserve = _Reserve()
    send("started")
    try:
        code = compile(job["code"].removeprefix("\ufeff"), SOURCE, "exec", dont_inherit=True)
    except BaseException as error:
        reserve.release()
        reason = "memory" if isinstance(error, MemoryError) else None
        send("end", exit_code="syntax_error", reason=reason, detail=describe(error, scratch))
        return
    module = _module(job["code"], scratch)
    try:
        exec(code, module.__dict__)
    except BaseException as error:
        reserve.release()
        reason = "early_exit" if isinstance(error, _LEAVING) else reason_of(error) or "raised"
        send("end", exit_code="error", reason=reason, detail=describe(error, scratch))
        return
    send("loaded")
    scope = checks.Scope(module.__dict__)
    base: dict[str, Any] = {"__builtins__": scope, "__name__": "checks"}
    namespaces.append(base)
    left: str | None = None
    for number, check in enumerate(program(base, module.__dict__), 1):
        reserve.take()
        held, reason, detail = False, None, "false"
        try:
            namespace = dict(base)
            namespaces.append(namespace)
            held = check(namespace)
        except BaseException as error:
            reserve.release()
            reason, detail = reason_of(error), describe(error, scratch)
            if isinstance(error, _LEAVING):
                left = left or f"check {number}: {detail}"
        namespaces.pop()
        send("check", number=number, held=held, reason=reason, detail="" if held else detail)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    if left is not None:
        send("end", exit_code="error", reason="early_exit", detail=left)
    else:
        send("end", exit_code=None, reason=None, detail="")


class _Reserve:
    """Address space that is set aside: released when a candidate has used up the rest of it,
    so that the report of that still fits."""

    def __init__(self) -> None:
        self._held: mmap.mmap | None = None
        self.take()

    def take(self) -> None:
        if self._held is None:
            with contextlib.suppress(OSError, MemoryError):
                self._held = mmap.mmap(-1, 4 << 20)

    def release(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None


Check = Callable[[dict[str, Any]], bool]


def _compile_checks(given: dict[str, Any]) -> Callable[..., list[Check]]:
    """Compiles the checks before the candidate runs; gives what makes them ready afterwards.

    A check that is no Python is a check that raises.
    """
    if given["kind"] == "program":
        program: Any = _compiled(checks.compile_program, given["source"], "test")
        entry_point = given["entry_point"]

        def ready(base: dict[str, Any], candidate: dict[str, Any]) -> list[Check]:
            def check(namespace: dict[str, Any]) -> bool:
                if isinstance(program, Exception):
                    raise program
                exec(program, namespace)
                function = namespace["check"]
                if entry_point not in candidate:
                    raise NameError(f"name {entry_point!r} is not defined")
                function(candidate[entry_point])
                return True

            return [check]

        return ready

    if not given["checks"]:
        raise checks.NotACheck("there are no checks")
    compiled: list[Any] = []
    for number, source in enumerate(given["checks"], 1):
        try:
            compiled.append(_compiled(checks.compile_check, source, f"check {number}"))
        except checks.NotACheck as error:
            raise checks.NotACheck(f"check {number} is no check: {error}") from None
    setup: Any = _compiled(
        lambda source, name: compile(source, name, "exec", dont_inherit=True),
        given["setup"],
        "setup",
    )

    def ready_assertions(base: dict[str, Any], candidate: dict[str, Any]) -> list[Check]:
        failed: list[BaseException] = []
        try:
            if isinstance(setup, Exception):
                raise setup
            exec(setup, base)
        except BaseException as error:
            failed.append(error)

        def one(check: Any) -> Check:
            def run(namespace: dict[str, Any]) -> bool:
                for error in failed:
                    raise error
                if isinstance(check, Exception):
                    raise check
                return bool(check.holds(namespace))

            return run

        return [one(check) for check in compiled]

    return ready_assertions


def _compiled(compiler: Callable[[str, str], Any], source: str, filename: str) -> Any:
    try:
        return compiler(source.removeprefix("\ufeff"), filename)
    except checks.NotACheck:
        raise
    except Exception as error:
        return error


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


def reason_of(error: BaseException) -> str | None:
    """The reason of the contract that an exception names, or None."""
    if isinstance(error, MemoryError):
        return "memory"
    text = _text(error)
    if isinstance(error, ImportError) and text.startswith("denied: import of "):
        return "denied"
    if isinstance(error, PermissionError) and str(error.strerror).startswith("denied: "):
        return "denied"
    if isinstance(error, ModuleNotFoundError):
        return "import_missing"
    if isinstance(error, OSError):
        if error.errno == errno.EAGAIN and isinstance(error, BlockingIOError):
            return "processes"
        if error.errno in (errno.EFBIG, errno.ENOSPC, errno.EDQUOT):
            return "scratch"
        if error.errno == errno.ENOMEM:
            return "memory"
    if isinstance(error, RuntimeError) and text == "can't start new thread":
        return "processes"
    return None


def _text(error: BaseException) -> str:
    """The text of an exception, whatever its class does to prevent it."""
    try:
        text = str(error)
        return text[: 2 * _DETAIL] if type(text) is str else str.__str__(text)[: 2 * _DETAIL]
    except BaseException:
        return "<no text: its __str__ raised>"


_ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]+")
_PROC_PID = re.compile(r"/proc/[0-9]+")
_PID = re.compile(r"\b(pid)([ =:]+)[0-9]+", re.IGNORECASE)


def describe(error: BaseException, scratch: str) -> str:
    """One line that names an exception, its text and the candidate's line; the same every time."""
    name = type.__getattribute__(type(error), "__name__")
    text = _text(error)
    line = None
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == SOURCE:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    if isinstance(error, SyntaxError):
        line = None
    detail = str(name) + (f": {text}" if text else "")
    detail = _ADDRESS.sub("at 0x…", detail.replace(scratch, "<scratch>"))
    detail = _PID.sub(r"\1\2…", _PROC_PID.sub("/proc/…", detail))
    where = f" ({SOURCE}, line {line})" if line is not None else ""
    return clip(detail, _DETAIL - len(where)) + where


def clip(text: str, size: int) -> str:
    """``text`` made safe for UTF-8 and cut to ``size`` bytes."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= size:
        return data.decode()
    return data[: size - 3].decode("utf-8", "ignore") + "…"
