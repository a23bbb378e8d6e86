"""The container wall: the runner as PID 1 of a container, through the ``docker`` package.

Any OCI runtime and any daemon that speaks Docker's API (rootless Docker and Podman through
DOCKER_HOST). The container has no network, a read-only root, no capability but SETUID, SETGID
and KILL for the supervisor, and a private /tmp. It is attached to, never exec'd into: when this
process dies, the daemon closes the runner's stdin and the runner ends.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import ssl
import struct
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from isograd.daemon import connect, unavailable
from isograd.errors import SandboxUnavailable
from isograd.images import default_tag
from isograd.runner import boot
from isograd.sandbox.base import Sandbox, Stream, StreamLost, wait_for

if TYPE_CHECKING:
    import docker

LABEL = "isograd.owner"
_SCRATCH = "/tmp/isograd-00000000"
_API_TIMEOUT_S = 60
_CPUS = 2
"""Below two a busy lane would be throttled, and time out where a subprocess passes."""


class DockerSandbox(Sandbox):
    """Runs candidates in a container.

    ``image`` defaults to ``isograd/python:MINOR`` of this Python, with ``packages`` in its name
    if there are any. ``runtime`` is an OCI runtime such as "runsc". ``host_config`` overrides
    what the container is created with, by the Docker API's names; ``isograd doctor`` says what
    that breaks. Raises SandboxUnavailable when used without daemon, permission or image.
    """

    backend: ClassVar[str] = "docker"

    def __init__(
        self,
        image: str | None = None,
        runtime: str | None = None,
        *,
        host_config: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self._image = image or default_tag(with_=self._packages)
        self._runtime = runtime
        self._host_config = dict(host_config or {})
        self._client: docker.DockerClient | None = None
        self._digest = ""

    def _measured(self) -> dict[str, Any]:
        return {"runtime": self._runtime or "", "image": self._digest}

    def _connected(self) -> docker.DockerClient:
        if self._client is None:
            client = connect()
            try:
                sweep(client)
            except Exception as error:
                client.close()
                raise unavailable(error) from error
            self._client = client
        return self._client

    def _check_alive(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()
        self._connected()

    def _open(self) -> tuple[Stream, dict[str, Any]]:
        import docker

        client = self._connected()
        try:
            image = client.images.get(self._image).attrs
            self._refuse_foreign(client, image)
            self._digest = str(image["Id"])
            stream = _ContainerStream(client, self._create(client))
        except docker.errors.ImageNotFound:
            raise SandboxUnavailable(
                f"there is no image {self._image}: type: isograd image build"
                f"{''.join(f' --with {name}' for name in self._packages)} "
                "(with --from-host if no registry can be reached)"
            ) from None
        except Exception as error:
            raise unavailable(error) from error
        return stream, {
            "scratch": _SCRATCH,
            "private": True,
            "layers": ["container", "read_only_root", "no_network"],
        }

    def _refuse_foreign(self, client: docker.DockerClient, image: dict[str, Any]) -> None:
        names = {"x86_64": "amd64", "aarch64": "arm64"}
        here = client.info().get("Architecture", "")
        there = image.get("Architecture", "")
        if here and there and names.get(here, here) != names.get(there, there):
            raise SandboxUnavailable(
                f"image {self._image} is for {there} and this daemon runs {here}: "
                "type: isograd image build"
            )

    def _create(self, client: docker.DockerClient) -> str:
        import docker

        ceiling = self._limits
        memory = (ceiling.memory_mb + 2 * ceiling.scratch_mb + 512) << 20
        size = f"mode=1777,size={2 * ceiling.scratch_mb}m,nr_inodes={2 * ceiling.scratch_files}"
        host_config: dict[str, Any] = client.api.create_host_config(
            network_mode="none",
            read_only=True,
            cap_drop=["ALL"],
            cap_add=["SETUID", "SETGID", "KILL"],
            security_opt=["no-new-privileges"],
            ipc_mode="private",
            pids_limit=ceiling.processes + 64,
            mem_limit=memory,
            memswap_limit=memory,
            cpu_period=100_000,
            cpu_quota=100_000 * _CPUS,
            shm_size=2 * ceiling.scratch_mb << 20,
            tmpfs={"/tmp": f"rw,nosuid,nodev,noexec,{size}"},
            log_config=docker.types.LogConfig(type="none"),
            auto_remove=True,
            runtime=self._runtime,
            init=False,
        )
        host_config.update(self._host_config)
        name = f"isograd-{os.getpid()}-{secrets.token_hex(6)}"
        try:
            client.api.create_container(
                self._image,
                command=["python3", *boot.command(_SCRATCH)],
                entrypoint=[],
                name=name,
                hostname="isograd",
                user="0:0",
                working_dir="/",
                environment={},
                labels={LABEL: f"{socket.gethostname()}/{os.getpid()}"},
                stdin_open=True,
                detach=False,
                stop_signal="SIGKILL",  # the runner ignores all others; its host would wait
                host_config=host_config,
            )
        except BaseException:  # a daemon that answered too late may have made it all the same
            with contextlib.suppress(Exception):
                client.api.remove_container(name, force=True, v=True)
            raise
        return name

    def close(self) -> None:
        super().close()
        if self._client is not None:
            self._client.close()
            self._client = None


def sweep(client: docker.DockerClient) -> None:
    """Removes our containers that are not running; one that runs may be somebody else's."""
    for status in ("created", "exited", "dead"):
        for found in client.api.containers(all=True, filters={"label": LABEL, "status": status}):
            if status == "created" and time.time() - found["Created"] < 60:
                continue
            with contextlib.suppress(Exception):
                client.api.remove_container(found["Id"], v=True)


