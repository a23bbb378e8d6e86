"""The subprocess wall: the runner as a child process on this host.

Where Linux gives us namespaces (as root, or by a user namespace) the lane gets a root, a network
and process ids of its own: ``enclosure``. Elsewhere it gets a session, a scratch directory and an
empty environment, and ``isograd doctor`` says what is missing.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar, Literal

from isograd.errors import OptInRequired, SandboxUnavailable
from isograd.runner import boot
from isograd.sandbox.base import Sandbox, Stream, StreamLost

OPT_IN = "ISOGRAD_ALLOW_CODE_EXEC"

_ENCLOSED_SCRATCH = "/tmp/isograd-00000000"

Namespaces = Literal["auto", "require", "never"]


def require_opt_in(allowed: bool) -> None:
    """Raises OptInRequired unless running model-written code on this host was allowed."""
    if not allowed and os.environ.get(OPT_IN) != "1":
        raise OptInRequired(
            "this would run model-written code on this host: set ISOGRAD_ALLOW_CODE_EXEC=1, "
            "or give --allow-code-exec (allow_code_exec=True), or use a container "
            "(--sandbox docker)"
        )


def missing_here() -> list[str]:
    """What this host lacks for the subprocess wall; empty if nothing."""
    lacks = [] if sys.platform.startswith("linux") else [f"Linux (this is {sys.platform})"]
    for module in ("resource", "fcntl"):
        try:
            __import__(module)
        except ImportError:
            lacks.append(f"the {module} module")
    if not hasattr(os, "fork"):
        lacks.append("os.fork")
    return lacks


class SubprocessSandbox(Sandbox):
    """Runs candidates on this host, behind the runner and the kernel's own protections.

    ``allow_code_exec`` is the opt-in, as is ISOGRAD_ALLOW_CODE_EXEC=1 in the environment.
    ``namespaces`` says whether the lane is enclosed: "auto" where it can be, "require" (else
    SandboxUnavailable), "never". Raises OptInRequired, SandboxUnavailable.
    """

    backend: ClassVar[str] = "subprocess"

    def __init__(
        self, *, allow_code_exec: bool = False, namespaces: Namespaces = "auto", **settings: Any
    ) -> None:
        require_opt_in(allow_code_exec)
        if lacks := missing_here():
            raise SandboxUnavailable(
                f"the subprocess wall needs {' and '.join(lacks)}: use --sandbox docker"
            )
        super().__init__(**settings)
        self._namespaces: Namespaces = namespaces

    def _open(self) -> tuple[Stream, dict[str, Any]]:
        if self._namespaces != "never":
            stream, why = self._enclosed()
            if stream is not None:
                return stream, {
                    "scratch": _ENCLOSED_SCRATCH,
                    "private": True,
                    "layers": ["namespaces", "read_only_root", "no_network"],
                    "site": self._site(),
                }
            if self._namespaces == "require":
                raise SandboxUnavailable(
                    f"this host does not let us have namespaces ({why}): "
                    "run as root, or use --sandbox docker"
                )
        scratch = tempfile.mkdtemp(prefix="isograd-")
        return _ProcessStream([*_interpreter(), *boot.command(scratch)], scratch), {
            "scratch": scratch,
            "private": False,
            "site": self._site(),
        }

    def _site(self) -> list[str]:
        """Where the distributions that candidates may import are installed on this host."""
        if not self._packages:
            return []
        return sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})

    def _enclosed(self) -> tuple[_ProcessStream | None, str]:
        """A runner in namespaces of its own, or None and why not."""
        source = resources.files("isograd.sandbox").joinpath("enclosure.py").read_text("utf-8")
        answer, status = os.pipe()
        settings = {
            "command": [*_interpreter(), *boot.command(_ENCLOSED_SCRATCH)],
            "show": [*_interpreter_places(), *self._site()],
            "scratch_mb": 2 * self._ceiling.scratch_mb,
            "scratch_files": 2 * self._ceiling.scratch_files,
            "status": status,
        }
        command = [*_interpreter(), "-I", "-S", "-c", source, json.dumps(settings)]
        with open(answer, "rb") as pipe:
            try:
                stream = _ProcessStream(command, None, (status,))
            finally:
                os.close(status)
            why = pipe.read().decode("utf-8", "replace")
        if not why:
            return stream, ""
        stream.close()
        return None, why


def _interpreter() -> list[str]:
    """The base interpreter of this one: not a virtual environment's, which hides its library."""
    return [os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)]


def _interpreter_places() -> list[str]:
    """The directories that the base interpreter needs, shortest first, none below another."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    places = {
        os.path.realpath(place)
        for place in (
            sys.base_prefix,
            sys.base_exec_prefix,
            str(Path(_interpreter()[0]).parent),
            os.path.join(sys.base_prefix, "lib", version),
        )
    }
    return sorted(
        place
        for place in places - {"/usr", "/"}
        if not any(place != other and Path(place).is_relative_to(other) for other in places)
    )


class _ProcessStream:
    """The pipes of a runner's process."""

    def __init__(
        self, command: list[str], scratch: str | None, pass_fds: tuple[int, ...] = ()
    ) -> None:
        self._scratch = scratch
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env={},
                cwd="/",
                start_new_session=True,
                bufsize=0,
                pass_fds=pass_fds,
            )
        except OSError as error:
            self._errors.close()
            raise SandboxUnavailable(f"cannot start {command[0]}: {error.strerror}") from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._inlet, self._outlet = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._inlet, False)

    def _children(self) -> list[int]:
        """Where the runner is enclosed: process id 1 of its namespace, as this host sees it."""
        pid = self._process.pid
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii")
            return [int(word) for word in text.split()]
        return []

    def send(self, data: bytes, deadline: float) -> None:
        view = memoryview(data)
        while view:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([], [self._inlet], [], left)[1]:
                raise TimeoutError
            try:
                view = view[os.write(self._inlet, view) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise StreamLost("the runner's process is gone") from error

    def receive(self, deadline: float) -> bytes:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([self._outlet], [], [], left)[0]:
            raise TimeoutError
        data = os.read(self._outlet, 1 << 20)
        if not data:
            raise StreamLost("the runner's process ended")
        return data

    def last_words(self) -> str:
        with contextlib.suppress(OSError, ValueError):
            return os.pread(self._errors.fileno(), 4000, 0).decode("utf-8", "replace")
        return ""

    def interrupt(self) -> None:
        for pid in [*self._children(), self._process.pid]:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(2)
        except subprocess.TimeoutExpired:
            self.interrupt()
            process.wait()
        process.stdout.close()
        self._errors.close()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
