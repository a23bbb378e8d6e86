"""The supervisor: one process a lane; it runs one job after another and gives their envelopes.

Wire protocol
-------------
stdin and stdout carry frames (``wire``). The host sends, in this order::

    {"sources": [[name, text], …], "config": {…}}     once; see ``boot.first_message``
    {"op": "job", "nonce": HEX, "job": {…}}           the contract's Job, as JSON
    {"op": "ping", "nonce": HEX}
    {"op": "inspect", "nonce": HEX}                   for ``isograd doctor``

and reads::

    {"op": "hello", …}         once: the lane is ready; versions and protections
    {"op": "unfit", "why": …}  instead: the lane cannot be had, and why
    {"op": "started", "nonce": HEX}    the candidate of this job is about to run
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
        │ channel (socket pair, one a job)      ▼
        ├───────────────────────────────────  child   = the candidate's process
        ├── stdout, stderr (pipes) ───────────  │
        └── pidfd ─────────────────────────────  … whatever it starts

The supervisor forks the zygote before it reads a job, so no child ever holds another job in its
memory. For a job it makes a scratch directory, two pipes and a socket pair, has the zygote fork
with the far ends, sends the job down the socket, and then waits in one ``poll`` for output, for
events, for the child's end, for the deadline and for the host's. Whatever ends the job, the end
is the same: kill and collect everything that the job started, read what is left in the pipes,
decide, empty the scratch, compare our own limits with those at the start, answer.

The clock runs from ``started``, so what a fork or a fresh interpreter costs is nobody's timeout.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any, NoReturn

from . import child, kernel, scratch, wire, zygote

_TICK_S = 0.02
_SETUP_S = 20.0
_CLEANUP_S = 1.0
_KEPT_WHEN_KILLED = 2_048
_EVENT_LIMIT = 64 * 1024
_MIB = 1 << 20


class LaneBroken(Exception):
    """This lane cannot be trusted to run another job."""


class HostGone(Exception):
    """The host has closed our stdin."""


class Host:
    """The frames from and to the host, on descriptors of which candidates know nothing."""

    def __init__(self, inlet: int, outlet: int) -> None:
        self.inlet = inlet
        self._outlet = outlet
        self._reader = wire.Reader()

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
        data = os.read(self.inlet, 1 << 20)
        if not data:
            raise HostGone
        self._reader.feed(data)

    def send(self, **message: Any) -> None:
        wire.write_all(self._outlet, wire.pack(message))


def main(config: dict[str, Any], frame: bytes) -> NoReturn:
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
        kernel.become_subreaper()
        kernel.block_signals()
        lane = Lane(config, frame, host, null)
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


class Lane:
    """A zygote and the places that its children may write to."""

    def __init__(self, config: dict[str, Any], frame: bytes, host: Host, null: int) -> None:
        self.host = host
        self.born_no_new_privs = False
        self.null = null
        self._idle_s = float(config["idle_s"])
        self._fresh = config["spawn"] == "fresh"
        self._directory = config["scratch"]
        self._job_directory = f"{self._directory}/job"
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
        self.control, self._zygote = self._start_zygote(config, frame)
        self._ours = kernel.standing((os.getpid(), self._zygote))
        self._baseline = kernel.anonymous_bytes(self._zygote)

    @property
    def hello(self) -> dict[str, Any]:
        layers = ["no_new_privs"]
        layers += ["uid"] if self._uid is not None else []
        layers += ["pid_namespace"] if self._alone else []
        return {
            "python": ".".join(map(str, sys.version_info[:3])),
            "implementation": sys.implementation.name,
            "spawn": "fresh" if self._fresh else "zygote",
            "layers": layers,
            "packages": self._packages,
        }

    def _start_zygote(self, config: dict[str, Any], frame: bytes) -> tuple[socket.socket, int]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            try:
                sources = os.memfd_create("isograd", 0) if self._fresh else self.null
                if self._fresh:
                    wire.write_all(sources, len(frame).to_bytes(4, "big") + frame)
                who = "-" if self._uid is None else str(self._uid)
                command = [sys.executable, "-s", "-P", "-S", "-c", config["stage2"], "child", who]
                control, kept = 10, 11
                os.dup2(theirs.fileno(), control)
                os.dup2(sources, kept)
                os.closerange(3, 10)
                os.closerange(12, 64)
                theirs.detach()
                ours.detach()
                kernel.volunteer_for_oom()
                theirs = socket.socket(fileno=control)
                try:
                    versions = zygote.prepare(config)
                except Exception as error:
                    theirs.send(f"{type(error).__name__}: {error}".encode()[:4000])
                    os._exit(1)
                theirs.send(b"ready" + json.dumps(versions).encode())
                zygote.serve(theirs, (command, dict(os.environ), kept), self._uid)
            finally:
                os._exit(1)
        theirs.close()
        answer = ours.recv(1 << 16)
        if not answer.startswith(b"ready"):
            raise RuntimeError(answer.decode("utf-8", "replace") or "the zygote died at its start")
        self._packages = json.loads(answer.removeprefix(b"ready"))
        return ours, pid

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
            envelope = Evidence(total).envelope("error", "no_code", "there is no code")
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

    def fork(self, *fds: int) -> int:
        """Has the zygote start a child with these as stdin, stdout, stderr and channel."""
        socket.send_fds(self.control, [zygote.REQUEST.pack(b"F", int(self._fresh))], fds)
        return int(zygote.REQUEST.unpack(self._recv(zygote.REQUEST.size))[1])

    def collect(self, pid: int) -> tuple[int, float, float, int]:
        """Kills a child, if it lives, and collects it: status, user and system s, peak KiB."""
        self.control.send(zygote.REQUEST.pack(b"R", pid))
        status, user, system, peak = zygote.ENDED.unpack(self._recv(zygote.ENDED.size))
        return status, user, system, peak

    def _recv(self, size: int) -> bytes:
        if not select.select([self.control], [], [], _SETUP_S)[0]:
            raise LaneBroken("the zygote does not answer")
        data = self.control.recv(size)
        if len(data) != size:
            raise LaneBroken("the zygote died")
        return data

    def make_job_directory(self) -> str:
        with kernel.acting_as(self._uid):
            os.mkdir(self._job_directory, 0o700)
        return str(self._job_directory)

    def stored(self, at_most: int) -> tuple[int, int]:
        """Bytes and files that the job keeps in scratch, beyond its own empty directory."""
        used, files = self._usage.now(at_most)
        return used, files - 1

    def job_pids(self) -> list[int]:
        """Every process of the job, zombies included."""
        if self._alone:
            return [pid for pid in kernel.all_pids() if pid not in (1, self._zygote)]
        return [pid for pid in kernel.descendants(os.getpid()) if pid != self._zygote]

    def memory_of(self, pids: list[int]) -> int:
        """Anonymous memory of the job, less what each process got from the zygote."""
        return sum(max(0, kernel.anonymous_bytes(pid) - self._baseline) for pid in pids)

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
            if self._uid is not None:
                with kernel.acting_as(self._uid):
                    kernel.kill_everybody()
            else:
                kernel.kill_each(pids)
            time.sleep(0.001)

    def _reset(self) -> bool:
        """Makes the lane as it was; False if that cannot be."""
        if self._usage.now(2)[1] > 1:
            self._empty()
        with kernel.acting_as(self._uid), contextlib.suppress(OSError):
            os.rmdir(self._job_directory)
        if self._usage.now(2)[1] != 0:
            self._empty()
        if self._private and kernel.ipc_in_use():
            kernel.remove_ipc(self._uid)
        return (
            self._usage.now(2)[1] == 0
            and kernel.standing((os.getpid(), self._zygote)) == self._ours
        )

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
        with contextlib.suppress(LaneBroken):
            self.kill_stragglers()
        self._empty()
        with contextlib.suppress(OSError):
            os.rmdir(self._directory)


class UnfitToRun(Exception):
    """The child could not be made ready for the candidate: our fault."""


class Evidence:
    """What the events of a child have shown so far."""

    def __init__(self, total: int) -> None:
        self.started = self.loaded = False
        self.results: list[bool | None] = [None] * total
        self.details: list[str] = [""] * total
        self.reasons: list[str | None] = [None] * total
        self.stdout = self.stderr = b""
        self.end: dict[str, Any] | None = None

    def take(self, event: dict[str, Any]) -> None:
        """Adds one event. Raises ValueError if it cannot be true."""
        kind = event["event"]
        if self.end is not None:
            raise ValueError("an event after the end")
        if kind == "started" and not self.started:
            self.started = True
        elif kind == "loaded" and self.started and not self.loaded:
            self.loaded = True
        elif kind == "check" and self.loaded:
            index = event["number"] - 1
            if self.results.index(None) != index:
                raise ValueError("checks out of order")
            self.results[index] = event["held"] is True
            self.details[index] = str(event["detail"])
            self.reasons[index] = _known(event["reason"], child.REASONS)
        elif kind == "end":
            if event["exit_code"] is None and (not self.loaded or None in self.results):
                raise ValueError("an end before the checks")
            _known(event["exit_code"], ("error", "syntax_error"))
            _known(event["reason"], child.REASONS)
            event["detail"] = str(event["detail"])
            self.end = event
        else:
            raise ValueError("an event out of order")

    def verdict(self) -> tuple[str, str | None, str]:
        """Exit code, reason and detail of a run that came to its own end."""
        assert self.end is not None
        if self.end["exit_code"] is not None:
            return self.end["exit_code"], self.end["reason"], self.end["detail"]
        failed = [index for index, held in enumerate(self.results) if not held]
        if not failed:
            return "pass", None, ""
        reason = next((self.reasons[index] for index in failed if self.reasons[index]), None)
        return "assertion_fail", reason, f"check {failed[0] + 1}: {self.details[failed[0]]}"

    def envelope(
        self, exit_code: str, reason: str | None, detail: str, *, killed: bool = False
    ) -> dict[str, Any]:
        """The contract's envelope, as plain JSON. ``killed`` cuts the output to its start."""
        passed = sum(held is True for held in self.results)
        finished = exit_code in ("pass", "assertion_fail")
        keep = _KEPT_WHEN_KILLED if killed else None
        return {
            "version": 1,
            "exit_code": exit_code,
            "reason": reason,
            "score": passed / len(self.results) if finished and self.results else 0.0,
            "passed": passed,
            "total": len(self.results),
            "detail": child.clip(detail, 2_000),
            "per_assertion": self.results,
            "stdout": self.stdout[:keep].decode("utf-8", "backslashreplace"),
            "stderr": self.stderr[:keep].decode("utf-8", "backslashreplace"),
            "truncated": killed and max(len(self.stdout), len(self.stderr)) > _KEPT_WHEN_KILLED,
            "grading": "shared",
        }


