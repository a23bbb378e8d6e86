"""Lanes: what their deaths mean, when they are replaced, and how a pool leases them."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from isograd import (
    Assertions,
    Envelope,
    ExitCode,
    FakeSandbox,
    InputError,
    Job,
    Limits,
    OptInRequired,
    Pool,
    Program,
    Sandbox,
    SandboxCrashed,
    SandboxUnavailable,
    SubprocessSandbox,
)
from isograd.contract import Grading
from isograd.runner import kernel, wire
from isograd.runner.supervisor import Kept
from isograd.sandbox import base
from isograd.sandbox.base import StreamLost, control_job

PASS = Envelope(exit_code=ExitCode.PASS, score=1.0, passed=1, total=1, per_assertion=(True,))
FAIL = Envelope(
    exit_code=ExitCode.ASSERTION_FAIL, score=0.0, passed=0, total=1, per_assertion=(False,)
)
KILLER = Job(code="kill()", checks=Assertions(["x"]))
HONEST = Job(code="one = 1", checks=Assertions(["one == 1"]))

Script = Callable[[int, dict[str, Any]], list[dict[str, Any] | None]]


class ScriptedStream:
    """A runner that answers by a script: messages, or None for its death."""

    def __init__(self, lane: int, script: Script) -> None:
        self._lane = lane
        self._script = script
        self._reader = wire.Reader(orders=True)
        hello = {"op": "hello", "python": "3", "layers": ["uid"], "packages": {}}
        self._out = [wire.pack(hello)]
        self._booted = False
        self.closed = False

    def send(self, data: bytes, deadline: float) -> None:
        if not self._booted:  # the runner itself comes first, and is no message
            self._booted = True
            return
        self._reader.feed(data)
        while (message := self._reader.next()) is not None:
            if message.get("op") != "job":
                continue
            for answer in self._script(self._lane, message["job"]):
                if answer is None:
                    self._out.append(b"")
                else:
                    self._out.append(wire.pack({"nonce": message["nonce"], **answer}))

    def receive(self, deadline: float) -> bytes:
        data = self._out.pop(0) if self._out else b""
        if not data:
            raise StreamLost("scripted death")
        return data

    def last_words(self) -> str:
        return ""

    def interrupt(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


class ScriptedSandbox(Sandbox):
    backend = "scripted"

    def __init__(self, script: Script, alive: bool = True, **settings: Any) -> None:
        super().__init__(**settings)
        self._script = script
        self._alive = alive
        self.streams: list[ScriptedStream] = []

    def _open(self) -> tuple[ScriptedStream, dict[str, Any]]:
        self.streams.append(ScriptedStream(len(self.streams), self._script))
        return self.streams[-1], {}

    def _check_alive(self) -> None:
        if not self._alive:
            raise SandboxUnavailable("the daemon is gone")


STARTED = {"op": "started"}


def verdict(envelope: Envelope = PASS, **more: Any) -> dict[str, Any]:
    fields = {"op": "verdict", "envelope": envelope.model_dump(mode="json"), "measurement": {}}
    return {**fields, "spent": False, **more}


def is_killer(job: dict[str, Any]) -> bool:
    return bool(job["code"] == KILLER.code)


def test_who_kills_every_lane_gets_a_zero_for_it() -> None:
    """All controls pass and every lane of the job dies: error, sandbox_killed."""
    order: list[str] = []

    def script(lane: int, job: dict[str, Any]) -> list[dict[str, Any] | None]:
        order.append("job" if is_killer(job) else "control")
        return [STARTED, None] if is_killer(job) else [STARTED, verdict()]

    sandbox = ScriptedSandbox(script)
    result = sandbox.run_measured(KILLER)
    assert result.envelope is not None and result.measurement is not None
    assert (result.envelope.exit_code, result.envelope.reason) == ("error", "sandbox_killed")
    assert result.envelope.score == 0.0 and result.envelope.per_assertion == (None,)
    assert order == ["job", "control", "job", "control", "job", "control"]
    assert len(sandbox.streams) == 6


def test_a_job_that_survives_its_trial_gets_its_verdict() -> None:
    """A lane that died once was not the candidate's doing."""

    def script(lane: int, job: dict[str, Any]) -> list[dict[str, Any] | None]:
        return [STARTED, None] if lane == 0 else [STARTED, verdict()]

    result = ScriptedSandbox(script).run_measured(KILLER)
    assert result.envelope == PASS
    assert result.measurement is not None and result.measurement.retries == 1


