"""The supervisor: one process a lane; it runs one job after another and gives their envelopes.

Wire protocol
-------------
stdin and stdout carry frames (``wire``): orders in, JSON out. The host sends, in this order::

    the runner and its configuration                  once; see ``boot.first_frame``
    {"op": "job", "nonce": HEX, "job": {…}}           the contract's Job, in plain types
    {"op": "ping", "nonce": HEX}
    {"op": "inspect", "nonce": HEX}                   for ``isograd doctor``

and reads::

    {"op": "hello", …}         once: the lane is ready; versions and protections
    {"op": "unfit", "why": …}  instead: the lane cannot be had, and why
    {"op": "started", "nonce": HEX}    the candidate of this job runs; left out where it has ended
                                       at once and could not have ended the lane
    {"op": "verdict", "nonce": HEX, "envelope": {…}, "measurement": {…}, "spent": BOOL}
    {"op": "fault", "nonce": HEX, "why": …}           no verdict, and it is our fault
    {"op": "pong" | "inspected", "nonce": HEX, …}

Each answer carries the nonce of its request. ``spent`` says that the lane must not be used
again. The lane ends when its stdin ends, also in the middle of a job, and after ``idle_s``
seconds without a frame. stderr carries nothing but a traceback of our own.

Theory of operation
-------------------
::

    supervisor ── control (SOCK_SEQPACKET) ── zygote
        │                                       │ fork
        │ channels (socket pairs, one a child)  ▼
        ├───────────────────────────────────  candidate's child ── stdout, stderr ── supervisor
        │                                       │ link (split grading only)
        └───────────────────────────────────  grader's child

The supervisor forks the zygote before it reads a job, so no child ever holds another job in its
memory. For a job it makes a scratch directory, pipes and socket pairs, has the zygote fork with
the far ends, sends each child its part of the job down its own channel, and then waits in one
``poll`` for output, for events, for a child's end, for the deadline and for the host's (``run``).
Whatever ends the job, the end is the same: kill and collect everything that the job started, read
what is left in the pipes, decide, empty the scratch, compare our own limits with those at the
start, answer.

The clock runs from ``started``, so what a fork or a fresh interpreter costs is nobody's timeout.
The grader runs as the lane's second uid: the candidate can neither signal nor read it.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import sys
import time
from typing import Any, NoReturn

from . import kernel, scratch, wire, zygote
from .run import Child, Children, Evidence, LaneBroken, Run, UnfitToRun

_SETUP_S = 20.0
_CLEANUP_S = 1.0
_CHECKS_KEPT = 4 << 20


class HostGone(Exception):
    """The host has closed our stdin."""


class Host:
    """The frames from and to the host, on descriptors of which candidates know nothing."""

    def __init__(self, inlet: int, outlet: int) -> None:
        self.inlet = inlet
        self._outlet = outlet
        self._reader = wire.Reader(orders=True)

    def receive(self, idle_s: float) -> dict[str, Any] | None:
        """The next request, or None after ``idle_s`` seconds of silence. Raises HostGone."""
        while True:
            message = self._reader.next()
            if message is not None:
                return message
            if not select.select([self.inlet], [], [], idle_s)[0]:
                return None
            self.take_in()

    def take_in(self) -> None:
        data = os.read(self.inlet, 1 << 16)
        if not data:
            raise HostGone
        self._reader.feed(data)

    def send(self, **message: Any) -> None:
        wire.write_all(self._outlet, wire.pack(message))


def main(config: dict[str, Any], frame: bytearray) -> NoReturn:
    """Runs a lane until the host is gone or the lane is broken."""
    os.umask(0o022)
    inlet, outlet = os.dup(0), os.dup(1)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    host = Host(inlet, outlet)
    status = 0
    lane = None
    try:
        kernel.set_dumpable(False)
        born = kernel.has_no_new_privs()
        kernel.set_no_new_privs()
        kernel.keep_capabilities_to_ourselves()
        kernel.become_subreaper()
        kernel.block_signals()
        lane = Lane(config, frame, host, null)
        gc.enable()
        lane.born_no_new_privs = born
        host.send(op="hello", **lane.hello)
        lane.serve()
    except HostGone:
        pass
    except LaneBroken as error:
        print(f"isograd: {error}", file=sys.stderr)
        status = 1
    except Exception as error:
        if lane is None:
            host.send(op="unfit", why=f"{type(error).__name__}: {error}")
            status = 1
        else:
            raise
    finally:
        if lane is not None:
            lane.end()
    sys.stderr.flush()
    os._exit(status)


class Kept:
    """What earlier jobs have worked out, and from what: at most so many bytes, the latest used."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._held: dict[bytes, bytes] = {}

    def get(self, source: bytes) -> bytes | None:
        found = self._held.pop(source, None)
        if found is not None:
            self._held[source] = found
        return found

    def keep(self, source: bytes, what: bytes) -> None:
        if source in self._held:
            return
        self._held[source] = what
        self._room -= len(source) + len(what)
        while self._room < 0:
            oldest = next(iter(self._held))
            self._room += len(oldest) + len(self._held.pop(oldest))


