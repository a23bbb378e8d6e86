"""What the tests share: a Docker daemon, and a ``sandbox`` fixture over every backend.

A backend that is absent skips with its reason; where ISOGRAD_REQUIRE_DOCKER is set, a container
test that cannot run fails. ISOGRAD_TEST_DOCKER=never leaves the container tests out.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import docker
import pytest

from isograd import (
    BubblewrapSandbox,
    DockerSandbox,
    Envelope,
    Job,
    Result,
    Sandbox,
    SubprocessSandbox,
)
from support.compose import (
    docker_cleanup,
    docker_compose_command,
    docker_compose_file,
    docker_image,
    docker_setup,
)
from support.daemon import ThrowawayDaemon, available

__all__ = [
    "docker_cleanup",
    "docker_compose_command",
    "docker_compose_file",
    "docker_image",
    "docker_setup",
]

SHARED = Path(__file__).resolve().parents[2] / "shared"

MAKERS: dict[str, Callable[[], Sandbox]] = {
    "subprocess": lambda: SubprocessSandbox(allow_code_exec=True),
    "subprocess-fresh": lambda: SubprocessSandbox(allow_code_exec=True, spawn="fresh"),
    "bubblewrap": BubblewrapSandbox,
    "bubblewrap-fresh": lambda: BubblewrapSandbox(spawn="fresh"),
    "docker": DockerSandbox,
    "docker-fresh": lambda: DockerSandbox(spawn="fresh"),
    "gvisor": lambda: DockerSandbox(runtime="runsc"),
}
BACKENDS = (
    "subprocess",
    "subprocess-shared",
    "subprocess-fresh",
    "docker",
    "docker-shared",
    "bubblewrap",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--proof", action="store_true", help="run the long proofs in tests/proof")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--proof"):
        return
    left_out = [item for item in items if "proof" in Path(item.path).parts]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def without_docker(reason: str) -> None:
    """Skips a container test with its reason, or fails it where Docker must be there."""
    if os.environ.get("ISOGRAD_REQUIRE_DOCKER"):
        pytest.fail(f"Docker is required here, and {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def docker_host() -> Iterator[str]:
    """DOCKER_HOST of a daemon: the one that answers, else one of our own."""
    if os.environ.get("ISOGRAD_TEST_DOCKER") == "never":
        without_docker("ISOGRAD_TEST_DOCKER=never was asked for")
    host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if answers(host):
        os.environ["DOCKER_HOST"] = host
        yield host
        return
    if reason := available():
        without_docker(f"no daemon answers at {host}, and {reason}")
    before = os.environ.get("DOCKER_HOST")
    with ThrowawayDaemon() as daemon:
        os.environ["DOCKER_HOST"] = daemon.host
        try:
            yield daemon.host
        finally:
            os.environ.pop("DOCKER_HOST")
            if before is not None:
                os.environ["DOCKER_HOST"] = before


def answers(host: str) -> bool:
    """Whether a daemon answers there."""
    path = host.removeprefix("unix://")
    if host.startswith("unix://") and not os.path.exists(path):
        return False
    try:
        client = docker.DockerClient(base_url=host, timeout=5)
    except docker.errors.DockerException:
        return False
    with contextlib.closing(client):
        try:
            return bool(client.ping())
        except Exception:
            return False


@pytest.fixture(scope="session")
def make_sandbox(request: pytest.FixtureRequest) -> Callable[[str], Callable[[], Sandbox]]:
    """What makes sandboxes of the backend with that name; skips where it is absent."""

    def maker(name: str) -> Callable[[], Sandbox]:
        if name.startswith(("docker", "gvisor")):
            request.getfixturevalue("docker_image")
            request.getfixturevalue("docker_services")
            if name == "gvisor":
                has_gvisor(request.getfixturevalue("docker_host"))
        if name.startswith("bubblewrap") and shutil.which("bwrap") is None:
            pytest.skip("bubblewrap is not installed")
        return MAKERS[name.removesuffix("-shared")]

    return maker


def has_gvisor(host: str) -> None:
    if shutil.which("runsc") is None:
        pytest.skip("gVisor's runsc is not installed")
    with contextlib.closing(docker.DockerClient(base_url=host)) as client:
        if "runsc" not in client.info().get("Runtimes", {}):
            pytest.skip("the daemon knows no runtime runsc")


@pytest.fixture(scope="session")
def _containers(docker_host: str) -> Iterator[dict[str, Sandbox]]:
    """Sandboxes that have to be closed while the daemon still runs."""
    made: dict[str, Sandbox] = {}
    yield made
    for sandbox in made.values():
        sandbox.close()


@pytest.fixture(scope="session")
def _sandboxes(
    make_sandbox: Callable[[str], Callable[[], Sandbox]], request: pytest.FixtureRequest
) -> Iterator[Callable[[str], Sandbox]]:
    made: dict[str, Sandbox] = {}

    def get(name: str) -> Sandbox:
        in_container = name.startswith(("docker", "gvisor"))
        kept = request.getfixturevalue("_containers") if in_container else made
        if name not in kept:
            kept[name] = make_sandbox(name)()
        return kept[name]

    yield get
    for sandbox in made.values():
        sandbox.close()


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """The name of each backend."""
    return str(request.param)


class Sharing:
    """A sandbox that grades in one process what does not ask for anything else."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sandbox, name)

    def run(self, job: Job) -> Envelope:
        return self._sandbox.run(_shared(job))

    def run_measured(self, job: Job, then: Job | None = None) -> Result:
        return self._sandbox.run_measured(_shared(job))


def _shared(job: Job) -> Job:
    return job.model_copy(update={"grading": "shared"}) if job.grading == "auto" else job


@pytest.fixture
def sandbox(backend: str, _sandboxes: Callable[[str], Sandbox]) -> Sandbox:
    """A sandbox of each backend and grading; its lane has run other tests' jobs before."""
    plain = _sandboxes(backend.removesuffix("-shared"))
    return cast("Sandbox", Sharing(plain)) if backend.endswith("-shared") else plain


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real generations with recorded verdicts, which are not part of the project."""
    place = SHARED / "data"
    if not place.is_dir():
        pytest.skip("the public data files are not beside the project")
    return place


@pytest.fixture(autouse=True)
def _no_settings_of_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("ISOGRAD_ALLOW")]:
        monkeypatch.delenv(name)
