"""The doctor tells a sound wall from one that lacks a protection."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from isograd import DockerSandbox, Envelope, FakeSandbox, Sandbox, SandboxCrashed
from isograd.cli import main
from isograd.doctor import examine


@pytest.fixture(autouse=True)
def _signals_as_before() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def docker_wall(make_sandbox: Callable[[str], Callable[[], Sandbox]]) -> Callable[..., Sandbox]:
    """What makes container walls; skips where there is no Docker."""
    make_sandbox("docker")
    return DockerSandbox


def test_a_sound_container_has_every_protection(docker_wall: Callable[..., Sandbox]) -> None:
    """Nothing that the design promises of a container is missing, and each is looked at."""
    with docker_wall() as sandbox:
        findings = examine(sandbox)
    assert [finding for finding in findings if not finding.holds] == []
    assert {finding.name for finding in findings} == {
        "no network",
        "read-only root",
        "private IPC",
        "candidate is not root",
        "candidate has no capabilities",
        "no_new_privs",
        "candidate cannot signal the supervisor",
        "resource limits",
        "supervisor has few capabilities",
        "process ids of its own",
        "nothing else is writable",
        "seccomp",
        "container starts with no_new_privs",
        "memory limit of the container",
        "pids limit of the container",
        "cpu limit of the container",
        "scratch is bounded, nosuid and nodev",
    }


KEPT = ["SETUID", "SETGID", "KILL"]


@pytest.mark.parametrize(
    ("taken_away", "missing"),
    [
        ({"NetworkMode": "host"}, {"no network"}),
        ({"ReadonlyRootfs": False}, {"read-only root", "nothing else is writable"}),
        ({"Binds": ["/var/tmp:/mnt"]}, {"nothing else is writable"}),
        ({"CapAdd": [*KEPT, "SYS_ADMIN"]}, {"supervisor has few capabilities"}),
        ({"CapAdd": [*KEPT, "NET_RAW"]}, {"supervisor has few capabilities"}),
        (
            {"SecurityOpt": ["no-new-privileges", "seccomp=unconfined"]},
            {"seccomp"},
        ),
        (
            {"SecurityOpt": ["seccomp=unconfined"]},
            {"seccomp", "container starts with no_new_privs"},
        ),
        ({"SecurityOpt": []}, {"container starts with no_new_privs"}),
        ({"PidsLimit": 0}, {"pids limit of the container"}),
        ({"PidsLimit": -1}, {"pids limit of the container"}),
        ({"Memory": 0, "MemorySwap": 0}, {"memory limit of the container"}),
        ({"CpuQuota": 0}, {"cpu limit of the container"}),
        ({"PidMode": "host"}, {"process ids of its own"}),
        ({"IpcMode": "host"}, {"private IPC"}),
        ({"Tmpfs": {"/tmp": "rw,suid,dev,exec"}}, {"scratch is bounded, nosuid and nodev"}),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_each_protection_that_is_taken_away_is_missed(
    docker_wall: Callable[..., Sandbox], taken_away: dict[str, Any], missing: set[str]
) -> None:
    """A container that lacks one protection lacks exactly the findings that are about it."""
    with docker_wall(host_config=taken_away) as sandbox:
        findings = examine(sandbox)
    assert {finding.name for finding in findings if not finding.holds} == missing


def test_the_command_fails_where_a_protection_is_missing(
    docker_wall: Callable[..., Sandbox],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One missing protection is marked in the list and makes the exit status 3."""
    weak = {"ReadonlyRootfs": False}
    monkeypatch.setattr(
        "isograd.sandbox.choose.sandbox_maker",
        lambda *_, **__: lambda: docker_wall(host_config=weak),
    )
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--sandbox", "docker"])
    assert ended.value.code == 3
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "FAIL read-only root" in line]
    assert [line for line in lines if "ok   no network" in line]


def test_the_command_prints_one_object(
    docker_wall: Callable[..., Sandbox], capsys: pytest.CaptureFixture[str]
) -> None:
    """``--json`` gives name, verdict and what was seen for each wall that was asked for."""
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--sandbox", "docker", "--json"])
    assert ended.value.code == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["docker"]
    assert all(set(finding) == {"name", "holds", "seen"} for finding in found["docker"])
    assert all(finding["holds"] for finding in found["docker"])


def test_a_wall_that_cannot_be_had_is_status_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Asked for by name, a wall without a daemon is an error in one line."""
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--sandbox", "docker"])
    assert ended.value.code == 3
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("isograd: no Docker daemon answers at unix:///nonexistent")
    assert printed.err.count("\n") == 1


def test_a_wall_that_nobody_named_may_be_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without ``--sandbox`` it says of each wall whether it can be had."""
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    with pytest.raises(SystemExit):
        main(["doctor"])
    out = capsys.readouterr().out
    assert "subprocess:\n" in out
    assert "docker:\n  cannot be had: no Docker daemon" in out


def test_a_probe_that_does_not_pass_is_no_finding() -> None:
    """Where the doctor's own program fails nothing is claimed about the wall."""
    failed = Envelope(
        exit_code="error", reason="raised", score=0, passed=0, total=1, per_assertion=(None,)
    )

    class Wall(FakeSandbox):
        def inspect(self) -> dict[str, Any]:
            return {}

    with pytest.raises(SandboxCrashed, match="the probe ended with error"):
        examine(Wall(failed))
