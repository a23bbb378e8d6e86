"""A run that is interrupted leaves nothing behind but a file that can be resumed.

The command is killed, told to end, robbed of its daemon and of its disk in the middle of a run.
Each sample sleeps for a moment, so that the middle is easily hit.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from conftest import without_docker
from isograd import Assertions, Job, Limits, SandboxUnavailable, SubprocessSandbox, images
from isograd.sandbox.docker import LABEL
from support.daemon import ThrowawayDaemon, available

LEFT_WITHIN_S = 5.0
SAMPLES = 24
IDS = {("sleepy", sample) for sample in range(SAMPLES)}
RIGHT = {sample for sample in range(SAMPLES) if sample % 3}
WALLS = ("subprocess", "docker")

START = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
from isograd.cli import main
main()
"""


@pytest.fixture
def batch(tmp_path: Path) -> list[str]:
    """Samples of which two of three are right, and each of which sleeps."""
    task = {
        "task_id": "sleepy",
        "category": "code_exec",
        "prompt": "Write f().",
        "targets": ["f() == 1"],
        "metric_name": "code_exec",
        "post_process": "extract_code_block",
    }
    (tmp_path / "tasks.jsonl").write_text(json.dumps(task) + "\n", "utf-8")
    with (tmp_path / "samples.jsonl").open("w", encoding="utf-8") as file:
        for sample in range(SAMPLES):
            code = f"import time\ntime.sleep(0.2)\ndef f():\n    return {int(sample in RIGHT)}\n"
            print(json.dumps({"task_id": "sleepy", "completion": code}), file=file)
    return [
        "--tasks",
        str(tmp_path / "tasks.jsonl"),
        "--samples",
        str(tmp_path / "samples.jsonl"),
        "--workers",
        "2",
        "--json",
    ]