def test_lanes_that_die_whatever_they_run_are_our_fault() -> None:
    """A control that dies ends the trial: no verdict."""
    sandbox = ScriptedSandbox(lambda lane, job: [STARTED, None])
    with pytest.raises(SandboxCrashed, match="whatever they run"):
        sandbox.run(KILLER)


def test_a_death_before_the_candidate_is_never_its_fault() -> None:
    """Three lanes that die before `started` are our fault; one is only retried."""
    with pytest.raises(SandboxCrashed, match="before the candidate"):
        ScriptedSandbox(lambda lane, job: [None]).run(KILLER)
    sandbox = ScriptedSandbox(lambda lane, job: [None] if lane < 2 else [STARTED, verdict()])
    assert sandbox.run(KILLER) == PASS


def test_a_dead_daemon_is_never_a_verdict() -> None:
    """If what keeps the lanes is gone, a death says nothing about the candidate."""
    sandbox = ScriptedSandbox(lambda lane, job: [STARTED, None], alive=False)
    with pytest.raises(SandboxUnavailable, match="daemon is gone"):
        sandbox.run(KILLER)


BAD_ANSWERS: dict[str, list[dict[str, Any] | None]] = {
    "another nonce": [STARTED, {**verdict(), "nonce": "0" * 32}],
    "started twice": [STARTED, STARTED],
    "no operation": [STARTED, {"op": None}],
    "no envelope": [STARTED, {"op": "verdict", "measurement": {}}],
    "an envelope that contradicts itself": [
        STARTED,
        verdict(envelope=PASS.model_copy(update={"score": 0.5})),
    ],
    "a measurement that is none": [STARTED, verdict(measurement={"wall_s": "long"})],
    "unknown fields": [STARTED, verdict(measurement={"surprise": 1})],
}


@pytest.mark.parametrize("answers", BAD_ANSWERS.values(), ids=BAD_ANSWERS)
def test_an_answer_that_cannot_be_decoded_is_a_death(
    answers: list[dict[str, Any] | None],
) -> None:
    """Nonsense from a lane destroys it and puts the job to trial; it is never a verdict."""

    def script(lane: int, job: dict[str, Any]) -> list[dict[str, Any] | None]:
        return answers if is_killer(job) else [STARTED, verdict()]

    sandbox = ScriptedSandbox(script)
    assert sandbox.run(KILLER).reason == "sandbox_killed"
    assert all(stream.closed for stream in sandbox.streams[:-1])


def test_a_second_answer_to_a_job_spoils_the_next() -> None:
    """A verdict that comes twice is an answer that nobody asked for: the lane is destroyed."""

    def script(lane: int, job: dict[str, Any]) -> list[dict[str, Any] | None]:
        return [STARTED, verdict(), verdict()] if lane == 0 else [STARTED, verdict()]

    sandbox = ScriptedSandbox(script)
    assert sandbox.run(HONEST) == PASS
    assert sandbox.run(HONEST) == PASS
    assert sandbox.streams[0].closed and len(sandbox.streams) > 1


def test_a_spent_lane_is_replaced() -> None:
    """A lane that says that it is changed runs nothing more."""
    sandbox = ScriptedSandbox(lambda lane, job: [STARTED, verdict(spent=lane == 0)])
    for _ in range(3):
        sandbox.run(HONEST)
    assert [stream.closed for stream in sandbox.streams] == [True, False]


def test_recycle_gives_a_fresh_lane_every_few_jobs() -> None:
    """`recycle=2` replaces the lane after two candidates."""
    sandbox = ScriptedSandbox(lambda lane, job: [STARTED, verdict()], recycle=2)
    for _ in range(5):
        sandbox.run(HONEST)
    assert [stream.closed for stream in sandbox.streams] == [True, True, False]


