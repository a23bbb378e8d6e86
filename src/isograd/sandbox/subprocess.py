"""The subprocess wall: the runner as a child process on this host.

Where Linux gives us namespaces (as root, or by a user namespace) the lane gets a root, a network
and process ids of its own: ``enclosure``. Elsewhere it gets a session, a scratch directory and an
empty environment, and ``isograd doctor`` says what is missing.
"""

from __future__ import annotations

import marshal
import os
import tempfile
from importlib import resources
from typing import Any, ClassVar, Literal

from isograd.errors import OptInRequired, SandboxUnavailable
from isograd.runner import boot
from isograd.sandbox.base import Sandbox, Stream
from isograd.sandbox.process import (
    SCRATCH,
    ProcessStream,
    interpreter,
    interpreter_places,
    missing_here,
    site_directories,
)

OPT_IN = "ISOGRAD_ALLOW_CODE_EXEC"

Namespaces = Literal["auto", "require", "never"]


def require_opt_in(allowed: bool) -> None:
    """Raises OptInRequired unless running model-written code on this host was allowed."""
    if not allowed and os.environ.get(OPT_IN) != "1":
        raise OptInRequired(
            "this would run model-written code on this host: set ISOGRAD_ALLOW_CODE_EXEC=1, "
            "or give --allow-code-exec (allow_code_exec=True), or use a container "
            "(--sandbox docker)"
        )


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
                    "scratch": SCRATCH,
                    "private": True,
                    "layers": ["namespaces", "read_only_root", "no_network"],
                    "site": site_directories(self._packages),
                }
            if self._namespaces == "require":
                raise SandboxUnavailable(
                    f"this host does not let us have namespaces ({why}): "
                    "run as root, or use --sandbox docker"
                )
        scratch = tempfile.mkdtemp(prefix="isograd-")
        words, environment = boot.direct(scratch)
        return ProcessStream([interpreter(), *words], scratch, environment=environment), {
            "scratch": scratch,
            "private": False,
            "site": site_directories(self._packages),
        }

    def _enclosed(self) -> tuple[ProcessStream | None, str]:
        """A runner in namespaces of its own, or None and why not."""
        source = resources.files("isograd.sandbox").joinpath("enclosure.py").read_text("utf-8")
        answer, status = os.pipe()
        words, environment = boot.direct(SCRATCH)
        settings = {
            "command": [interpreter(), *words],
            "environment": environment,
            "show": [*interpreter_places(), *site_directories(self._packages)],
            "scratch_mb": 2 * self._room[0],
            "scratch_files": 2 * self._room[1],
            "status": status,
        }
        command = [interpreter(), "-I", "-S", "-c", source, marshal.dumps(settings).hex()]
        with open(answer, "rb") as pipe:
            try:
                stream = ProcessStream(command, None, (status,))
            finally:
                os.close(status)
            why = pipe.read().decode("utf-8", "replace")
        if not why:
            return stream, ""
        stream.close()
        return None, why
