"""The sandbox: one lane behind a wall, and everything about it that is not the wall.

A backend has one method to write: ``_open``, which starts the runner somewhere and gives the
stream to it. Frames, the watchdog, what a lane's death means and when to start over are here,
so they are the same behind every wall.
"""

from __future__ import annotations

import contextlib
import secrets
import select
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self

from isograd.contract.denylist import DEFAULT_DENYLIST
from isograd.errors import InputError, SandboxCrashed, SandboxUnavailable
from isograd.runner import boot, wire

if TYPE_CHECKING:
    from isograd.contract import Envelope, Job, Limits, Measurement, Result

GRACE_S = 15.0
"""How long past a job's own limits the watchdog waits for the lane's answer."""

BOOT_S = 60.0
IDLE_S = 60.0
"""A lane ends by itself after this long without a frame; it is replaced well before."""

SCRATCH_MB, SCRATCH_FILES = 512, 32_768
"""What a job may keep in scratch where no other ceiling is given."""

_LARGEST_AHEAD = 32 << 10
"""Bytes of a job that is sent while another runs: half of what a pipe holds."""

Spawn = Literal["zygote", "fresh"]


class Stream(Protocol):
    """The two ends of a running runner's frame stream."""

    def send(self, data: bytes, deadline: float) -> None:
        """Sends every byte, until ``deadline`` (of time.monotonic). Raises StreamLost."""

    def receive(self, deadline: float) -> bytes:
        """Some bytes, until ``deadline``. Raises StreamLost at the end and TimeoutError."""

    def interrupt(self) -> None:
        """Cuts the stream from another thread: a waiting ``receive`` raises StreamLost."""

    def close(self) -> None:
        """Ends the runner and everything below it. Never raises."""

    def last_words(self) -> str:
        """What the runner wrote to stderr, or another hint why it ended; may be empty."""


class StreamLost(Exception):
    """The stream to a runner has ended."""


def wait_for(fd: int, what: int, deadline: float) -> int:
    """What ``fd`` is ready for of ``what``, whatever its number is: select knows none above 1,023.

    Raises TimeoutError at the ``deadline`` (of time.monotonic).
    """
    ready = select.poll()
    ready.register(fd, what)
    left = deadline - time.monotonic()
    found = ready.poll(left * 1000) if left > 0 else []
    if not found:
        raise TimeoutError
    return found[0][1]


class LaneDied(Exception):
    """A lane ended, fell silent or answered nonsense while it had a job."""

    def __init__(self, why: str, *, started: bool, lived_s: float = 0.0) -> None:
        super().__init__(why)
        self.started = started
        self.lived_s = lived_s
        """Seconds that the lane lived after it had started the candidate."""


def control_job(lives_s: float = 0.0) -> Job:
    """A job that passes on any lane that works, after ``lives_s`` seconds."""
    from isograd.contract import Assertions, Job, Limits

    return Job(
        code=f"import time\ntime.sleep({lives_s!r})\ndef one():\n    return 1\n",
        checks=Assertions(["one() == 1"]),
        limits=Limits(timeout_s=lives_s + 10, timeout_ceiling_s=86_400),
    )