def test_an_idle_lane_is_replaced_before_it_ends_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A lane that has been silent for long is not trusted with a job."""
    sandbox = ScriptedSandbox(lambda lane, job: [STARTED, verdict()])
    sandbox.run(HONEST)
    monkeypatch.setattr("isograd.sandbox.base.IDLE_S", 0.0)
    sandbox.run(HONEST)
    assert len(sandbox.streams) == 2


def test_a_job_beyond_the_ceiling_is_refused() -> None:
    """What the outer wall would cut short is an error of the caller's, with the remedy."""
    sandbox = ScriptedSandbox(lambda lane, job: [STARTED, verdict()])
    job = Job(code="x", checks=Assertions(["x"]), limits=Limits(memory_mb=100_000))
    with pytest.raises(InputError, match=r"ceiling=Limits\(memory_mb=100000\)"):
        sandbox.run(job)


def test_a_closed_sandbox_says_so() -> None:
    """Using a sandbox after its end is an error, not a hang."""
    sandbox = ScriptedSandbox(lambda lane, job: [STARTED, verdict()])
    sandbox.close()
    sandbox.close()
    with pytest.raises(SandboxUnavailable, match="closed"):
        sandbox.run(HONEST)


@pytest.mark.parametrize(
    ("settings", "message"), [({"spawn": "slow"}, "zygote"), ({"recycle": 0}, "at least 1")]
)
def test_settings_that_are_none_are_refused(settings: dict[str, Any], message: str) -> None:
    """A wrong setting is an error at once."""
    with pytest.raises(InputError, match=message):
        ScriptedSandbox(lambda lane, job: [], **settings)


def test_the_fake_gives_what_it_is_told() -> None:
    """One envelope for all, a function, or one a job; an error outcome is raised."""
    assert FakeSandbox(PASS).run(HONEST) == PASS
    assert FakeSandbox(lambda job: PASS).run(HONEST) == PASS
    fake = FakeSandbox([PASS, SandboxCrashed("scripted")])
    assert fake.run(HONEST) == PASS
    with pytest.raises(SandboxCrashed, match="scripted"):
        fake.run(KILLER)
    assert fake.jobs == [HONEST, KILLER]


# The pool


def jobs(count: int) -> Iterator[Job]:
    for n in range(count):
        yield Job(code=str(n), checks=Assertions(["x"]), task_id=str(n), sample=n)


def test_a_pool_grades_every_job_once() -> None:
    """Every job has exactly one result, under its own label."""
    with Pool(lambda: FakeSandbox(PASS), lanes=3) as pool:
        results = list(pool.grade(jobs(100)))
    assert sorted(result.sample for result in results) == list(range(100))
    assert all(result.envelope == PASS for result in results)


def test_a_pool_reads_no_further_than_it_must() -> None:
    """The jobs of an endless source are read as results are taken: memory stays flat."""
    taken = itertools.count()
    source = (job for job in jobs(10**9) if next(taken) >= 0)
    with Pool(lambda: FakeSandbox(PASS), lanes=2) as pool:
        results = pool.grade(source)
        for _ in range(50):
            next(results)
        results.close()  # type: ignore[attr-defined]
        assert next(taken) <= 50 + 4 * 2 + 1


def test_our_fault_is_a_result_without_an_envelope() -> None:
    """A lane that cannot be had for one job is that job's fault record; the rest goes on."""

    def script(job: Job) -> Envelope | SandboxCrashed:
        return SandboxCrashed("lost") if job.sample == 3 else PASS

    with Pool(lambda: FakeSandbox(script), lanes=2) as pool:
        results = {result.sample: result for result in pool.grade(jobs(10))}
    assert len(results) == 10
    assert results[3].envelope is None and results[3].fault == "lost"


def test_a_batch_ends_when_no_lane_can_be_had() -> None:
    """What was graded is given first; then comes the exception."""
    seen: list[int] = []

    def script(job: Job) -> Envelope | SandboxUnavailable:
        return SandboxUnavailable("daemon gone") if job.sample >= 5 else PASS

    with (
        Pool(lambda: FakeSandbox(script), lanes=2) as pool,
        pytest.raises(SandboxUnavailable, match="daemon gone"),
    ):
        for result in pool.grade(jobs(1000)):
            seen.append(result.sample)
    assert sorted(seen) == list(range(5))


