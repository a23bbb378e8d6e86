"""What the container wall says and does when Docker, an image or a container lets it down."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tarfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
import requests
from docker.errors import ImageNotFound

from isograd import (
    Assertions,
    DockerSandbox,
    ExitCode,
    Job,
    Limits,
    SandboxCrashed,
    SandboxError,
    SandboxUnavailable,
)
from isograd.sandbox.docker import LABEL, sweep

RIGHT = Job(code="def f():\n    return 1\n", checks=Assertions(["f() == 1"]))
SLEEPS = Job(
    code="import time\ntime.sleep(25)\ndef f():\n    return 1\n",
    checks=Assertions(["f() == 1"]),
    limits=Limits(timeout_s=30),
)
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), "amd64")
FOREIGN = "arm64" if ARCHITECTURE == "amd64" else "amd64"


@pytest.fixture(scope="module")
def client(docker_image: str, docker_host: str) -> Iterator[docker.DockerClient]:
    with contextlib.closing(docker.DockerClient(base_url=docker_host, timeout=60)) as client:
        yield client


@pytest.fixture(scope="module")
def own_image(client: docker.DockerClient, docker_image: str) -> Iterator[str]:
    """The usual image under another name and with an entrypoint, so that we know our containers."""
    container = client.api.create_container(docker_image, ["python3"])
    try:
        made = client.api.commit(
            container["Id"],
            repository="isograd/test-faults",
            tag=uuid.uuid4().hex,
            changes='ENTRYPOINT ["/bin/echo"]\nLABEL isograd.test=faults',
        )
    finally:
        client.api.remove_container(container["Id"])
    tag = client.images.get(made["Id"]).tags[0]
    yield tag
    client.images.remove(tag, force=True)


@pytest.fixture
def load_image(client: docker.DockerClient) -> Iterator[Callable[..., str]]:
    """Makes an image out of nothing but an architecture and, maybe, a python3."""
    made: list[str] = []

    def load(architecture: str, python3: bytes | None = None) -> str:
        tag = f"isograd/test-faults:{uuid.uuid4().hex}"
        layer = _tar({} if python3 is None else {"usr/bin/python3": python3})
        config = {
            "architecture": architecture,
            "os": "linux",
            "config": {"Env": ["PATH=/usr/bin"]},
            "rootfs": {
                "type": "layers",
                "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"],
            },
        }
        manifest = [{"Config": "config.json", "RepoTags": [tag], "Layers": ["layer.tar"]}]
        image = {
            "config.json": json.dumps(config).encode(),
            "manifest.json": json.dumps(manifest).encode(),
            "layer.tar": layer,
        }
        client.images.load(_tar(image))
        made.append(tag)
        return tag

    yield load
    for tag in made:
        with contextlib.suppress(ImageNotFound):
            client.images.remove(tag, force=True)


def _tar(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o755
            tar.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def _containers(client: docker.DockerClient, image: str) -> list[str]:
    found = client.api.containers(all=True, filters={"ancestor": image})
    return [container["Id"] for container in found]


def test_the_entrypoint_of_an_image_swallows_nothing(own_image: str) -> None:
    """An image whose entrypoint is echo grades a right candidate as any other does."""
    with DockerSandbox(own_image) as sandbox:
        assert sandbox.run(RIGHT).exit_code is ExitCode.PASS


def test_a_foreign_image_is_named_with_its_platform(load_image: Callable[..., str]) -> None:
    """An image for another processor grades nothing, and the message names both."""
    image = load_image(FOREIGN)
    with DockerSandbox(image) as sandbox, pytest.raises(SandboxUnavailable) as caught:
        sandbox.run(RIGHT)
    message = str(caught.value)
    assert image in message
    assert FOREIGN in message
    assert "isograd image build" in message


def test_an_image_with_a_foreign_python_grades_nothing(load_image: Callable[..., str]) -> None:
    """Where only the interpreter is for another processor, the kernel's words come through."""
    machine = {"arm64": 183, "amd64": 62}[FOREIGN]
    elf = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00" + machine.to_bytes(2, "little")
    image = load_image(ARCHITECTURE, elf + bytes(200))
    with DockerSandbox(image) as sandbox, pytest.raises(SandboxError, match="exec format error"):
        sandbox.run(RIGHT)


