"""One job, from its start to its envelope: the processes that it gets and what they show.

With shared grading there is one child, which runs the candidate and its checks. With split
grading there are two, which have a socket between them: the candidate's never sees a check, and
the grader's holds the checks and gives the results (``split``). Each child has a channel to the
supervisor of its own, so the one cannot speak for the other.
"""

from __future__ import annotations

import base64
import functools
import marshal
import os
import select
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import child, kernel, wire, words

if TYPE_CHECKING:
    from .supervisor import Lane

_TICK_S = 0.02
_SETUP_S = 20.0
_KEPT_WHEN_KILLED = 2_048
_EVENT_LIMIT = 1 << 20
_MIB = 1 << 20
_MEMORY_SLACK_MB = 16
"""One process comes close to the job's memory by its own limit, and is told with a MemoryError;
what is in pages that it had from the zygote must not make the sum strike first."""


class LaneBroken(Exception):
    """This lane cannot be trusted to run another job."""


class UnfitToRun(Exception):
    """A child could not be made ready for the candidate: our fault."""


class Evidence:
    """What the children have shown so far.

    ``take`` has the events of who runs the candidate, ``take_result`` those of who runs the
    checks. With shared grading that is the same child. With split grading the checks begin once
    the candidate's end of the link says that it has loaded; what they say before the candidate
    has said so on its channel waits until then: a candidate that does not load has no checks.
    """

    def __init__(self, total: int, grading: str) -> None:
        self._grading = grading
        self.ready = self.started = self.loaded = False
        self.prepared: bytes | None = None
        self.results: list[bool | None] = [None] * total
        self.details: list[str] = [""] * total
        self.reasons: list[str | None] = [None] * total
        self.stdout, self.stderr = bytearray(), bytearray()
        self.end: dict[str, Any] | None = None
        self._early: list[dict[str, Any]] = []

    def take(self, event: dict[str, Any]) -> None:
        """Adds an event of the candidate's child. Raises ValueError if it cannot be true."""
        kind = event["event"]
        if self.end is not None:
            raise ValueError("an event after the end")
        if kind == "started" and not self.started:
            self.started = True
        elif kind == "loaded" and self.started and not self.loaded:
            self.loaded = True
            early, self._early = self._early, []
            for result in early:
                self.take_result(result)
        elif kind == "end" and event["exit_code"] is not None and not self.loaded:
            if self.started and event["reason"] == "no_checks":
                raise ValueError("the candidate speaks of checks")
            self._finish(event)
        elif self._grading == "shared":
            self.take_result(event)
        else:
            raise ValueError("an event out of order")

    def take_result(self, event: dict[str, Any]) -> None:
        """Adds an event of the child that runs the checks. Raises ValueError."""
        kind = event["event"]
        if self.end is not None and self._grading == "split":
            return  # the candidate's process has settled it meanwhile
        if self.end is not None:
            raise ValueError("an event after the end")
        if kind == "ready" and not self.ready:
            self.ready = True
        elif kind == "prepared" and not self.ready and not self.started:
            self.prepared = base64.b64decode(event["packed"])
        elif self._grading == "split" and not self.loaded and event.get("reason") != "no_checks":
            self._early.append(event)
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
            self._finish(event)
        else:
            raise ValueError("an event out of order")

    def _finish(self, event: dict[str, Any]) -> None:
        _known(event["exit_code"], ("error", "syntax_error"))
        _known(event["reason"], child.REASONS)
        event["detail"] = str(event["detail"])
        self.end = event

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
            "detail": words.clip(detail, 2_000),
            "per_assertion": self.results,
            "stdout": self.stdout[:keep].decode("utf-8", "backslashreplace"),
            "stderr": self.stderr[:keep].decode("utf-8", "backslashreplace"),
            "truncated": killed and max(len(self.stdout), len(self.stderr)) > _KEPT_WHEN_KILLED,
            "grading": self._grading,
        }


class Children:
    """The processes of one job, forked before there is a job, and what leads to them.

    The candidate's has pipes for its output; each has a channel of its own; with split grading
    they have a link between them. Until it is given its order, each is a root's process that
    nobody can reach (or, where there is one uid for all, is forked when the job is there).
    """

    def __init__(self, lane: Lane, split: bool) -> None:
        self.split = split
        self._closed = False
        self.out, out = os.pipe()
        self.err, err = os.pipe()
        for fd in (self.out, self.err):
            os.set_blocking(fd, False)
        # Opened for this job: the flags and locks of a shared one would outlive it.
        stdin = os.open("/dev/null", os.O_RDONLY)
        links: tuple[int, ...] = kernel.socket_pair() if split else ()
        self.candidate = Child(lane, "candidate", (stdin, out, err, *links[:1]))
        self.all = [self.candidate]
        self.grader = self.candidate
        if split:
            null = (lane.null, lane.null, lane.null)
            self.grader = Child(lane, "grader", (*null, links[1]))
            self.all.append(self.grader)
        for fd in (stdin, out, err, *links):
            os.close(fd)

    def close(self) -> None:
        """Closes what leads to them, once."""
        if self._closed:
            return
        self._closed = True
        os.close(self.out)
        os.close(self.err)
        self.candidate.close()
        if self.split:
            self.grader.close()