def test_a_pool_serves_many_threads() -> None:
    """Several batches and single jobs share the lanes."""
    got: list[int] = []
    lock = threading.Lock()
    with Pool(lambda: FakeSandbox(PASS), lanes=2) as pool:

        def batch() -> None:
            results = list(pool.grade(jobs(50)))
            with lock:
                got.append(len(results))

        threads = [threading.Thread(target=batch) for _ in range(6)]
        for thread in threads:
            thread.start()
        assert pool.run(HONEST) == PASS
        for thread in threads:
            thread.join()
    assert got == [50] * 6


def test_a_trial_runs_alone() -> None:
    """While a job is on trial no other job of the pool runs."""
    running: list[str] = []
    overlaps: list[list[str]] = []
    lock = threading.Lock()
    on_trial = threading.Event()

    @contextlib.contextmanager
    def noted(name: str) -> Iterator[None]:
        with lock:
            running.append(name)
            if on_trial.is_set():
                overlaps.append(list(running))
        try:
            yield
        finally:
            with lock:
                running.remove(name)

    first = itertools.count()

    def script(lane: int, job: dict[str, Any]) -> list[dict[str, Any] | None]:
        name = "killer" if is_killer(job) else json.dumps(job["code"])
        with noted(name):
            time.sleep(0.005)
        if is_killer(job) and next(first) == 0:
            return [STARTED, None]
        return [STARTED, verdict()]

    made: list[ScriptedSandbox] = []

    def make() -> Sandbox:
        sandbox = ScriptedSandbox(script)
        plain = sandbox._put_to_trial

        def put_to_trial(*arguments: Any) -> Any:
            on_trial.set()
            try:
                return plain(*arguments)
            finally:
                on_trial.clear()

        sandbox._put_to_trial = put_to_trial  # type: ignore[method-assign]
        made.append(sandbox)
        return sandbox

    many = [*jobs(20), KILLER, *jobs(20)]
    with Pool(make, lanes=3) as pool:
        assert all(result.envelope == PASS for result in pool.grade(many))
    assert overlaps and all(len(names) == 1 for names in overlaps)


def test_a_pool_has_a_lane() -> None:
    """A pool without lanes would wait for ever."""
    with pytest.raises(InputError, match="at least 1"):
        Pool(lambda: FakeSandbox(PASS), lanes=0)


# Real lanes


def test_running_code_here_needs_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """The subprocess wall refuses without the opt-in, and says how to give it."""
    with pytest.raises(OptInRequired, match="ISOGRAD_ALLOW_CODE_EXEC=1"):
        SubprocessSandbox()
    monkeypatch.setenv("ISOGRAD_ALLOW_CODE_EXEC", "1")
    with SubprocessSandbox() as sandbox:
        assert sandbox.run(control_job()).exit_code == "pass"


def test_a_lane_is_used_again(
    make_sandbox: Callable[[str], Callable[[], Sandbox]], backend: str
) -> None:
    """Jobs of a sandbox run on one lane until it must be replaced."""
    code = "import os\nprint(os.getuid())\none = 1\n"
    with make_sandbox(backend)() as sandbox:
        job = Job(code=code, checks=Assertions(["one == 1"]))
        assert sandbox.run(job).stdout == sandbox.run(job).stdout


def test_closing_ends_a_job_in_its_middle(
    make_sandbox: Callable[[str], Callable[[], Sandbox]], backend: str
) -> None:
    """Another thread may close a sandbox; the one that waits is told, and gets no verdict."""
    sandbox = make_sandbox(backend)()
    sandbox.warm_up()
    job = Job(
        code="import time\ntime.sleep(20)\n",
        checks=Assertions(["1 == 1"]),
        limits=Limits(timeout_s=20),
    )
    raised: list[BaseException] = []

    def run() -> None:
        try:
            sandbox.run(job)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.5)
    sandbox.close()
    thread.join(15)
    assert not thread.is_alive()
    assert len(raised) == 1 and isinstance(raised[0], SandboxUnavailable)