def test_an_image_without_python_says_so(load_image: Callable[..., str]) -> None:
    """The message is about the image, not about Docker or its runtime."""
    image = load_image(ARCHITECTURE)
    said = r"no python3.*isograd image build"
    with DockerSandbox(image) as sandbox, pytest.raises(SandboxUnavailable, match=said):
        sandbox.run(RIGHT)


def test_an_image_that_is_missing_says_how_to_build_it(client: docker.DockerClient) -> None:
    """The packages that were asked for are part of what is to be typed."""
    sandbox = DockerSandbox(packages=("no-such-package",))
    said = r"isograd image build --with no-such-package .*--from-host"
    with sandbox, pytest.raises(SandboxUnavailable, match=said):
        sandbox.run(RIGHT)


def test_a_runtime_that_the_daemon_does_not_know(client: docker.DockerClient) -> None:
    sandbox = DockerSandbox(runtime="no-such-runtime")
    said = r"does not know that runtime.*--runtime"
    with sandbox, pytest.raises(SandboxUnavailable, match=said):
        sandbox.run(RIGHT)


@pytest.mark.parametrize("host", ["unix:///nonexistent/docker.sock", "tcp://127.0.0.1:1"])
def test_no_daemon_says_what_to_type(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    """The message names the address, how to start a daemon there, and the other wall."""
    monkeypatch.setenv("DOCKER_HOST", host)
    with DockerSandbox() as sandbox, pytest.raises(SandboxUnavailable) as caught:
        sandbox.run(RIGHT)
    message = str(caught.value)
    assert f"no Docker daemon answers at {host}" in message
    assert "systemctl start docker" in message
    assert "--sandbox subprocess" in message


@pytest.mark.skipif(sys.platform != "linux", reason="other systems ignore a socket's mode")
def test_no_permission_on_the_socket_says_so(tmp_path: Path) -> None:
    """Another user's socket is told from a daemon that is not there, in one line, with status 3."""
    place = tmp_path / "docker.sock"
    candidate = tmp_path / "candidate.py"
    candidate.write_text("def f():\n    return 1\n", "utf-8")
    command = [sys.executable, "-m", "isograd", "exec", str(candidate), "--sandbox", "docker"]
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("root may open every socket, and there is no setpriv to be somebody else")
        # Somebody else who may read everything, for this interpreter may be in a private home.
        keep = ["--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"]
        command = [
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            *keep,
            "--bounding-set=-all,+dac_read_search",
            *command,
        ]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))
        place.chmod(0)
        listener.listen()
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "DOCKER_HOST": f"unix://{place}"},
        )
    assert done.returncode == 3, done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert f"no permission to talk to Docker at unix://{place}" in done.stderr
    assert "usermod -aG docker" in done.stderr