class Child:
    """One child of the zygote's: its process, and the supervisor's end of its channel."""

    def __init__(self, lane: Lane, role: str, fds: tuple[int, ...]) -> None:
        self.role = role
        self.pid = 0
        self.key = os.urandom(16).hex()
        self.gone = False
        self._pidfd: int | None = None
        self._events = wire.Reader(_EVENT_LIMIT)
        self._outgoing = b""
        self._channel, theirs = kernel.socket_pair(nonblocking=True)
        lane.fork(self, *fds[:3], theirs, *fds[3:])
        os.close(theirs)

    def is_born(self, pid: int) -> None:
        """The zygote has forked it."""
        self.pid = pid
        try:
            self._pidfd = os.pidfd_open(pid)
        except OSError:
            self._pidfd = None

    def close(self) -> None:
        os.close(self._channel)
        if self._pidfd is not None:
            os.close(self._pidfd)

    def lives(self) -> bool:
        if self._pidfd is not None:
            return not select.select([self._pidfd], [], [], 0)[0]
        return not kernel.is_dead(self.pid)

    def join(self, run: Run, take: Callable[[dict[str, Any]], None]) -> None:
        """From now on this is a child of that run's, and ``take`` has its events."""
        self._run = run
        self._take = take
        if self._pidfd is not None:
            run.attend(self._pidfd, self._died)
        run.attend(self._channel, self._ready)

    def tell(self, order: child.Order | str) -> None:
        """Sends the child its order, or its program after that, as fast as it reads."""
        self._outgoing += wire.pack_order(order if isinstance(order, str) else tuple(order))
        self._send_more()

    def _send_more(self) -> None:
        try:
            sent = os.write(self._channel, self._outgoing)
        except BlockingIOError:
            sent = 0
        except OSError:
            sent = len(self._outgoing)
        self._outgoing = self._outgoing[sent:] if sent else self._outgoing
        more = select.POLLOUT if self._outgoing else 0
        self._run.attend(self._channel, self._ready, more)

    def _ready(self, what: int) -> None:
        if what & select.POLLOUT:
            self._send_more()
        if what & ~select.POLLOUT and not self.read_events():
            # It may have closed every descriptor and live on: only its death ends the run.
            self._run.ignore(self._channel)

    def _died(self, what: int) -> None:
        self.gone = True

    def look(self) -> None:
        """Where the kernel tells us of no death: asks."""
        if self._pidfd is None and not self.lives():
            self.gone = True

    def read_events(self) -> bool:
        """Takes in what the child has sent; False at the end of its channel."""
        while True:
            try:
                data = os.read(self._channel, 1 << 16)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not data:
                return False
            try:
                self._events.feed(data)
                while (event := self._events.next()) is not None:
                    if event.pop("key") != self.key:
                        raise ValueError("an event without the child's key")
                    if event["event"] == "unfit" and self._run.may_be_unfit(self):
                        raise UnfitToRun(str(event["detail"]))
                    self._take(event)
            except (wire.Malformed, ValueError, KeyError, TypeError):
                self._run.stop("error", "tampered", "the results were tampered with")
                return True


