"""A runner as a child process of this one: its pipes, and what the interpreter needs to be seen.

What the walls that need no daemon have in common.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from isograd.errors import SandboxUnavailable
from isograd.sandbox.base import StreamLost, wait_for

SCRATCH = "/tmp/isograd-00000000"
"""The lane's directory on a /tmp of its own."""


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


def interpreter() -> str:
    """The base interpreter of this one: not a virtual environment's, which hides its library."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def site_directories(packages: tuple[str, ...]) -> list[str]:
    """Where distributions that candidates may import are installed on this host."""
    if not packages:
        return []
    return sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})


def interpreter_places() -> list[str]:
    """The directories that the base interpreter needs, shortest first, none below another."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    places = {
        os.path.realpath(place)
        for place in (
            sys.base_prefix,
            sys.base_exec_prefix,
            str(Path(interpreter()).parent),
            os.path.join(sys.base_prefix, "lib", version),
        )
    }
    return sorted(
        place
        for place in places - {"/usr", "/"}
        if not any(place != other and Path(place).is_relative_to(other) for other in places)
    )


class ProcessStream:
    """The pipes of a runner's process."""

    def __init__(
        self,
        command: list[str],
        scratch: str | None,
        pass_fds: tuple[int, ...] = (),
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._scratch = scratch
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=dict(environment),
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
            wait_for(self._inlet, select.POLLOUT, deadline)
            try:
                view = view[os.write(self._inlet, view) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise StreamLost("the runner's process is gone") from error

    def receive(self, deadline: float) -> bytes:
        wait_for(self._outlet, select.POLLIN, deadline)
        data = os.read(self._outlet, 1 << 16)
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