class Run:
    """One job from its start to its envelope."""

    def __init__(self, lane: Lane, nonce: str, job: dict[str, Any], total: int) -> None:
        self._lane = lane
        self._nonce = nonce
        self._job = job
        self._limits = job["limits"]
        self._evidence = Evidence(total)
        self._events = wire.Reader(_EVENT_LIMIT)
        self._key = os.urandom(16).hex()
        self._output = 0
        self._stop: tuple[str, str | None, str] | None = None
        self._gone = self._announced = False
        self._pid = 0
        self._opened = contextlib.ExitStack()
        self._fds: set[int] = set()
        self._begun = time.monotonic()
        self._ended = self._begun
        self._usage = (0.0, 0.0, 0)

    def start(self) -> None:
        lane = self._lane
        place = lane.make_job_directory()
        self._channel, theirs = socket.socketpair()
        self._out, out = os.pipe()
        self._err, err = os.pipe()
        self._fds = {self._out, self._err}
        self._opened.callback(self._channel.close)
        for fd in self._fds:
            self._opened.callback(os.close, fd)
        try:
            self._pid = lane.fork(lane.null, out, err, theirs.fileno())
        finally:
            theirs.close()
            os.close(out)
            os.close(err)
        for fd in (self._out, self._err, self._channel.fileno()):
            os.set_blocking(fd, False)
        self._pidfd = _pidfd(self._pid)
        if self._pidfd is not None:
            self._opened.callback(os.close, self._pidfd)
        payload = {name: self._job[name] for name in ("code", "checks", "limits", "denylist")}
        self._outgoing = memoryview(
            wire.pack(
                {
                    **payload,
                    "key": self._key,
                    "scratch": place,
                    "count_processes": lane.counts_processes,
                }
            )
        )

    def watch(self) -> None:
        """Waits until something ends the run; what did stands in ``_stop``, or in the evidence."""
        poll = select.poll()
        channel, host = self._channel.fileno(), self._lane.host
        poll.register(channel, select.POLLIN | select.POLLOUT)
        for fd in (self._out, self._err, host.inlet, self._lane.control.fileno()):
            poll.register(fd, select.POLLIN)
        if self._pidfd is not None:
            poll.register(self._pidfd, select.POLLIN)
        deadline = time.monotonic() + _SETUP_S
        tick = time.monotonic() + _TICK_S
        while self._stop is None and self._evidence.end is None and not self._gone:
            if self._announce():
                deadline = self._begun + self._limits["timeout_s"]
            now = time.monotonic()
            if now >= deadline:
                if not self._announced:
                    raise UnfitToRun("the child was not ready in time")
                self._stop = ("timeout", None, f"timeout after {self._limits['timeout_s']:.2f}s")
            elif now >= tick:
                self._look_around()
                tick = time.monotonic() + _TICK_S
            else:
                for fd, what in poll.poll(max(0.0, min(deadline, tick) - now) * 1000):
                    self._attend(poll, fd, what)
        if self._gone:
            self._read_events()

    def _attend(self, poll: Any, fd: int, what: int) -> None:
        """Does what a ready descriptor asks for."""
        if fd == self._channel.fileno():
            if what & select.POLLOUT:
                self._send_more(poll)
            if what & ~select.POLLOUT:
                self._gone |= not self._read_events()
        elif fd == self._lane.host.inlet:
            self._lane.host.take_in()
        elif fd == self._pidfd:
            self._gone = True
        elif fd in (self._out, self._err):
            if not self._drain(fd):
                poll.unregister(fd)
        else:
            self._read_events()
            self._announce()
            raise LaneBroken("the zygote died")

    def _announce(self) -> bool:
        """Tells the host, once, that the candidate has started; whether it has."""
        if self._evidence.started and not self._announced:
            self._announced = True
            self._begun = time.monotonic()
            self._lane.host.send(op="started", nonce=self._nonce)
        return self._announced

    def _send_more(self, poll: Any) -> None:
        if self._outgoing:
            try:
                self._outgoing = self._outgoing[self._channel.send(self._outgoing) :]
            except BlockingIOError:
                return
            except OSError:
                self._outgoing = memoryview(b"")
        if not self._outgoing:
            poll.modify(self._channel.fileno(), select.POLLIN)

    def _read_events(self) -> bool:
        """Takes in what the child has sent; False at the end of its channel."""
        while True:
            try:
                data = self._channel.recv(1 << 16)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not data:
                return False
            try:
                self._events.feed(data)
                while (event := self._events.next()) is not None:
                    self._take(event)
            except (wire.Malformed, ValueError, KeyError, TypeError):
                self._stop = ("error", "tampered", "the results were tampered with")
                return True

    def _take(self, event: dict[str, Any]) -> None:
        if event.pop("key") != self._key:
            raise ValueError("an event without the job's key")
        if event["event"] == "unfit":
            raise UnfitToRun(str(event["detail"]))
        self._evidence.take(event)

    def _drain(self, fd: int) -> bool:
        """Takes in output; False at its end. Stops the run when there is too much of it."""
        room = self._limits["output_bytes"] - self._output
        try:
            data = os.read(fd, min(1 << 16, room + 1))
        except BlockingIOError:
            return True
        if not data:
            self._fds.discard(fd)
            return False
        self._output += len(data)
        if fd == self._out:
            self._evidence.stdout += data
        else:
            self._evidence.stderr += data
        if len(data) > room:
            limit = self._limits["output_bytes"]
            overflow = ("error", "output_overflow", f"output overflow: more than {limit} bytes")
            self._stop = self._stop or overflow
            return False
        return True

    def _look_around(self) -> None:
        """Compares what the job uses in all with its limits."""
        pids = self._lane.job_pids()
        limits = self._limits
        if len(pids) > limits["processes"]:
            self._stop = ("error", "processes", f"more than {limits['processes']} processes")
        elif self._lane.memory_of(pids) > limits["memory_mb"] * _MIB:
            self._stop = ("error", "memory", f"more than {limits['memory_mb']} MB of memory")
        else:
            self._look_at_scratch()
        if self._pidfd is None and kernel.is_dead(self._pid):
            self._gone = True

    def _look_at_scratch(self) -> None:
        limits = self._limits
        used, files = self._lane.stored(limits["scratch_files"])
        if used > limits["scratch_mb"] * _MIB:
            self._stop = ("error", "scratch", f"more than {limits['scratch_mb']} MB in scratch")
        elif files > limits["scratch_files"]:
            self._stop = (
                "error",
                "scratch",
                f"more than {limits['scratch_files']} files in scratch",
            )

    def finish(self) -> dict[str, Any]:
        """Ends every process of the job and gives the envelope."""
        lane, evidence = self._lane, self._evidence
        self._ended = time.monotonic()
        if self._stop is None and evidence.started:
            self._look_at_scratch()
        status, user, system, peak = lane.collect(self._pid)
        self._pid = 0
        self._usage = (user, system, peak)
        lane.kill_stragglers()
        for fd in sorted(self._fds):
            while select.select([fd], [], [], 0)[0] and self._drain(fd):
                pass
        self._opened.close()
        if self._stop is not None:
            return evidence.envelope(*self._stop, killed=True)
        if evidence.end is not None:
            return evidence.envelope(*evidence.verdict())
        if not evidence.started:
            raise UnfitToRun(f"the child ended before the candidate started (status {status})")
        code = os.waitstatus_to_exitcode(status)
        if code >= 0:
            detail = f"the process ended with status {code} before its checks did"
            return evidence.envelope("error", "early_exit", detail)
        cpu_s = self._limits["cpu_s"]
        ran_out = -code == signal.SIGKILL and user + system >= (cpu_s or 0)
        if cpu_s is not None and (ran_out or -code == signal.SIGXCPU):
            detail = f"timeout after {cpu_s:.2f}s of CPU time"
            return evidence.envelope("timeout", None, detail, killed=True)
        detail = f"killed by {_signal_name(-code)}"
        return evidence.envelope("error", "signal", detail, killed=True)

    def abandon(self) -> None:
        """Lets go of everything after a fault of ours."""
        if self._pid:
            self._lane.collect(self._pid)
        self._opened.close()

    def measurement(self) -> dict[str, Any]:
        user, system, peak = self._usage
        return {
            "wall_s": round(self._ended - self._begun, 6),
            "cpu_s": round(user + system, 6),
            "peak_memory_mb": round(peak / 1024, 3),
        }


def _known(value: Any, known: tuple[str, ...]) -> str | None:
    if value is not None and value not in known:
        raise ValueError("a word that the contract does not know")
    return value if value is None else str(value)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None
