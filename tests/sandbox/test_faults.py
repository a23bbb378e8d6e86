"""Faults of ours, injected while jobs run: nobody's verdict changes and nothing is left behind.

The machinery stands here: jobs whose right verdicts are known, faults that strike the lanes of a
pool, and a judge. The long run on every wall is ``tests/proof/test_chaos.py``.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from isograd import (
    Assertions,
    Job,
    Limits,
    Pool,
    Result,
    Sandbox,
    SandboxUnavailable,
    SubprocessSandbox,
)
from isograd.runner import kernel

SMALL = {"processes": 12, "memory_mb": 64, "scratch_mb": 4, "scratch_files": 200, "file_mb": 2}
PATIENT = Limits(timeout_s=20, **SMALL)
SHORT = Limits(timeout_s=0.5, **SMALL, open_files=64, output_bytes=20_000)

HONEST: dict[str, tuple[str, str, float]] = {
    "right": ("def f(x): return x + 1", "pass", 1.0),
    "right and slow": (
        "import time\ntime.sleep(0.1)\ndef f(x):\n    time.sleep(0.1)\n    return x + 1",
        "pass",
        1.0,
    ),
    "right and talkative": ("def f(x):\n    print('x' * 5000)\n    return x + 1", "pass", 1.0),
    "right with files": (
        "def f(x):\n    for n in range(20): open(str(n), 'w').write('x')\n    return x + 1",
        "pass",
        1.0,
    ),
    "wrong": ("def f(x): return x", "assertion_fail", 0.0),
    "half right": ("def f(x): return 2", "assertion_fail", 0.5),
    "no Python": ("def f(x: return x", "syntax_error", 0.0),
    "raises": ("raise ValueError('no')", "error", 0.0),
}
"""Programs with their exit codes and scores."""

ATTACKS = {
    "leaves": "import os\nos._exit(0)",
    "leaves in a check": "import os\ndef f(x): os._exit(0)",
    "kills its parents": """
import os, signal
for pid in (1, os.getppid(), 2, 3):
    for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM):
        try: os.kill(pid, number)
        except OSError: pass
""",
    "kills whom it can": """
import os, signal
def f(x):
    try: os.kill(-1, signal.SIGKILL)
    except OSError: pass
    for name in os.listdir('/proc'):
        if name.isdecimal() and int(name) != os.getpid():
            try: os.kill(int(name), signal.SIGKILL)
            except OSError: pass
    return x
""",
    "kills itself": "import os\nos.kill(os.getpid(), 9)",
    "stops itself": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "bombs": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "bombs and leaves": "import os\nfor _ in range(6): os.fork()\ndef f(x): return x",
    "daemonises": """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
""",
    "uses up the processes": """
import threading, time
def f(x):
    for _ in range(1000): threading.Thread(target=time.sleep, args=(600,)).start()
""",
    "uses up the descriptors": """
import os
def f(x):
    kept = []
    while True: kept.append(os.dup(1))
""",
    "fills the scratch": """
for number in range(1000):
    with open(f'{number}', 'wb') as file: file.write(bytes(1 << 20))
""",
    "makes many files": "for number in range(100000): open(f'{number}', 'w').close()",
    "digs": "import os\nfor _ in range(3000):\n    os.mkdir('d')\n    os.chdir('d')",
    "floods": "while True: print('x' * 1000)",
    "eats": "kept = [bytearray(1 << 20) for _ in range(10000)]",
    "spins": "while True: pass",
    "forges": """
import os
for fd in (1, 2, 3, 4):
    try: os.write(fd, b'\\0\\0\\0\\x16{"event":"end","x":1}' * 50)
    except OSError: pass
""",
    "closes everything": "import os\nos.closerange(0, 100)",
    "is equal to all": """
class All:
    def __eq__(self, other): return True