_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class _ContainerStream:
    """A container's attached stdin and its stdout and stderr, which come multiplexed."""

    def __init__(self, client: docker.DockerClient, container: str) -> None:
        self._client = client
        self._container = container
        self._errors = b""
        self._raw, self._out = bytearray(), bytearray()
        self._left = 0
        self._is_error = False
        self._holder: Any = None
        try:
            self._holder = client.api.attach_socket(
                container, params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
            )
            self._socket: Any = getattr(self._holder, "_sock", self._holder)
            self._socket.setblocking(False)
            client.api.start(container)
        except BaseException:
            self.close()
            raise

    def send(self, data: bytes, deadline: float) -> None:
        view = memoryview(data)
        while view:
            # A container that ends while it is sent something reads no more, but says so.
            what = self._wait(select.POLLOUT | select.POLLIN, deadline)
            if what & ~select.POLLOUT:
                self._take_in()
            if what & select.POLLOUT:
                view = view[self._now(self._socket.send, view[: 1 << 16]) or 0 :]

    def receive(self, deadline: float) -> bytes:
        while not self._out:
            self._wait(select.POLLIN, deadline)
            self._take_in()
        part, self._out = bytes(self._out), bytearray()
        return part

    def _wait(self, what: int, deadline: float) -> int:
        if what == select.POLLIN and getattr(self._socket, "pending", int)():
            return what  # decrypted already
        fd = self._socket.fileno()
        if fd < 0:
            raise StreamLost("the container's stream was cut")
        return wait_for(fd, what, deadline)

    def _take_in(self) -> None:
        """Reads what is there and sorts it into output and errors."""
        data = self._now(self._socket.recv, 1 << 16)
        if data is None:
            return
        if not data:
            raise StreamLost("the container ended")
        self._raw += data
        while True:
            if self._left == 0:
                if len(self._raw) < 8:
                    return
                kind, self._left = struct.unpack(">BxxxL", self._raw[:8])
                self._is_error = kind == 2
                del self._raw[:8]
            part = bytes(self._raw[: self._left])
            if not part and self._left:
                return
            del self._raw[: len(part)]
            self._left -= len(part)
            if self._is_error:
                self._errors = (self._errors + part)[-4000:]
            else:
                self._out += part

    def _now(self, operation: Callable[[Any], Any], argument: Any) -> Any:
        """What an operation of the socket's gives; None if it would have to wait."""
        try:
            return operation(argument)
        except _NOT_NOW:
            return None
        except (OSError, ValueError) as error:
            raise StreamLost("the container's stream was cut") from error

    def last_words(self) -> str:
        return self._errors.decode("utf-8", "replace")

    def interrupt(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        if self._holder is not None:
            with contextlib.suppress(OSError, AttributeError):
                self._socket.close()
            with contextlib.suppress(Exception):
                self._holder.close()
        with contextlib.suppress(Exception):
            self._client.api.remove_container(self._container, force=True, v=True)