def test_without_namespaces_nobody_runs_as_root() -> None:
    """Where the lane can have neither namespaces nor a uid of its own, root refuses."""
    with SubprocessSandbox(allow_code_exec=True, namespaces="never") as sandbox:
        try:
            envelope = sandbox.run(
                Job(code="import os\nuid = os.getuid()\n", checks=Assertions(["uid != 0"]))
            )
        except SandboxUnavailable as error:
            assert "root" in str(error)
        else:
            assert envelope.exit_code == "pass"


@pytest.mark.parametrize("grading", ["split", "shared"])
def test_who_waits_for_a_job_may_die(grading: Grading) -> None:
    """Processes that were forked ahead and are gone are no fault: others take their place."""
    job = control_job().model_copy(update={"grading": grading})
    with SubprocessSandbox(allow_code_exec=True) as sandbox:
        before = set(kernel.descendants(os.getpid()))
        assert sandbox.run(job).exit_code == "pass"
        lane = sandbox._lane
        waiting = youngest(set(kernel.descendants(os.getpid())) - before)
        if "uid" not in sandbox.facts()["layers"]:
            pytest.skip("nothing is forked ahead where candidates have no uid of their own")
        assert len(waiting) == 1 + (grading == "split")
        for pid in waiting:
            os.kill(pid, signal.SIGKILL)
            while not kernel.is_dead(pid):
                time.sleep(0.001)
        assert sandbox.run(job).exit_code == "pass"
        assert sandbox._lane is lane


def youngest(pids: set[int]) -> list[int]:
    """Those that are furthest below this process."""

    def depth(pid: int) -> int:
        found = 0
        while pid != os.getpid():
            pid, found = int(kernel.stat_fields(pid)[1]), found + 1
        return found

    depths = {pid: depth(pid) for pid in pids}
    return [pid for pid in pids if depths[pid] == max(depths.values())]


def test_another_grading_finds_processes_of_its_own() -> None:
    """What was forked ahead for the one serves the other not, and nothing is left of it."""
    jobs = [control_job().model_copy(update={"grading": g}) for g in ("split", "shared")]
    with SubprocessSandbox(allow_code_exec=True) as sandbox:
        sandbox.run(jobs[0])
        before = len(kernel.descendants(os.getpid()))
        for _ in range(3):
            assert [sandbox.run(job).exit_code.value for job in jobs] == ["pass", "pass"]
        sandbox.run(jobs[0])
        assert len(kernel.descendants(os.getpid())) == before


def test_the_same_checks_are_judged_the_same_again() -> None:
    """Compiled here, or as an earlier job left them: the envelope is the same, byte for byte."""
    checks = [
        Assertions(["f(1) == 2", "1 < f(1) < 3", "x = f(2)\nassert x == 3", "f((", "f(1) is 2"]),
        Assertions(["helper(f(1)) == 4", "f(1)"], setup="def helper(n):\n    return 2 * n\n"),
        Program("def check(candidate):\n    assert candidate(1) == 2 == helper(1)\n", "f"),
        Program("def check(candidate):\n    assert candidate(1) == 3, 'no'\n", "f"),
        Assertions(["1"]),
    ]
    prompt = "def helper(n):\n    return 2 * n\n"
    with SubprocessSandbox(allow_code_exec=True) as sandbox:
        for given, grading in itertools.product(checks, ("split", "shared")):
            code = prompt + "def f(n):\n    return n + 1\n"
            job = Job(code=code, checks=given, prompt=prompt, grading=grading, entry_point="f")
            first, *others = [sandbox.run(job).canonical() for _ in range(3)]
            assert others == [first, first]


def test_what_earlier_checks_compiled_to_is_bounded() -> None:
    """Only the latest used are kept, up to a number of bytes."""
    kept = Kept(room=33)
    for number in range(5):
        kept.keep(bytes([number]), bytes(10))
        kept.get(b"\0")
    assert [kept.get(bytes([number])) is not None for number in range(5)] == [
        True, False, False, True, True,
    ]  # fmt: skip