class Sandbox(ABC):
    """Runs jobs, one at a time, on one lane. Safe to use from many threads.

    ``spawn`` is how a candidate's process comes to be: a fork of a warm interpreter, or an
    interpreter of its own. ``recycle`` replaces the lane after that many candidates. ``packages``
    names the distributions that candidates may import, ``preload`` modules that each candidate
    finds loaded, so that numpy costs it nothing; ``ceiling`` bounds what a job may ask for.
    ``landlock`` puts that layer in force where the kernel has it; no verdict depends on it.
    """

    backend: ClassVar[str]

    def __init__(
        self,
        *,
        spawn: Spawn = "zygote",
        recycle: int | None = None,
        packages: tuple[str, ...] = (),
        preload: tuple[str, ...] = (),
        ceiling: Limits | None = None,
        landlock: bool = True,
    ) -> None:
        if spawn not in ("zygote", "fresh"):
            raise InputError(f"spawn is 'zygote' or 'fresh', not {spawn!r}")
        if spawn == "fresh" and preload:
            raise InputError("a fresh interpreter finds nothing loaded: preload needs a zygote")
        if recycle is not None and recycle < 1:
            raise InputError(f"recycle is at least 1, not {recycle}")
        self._spawn: Spawn = spawn
        self._recycle = recycle
        self._packages = tuple(packages)
        self._preload = tuple(preload)
        self._ceiling = ceiling
        self._landlock = landlock
        self._lane: _Lane | None = None
        self._lock = threading.RLock()
        self._closed = False
        self.alone: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext

    @property
    def _limits(self) -> Limits:
        """The ceiling of what a job may ask for."""
        if self._ceiling is None:
            from isograd.sandbox.ceiling import CEILING

            self._ceiling = CEILING
        return self._ceiling

    @property
    def _room(self) -> tuple[int, int]:
        """How much a lane's scratch has to hold: MB and files."""
        if self._ceiling is None:
            return SCRATCH_MB, SCRATCH_FILES
        return self._ceiling.scratch_mb, self._ceiling.scratch_files

    @abstractmethod
    def _open(self) -> tuple[Stream, dict[str, Any]]:
        """Starts a runner behind this wall.

        Returns its stream and the part of the runner's configuration that depends on the wall
        (``boot.first_frame``). Raises SandboxUnavailable.
        """

    def _check_alive(self) -> None:  # noqa: B027
        """Raises SandboxUnavailable if what keeps the lanes (a daemon) is gone."""

    def _measured(self) -> dict[str, Any]:
        """Fields of the Measurement that this backend knows."""
        return {}

    def run(self, job: Job) -> Envelope:
        """The verdict on ``job``.

        Raises SandboxUnavailable if the sandbox cannot be had, SandboxCrashed if its lanes die
        and the candidate cannot be shown to be the cause, InputError if the job asks for more
        than the ceiling. Whatever the candidate does is an envelope.
        """
        result = self.run_measured(job)
        assert result.envelope is not None
        return result.envelope

    def run_measured(self, job: Job, then: Job | None = None) -> Result:
        """As ``run``, with the measurement. The result's envelope is never None.

        ``then`` is the job that the caller will ask for next, if it knows: where no candidate can
        get at it, it is sent to the lane meanwhile, which begins with it as soon as it can.
        """
        self._refuse_excess(job.limits)
        with self._lock:
            self._refuse_closed()
            return self._settle(job, then)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise SandboxUnavailable("this sandbox is closed: make another one")

    def _settle(self, job: Job, then: Job | None) -> Result:
        """Runs a job until there is a verdict, or until it is clear that there is none."""
        for attempt in range(3):
            try:
                envelope, measurement = self._attempt(job, then)
            except LaneDied as death:
                self._refuse_closed()
                self._check_alive()
                if death.started:
                    with self.alone():
                        return self._put_to_trial(job, death)
                if attempt == 2:
                    raise SandboxCrashed(
                        f"three lanes died before the candidate: {death}"
                    ) from death
                continue
            return self._result(job, envelope, measurement, attempt)
        raise AssertionError("unreachable")

    def _put_to_trial(self, job: Job, death: LaneDied) -> Result:
        """Finds out whether the candidate kills lanes: alone, on fresh lanes, between controls."""
        from isograd.contract import Envelope, ExitCode, Measurement, Reason

        died = 0
        # As exposed as the candidate was to whatever else may end a lane.
        control = control_job(min(death.lived_s, 30.0))
        for turn, what in enumerate((control, job, control, job, control)):
            self._drop_lane()
            try:
                envelope, measurement = self._attempt(what)
            except LaneDied as again:
                self._refuse_closed()
                self._check_alive()
                if what is control:
                    raise SandboxCrashed(f"lanes die whatever they run: {again}") from again
                if not again.started:
                    raise SandboxCrashed(f"a lane died before the candidate: {again}") from again
                died += 1
            else:
                if what is job:
                    return self._result(job, envelope, measurement, died + 1)
                if envelope.exit_code is not ExitCode.PASS:
                    raise SandboxCrashed(f"a control job got {envelope.exit_code.value} ({turn})")
        total = 1 if job.checks.kind == "program" else len(job.checks.checks)
        envelope = Envelope(
            exit_code=ExitCode.ERROR,
            reason=Reason.SANDBOX_KILLED,
            score=0.0,
            passed=0,
            total=total,
            detail="the candidate ends every sandbox that it is run in",
            per_assertion=(None,) * total,
        )
        return self._result(job, envelope, Measurement(), 2)

    def _result(
        self, job: Job, envelope: Envelope, measurement: Measurement, retries: int
    ) -> Result:
        from isograd.contract import Result

        ours = {"backend": self.backend, "spawn": self._spawn, "retries": retries}
        measured = measurement.model_copy(update={**ours, **self._measured()})
        return Result(
            task_id=job.task_id, sample=job.sample, envelope=envelope, measurement=measured
        )

    def _attempt(self, job: Job, then: Job | None = None) -> tuple[Envelope, Measurement]:
        """One run on the lane at hand, or on a new one. Raises LaneDied."""
        lane = self._ready_lane(job)
        self._refuse_closed()  # it may have been closed while the lane started
        last = self._recycle is not None and lane.jobs + 1 >= self._recycle
        if last or (then is not None and any(self._excess(then.limits))):
            then = None
        try:
            envelope, measurement, spent = lane.run(job, then)
        except BaseException:
            self._drop_lane()
            raise
        if spent or last:
            self._drop_lane()
        return envelope, measurement

    def _ready_lane(self, job: Job | None = None) -> _Lane:
        """A lane that is ready for this job, or for a question."""
        lane = self._lane
        if lane is not None and (lane.silent_s > IDLE_S * 0.7 or not lane.expects(job)):
            self._drop_lane()
        if self._lane is None:
            self._lane = self._begin_lane()
        try:
            self._lane.greet()
        except BaseException:
            self._drop_lane()
            raise
        return self._lane

    def _begin_lane(self) -> _Lane:
        try:
            stream, config = self._open()
            try:
                return _Lane(stream, self._config(config))
            except BaseException:
                stream.close()
                raise
        except OSError as error:
            raise SandboxUnavailable(
                f"this host cannot start a lane: {error}: give it what it lacks "
                "(ulimit -a lists this process's limits)"
            ) from error

    def start(self) -> None:
        """Has the lane started in a thread meanwhile: ``run`` finds it further on.

        Raises nothing: where no lane can be had, ``run`` says so.
        """

        def begin() -> None:
            with self._lock, contextlib.suppress(SandboxUnavailable, LaneDied):
                if self._lane is None and not self._closed:
                    self._lane = self._begin_lane()

        threading.Thread(target=begin, name="isograd-start", daemon=True).start()

    def _config(self, config: dict[str, Any]) -> dict[str, Any]:
        return {
            "spawn": self._spawn,
            "uid_seed": secrets.randbits(31),
            "packages": list(self._packages),
            "site": [],
            "preload": list(self._preload),
            "landlock": self._landlock,
            "denylist": list(DEFAULT_DENYLIST),
            "idle_s": IDLE_S,
            **config,
        }

    def _drop_lane(self) -> None:
        lane, self._lane = self._lane, None
        if lane is not None:
            lane.close()

    def _refuse_excess(self, limits: Limits) -> None:
        for name, asked, most in self._excess(limits):
            raise InputError(
                f"the job asks for {name}={asked} and this sandbox's ceiling is {most}: "
                f"make it with ceiling=Limits({name}={asked})"
            )

    def _excess(self, limits: Limits) -> Iterator[tuple[str, int, int]]:
        """What is asked for beyond the ceiling: its name, how much, and the most that there is."""
        for name in (
            "memory_mb",
            "processes",
            "scratch_mb",
            "scratch_files",
            "file_mb",
            "open_files",
            "output_bytes",
        ):
            asked, most = getattr(limits, name), getattr(self._limits, name)
            if asked > most:
                yield name, asked, most

    def warm_up(self) -> None:
        """Starts the lane now instead of at the first job. Raises SandboxUnavailable."""
        with self._lock:
            try:
                self._ready_lane()
            except LaneDied as death:
                self._check_alive()
                raise SandboxCrashed(f"the lane died at its start: {death}") from death

    def inspect(self) -> dict[str, Any]:
        """What the supervisor sees of itself from inside the wall (``isograd doctor``)."""
        with self._lock:
            self.warm_up()
            assert self._lane is not None
            return self._lane.ask("inspect")

    def facts(self) -> dict[str, Any]:
        """What is behind this wall: ``python``, ``packages`` with versions, ``layers`` in force.

        Starts the lane if there is none. Raises SandboxUnavailable, SandboxCrashed.
        """
        with self._lock:
            self.warm_up()
            assert self._lane is not None
            return {**self._lane.facts, "packages": self._lane.packages, **self._measured()}

    def close(self) -> None:
        """Ends the lane and everything on it, also in the middle of a job. May be called twice."""
        self._closed = True
        if not self._lock.acquire(blocking=False):
            lane = self._lane
            if lane is not None:
                lane.interrupt()
            self._lock.acquire()
        try:
            self._drop_lane()
        finally:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Lane:
    """The host's side of one running runner."""

    def __init__(self, stream: Stream, config: dict[str, Any]) -> None:
        self._stream = stream
        self._reader = wire.Reader()
        self.jobs = 0
        self._heard = time.monotonic()
        self._layers = tuple(config.get("layers", ()))
        self._greeted = False
        self._ahead: tuple[Job, str] | None = None
        self._send(boot.first_frame(config), BOOT_S)

    def greet(self) -> None:
        """Waits until the lane is ready. Raises SandboxUnavailable, LaneDied."""
        if self._greeted:
            return
        hello = self._receive(time.monotonic() + BOOT_S)
        if hello.get("op") == "unfit":
            raise SandboxUnavailable(f"the runner cannot work behind this wall: {hello.get('why')}")
        if hello.get("op") != "hello":
            raise LaneDied(f"an unexpected greeting: {hello.get('op')!r}", started=False)
        layers = self._layers + tuple(hello["layers"])
        self.facts = {"python": str(hello["python"]), "layers": layers}
        self.packages = dict(hello["packages"])
        self._greeted = True

    @property
    def silent_s(self) -> float:
        """Seconds since the last frame in either direction."""
        return time.monotonic() - self._heard

    def expects(self, job: Job | None) -> bool:
        """Whether this may come next: no job has been sent ahead, or this one."""
        return self._ahead is None or self._ahead[0] is job

    def _send_job(self, job: Job, at_most: int | None = None) -> str | None:
        """The nonce of a job that has been sent; None, and it was not, if its frame is larger."""
        nonce = secrets.token_hex(16)
        frame = wire.pack_order({"op": "job", "nonce": nonce, "job": job.to_wire()})
        if at_most is not None and len(frame) > at_most:
            return None
        self._send(frame, job.limits.timeout_s + GRACE_S + BOOT_S)
        return nonce

    def run(self, job: Job, then: Job | None = None) -> tuple[Envelope, Measurement, bool]:
        """The verdict, its measurement, and whether the lane is used up. Raises LaneDied.

        ``then`` is sent already, if it is small: where it fits into the pipe it waits for nobody,
        and no lane that writes a verdict waits for us.
        """
        from pydantic import ValidationError

        from isograd.contract import Envelope, Measurement

        self.jobs += 1
        limits = job.limits
        ahead, self._ahead = self._ahead, None
        nonce = self._send_job(job) if ahead is None else ahead[1]
        if then is not None and "uid" in self.facts["layers"]:
            sent = self._send_job(then, at_most=_LARGEST_AHEAD)
            self._ahead = None if sent is None else (then, sent)
        deadline = time.monotonic() + limits.timeout_s + GRACE_S + BOOT_S
        started = False
        begun = time.monotonic()
        while True:
            try:
                answer = self._receive(deadline)
            except LaneDied as death:
                lived_s = time.monotonic() - begun if started else 0.0
                raise LaneDied(str(death), started=started, lived_s=lived_s) from None
            op = answer.get("op")
            if answer.get("nonce") != nonce or (op == "started" and started):
                raise LaneDied("an answer that nobody asked for", started=started)
            if op == "started":
                started = True
                begun = time.monotonic()
                deadline = time.monotonic() + limits.timeout_s + GRACE_S
                continue
            if op == "fault":
                raise LaneDied(str(answer.get("why")), started=started)
            if op != "verdict":
                raise LaneDied(f"an unexpected answer: {op!r}", started=started)
            try:
                envelope = Envelope.model_validate(answer["envelope"])
                measurement = Measurement.model_validate({**answer["measurement"], **self.facts})
            except (ValidationError, KeyError, TypeError, ValueError) as error:
                raise LaneDied(f"a verdict that is none: {error}", started=started) from None
            return envelope, measurement, bool(answer.get("spent"))

    def ask(self, op: str) -> dict[str, Any]:
        nonce = secrets.token_hex(16)
        self._send(wire.pack_order({"op": op, "nonce": nonce}), BOOT_S)
        answer = self._receive(time.monotonic() + BOOT_S)
        if answer.get("nonce") != nonce:
            raise LaneDied("an answer that nobody asked for", started=False)
        return answer

    def _send(self, frame: bytes, within_s: float) -> None:
        try:
            self._stream.send(frame, time.monotonic() + within_s)
        except (StreamLost, TimeoutError) as error:
            raise LaneDied(self._why(error), started=False) from None
        self._heard = time.monotonic()

    def _receive(self, deadline: float) -> dict[str, Any]:
        try:
            while (message := self._reader.next()) is None:
                self._reader.feed(self._stream.receive(deadline))
        except (StreamLost, TimeoutError, wire.Malformed) as error:
            raise LaneDied(self._why(error), started=False) from None
        self._heard = time.monotonic()
        return message

    def _why(self, error: Exception) -> str:
        words = self._stream.last_words().strip()
        said = "the lane fell silent" if isinstance(error, TimeoutError) else str(error)
        return f"{said}: {words[-500:]}" if words else said

    def interrupt(self) -> None:
        self._stream.interrupt()

    def close(self) -> None:
        self._stream.close()
