"""The bubblewrap wall: the runner under ``bwrap``, for machines without a daemon.

The same shape as the container, put together by bubblewrap: no network, process ids, IPC and host
name of its own, a read-only root with just the system's libraries and the interpreter, a private
/tmp and /dev/shm. As root the supervisor keeps SETUID, SETGID and KILL and candidates get a uid
of the lane's; for any other user it is a user namespace, and everything is one uid.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, ClassVar

from isograd.errors import SandboxUnavailable
from isograd.runner import boot
from isograd.sandbox.base import Sandbox, Stream, StreamLost
from isograd.sandbox.process import (
    SCRATCH,
    ProcessStream,
    interpreter,
    interpreter_places,
    missing_here,
    site_directories,
)

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives")
_REMEDY = "or use --sandbox docker"


class BubblewrapSandbox(Sandbox):
    """Runs candidates under bubblewrap. Raises SandboxUnavailable where that cannot be had."""

    backend: ClassVar[str] = "bubblewrap"

    def __init__(self, **settings: Any) -> None:
        if lacks := missing_here():
            raise SandboxUnavailable(
                f"bubblewrap needs {' and '.join(lacks)}: use --sandbox docker"
            )
        bwrap = shutil.which("bwrap")
        if bwrap is None:
            raise SandboxUnavailable(
                "no bwrap on this machine: install bubblewrap (apt-get install bubblewrap), "
                f"{_REMEDY}"
            )
        super().__init__(**settings)
        self._bwrap = bwrap

    def _open(self) -> tuple[Stream, dict[str, Any]]:
        stream = _BubblewrapStream([self._bwrap, *self._walls(), *self._inside()], None)
        return stream, {
            "scratch": SCRATCH,
            "private": True,
            "layers": ["bubblewrap", "namespaces", "read_only_root", "no_network"],
            "site": site_directories(self._packages),
        }

    def _walls(self) -> list[str]:
        if os.geteuid() == 0:
            walls = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
            walls += ["--unshare-cgroup-try", "--cap-drop", "ALL"]
            for capability in ("CAP_SETUID", "CAP_SETGID", "CAP_KILL"):
                walls += ["--cap-add", capability]
        else:
            walls = ["--unshare-all"]
        walls += ["--new-session", "--as-pid-1", "--hostname", "isograd"]
        for place in _SYSTEM:
            if os.path.islink(place):
                walls += ["--symlink", os.readlink(place), place]
            elif os.path.isdir(place):
                walls += ["--ro-bind", place, place]
        for place in _ETC:
            walls += ["--ro-bind-try", place, place]
        for place in [*interpreter_places(), *site_directories(self._packages)]:
            for parent in reversed(Path(place).parents):
                if str(parent) != "/":
                    walls += ["--perms", "0755", "--dir", str(parent)]
            walls += ["--ro-bind", place, place]
        size = str(2 * self._room[0] << 20)
        walls += ["--proc", "/proc", "--dev", "/dev", "--dir", "/sys"]
        for place in ("/tmp", "/dev/shm"):
            walls += ["--perms", "1777", "--size", size, "--tmpfs", place]
        return [*walls, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/", "--clearenv"]

    def _inside(self) -> list[str]:
        return ["--", interpreter(), *boot.command(SCRATCH)]


class _BubblewrapStream(ProcessStream):
    """A runner's pipes; an end before its first word is bubblewrap's, and it said why."""

    _spoke = False

    def receive(self, deadline: float) -> bytes:
        try:
            data = super().receive(deadline)
        except StreamLost:
            if not self._spoke:
                raise SandboxUnavailable(
                    f"bubblewrap: {self.last_words().strip()[:300] or 'it ended at once'}: "
                    f"it needs root or unprivileged user namespaces, {_REMEDY}"
                ) from None
            raise
        self._spoke = True
        return data