def f(x): return All()
""",
}
"""Programs that must never get more than 0. Where ``f`` is missing, there is a wrong one."""


def job_of(kind: str, sample: int) -> Job:
    """A job of that kind, whose two checks no other job has."""
    checks = Assertions([f"f({sample + 5}) == {sample + 6}", "f(1) == 2"])
    if kind in HONEST:
        code, limits = HONEST[kind][0], PATIENT
    else:
        code, limits = ATTACKS[kind], SHORT
        code += "" if "def f(" in code else "\ndef f(x): return x\n"
    denylist = () if kind in ATTACKS else ("socket",)
    return Job(
        code=f"# {sample}\n{code}",
        checks=checks,
        limits=limits,
        denylist=denylist,
        task_id=kind,
        sample=sample,
    )


def mixture(count: int, seed: int) -> list[Job]:
    """Honest jobs and attacks, two to one."""
    dice = random.Random(seed)
    kinds = [list(HONEST), list(HONEST), list(ATTACKS)]
    return [job_of(dice.choice(dice.choice(kinds)), sample) for sample in range(count)]


def is_right(result: Result) -> bool:
    """Whether a result with an envelope is what its kind of job merits."""
    envelope = result.envelope
    assert envelope is not None
    if result.task_id in HONEST:
        _, exit_code, score = HONEST[result.task_id]
        return (envelope.exit_code, envelope.score) == (exit_code, score)
    return envelope.exit_code != "pass" and envelope.score == 0.0


# Faults


Started = tuple[int, str]
"""A process, for good: its id and when it was started."""


def identity(pid: int) -> Started | None:
    try:
        return pid, kernel.stat_fields(pid)[19]
    except (OSError, IndexError):
        return None


def lives(process: Started) -> bool:
    return identity(process[0]) == process and not kernel.is_dead(process[0])


def children(pid: int) -> list[int]:
    """The children of a process, oldest first."""
    found: dict[int, int] = {}
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for word in (task / "children").read_text("ascii").split():
                if (process := identity(int(word))) is not None:
                    found[process[0]] = int(process[1])
    return sorted(found, key=lambda pid: found[pid])


@dataclass
class Lane:
    """The processes of one lane, as this host sees them."""

    outermost: int | None
    supervisor: int
    zygote: int | None

    @property
    def all(self) -> list[int]:
        root = self.supervisor if self.outermost is None else self.outermost
        return [root, *kernel.descendants(root)]


def lane_of(sandbox: Sandbox) -> Lane | None:
    """The lane of a subprocess sandbox, if it has one at the moment."""
    lane = sandbox._lane
    process = getattr(lane and lane._stream, "_process", None)
    if process is None or process.poll() is not None:
        return None
    below = children(process.pid)
    if not below:
        return None
    enclosed = b"pivot_root" in Path(f"/proc/{process.pid}/cmdline").read_bytes()
    supervisor = below[0] if enclosed else process.pid
    zygotes = children(supervisor)
    return Lane(process.pid, supervisor, zygotes[0] if zygotes else None)


def strike(pid: int, below: Callable[[], Iterable[int]], number: int = signal.SIGKILL) -> bool:
    """Sends a signal to a process that is still one of ``below()``, and to no other."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if pid not in set(below()):
            return False
        signal.pidfd_send_signal(handle, number)
        return True
    except OSError:
        return False
    finally:
        os.close(handle)


class Faults:
    """Strikes lanes every ``interval_s`` or so, in a thread, until the block ends.

    While a job is on trial at most one fault strikes: a program under which three lanes die by
    chance, while all controls live, cannot be told from one that kills them.
    """

    def __init__(self, seed: int, interval_s: float) -> None:
        self._dice = random.Random(seed)
        self._interval_s = interval_s
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._failed: BaseException | None = None
        self._struck_trial: int | None = None
        self.pool: Pool | None = None
        self.struck: Counter[str] = Counter()
        self.seen: set[Started] = set()
        self.kinds: dict[str, Callable[[], bool]] = {
            "the supervisor is killed": lambda: self._kill("supervisor"),
            "the zygote is killed": lambda: self._kill("zygote"),
            "the outermost process is killed": lambda: self._kill("outermost"),
            "the supervisor is stopped for a while": self._stop,
        }

    def lanes(self) -> list[Lane]:
        """The lanes that there are now."""
        sandboxes = list(self.pool._made) if self.pool is not None else []
        return [lane for sandbox in sandboxes if (lane := lane_of(sandbox)) is not None]

    def below(self) -> list[int]:
        """The processes that may be struck."""
        return kernel.descendants(os.getpid())

    def _some_lane(self) -> Lane | None:
        with contextlib.suppress(OSError):
            lanes = self.lanes()
            for lane in lanes:
                self.seen.update(filter(None, map(identity, lane.all)))
            return self._dice.choice(lanes) if lanes else None
        return None

    def _kill(self, what: str) -> bool:
        lane = self._some_lane()
        pid = getattr(lane, what, None)
        return pid is not None and strike(pid, self.below)

    def _stop(self) -> bool:
        lane = self._some_lane()
        if lane is None or not strike(lane.supervisor, self.below, signal.SIGSTOP):
            return False
        self._end.wait(self._dice.uniform(0.1, 0.5))
        strike(lane.supervisor, self.below, signal.SIGCONT)
        return True

    def _trial(self) -> int | None:
        """The thread whose job is on trial, if one is."""
        return self.pool._gate._taken if self.pool is not None else None

    def _run(self) -> None:
        try:
            while not self._end.wait(self._interval_s * self._dice.uniform(0.3, 1.7)):
                if self._trial() is not None and self._trial() == self._struck_trial:
                    continue
                kind = self._dice.choice(list(self.kinds))
                self.struck[kind] += self.kinds[kind]()
                self._struck_trial = self._trial()
        except BaseException as error:
            self._failed = error

    def __enter__(self) -> Faults:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        if self._failed is not None:
            raise self._failed