class Run:
    """One job from its start to its envelope."""

    def __init__(self, lane: Lane, nonce: str, job: dict[str, Any], total: int) -> None:
        self.lane = lane
        self._nonce = nonce
        self._job = job
        self._limits = job["limits"]
        self._split = job["grading"] == "split"
        self._evidence = Evidence(total, job["grading"])
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._waiting: str | None = None
        self._output = 0
        self._stop: tuple[str, str | None, str] | None = None
        self._running = self._announced = False
        self._streams: set[int] = set()
        self._begun = self._ended = time.monotonic()
        self._usage = (0.0, 0)

    def may_be_unfit(self, child: Child) -> bool:
        """Whether a child is still ours alone; it may say anything since."""
        evidence = self._evidence
        return not (evidence.started if child is self._candidate else evidence.ready)

    def attend(self, fd: int, handler: Callable[[int], None], more: int = 0) -> None:
        """Has ``handler`` called when ``fd`` is readable, or ready for what ``more`` says."""
        self._handlers[fd] = handler
        self._poll.register(fd, select.POLLIN | more)

    def ignore(self, fd: int) -> None:
        del self._handlers[fd]
        self._poll.unregister(fd)

    def stop(self, exit_code: str, reason: str | None, detail: str) -> None:
        """Ends the run with a verdict; the first one counts."""
        self._stop = self._stop or (exit_code, reason, detail)

    def start(self) -> None:
        lane = self.lane
        self._children = lane.children(self._split)
        self._candidate, self._grader = self._children.candidate, self._children.grader
        self._out, self._err = self._children.out, self._children.err
        self._streams = {self._out, self._err}
        for fd in self._streams:
            self.attend(fd, functools.partial(self._output_ready, fd))
        self.attend(lane.host.inlet, lambda what: lane.host.take_in())
        self.attend(lane.control.fileno(), self._zygote_spoke)
        self._candidate.join(self, self._evidence.take)
        if self._split:
            self._grader.join(self, self._evidence.take_result)
        self._place = lane.job_directory()
        self._give_jobs()
        lane.fork_ahead(self._split)

    def _give_jobs(self) -> None:
        """Sends each child its part: the candidate's never has a byte of a check.

        With split grading the program itself waits until the grader is ready: its checks may be
        none, and what it needs of the scratch it has before a candidate is there to spoil it.
        """
        job, lane = self._job, self.lane
        order = child.Order(
            key=self._candidate.key,
            role="shared",
            limits=kernel.resource_limits(self._limits, count_processes=lane.counts_processes),
            scratch=self._place,
            code=job["code"],
            denylist=None if job["denylist"] == lane.denylist else job["denylist"],
        )
        given = {name: job[name] for name in ("checks", "entry_point", "prompt")}
        self._checks = marshal.dumps(given)
        known = lane.prepared.get(self._checks)
        graded = given if known is None else {"prepared": known}
        if not self._split:
            self._candidate.tell(order._replace(**graded))
            return
        grader = order._replace(key=self._grader.key, role="grader", code="", denylist=None)
        self._grader.tell(grader._replace(**graded))
        self._candidate.tell(order._replace(role="candidate", code=""))
        self._waiting = job["code"]

    def _start_candidate(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._candidate.tell(waiting)

    def watch(self) -> None:
        """Waits until something ends the run; what did stands in ``_stop`` or the evidence."""
        deadline = time.monotonic() + _SETUP_S
        tick = time.monotonic() + _TICK_S
        while self._stop is None and self._evidence.end is None and not self._is_over():
            if self._evidence.ready:
                self._start_candidate()
            if self._has_started():
                deadline = self._begun + self._limits["timeout_s"]
            now = time.monotonic()
            if now >= deadline:
                if not self._running:
                    raise UnfitToRun("the child was not ready in time")
                self.stop("timeout", None, f"timeout after {self._limits['timeout_s']:.2f}s")
            elif now >= tick:
                self._look_around()
                tick = time.monotonic() + _TICK_S
            else:
                for fd, what in self._poll.poll(max(0.0, min(deadline, tick) - now) * 1000):
                    if fd in self._handlers:
                        self._handlers[fd](what)
        for one in self._children.all:
            if one.gone:
                one.read_events()
        self._has_started()

    def _is_over(self) -> bool:
        return any(one.gone for one in self._children.all)

    def _has_started(self) -> bool:
        """Whether the candidate has started, from when its clock runs.

        One that could end this lane at once is announced at once, others at the next look around:
        most have ended by then, and each frame wakes everybody on its way to the host.
        """
        if self._evidence.started and not self._running:
            self._running = True
            self._begun = time.monotonic()
            if not self.lane.out_of_reach:
                self.announce()
        return self._running

    def announce(self) -> None:
        """Tells the host, once, that the candidate has started, if it has."""
        if self._evidence.started and not self._announced:
            self._announced = True
            self.lane.host.send(op="started", nonce=self._nonce)

    def _zygote_spoke(self, what: int) -> None:
        try:
            self.lane.hear_of_birth()
        except LaneBroken:
            for one in self._children.all:
                one.read_events()
            raise

    def _output_ready(self, fd: int, what: int) -> None:
        self._drain(fd)

    def _drain(self, fd: int) -> bool:
        """Takes in output; False if there is none now. Stops the run when there is too much."""
        room = self._limits["output_bytes"] - self._output
        try:
            data = os.read(fd, min(1 << 16, room + 1))
        except BlockingIOError:
            return False
        if data:
            self._output += len(data)
            if fd == self._out:
                self._evidence.stdout += data
            else:
                self._evidence.stderr += data
        if data and len(data) <= room:
            return True
        if data:
            limit = self._limits["output_bytes"]
            self.stop("error", "output_overflow", f"output overflow: more than {limit} bytes")
        self._streams.discard(fd)
        self.ignore(fd)
        return False

    def _look_around(self) -> None:
        """Compares what the job uses in all with its limits."""
        self.announce()
        ours = {self._grader.pid} if self._split else set()
        pids = [pid for pid in self.lane.job_pids() if pid not in ours]
        limits = self._limits
        if len(pids) > limits["processes"]:
            self.stop("error", "processes", f"more than {limits['processes']} processes")
        elif self.lane.memory_of(pids) > (limits["memory_mb"] + _MEMORY_SLACK_MB) * _MIB:
            self.stop("error", "memory", f"more than {limits['memory_mb']} MB of memory")
        else:
            self._look_at_scratch()
        for one in self._children.all:
            one.look()

    def _look_at_scratch(self) -> None:
        limits = self._limits
        used, files = self.lane.stored(limits["scratch_files"])
        if used > limits["scratch_mb"] * _MIB:
            self.stop("error", "scratch", f"more than {limits['scratch_mb']} MB in scratch")
        elif files > limits["scratch_files"]:
            self.stop("error", "scratch", f"more than {limits['scratch_files']} files in scratch")

    def finish(self) -> dict[str, Any]:
        """Ends every process of the job and gives the envelope."""
        lane, evidence = self.lane, self._evidence
        self._ended = time.monotonic()
        if evidence.prepared is not None:
            lane.prepared.keep(self._checks, evidence.prepared)
        if self._stop is None and evidence.started:
            self._look_at_scratch()
        statuses, cpu_s, peak = self._collect()
        self._usage = (cpu_s, peak)
        lane.kill_stragglers()
        for fd in sorted(self._streams):
            while self._drain(fd):
                pass
        self._children.close()
        if evidence.end is not None and evidence.end["reason"] == "no_checks":
            return evidence.envelope(*evidence.verdict())
        if self._stop is not None:
            return evidence.envelope(*self._stop, killed=True)
        if evidence.end is not None:
            return evidence.envelope(*evidence.verdict())
        if not evidence.started:
            raise UnfitToRun(f"a child ended before the candidate started (status {statuses})")
        dead = self._candidate if self._candidate.gone else self._grader
        if dead is not self._candidate and not evidence.ready:
            raise UnfitToRun(f"the checks' process ended before them (status {statuses})")
        return self._envelope_of_death(statuses[dead.pid], dead is not self._candidate, cpu_s)

    def _envelope_of_death(self, status: int, of_grader: bool, cpu_s: float) -> dict[str, Any]:
        """The verdict on a run whose process ended before its checks did."""
        evidence, limit = self._evidence, self._limits["cpu_s"]
        whose = "the checks' process" if of_grader else "the process"
        code = os.waitstatus_to_exitcode(status)
        if code >= 0:
            detail = f"{whose} ended with status {code} before its checks did"
            return evidence.envelope("error", "early_exit", detail)
        ran_out = -code == signal.SIGKILL and cpu_s >= (limit or 0)
        if limit is not None and (ran_out or -code == signal.SIGXCPU):
            detail = f"timeout after {limit:.2f}s of CPU time"
            return evidence.envelope("timeout", None, detail, killed=True)
        detail = f"{'the checks were ' if of_grader else ''}killed by {_signal_name(-code)}"
        return evidence.envelope("error", "signal", detail, killed=True)

    def _collect(self) -> tuple[dict[int, int], float, int]:
        """Ends and collects the children: statuses by pid, CPU seconds in all, peak KiB."""
        statuses: dict[int, int] = {}
        cpu_s, peak = 0.0, 0
        children, self._children.all = self._children.all, []
        collected = self.lane.collect([one.pid for one in children])
        for one, (status, user, system, most) in zip(children, collected, strict=True):
            statuses[one.pid] = status
            cpu_s += user + system
            peak = most if one.role == "candidate" else peak
        return statuses, cpu_s, peak

    def abandon(self) -> None:
        """Lets go of everything after a fault of ours."""
        self._collect()
        self._children.close()

    def measurement(self) -> dict[str, Any]:
        cpu_s, peak = self._usage
        return {
            "wall_s": round(self._ended - self._begun, 6),
            "cpu_s": round(cpu_s, 6),
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