def test_a_candidate_is_announced_before_it_could_end_its_lane(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At once where it has the lane's uid; else when it has run for a moment."""
    heard: list[str] = []
    receive = base._Lane._receive

    def listen(lane: Any, deadline: float) -> dict[str, Any]:
        message = receive(lane, deadline)
        heard.append(message["op"])
        return message

    def words(lives_s: float) -> list[str]:
        heard.clear()
        sandbox.run(control_job(lives_s))
        return [*heard]

    monkeypatch.setattr(base._Lane, "_receive", listen)
    with SubprocessSandbox(allow_code_exec=True) as sandbox:
        of_its_own = "uid" in sandbox.facts()["layers"]
        assert words(0.5) == ["started", "verdict"]
        assert (["verdict"] in [words(0.0) for _ in range(10)]) == of_its_own


def test_the_next_job_is_sent_while_one_runs() -> None:
    """And each result belongs to its job, also where a batch has the same job twice in a row."""
    wanted = [
        Job(code=f"one = {n % 3}", checks=Assertions(["one == 1"]), task_id=str(n))
        for n in range(40)
    ]
    wanted += [wanted[1]] * 5
    orders: list[str] = []

    def script(lane: int, job: dict[str, Any]) -> list[dict[str, Any] | None]:
        orders.append(job["code"])
        return [STARTED, verdict(PASS if job["code"] == "one = 1" else FAIL)]

    sandbox = ScriptedSandbox(script)
    for job, then in itertools.pairwise(wanted):
        result = sandbox.run_measured(job, then)
        assert result.task_id == job.task_id
        assert result.envelope == (PASS if job.code == "one = 1" else FAIL)
    assert orders == [job.code for job in wanted]
    assert len(sandbox.streams) == 1
    with Pool(lambda: ScriptedSandbox(script), lanes=2) as pool:
        for result in pool.grade(wanted):
            assert result.envelope == (PASS if int(result.task_id) % 3 == 1 else FAIL)


def test_a_lane_that_dies_takes_no_job_with_it_that_was_on_its_way() -> None:
    """The next job runs on the next lane, once, and nobody counts that as a retry."""

    def script(lane: int, job: dict[str, Any]) -> list[dict[str, Any] | None]:
        if job["code"] == "kill()":
            return [STARTED, verdict(spent=True)]
        return [STARTED, verdict()] if lane else [None]

    sandbox = ScriptedSandbox(script)
    assert sandbox.run_measured(KILLER, HONEST).envelope == PASS
    result = sandbox.run_measured(HONEST)
    assert result.envelope == PASS
    assert result.measurement is not None
    assert result.measurement.retries == 0
    assert len(sandbox.streams) == 2


def test_a_job_on_its_way_that_nobody_asks_for_is_left_behind() -> None:
    """With its lane: the next one asked for gets its own verdict."""
    sandbox = ScriptedSandbox(lambda lane, job: [STARTED, verdict(FAIL if lane == 0 else PASS)])
    assert sandbox.run_measured(KILLER, KILLER.model_copy()).envelope == FAIL
    assert sandbox.run(HONEST) == PASS
    assert [stream.closed for stream in sandbox.streams] == [True, False]


@pytest.mark.parametrize("why", ["large", "last"])
def test_what_must_not_go_ahead_does_not(why: str) -> None:
    """No job that could fill the pipe, and none to a lane that is about to be replaced."""
    lanes: list[int] = []

    def script(lane: int, job: dict[str, Any]) -> list[dict[str, Any] | None]:
        lanes.append(lane)
        return [STARTED, verdict()]

    sandbox = ScriptedSandbox(script, recycle=1 if why == "last" else None)
    then = HONEST.model_copy(update={"code": "#" * (40_000 if why == "large" else 1)})
    sandbox.run_measured(HONEST, then)
    assert len(lanes) == 1
    sandbox.run_measured(then)
    assert lanes == [0, 1 if why == "last" else 0]


def test_a_sandbox_can_be_started_ahead() -> None:
    """Start waits for nothing; a job afterwards finds the lane, and a close ends it."""
    sandbox = SubprocessSandbox(allow_code_exec=True)
    sandbox.start()
    assert sandbox.run(control_job()).exit_code == "pass"
    lane = sandbox._lane
    sandbox.start()
    assert sandbox.run(control_job()).exit_code == "pass"
    assert sandbox._lane is lane
    sandbox.close()
    sandbox.start()
    with pytest.raises(SandboxUnavailable, match="closed"):
        sandbox.run(control_job())