@dataclass
class Outcome:
    """What became of a batch under faults."""

    results: dict[int, Result] = field(default_factory=dict)
    interruptions: list[str] = field(default_factory=list)

    @property
    def without_verdict(self) -> list[Result]:
        return [result for result in self.results.values() if result.envelope is None]

    @property
    def late(self) -> list[Result]:
        """Jobs of the patient that timed out."""
        return [
            result
            for result in self.results.values()
            if result.task_id in HONEST
            and result.envelope
            and result.envelope.exit_code == "timeout"
        ]

    @property
    def unjust(self) -> list[Result]:
        """Verdicts that are not what the job merits."""
        late = {result.sample for result in self.late}
        return [
            result
            for result in self.results.values()
            if result.envelope and result.sample not in late and not is_right(result)
        ]


def grade_under(
    faults: Faults,
    make: Callable[[], Sandbox],
    jobs: Iterable[Job],
    until_usable: Callable[[], None] = lambda: None,
) -> Outcome:
    """Grades ``jobs`` on two lanes; where the batch ends early, goes on with what is left."""
    outcome = Outcome()
    rest = {job.sample: job for job in jobs}
    while rest:
        until_usable()
        with Pool(make, lanes=2) as pool:
            faults.pool = pool
            try:
                for result in pool.grade(list(rest.values())):
                    assert result.sample not in outcome.results, "a job has two results"
                    outcome.results[result.sample] = result
                    del rest[result.sample]
            except SandboxUnavailable as error:
                outcome.interruptions.append(str(error))
    return outcome


def judge(outcome: Outcome, make: Callable[[], Sandbox], jobs: list[Job], faults: Faults) -> None:
    """Fails unless every job got what it merits, also those that a fault left without a verdict."""
    again = {result.sample for result in (*outcome.without_verdict, *outcome.late)}
    assert sorted(outcome.results) == [job.sample for job in jobs]
    assert [(r.task_id, r.envelope) for r in outcome.unjust] == []
    with Pool(make, lanes=2) as pool:
        for job in jobs:
            if job.sample in again:
                result = pool.run_alone(job)
                assert result.envelope is not None, result.fault
                assert is_right(result), (result.task_id, result.envelope)
    told = Counter(str(result.fault)[:90] for result in outcome.without_verdict)
    print(f"\n{len(jobs)} jobs; struck {dict(faults.struck)}; {len(outcome.late)} late;")
    retried = sum(bool(r.measurement and r.measurement.retries) for r in outcome.results.values())
    print(f"{retried} on trial; interrupted {len(outcome.interruptions)}; no verdict: {dict(told)}")


@contextlib.contextmanager
def nothing_left(seen: set[Started]) -> Iterator[None]:
    """Fails if afterwards there is a process or a descriptor more than before."""
    before, descriptors = set(kernel.descendants(os.getpid())), _descriptors()
    yield
    give_up = time.monotonic() + 20
    while True:
        more = set(kernel.descendants(os.getpid())) - before
        more |= {process[0] for process in seen if lives(process)}
        opened = [name for name in _descriptors() if name not in descriptors]
        if (not more and len(_descriptors()) <= len(descriptors)) or time.monotonic() > give_up:
            break
        time.sleep(0.1)
    assert more == set()
    assert len(_descriptors()) <= len(descriptors), opened


def _descriptors() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
    return found


def test_faults_change_no_verdict() -> None:
    """150 jobs of every kind while lanes are killed and stopped: each gets what it merits."""

    def make() -> Sandbox:
        # Without recycling, a lane whose outermost process was killed would be struck no more.
        return SubprocessSandbox(allow_code_exec=True, recycle=20)

    jobs = mixture(150, seed=7)
    faults = Faults(seed=8, interval_s=0.9)
    with nothing_left(faults.seen):
        with faults:
            outcome = grade_under(faults, make, jobs)
        assert sum(faults.struck.values()) > 2
        judge(outcome, make, jobs, faults)