class Lane:
    """A zygote and the places that its children may write to."""

    def __init__(self, config: dict[str, Any], frame: bytearray, host: Host, null: int) -> None:
        self.host = host
        self.born_no_new_privs = False
        self.null = null
        self._idle_s = float(config["idle_s"])
        self._fresh = config["spawn"] == "fresh"
        self._directory: str = config["scratch"]
        self._job_directory = f"{self._directory}/job"
        self.denylist: list[str] = config["denylist"]
        self._alone = os.getpid() == 1
        seed = config["uid_seed"]
        uid = None if seed is None or os.geteuid() != 0 else kernel.lane_uid(seed)
        self._uid = uid if uid is not None and kernel.can_become(uid) else None
        self.counts_processes = self._uid is not None or kernel.in_own_user_namespace()
        if self._uid is None and os.geteuid() == 0:
            raise PermissionError("candidates would run as root: no other uid can be had here")
        os.makedirs(self._directory, exist_ok=True)
        os.chmod(self._directory, 0o1777)
        self._private = bool(config["private"])
        self._places = ("/tmp", "/dev/shm") if self._private else (self._directory,)
        self._usage = scratch.Usage(self._places, self._private)
        self.prepared = Kept(_CHECKS_KEPT)
        self._unborn: list[Child] = []
        self._ahead: Children | None = None
        self._untouched: tuple[Any, ...] | None = None
        self.control, self._zygote = self._start_zygote(config, frame)
        self._ours = kernel.standing((os.getpid(), self._zygote))
        self._baseline = kernel.unbacked_bytes(self._zygote)

    @property
    def hello(self) -> dict[str, Any]:
        layers = ["no_new_privs"]
        layers += ["uid"] if self._uid is not None else []
        layers += ["pid_namespace"] if self._alone else []
        layers += ["landlock"] if self._landlock else []
        layers += ["seccomp"] if self._seccomp else []
        return {
            "python": ".".join(map(str, sys.version_info[:3])),
            "implementation": sys.implementation.name,
            "spawn": "fresh" if self._fresh else "zygote",
            "layers": layers,
            "packages": self._packages,
        }

    def _start_zygote(self, config: dict[str, Any], frame: bytearray) -> tuple[kernel.Socket, int]:
        ours, theirs = kernel.socket_pair(packets=True)
        pid = os.fork()
        if pid == 0:
            try:
                sources = os.memfd_create("isograd", 0) if self._fresh else self.null
                if self._fresh:
                    wire.write_all(sources, len(frame).to_bytes(4, "big"))
                    wire.write_all(sources, frame)
                command = [sys.executable, "-s", "-P", "-S", "-c", config["stage2"], "child"]
                os.dup2(theirs, zygote.CONTROL)
                os.dup2(sources, zygote.SOURCES)
                for fd in range(3, zygote.CONTROL):
                    os.dup2(self.null, fd)  # what the zygote is handed gets no number of these
                os.closerange(zygote.HANDED, 64)
                kernel.volunteer_for_oom()
                to_us = kernel.packet_socket(zygote.CONTROL)
                try:
                    prepared = [*zygote.prepare(config), kernel.close_side_doors()]
                except Exception as error:
                    to_us.send(f"{type(error).__name__}: {error}".encode()[:4000])
                    os._exit(1)
                to_us.send(b"ready" + json.dumps(prepared).encode())
                zygote.serve(to_us, (command, dict(os.environ), zygote.SOURCES), self._uid)
            finally:
                os._exit(1)
        os.close(theirs)
        to_it = kernel.packet_socket(ours)
        answer = to_it.recv(1 << 16)
        if not answer.startswith(b"ready"):
            raise RuntimeError(answer.decode("utf-8", "replace") or "the zygote died at its start")
        kernel.give_up_after(to_it, _SETUP_S)
        prepared = json.loads(answer.removeprefix(b"ready"))
        self._packages, self._landlock, self._seccomp = prepared
        return to_it, pid

    def serve(self) -> None:
        """Answers requests until the host is gone. Raises HostGone, LaneBroken."""
        while True:
            message = self.host.receive(self._idle_s)
            if message is None:
                raise HostGone
            nonce = message["nonce"]
            if message["op"] == "job":
                self._answer(nonce, message["job"])
            elif message["op"] == "inspect":
                self.host.send(op="inspected", nonce=nonce, **self._inspect())
            else:
                self.host.send(op="pong", nonce=nonce)

    def _answer(self, nonce: str, job: dict[str, Any]) -> None:
        total = 1 if job["checks"]["kind"] == "program" else len(job["checks"]["checks"])
        if job["code"] is None or not job["code"].strip():
            envelope = Evidence(total, job["grading"]).envelope(
                "error", "no_code", "there is no code"
            )
            self.host.send(
                op="verdict", nonce=nonce, envelope=envelope, measurement={}, spent=False
            )
            return
        spent = True
        run = Run(self, nonce, job, total)
        try:
            run.start()
            run.watch()
            envelope = run.finish()
            spent = not self._reset()
        except LaneBroken:
            run.announce()
            raise
        except UnfitToRun as error:
            run.abandon()
            self.host.send(op="fault", nonce=nonce, why=str(error))
            raise LaneBroken(str(error)) from None
        self.host.send(
            op="verdict", nonce=nonce, envelope=envelope, measurement=run.measurement(), spent=spent
        )
        if spent:
            raise LaneBroken("a candidate has changed the lane")

    # The pieces of a run that belong to the lane.

    @property
    def out_of_reach(self) -> bool:
        """Whether a candidate can neither signal nor read the lane's own processes."""
        return self._uid is not None

    def fork(self, child: Child, *fds: int) -> None:
        """Has the zygote start a child with these as stdin, stdout, stderr, channel and link."""
        mode = zygote.FRESH * self._fresh | zygote.GRADER * (child.role == "grader")
        kernel.send_fds(self.control, zygote.REQUEST.pack(b"F", mode), fds)
        self._unborn.append(child)

    def hear_of_birth(self) -> None:
        """Takes the zygote's word on the next child. Raises LaneBroken."""
        pid = zygote.REQUEST.unpack(self._recv(zygote.REQUEST.size))[1]
        if not self._unborn:
            raise LaneBroken("the zygote speaks unasked")
        child = self._unborn.pop(0)
        if pid < 0:
            child.gone = True
        else:
            child.is_born(pid)

    def _hear_of_births(self) -> None:
        while self._unborn:
            self.hear_of_birth()

    def children(self, split: bool) -> Children:
        """The processes for a job: those that were forked ahead, or new ones."""
        ahead, self._ahead = self._ahead, None
        self._hear_of_births()
        if ahead is not None and (ahead.split != split or not all(c.lives() for c in ahead.all)):
            self._dismiss(ahead)
            ahead = None
        if ahead is None:
            ahead = Children(self, split)
            self._hear_of_births()
        if any(child.gone for child in ahead.all):
            raise LaneBroken("no process can be forked")
        return ahead

    def fork_ahead(self, split: bool) -> None:
        """Has the next job's processes forked, while the candidate of this one runs.

        Only where that has a uid of its own: they would be within its reach otherwise.
        """
        if self.out_of_reach:
            self._ahead = Children(self, split)

    def _dismiss(self, children: Children) -> None:
        self.collect([child.pid for child in children.all if not child.gone])
        children.close()

    def collect(self, pids: list[int]) -> list[tuple[int, float, float, int]]:
        """Kills children, if they live, and collects them: status, user and system s, peak KiB."""
        self._hear_of_births()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in pids:
            self.control.send(zygote.REQUEST.pack(b"R", pid))
        if pids and not select.select([self.control], [], [], 0.02)[0]:
            self._kill()  # another process of the job traces it and holds it back
        return [zygote.ENDED.unpack(self._recv(zygote.ENDED.size)) for _ in pids]

    def _recv(self, size: int) -> bytes:
        try:
            data = self.control.recv(size)
        except BlockingIOError:
            raise LaneBroken("the zygote does not answer") from None
        if len(data) != size:
            raise LaneBroken("the zygote died")
        return data

    def job_directory(self) -> str:
        """The job's empty directory: the one of the job before, if nothing ever happened to it."""
        if self._untouched is None:
            with kernel.acting_as(self._uid):
                os.mkdir(self._job_directory)
                os.chmod(self._job_directory, 0o770)
            self._untouched = scratch.appearance(self._job_directory)
        return self._job_directory

    def stored(self, at_most: int) -> tuple[int, int]:
        """Bytes and files that the job keeps in scratch, beyond its own empty directory."""
        used, files = self._usage.now(at_most)
        return used, files - 1

    def job_pids(self) -> list[int]:
        """Every process of the job, zombies included."""
        self._hear_of_births()
        found = kernel.all_pids() if self._alone else kernel.descendants(os.getpid())
        ours = {os.getpid(), self._zygote}
        if self._ahead is not None:
            ours.update(child.pid for child in self._ahead.all)
        return [pid for pid in found if pid not in ours]

    def memory_of(self, pids: list[int]) -> int:
        """Memory of the job that no file on a disk backs, less what it got from the zygote."""
        return sum(max(0, kernel.unbacked_bytes(pid) - self._baseline) for pid in pids)

    def kill_stragglers(self) -> None:
        """Ends what the job left running. Raises LaneBroken if something will not end."""
        give_up = time.monotonic() + _CLEANUP_S
        while True:
            kernel.reap_orphans(keep=self._zygote)
            pids = self.job_pids()
            if not pids:
                return
            if time.monotonic() > give_up:
                raise LaneBroken("processes of a candidate do not end")
            self._kill()
            if self._zygote > 0:
                self.control.send(zygote.REQUEST.pack(b"R", 0))  # what made itself its child
                self._recv(zygote.ENDED.size)
            time.sleep(0.001)

    def _kill(self) -> None:
        if self._uid is not None:
            for uid in (self._uid, self._uid + 1):
                with kernel.acting_as(uid):
                    kernel.kill_everybody()
        else:
            kernel.kill_each(self.job_pids())

    def _reset(self) -> bool:
        """Makes the lane as it was; False if that cannot be."""
        if self._private and not self._seccomp and kernel.ipc_in_use():
            kernel.remove_ipc(self._uid)
        if self._uid is None and kernel.standing((os.getpid(), self._zygote)) != self._ours:
            return False  # with a uid of its own the kernel lets no candidate at them
        as_made = self._untouched
        same = as_made is not None and scratch.appearance(self._job_directory) == as_made
        if same and self._usage.now(2)[1] == 1:
            return True
        self._untouched = None
        self._empty()
        return self._usage.now(2)[1] == 0

    def _empty(self) -> None:
        keep = frozenset({os.path.basename(self._directory)})
        with kernel.acting_as(self._uid):
            scratch.empty(self._directory)
            for place in self._places if self._private else ():
                scratch.empty(place, keep)

    def _inspect(self) -> dict[str, Any]:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            mounts = file.read()
        return {
            "status": kernel.own_status(),
            "born_no_new_privs": self.born_no_new_privs,
            "mountinfo": mounts,
            "cgroup": kernel.cgroup_limits(),
            "pid": os.getpid(),
        }

    def end(self) -> None:
        """Ends the lane's processes and removes its files."""
        self.control.close()
        with contextlib.suppress(OSError):
            os.kill(self._zygote, signal.SIGKILL)
            os.waitpid(self._zygote, 0)
        self._zygote = -1
        self._unborn, self._ahead = [], None
        kernel.kill_each(self.job_pids())
        with contextlib.suppress(LaneBroken):
            self.kill_stragglers()
        self._empty()
        with contextlib.suppress(OSError):
            os.rmdir(self._directory)