class Command:
    """``isograd run`` in a process of its own, with a results file to watch."""

    def __init__(
        self, words: list[str], out: Path, *, host: str | None = None, before: str = ""
    ) -> None:
        self.out = out
        environment = {**os.environ, "ISOGRAD_ALLOW_CODE_EXEC": "1"}
        if host is not None:
            environment["DOCKER_HOST"] = host
        self._process = subprocess.Popen(
            [sys.executable, "-c", before + START, "run", "--no-dedupe", *words, "--out", str(out)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def until(self, graded: int) -> None:
        """Waits until so many samples are in the file; the run must still be going on."""
        give_up = time.monotonic() + 60
        while time.monotonic() < give_up and self._process.poll() is None:
            if len(kept(self.out)) >= graded:
                return
            time.sleep(0.01)
        self._process.kill()
        pytest.fail(f"the run did not get there: {self._process.communicate()}")

    def send(self, what: signal.Signals) -> None:
        self._process.send_signal(what)

    def end(self) -> tuple[int, str, str]:
        """Waits for its end: status, stdout, stderr."""
        try:
            out, err = self._process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            self._process.kill()
            pytest.fail(f"the run did not end: {self._process.communicate()}")
        assert "Traceback" not in err
        return self._process.returncode, out, err

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def kept(out: Path) -> list[dict[str, Any]]:
    """The results in a file, without a torn last line."""
    with contextlib.suppress(FileNotFoundError):
        lines = out.read_bytes().splitlines(keepends=True)
        return [json.loads(line) for line in lines[1:] if line.endswith(b"\n")]
    return []


def assert_whole(out: Path) -> None:
    """Every sample stands in the file once, with the verdict that it merits."""
    verdicts = [
        ((row["task_id"], row["sample"]), row["envelope"]["exit_code"]) for row in kept(out)
    ]
    assert len(verdicts) == SAMPLES
    assert dict(verdicts) == {id_: "pass" if id_[1] in RIGHT else "assertion_fail" for id_ in IDS}


def assert_some(out: Path) -> None:
    """A part of the samples is in the file, each with the verdict that it merits."""
    rows = kept(out)
    assert 0 < len(rows) < SAMPLES
    assert len({row["sample"] for row in rows}) == len(rows)
    for row in rows:
        expected = "pass" if row["sample"] in RIGHT else "assertion_fail"
        assert row["envelope"]["exit_code"] == expected


def assert_resumes(words: list[str], out: Path, host: str | None = None) -> None:
    """``--resume`` ends the run as if nothing had happened."""
    before = kept(out)
    with Command([*words, "--resume"], out, host=host) as command:
        status, printed, complaint = command.end()
    assert (status, complaint) == (0, "")
    report = json.loads(printed)
    assert report["samples"] == SAMPLES
    assert report["pass_at_k"]["1"] == pytest.approx(len(RIGHT) / SAMPLES)
    assert report["infrastructure_faults"] == []
    assert kept(out)[: len(before)] == before
    assert_whole(out)


# -- what is left of a run ---------------------------------------------------------------------


class Traces:
    """What a running command has on this machine: its processes and the ways to know them again.

    A process belongs to it that descends from it, that is in a session or a process id namespace
    of one that does, or that is in one of its containers.
    """

    def __init__(self, pid: int, client: docker.DockerClient | None) -> None:
        self._client = client
        self._taken = _ticks()
        self._label = f"{LABEL}={socket.gethostname()}/{pid}"
        stats = {one: stat for one in _with_descendants({pid}) if (stat := _stat(one))}
        self._processes = {(one, stat[19]) for one, stat in stats.items()}
        self._sessions = {stat[3] for stat in stats.values()} - {_stat(os.getpid())[3]}
        self._namespaces = {_namespace(one) for one in stats}
        for container in self._containers():
            assert client is not None
            with contextlib.suppress(docker.errors.NotFound):
                main = client.api.inspect_container(container)["State"]["Pid"]
                self._namespaces.add(_namespace(main))
        self._namespaces -= {_namespace(os.getpid()), None}
        self.count = len(stats) - 1 + len(self._containers())

    def _containers(self) -> list[str]:
        if self._client is None:
            return []
        found = self._client.api.containers(all=True, filters={"label": self._label})
        return [container["Id"] for container in found]

    def left(self) -> list[str]:
        """The containers that are there and the processes that run.

        The numbers of sessions and namespaces are used again, so a process that started later
        than these traces were taken is not ours, unless one that is older and here started it.
        """
        found = [f"container {container}" for container in self._containers()]
        for pid in _pids():
            stat = _stat(pid)
            if not stat or stat[0] in "ZX" or int(stat[19]) > self._taken:
                continue
            known = (pid, stat[19]) in self._processes
            if known or stat[3] in self._sessions or _namespace(pid) in self._namespaces:
                found.append(f"process {pid} of {stat[1]}: {_command_line(pid)[:80]!r}")
        return found

    def assert_gone(self) -> None:
        """Nothing is left within five seconds from now."""
        give_up = time.monotonic() + LEFT_WITHIN_S
        while (left := self.left()) and time.monotonic() < give_up:
            time.sleep(0.05)
        assert left == []


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; none if there is no such process."""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
        return text.rpartition(")")[2].split()
    return []


def _ticks() -> float:
    """The time since the machine's start, in the units of /proc/PID/stat."""
    uptime_s = float(Path("/proc/uptime").read_text("ascii").split()[0])
    return uptime_s * os.sysconf("SC_CLK_TCK")


def _namespace(pid: int) -> str | None:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/pid")
    return None


def _command_line(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _with_descendants(roots: set[int]) -> set[int]:
    parents = {pid: int(stat[1]) for pid in _pids() if (stat := _stat(pid))}
    found = set(roots)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


# -- the command dies --------------------------------------------------------------------------


@pytest.fixture(params=WALLS)
def wall(request: pytest.FixtureRequest) -> str:
    """The word for each wall; the container's daemon has somebody else's container, too."""
    if request.param == "docker":
        request.getfixturevalue("docker_services")
    return str(request.param)


@pytest.fixture
def client(wall: str, request: pytest.FixtureRequest) -> Iterator[docker.DockerClient | None]:
    """A client of the tests' daemon where the wall is a container."""
    if wall != "docker":
        yield None
        return
    host = request.getfixturevalue("docker_host")
    with contextlib.closing(docker.DockerClient(base_url=host)) as client:
        yield client


@pytest.fixture
def words(
    wall: str, client: docker.DockerClient | None, batch: list[str], request: Any
) -> Iterator[list[str]]:
    """The words of a run behind the wall, on an image that nobody else builds anew meanwhile."""
    if client is None:
        yield [*batch, "--sandbox", wall]
        return
    tag = f"isograd/test-interrupted:{uuid.uuid4().hex}"
    assert client.images.get(request.getfixturevalue("docker_image")).tag(tag)
    yield [*batch, "--sandbox", wall, "--image", tag]
    client.images.remove(tag, force=True)


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_a_killed_run_leaves_nothing_and_disturbs_nobody(
    words: list[str], client: docker.DockerClient | None, tmp_path: Path, request: Any
) -> None:
    """After ``kill -9`` its processes and containers are gone in seconds, and only these.

    A second run beside it goes on and ends right, a stranger's container runs on as before, and
    the killed run can be resumed.
    """
    before = _bystander(client, request)
    with (
        Command(words, tmp_path / "killed.jsonl") as killed,
        Command(words, tmp_path / "second.jsonl") as second,
    ):
        killed.until(3)
        second.until(1)
        traces = Traces(killed.pid, client)
        assert traces.count >= 2
        assert traces.left() != []
        killed.send(signal.SIGKILL)
        assert killed.end()[0] == -signal.SIGKILL
        traces.assert_gone()
        status, printed, complaint = second.end()
    assert (status, complaint) == (0, "")
    assert json.loads(printed)["samples"] == SAMPLES
    assert_whole(second.out)
    assert _bystander(client, request) == before
    assert_some(killed.out)
    assert_resumes(words, killed.out)


def _bystander(client: docker.DockerClient | None, request: Any) -> object:
    """The stranger's container that is up on the tests' daemon: which, and since when."""
    if client is None:
        return None
    project = request.getfixturevalue("docker_compose_project_name")
    labels = ["isograd.test=bystander", f"com.docker.compose.project={project}"]
    (found,) = client.api.containers(filters={"label": labels})
    state = client.api.inspect_container(found["Id"])["State"]
    assert state["Running"]
    return found["Id"], state["StartedAt"], state["Pid"]


@pytest.mark.parametrize(
    ("what", "status", "word"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
)
def test_a_run_that_is_told_to_end_can_be_resumed(
    words: list[str],
    client: docker.DockerClient | None,
    tmp_path: Path,
    what: signal.Signals,
    status: int,
    word: str,
) -> None:
    """Ctrl-C and SIGTERM have a status of their own, leave nothing, and no report is made up."""
    with Command(words, tmp_path / "results.jsonl") as command:
        command.until(3)
        traces = Traces(command.pid, client)
        command.send(what)
        ended = command.end()
    assert ended[:2] == (status, "")
    assert ended[2].strip() == f"isograd: {word}: add --resume to the same command to go on"
    traces.assert_gone()
    assert_some(command.out)
    assert_resumes(words, command.out)


def test_an_interrupt_waits_for_no_candidate(
    words: list[str], client: docker.DockerClient | None, tmp_path: Path
) -> None:
    """However long candidates may still take, the run and all that it started end at once."""
    with (tmp_path / "samples.jsonl").open("w", encoding="utf-8") as file:
        for _ in range(8):
            code = "import time\ntime.sleep(25)\n"
            print(json.dumps({"task_id": "sleepy", "completion": code}), file=file)
    with Command([*words, "--timeout", "30"], tmp_path / "results.jsonl") as command:
        give_up = time.monotonic() + 60
        while (traces := Traces(command.pid, client)).count < 2 and time.monotonic() < give_up:
            time.sleep(0.1)
        time.sleep(1)
        command.send(signal.SIGTERM)
        traces.assert_gone()
        assert command.end()[:2] == (143, "")
    assert kept(command.out) == []


def test_a_sandbox_that_is_closed_while_it_starts_runs_nothing() -> None:
    """Who closes it waits for the lane's start, and not for the candidate behind it."""
    starting, go_on = threading.Event(), threading.Event()
    refused: list[SandboxUnavailable] = []

    class Slow(SubprocessSandbox):
        def _open(self) -> Any:
            starting.set()
            assert go_on.wait(60)
            return super()._open()

    def run() -> None:
        code = "import time\ntime.sleep(25)\ndef f():\n    return 1\n"
        limits = Limits(timeout_s=30)
        with pytest.raises(SandboxUnavailable) as caught:
            sandbox.run(Job(code=code, checks=Assertions(["f() == 1"]), limits=limits))
        refused.append(caught.value)

    sandbox = Slow(allow_code_exec=True)
    threads = [threading.Thread(target=target) for target in (run, sandbox.close)]
    threads[0].start()
    assert starting.wait(60)
    threads[1].start()
    while not sandbox._closed:
        time.sleep(0.01)
    go_on.set()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert len(refused) == 1


def test_two_runs_do_not_write_one_file(batch: list[str], tmp_path: Path) -> None:
    """The second is refused whether it resumes or not, and the first does not notice."""
    with Command(batch, tmp_path / "results.jsonl") as first:
        first.until(1)
        first.send(signal.SIGSTOP)  # so that it does not end before the others have begun
        for more in ([], ["--resume"]):
            with Command([*batch, *more], first.out) as second:
                status, printed, complaint = second.end()
            assert (status, printed) == (2, "")
            assert complaint.count("\n") == 1
        assert "another run is writing it" in complaint
        first.send(signal.SIGCONT)
        assert first.end()[0] == 0
    assert_whole(first.out)


def test_a_torn_file_is_mended(batch: list[str], tmp_path: Path) -> None:
    """Where the machine itself died, the lines that were not written are graded again."""
    with Command(batch, tmp_path / "results.jsonl") as command:
        assert command.end()[0] == 0
    whole = command.out.read_bytes()
    command.out.write_bytes(whole[: len(whole) // 2])
    assert_some(command.out)
    assert_resumes(batch, command.out)


def test_a_full_disk_ends_the_run(batch: list[str], tmp_path: Path) -> None:
    """One line says which file and why; with room again the run can be resumed."""
    limit = 4_000
    little_room = f"""
import resource
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, hard))
"""
    with Command(batch, tmp_path / "results.jsonl", before=little_room) as command:
        status, printed, complaint = command.end()
    assert (status, printed) == (3, "")
    assert (
        complaint
        == f"isograd: {command.out}: File too large: make room, then go on with --resume\n"
    )
    assert command.out.stat().st_size == limit
    assert_some(command.out)
    assert_resumes(batch, command.out)


# -- the daemon dies ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mortal_daemon() -> Iterator[ThrowawayDaemon]:
    """A daemon that only these tests use, with the image."""
    if os.environ.get("ISOGRAD_TEST_DOCKER") == "never":
        without_docker("ISOGRAD_TEST_DOCKER=never was asked for")
    if reason := available():
        without_docker(reason)
    with ThrowawayDaemon() as daemon:
        with contextlib.closing(docker.DockerClient(base_url=daemon.host, timeout=600)) as client:
            images.build(from_host=True, client=client)
        yield daemon


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_daemon_that_dies_is_never_a_score(
    mortal_daemon: ThrowawayDaemon, batch: list[str], tmp_path: Path, how: str
) -> None:
    """Stopped in order or crashed: status 3, what was graded stays, and the rest is resumed."""
    mortal_daemon.start()
    words = [*batch, "--sandbox", "docker"]
    host = mortal_daemon.host
    with Command(words, tmp_path / "results.jsonl", host=host) as command:
        command.until(3)
        if how == "stop":
            mortal_daemon.stop()
        else:
            mortal_daemon.kill(containers=True)
        status, printed, complaint = command.end()
    assert status == 3
    assert printed == "" or json.loads(printed)["infrastructure_faults"]
    assert host in complaint
    assert_some(command.out)
    mortal_daemon.start()
    assert_resumes(words, command.out, host)


def test_a_daemon_that_is_not_there_leaves_no_file(batch: list[str], tmp_path: Path) -> None:
    """Nothing was graded, so there is nothing to resume."""
    host = f"unix://{tmp_path}/no.sock"
    words = [*batch, "--sandbox", "docker"]
    with Command(words, tmp_path / "results.jsonl", host=host) as command:
        status, printed, complaint = command.end()
    assert (status, printed) == (3, "")
    assert complaint.startswith(f"isograd: no Docker daemon answers at {host}")
    assert complaint.count("\n") == 1
    assert not command.out.exists()