def test_every_attack_is_worth_nothing_without_any_fault() -> None:
    """The judge is not blind: each kind of job gets its verdict on a quiet lane."""
    with SubprocessSandbox(allow_code_exec=True) as sandbox:
        for sample, kind in enumerate([*HONEST, *ATTACKS]):
            result = sandbox.run_measured(job_of(kind, sample))
            assert is_right(result), (kind, result.envelope)


ONE = Job(code="def f(): return 1", checks=Assertions(["f() == 1"]))


def test_a_host_with_many_open_files_can_still_grade() -> None:
    """Descriptors above 1,023 are as good as others."""
    kept = [os.open("/dev/null", os.O_RDONLY) for _ in range(1_100)]
    try:
        with SubprocessSandbox(allow_code_exec=True) as sandbox:
            assert sandbox.run(ONE).exit_code == "pass"
    finally:
        for fd in kept:
            os.close(fd)


@pytest.mark.parametrize("room", [0, 1, 2, 4, 7])
def test_a_host_that_may_open_no_more_files_is_our_fault(room: int) -> None:
    """It is SandboxUnavailable or a verdict, nothing else, and nothing stays open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with SubprocessSandbox(allow_code_exec=True) as sandbox:
        before = _descriptors()
        kept: list[int] = []
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(_number, before)) + 50, hard))
        try:
            with contextlib.suppress(OSError):
                while True:
                    kept.append(os.open("/dev/null", os.O_RDONLY))
            for _ in range(room):
                os.close(kept.pop())
            try:
                assert sandbox.run(ONE).exit_code == "pass"
            except SandboxUnavailable as error:
                assert "Too many open files" in str(error)
        finally:
            for fd in kept:
                os.close(fd)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert sandbox.run(ONE).exit_code == "pass"
    assert len(_descriptors()) <= len(before)


def _number(descriptor: str) -> int:
    return int(descriptor.split(maxsplit=1)[0])


def test_closing_while_a_lane_opens_ends_the_job() -> None:
    """Who closes a sandbox need not wait for a job whose lane is still being opened."""
    sandbox = SubprocessSandbox(allow_code_exec=True)
    open_it, opening, go_on = sandbox._open, threading.Event(), threading.Event()

    def slowly() -> Any:
        opening.set()
        go_on.wait(20)
        return open_it()

    sandbox._open = slowly  # type: ignore[method-assign]
    job = ONE.model_copy(
        update={"code": "import time\ntime.sleep(20)", "limits": Limits(timeout_s=25)}
    )
    raised: list[BaseException] = []

    def run() -> None:
        try:
            sandbox.run(job)
        except BaseException as error:
            raised.append(error)

    running = threading.Thread(target=run)
    closing = threading.Thread(target=sandbox.close)
    running.start()
    opening.wait(20)
    closing.start()
    while not sandbox._closed:
        time.sleep(0.01)
    go_on.set()
    running.join()
    closing.join()
    assert [type(error) for error in raised] == [SandboxUnavailable]


@pytest.mark.parametrize("backend", ["subprocess", "bubblewrap", "docker"])
def test_a_lane_outlives_the_thread_that_opened_it(
    make_sandbox: Callable[[str], Callable[[], Sandbox]], backend: str
) -> None:
    """A pool's threads come and go; their lanes stay."""
    with make_sandbox(backend)() as sandbox:
        thread = threading.Thread(target=sandbox.warm_up)
        thread.start()
        thread.join()
        lane = sandbox._lane
        time.sleep(0.2)
        assert sandbox.run(ONE).exit_code == "pass"
        assert sandbox._lane is lane


def test_a_lane_ends_with_its_outermost_process() -> None:
    """Nothing of a lane runs on where nobody could end it."""
    with SubprocessSandbox(allow_code_exec=True) as sandbox:
        sandbox.run(ONE)
        lane = lane_of(sandbox)
        if lane is None or lane.outermost == lane.supervisor:
            pytest.skip("lanes are not enclosed here")
        seen = set(filter(None, map(identity, lane.all)))
        assert strike(lane.outermost or 0, lambda: kernel.descendants(os.getpid()))
        give_up = time.monotonic() + 20
        while any(map(lives, seen)) and time.monotonic() < give_up:
            time.sleep(0.05)
        assert not any(map(lives, seen))
        assert sandbox.run(ONE).exit_code == "pass"
