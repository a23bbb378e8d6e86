"""What somebody who stands outside a sandbox can see of it, to compare before and after a job.

Only what a lane of ours could have left is looked at, so that other users of the same machine,
other sandboxes and other test runs do not disturb a comparison: processes below this one, in a
container of ours or of the lane's own uid; containers of ours; and, on this host, scratch
directories, shared memory and System V objects.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import docker

from isograd import Sandbox
from isograd.sandbox.docker import LABEL

_PATIENCE_S = 2.0
_KERNEL = "2"
"""kthreadd, the parent of the kernel's own threads."""


@dataclass(frozen=True)
class Process:
    """One process as /proc shows it; two looks at an undisturbed one are equal."""

    pid: int
    started: str
    parent: str
    name: str
    uids: str
    nice: str
    policy: str
    affinity: tuple[int, ...]
    limits: str
    descriptors: int


@dataclass(frozen=True)
class Seen:
    """What there is at one moment."""

    processes: frozenset[Process]
    containers: frozenset[str]
    scratch: frozenset[str]
    shared_memory: frozenset[str]
    ipc: frozenset[str]

    def but_for(self, other: Seen) -> dict[str, set[object]]:
        """What is here and not in ``other``, by kind; empty if nothing is."""
        extra = {
            field.name: set(getattr(self, field.name) - getattr(other, field.name))
            for field in fields(self)
        }
        return {kind: things for kind, things in extra.items() if things}

    @property
    def pids(self) -> set[int]:
        return {process.pid for process in self.processes}


class Observer:
    """Looks at what belongs to ``sandbox``, whose candidates run as ``uid`` at the moment."""

    def __init__(self, sandbox: Sandbox, uid: int) -> None:
        self._uid = uid if uid != os.getuid() else None
        self._docker = sandbox.backend == "docker"
        stream = sandbox._lane._stream if sandbox._lane is not None else None
        process = getattr(stream, "_process", None)
        mine = process.pid if process is not None else None
        # Lanes of other sandboxes, which may end of idleness at any time.
        self._others = _children() - {mine}

    def look(self) -> Seen:
        """What there is now."""
        containers = self._containers()
        return Seen(
            processes=frozenset(_alike(list(self._processes(containers)))),
            containers=containers,
            scratch=frozenset(self._names(tempfile.gettempdir(), "isograd-")),
            shared_memory=frozenset(self._names("/dev/shm")),
            ipc=frozenset(_ipc()),
        )

    def look_again_for(self, before: Seen) -> Seen:
        """What there is now, once it equals ``before``; after two seconds, whatever there is.

        Processes are not waited for: they have to be right at once.
        """
        give_up = time.monotonic() + _PATIENCE_S
        seen = first = self.look()
        while (seen.but_for(before) or before.but_for(seen)) and time.monotonic() < give_up:
            if seen.processes != before.processes:
                return first
            time.sleep(0.05)
            seen = self.look()
        return seen

    def _containers(self) -> frozenset[str]:
        if not self._docker:
            return frozenset()
        ours = f"{socket.gethostname()}/{os.getpid()}"
        with contextlib.closing(docker.from_env()) as client:
            return frozenset(
                found["Id"]
                for found in client.api.containers(all=True)
                if found["Labels"].get(LABEL) == ours
            )

    def _processes(self, containers: frozenset[str]) -> Iterator[Process]:
        stats = dict(_stats())
        for pid, stat in stats.items():
            above = _ancestors(pid, stats)
            if pid == os.getpid() or self._others.intersection({pid, *above}):
                continue
            with contextlib.suppress(OSError):
                uids = _status(pid, "Uid:")
                if (
                    os.getpid() in above
                    or (self._uid is not None and str(self._uid) in uids.split())
                    or _is_in(containers, pid)
                ):
                    yield Process(
                        pid=pid,
                        started=stat[20],
                        parent=stat[2],
                        name=stat[0],
                        uids=uids,
                        nice=stat[17],
                        policy=stat[39],
                        affinity=tuple(sorted(os.sched_getaffinity(pid))),
                        limits=_text(f"/proc/{pid}/limits"),
                        descriptors=_descriptors(pid),
                    )

    def _names(self, place: str, prefix: str = "") -> Iterator[str]:
        with contextlib.suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    owner = entry.stat(follow_symlinks=False).st_uid
                    if entry.name.startswith(prefix) or owner == self._uid:
                        yield f"{place}/{entry.name}"


def _alike(processes: list[Process]) -> Iterator[Process]:
    """The processes, those that the zygote has forked ahead without what tells them apart.

    Each job has others. They are root's, as nothing of a candidate's ever is, and below the
    zygote, which is below the supervisor.
    """
    pids = {process.pid: process for process in processes}
    parents = {int(process.parent) for process in processes}
    ahead = 0
    for process in processes:
        above = pids.get(int(process.parent))
        if (
            process.uids.split() == ["0"] * 4
            and process.pid not in parents
            and above is not None
            and int(above.parent) in pids
        ):
            ahead += 1
            yield replace(process, pid=-ahead, started="", descriptors=-1)
        else:
            yield process


def _stats() -> Iterator[tuple[int, list[str]]]:
    """Each process's name and the fields of /proc/PID/stat after it: state, parent, …"""
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError):
                head, _, rest = _text(f"/proc/{name}/stat").rpartition(") ")
                fields_ = rest.split()
                if fields_[1] != _KERNEL and name != _KERNEL:
                    yield int(name), [head.partition("(")[2], *fields_]


def _ancestors(pid: int, stats: dict[int, list[str]]) -> list[int]:
    found = []
    while pid in stats:
        pid = int(stats[pid][2])
        found.append(pid)
    return found


def _children() -> set[int]:
    return {pid for pid, stat in _stats() if int(stat[2]) == os.getpid()}


def _is_in(containers: frozenset[str], pid: int) -> bool:
    cgroup = _text(f"/proc/{pid}/cgroup") if containers else ""
    return any(container in cgroup for container in containers)


def _status(pid: int, key: str) -> str:
    lines = _text(f"/proc/{pid}/status").splitlines()
    return next((line.removeprefix(key).strip() for line in lines if line.startswith(key)), "")


def _descriptors(pid: int) -> int:
    """How many descriptors a process has open, or -1 where that is not ours to know."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return -1


def _ipc() -> Iterator[str]:
    for kind in ("shm", "sem", "msg"):
        with contextlib.suppress(OSError):
            for line in _text(f"/proc/sysvipc/{kind}").splitlines()[1:]:
                yield f"{kind} {line.split()[1]}"


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