def test_a_daemon_that_answers_too_late_leaves_no_container(
    client: docker.DockerClient, own_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read timeout is our fault, and what the daemon made meanwhile is removed."""
    create = docker.APIClient.create_container

    def create_too_late(self: docker.APIClient, *args: Any, **settings: Any) -> None:
        create(self, *args, **settings)
        raise requests.exceptions.ReadTimeout("Read timed out. (read timeout=60)")

    monkeypatch.setattr(docker.APIClient, "create_container", create_too_late)
    said = r"did not answer.*fewer --workers"
    with DockerSandbox(own_image) as sandbox, pytest.raises(SandboxUnavailable, match=said):
        sandbox.run(RIGHT)
    assert _containers(client, own_image) == []


def test_a_daemon_that_is_gone_when_we_look_around_is_a_fault_of_ours(
    client: docker.DockerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what fails between the greeting and the first container is translated."""

    def gone(*_: object, **__: object) -> None:
        raise requests.exceptions.ConnectionError("Connection aborted.")

    monkeypatch.setattr(docker.APIClient, "containers", gone)
    with DockerSandbox() as sandbox, pytest.raises(SandboxUnavailable, match="no Docker daemon"):
        sandbox.run(RIGHT)


class Remover:
    """Removes containers of an image by force: the first that there is, or all that come."""

    def __init__(self, client: docker.DockerClient, image: str, *, all_of_them: bool) -> None:
        self._client, self._image, self._all = client, image, all_of_them
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.removed = 0

    def _run(self) -> None:
        while not self._end.wait(0.02) and (self._all or not self.removed):
            for container in _containers(self._client, self._image):
                with contextlib.suppress(docker.errors.APIError):
                    self._client.api.remove_container(container, force=True)
                    self.removed += 1

    def __enter__(self) -> Remover:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


@pytest.mark.parametrize(("value", "verdict"), [(1, ExitCode.PASS), (2, ExitCode.ASSERTION_FAIL)])
def test_a_container_removed_under_a_candidate_changes_no_verdict(
    client: docker.DockerClient, own_image: str, value: int, verdict: ExitCode
) -> None:
    """A candidate whose container is removed runs again, alone, and gets the verdict it merits."""
    slow = f"import time\ntime.sleep(1)\ndef f():\n    return {value}\n"
    job = Job(code=slow, checks=Assertions(["f() == 1"]), limits=Limits(timeout_s=20))
    with DockerSandbox(own_image) as sandbox:
        sandbox.run(RIGHT)
        with Remover(client, own_image, all_of_them=False) as remover:
            result = sandbox.run_measured(job)
    assert remover.removed == 1
    assert result.envelope is not None
    assert result.envelope.exit_code is verdict
    assert result.measurement is not None
    assert result.measurement.retries == 1


def test_containers_that_somebody_keeps_removing_are_no_verdict(
    client: docker.DockerClient, own_image: str
) -> None:
    """Where no container lives, candidates are not graded: neither 0 nor a pass."""
    with DockerSandbox(own_image) as sandbox:
        sandbox.warm_up()
        with Remover(client, own_image, all_of_them=True), pytest.raises(SandboxError) as caught:
            sandbox.run(SLEEPS)
        assert isinstance(caught.value, SandboxCrashed | SandboxUnavailable)
        assert sandbox.run(RIGHT).exit_code is ExitCode.PASS


def test_the_sweep_takes_only_ours_that_do_not_run(
    client: docker.DockerClient, docker_image: str
) -> None:
    """Our container that has ended goes; one that runs, and a stranger's, stay."""
    sleep = ["python3", "-c", "import time; time.sleep(600)"]
    started: dict[str, str] = {}
    for name, command, labels in (
        ("ours, ended", ["python3", "-c", ""], {LABEL: "nobody/1"}),
        ("ours, running", sleep, {LABEL: "nobody/1"}),
        ("a stranger's, ended", ["python3", "-c", ""], {}),
    ):
        made = client.api.create_container(
            docker_image,
            command,
            labels=labels,
            host_config=client.api.create_host_config(network_mode="none"),
        )
        started[name] = made["Id"]
        client.api.start(made["Id"])
    try:
        for name in ("ours, ended", "a stranger's, ended"):
            with contextlib.suppress(docker.errors.NotFound):
                client.api.wait(started[name], timeout=30)
        sweep(client)
        kept = {found["Id"] for found in client.api.containers(all=True)}
        assert {name for name, id_ in started.items() if id_ in kept} == {
            "ours, running",
            "a stranger's, ended",
        }
    finally:
        for id_ in started.values():
            with contextlib.suppress(docker.errors.NotFound):
                client.api.remove_container(id_, force=True)


def test_a_closed_sandbox_leaves_no_container(client: docker.DockerClient, own_image: str) -> None:
    """Closing ends the container also when a candidate sleeps in it."""
    sandbox = DockerSandbox(own_image)
    sandbox.warm_up()
    failed: list[Exception] = []

    def run() -> None:
        try:
            sandbox.run(SLEEPS)
        except SandboxError as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.5)
    sandbox.close()
    thread.join(15)
    assert not thread.is_alive()
    assert len(failed) == 1
    assert _containers(client, own_image) == []
