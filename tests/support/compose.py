"""pytest-docker's fixtures, pointed at the tests' own daemon. Import them in ``conftest.py``.

``docker_services`` brings up ``tests/docker-compose.yml``; it needs the fixtures ``docker_host``
(a DOCKER_HOST) and ``docker_image`` (the name of an image with Python).
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from isograd import images


@pytest.fixture(scope="session")
def docker_image(docker_host: str) -> Iterator[str]:
    """The image of this very interpreter, built once a session."""
    client = docker.DockerClient(base_url=docker_host, timeout=600)
    try:
        yield images.build(from_host=True, client=client).tag
    finally:
        client.close()


@pytest.fixture(scope="session")
def docker_compose_command(docker_host: str, docker_image: str) -> str:
    """Compose, the plugin or Debian's script, with what it needs in front."""
    for command in (("docker", "compose"), ("docker-compose",)):
        if shutil.which(command[0]) and _works(*command, "version"):
            break
    else:
        message = "no docker compose here (Debian: apt-get install docker-compose)"
        if os.environ.get("ISOGRAD_REQUIRE_DOCKER"):
            pytest.fail(message)
        pytest.skip(message)
    settings = {"DOCKER_HOST": docker_host, "ISOGRAD_TEST_IMAGE": docker_image}
    return shlex.join(["env", *(f"{key}={text}" for key, text in settings.items()), *command])


@pytest.fixture(scope="session")
def docker_compose_file() -> str:
    return str(Path(__file__).parents[1] / "docker-compose.yml")


@pytest.fixture(scope="session")
def docker_setup() -> list[str]:
    """``--wait``, which pytest-docker asks for, is unknown to Debian 12's version."""
    return ["up --detach --no-build"]


@pytest.fixture(scope="session")
def docker_cleanup() -> list[str]:
    return ["down --volumes --timeout 0"]


def _works(*command: str) -> bool:
    return subprocess.run(command, check=False, capture_output=True).returncode == 0
