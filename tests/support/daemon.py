"""A Docker daemon for one test session, on which nobody else depends.

It has its own socket, data root, exec root and pid file in one temporary folder, and neither a
bridge nor a firewall rule (``network none`` needs none), so it disturbs nothing else on the
machine. Root and a ``dockerd`` binary are all that it needs.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

RUNSC = {"runsc": {"runtimeArgs": ["--network=none", "--platform=ptrace"]}}


def available() -> str | None:
    """None, or why no daemon can be started here."""
    if sys.platform != "linux":
        return "a throwaway Docker daemon needs Linux"
    if os.geteuid() != 0:
        return "a throwaway Docker daemon needs root"
    if _dockerd() is None:
        return "no dockerd on this machine (Debian: apt-get install docker.io)"
    return None


class ThrowawayDaemon:
    """``with ThrowawayDaemon() as daemon: docker.DockerClient(base_url=daemon.host)``.

    ``stop`` ends it in order and ``kill`` as a crash does; ``start`` then brings it back on the
    same data, so that a test can watch what survives.
    """

    def __init__(self, *, start_timeout_s: float = 60.0) -> None:
        self.runsc = shutil.which("runsc")
        self._timeout_s = start_timeout_s
        self._root = Path(tempfile.mkdtemp(prefix="isod-", dir="/tmp"))  # a short socket path
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def host(self) -> str:
        """What DOCKER_HOST has to be."""
        return f"unix://{self._root}/s"

    @property
    def pid(self) -> int | None:
        """The daemon's process, while it runs."""
        running = self._process is not None and self._process.poll() is None
        return self._process.pid if running and self._process else None

    @property
    def log(self) -> str:
        """Everything that the daemon has said."""
        return (self._root / "log").read_text("utf-8", "replace")

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start it, also again after ``stop`` or ``kill``; returns once it answers."""
        if self.pid:
            return
        reason = available()
        if reason:
            raise RuntimeError(reason)
        config = self._root / "daemon.json"
        config.write_text(json.dumps(self._config()), "utf-8")
        # After a crash: a pid file whose process is a zombie, or another one by now, would be
        # taken for a daemon that still runs.
        for stale in ("s", "p", "e/containerd/containerd.pid"):
            (self._root / stale).unlink(missing_ok=True)
        with (self._root / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(_dockerd()), "--config-file", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(),
                start_new_session=True,  # a Ctrl-C at the terminal is for pytest, not for it
            )
        deadline = time.monotonic() + self._timeout_s
        while not _answers(self._root / "s"):
            if self.pid is None or time.monotonic() > deadline:
                raise RuntimeError(f"dockerd did not start:\n{self.log[-3000:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        """End it in order: it stops its containers and its containerd itself."""
        self._end(signal.SIGTERM, 20.0)
        self._end_children()

    def kill(self, *, containers: bool = False) -> None:
        """End it as a crash does: nobody is told, and its containers live on for now.

        The next ``start`` then stops them one by one, 10 s for each that ignores SIGTERM;
        ``containers=True`` ends them here, as a crash of the whole machine does.
        """
        self._end(signal.SIGKILL, 5.0)
        if containers:
            self._end_children()

    def close(self) -> None:
        """End everything and leave nothing on the disk."""
        self._kill_containers()  # or it would wait 10 s for each that ignores SIGTERM
        self.stop()
        for _ in range(3):
            for mount in _mounts_below(self._root):
                _quiet("umount", "--lazy", mount)
            shutil.rmtree(self._root, ignore_errors=True)
            if not self._root.exists():
                return
            time.sleep(0.2)
        raise RuntimeError(f"{self._root} could not be removed")

    def _kill_containers(self) -> None:
        if self.pid is None:
            return
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            for container in json.loads(_ask(self._root / "s", "GET", "/containers/json")[1]):
                _ask(self._root / "s", "POST", f"/containers/{container['Id']}/kill")

    def _config(self) -> dict[str, object]:
        settings: dict[str, object] = {
            "hosts": [self.host],
            "data-root": f"{self._root}/d",
            "exec-root": f"{self._root}/e",
            "pidfile": f"{self._root}/p",
            "bridge": "none",
            "iptables": False,
            "ip6tables": False,
            "exec-opts": ["native.cgroupdriver=cgroupfs"],
            "shutdown-timeout": 2,
        }
        if self.runsc:
            settings["runtimes"] = {"runsc": {"path": self.runsc, **RUNSC["runsc"]}}
        return settings

    def _end(self, how: signal.Signals, patience_s: float) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(how)
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _end_children(self) -> None:
        """Its containerd, shims and containers, which are those that name our folder."""
        for how in (signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + 3.0
            pids = self._descendants()
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, how)
            while pids and time.monotonic() < deadline:
                time.sleep(0.05)
                pids = [pid for pid in pids if _alive(pid)]

    def _descendants(self) -> list[int]:
        """Processes whose command line names our folder, and all below them."""
        parents: dict[int, int] = {}
        ours: set[int] = set()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError, IndexError, ValueError):
                pid = int(entry.name)
                stat = (entry / "stat").read_text("utf-8", "replace")
                parents[pid] = int(stat.rpartition(")")[2].split()[1])
                command = (entry / "cmdline").read_bytes().split(b"\0")
                program = os.path.basename(command[0])
                if program.startswith((b"containerd", b"runsc", b"runc")) and any(
                    f"{self._root}/".encode() in word for word in command
                ):
                    ours.add(pid)
        grown = True
        while grown:
            more = {pid for pid, parent in parents.items() if parent in ours} - ours
            ours |= more
            grown = bool(more)
        return sorted(ours - {os.getpid()})


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=5)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(5)
        self.sock.connect(str(self._path))


def _ask(path: Path, method: str, what: str) -> tuple[int, bytes]:
    connection = _UnixConnection(path)
    try:
        connection.request(method, what)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def _answers(path: Path) -> bool:
    try:
        return _ask(path, "GET", "/_ping")[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def _dockerd() -> str | None:
    return shutil.which("dockerd", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")


def _environment() -> dict[str, str]:
    """Ours, less what would point the daemon elsewhere, and with the system's own folders."""
    kept = {key: text for key, text in os.environ.items() if not key.startswith("DOCKER_")}
    kept["PATH"] = f"{kept.get('PATH', os.defpath)}:/usr/sbin:/usr/bin:/sbin:/bin"
    return kept


def _mounts_below(root: Path) -> list[str]:
    """Deepest first."""
    fields = (line.split() for line in Path("/proc/self/mounts").read_text("utf-8").splitlines())
    return sorted((f[1] for f in fields if f[1].startswith(f"{root}/")), key=len, reverse=True)


def _alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def _quiet(*command: str) -> None:
    subprocess.run(command, check=False, capture_output=True, timeout=30)
