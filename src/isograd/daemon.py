"""The Docker daemon: how it is reached, and what to type next when it is not."""

from __future__ import annotations

import errno
import os
import re
import socket
from typing import TYPE_CHECKING

from isograd.errors import SandboxUnavailable

if TYPE_CHECKING:
    import docker

API_TIMEOUT_S = 60


def connect(timeout_s: int = API_TIMEOUT_S) -> docker.DockerClient:
    """A client of the daemon that the environment names. Raises SandboxUnavailable."""
    import docker

    host = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    try:
        if host.startswith("unix://"):  # asked first: docker's own failed attempt leaks a socket
            with socket.socket(socket.AF_UNIX) as knock:
                knock.settimeout(timeout_s)
                knock.connect(host.removeprefix("unix://"))
        client = docker.from_env(timeout=timeout_s)
        try:
            client.ping()
        except BaseException:
            client.close()
            raise
    except Exception as error:
        raise unavailable(error) from error
    return client


def unavailable(error: Exception) -> SandboxUnavailable:
    """What a failed call to the daemon means, and what to type next."""
    if isinstance(error, SandboxUnavailable):
        return error
    where = os.environ.get("DOCKER_HOST") or "the default socket"
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) and cause not in causes:
        causes.append(cause)
    text = " ".join(str(getattr(error, "explanation", None) or error).split())
    if any(getattr(cause, "errno", None) in (errno.EMFILE, errno.ENFILE) for cause in causes):
        return SandboxUnavailable(
            "this process may open no more files: raise its limit (ulimit -n) "
            "or use fewer --workers"
        )
    if any(isinstance(cause, PermissionError) for cause in causes) or "Permission denied" in text:
        return SandboxUnavailable(
            f"no permission to talk to Docker at {where}: join its group "
            "(sudo usermod -aG docker $USER, then log in again) or use --sandbox subprocess"
        )
    if any(isinstance(cause, FileNotFoundError | ConnectionError) for cause in causes) or (
        "Connection refused" in text or "Connection aborted" in text
    ):
        return SandboxUnavailable(
            f"no Docker daemon answers at {where}: start it (sudo systemctl start docker), "
            "set DOCKER_HOST, or use --sandbox subprocess"
        )
    if any(isinstance(cause, TimeoutError) for cause in causes) or "Read timed out" in text:
        return SandboxUnavailable(
            f"Docker at {where} did not answer within {API_TIMEOUT_S} s: "
            "use fewer --workers, or restart it (sudo systemctl restart docker)"
        )
    if "python3" in text and ("executable file not found" in text or "no such file" in text):
        return SandboxUnavailable(
            f"the image has no python3 on its PATH ({text[:200]}): type: isograd image build"
        )
    if "exec format error" in text:
        return SandboxUnavailable(
            f"the image is for another processor ({text[:200]}): type: isograd image build"
        )
    if re.search(r"unknown (or invalid )?runtime|runtime .*not found", text, re.IGNORECASE):
        return SandboxUnavailable(
            f"the daemon at {where} does not know that runtime ({text[:200]}): "
            "leave out --runtime, or register it with the daemon"
        )
    return SandboxUnavailable(
        f"Docker at {where}: {text[:400]}: type: isograd doctor --sandbox docker"
    )
