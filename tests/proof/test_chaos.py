"""Thousands of jobs while everything under them is killed, removed, cut and stopped.

ISOGRAD_CHAOS_JOBS says how many jobs; 5,000 without it.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from isograd import DockerSandbox, Sandbox, SubprocessSandbox, images
from isograd.sandbox.docker import LABEL
from sandbox.test_faults import (
    Faults,
    Lane,
    children,
    grade_under,
    judge,
    mixture,
    nothing_left,
    strike,
)
from support.daemon import ThrowawayDaemon, available

JOBS = int(os.environ.get("ISOGRAD_CHAOS_JOBS", "5000"))
INTERVAL_S = 2.0


class Wire:
    """A Unix socket in front of a daemon's, whose connections can be held up or cut."""

    def __init__(self, target: str) -> None:
        self._target = target.removeprefix("unix://")
        self._folder = tempfile.mkdtemp(prefix="isow-", dir="/tmp")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{self._folder}/s")
        self._listener.listen(64)
        self._open = threading.Event()
        self._open.set()
        self._lock = threading.Lock()
        self._live: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._acceptor = threading.Thread(target=self._accept)
        self._acceptor.start()

    @property
    def host(self) -> str:
        return f"unix://{self._folder}/s"

    def hold_up(self, seconds: float) -> None:
        """Nothing passes, either way, for a while."""
        self._open.clear()
        time.sleep(seconds)
        self._open.set()

    def cut(self) -> int:
        """Ends every connection that there is; how many there were."""
        with self._lock:
            live = list(self._live)
        for one in live:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        return len(live)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(client,))
            self._threads = [old for old in self._threads if old.is_alive()] + [thread]
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        daemon = socket.socket(socket.AF_UNIX)
        with client, daemon:
            try:
                daemon.connect(self._target)
            except OSError:
                return
            with self._lock:
                self._live |= {client, daemon}
            try:
                self._pass_on(client, daemon)
            except OSError:
                pass
            finally:
                with self._lock:
                    self._live -= {client, daemon}

    def _pass_on(self, client: socket.socket, daemon: socket.socket) -> None:
        """Until both sides have said all; the end of one is passed on to the other."""
        others = {client: daemon, daemon: client}
        while others:
            for side in select.select(list(others), [], [])[0]:
                self._open.wait()
                data = side.recv(1 << 16)
                if data:
                    others[side].sendall(data)
                else:
                    others.pop(side).shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._open.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._acceptor.join()
        self.cut()
        for thread in self._threads:
            thread.join()
        shutil.rmtree(self._folder)


class ContainerFaults(Faults):
    """Strikes containers, their shims, the stream to them, and the daemon itself."""

    def __init__(self, seed: int, daemon: ThrowawayDaemon, wire: Wire) -> None:
        super().__init__(seed, INTERVAL_S)
        self._daemon = daemon
        self._wire = wire
        self._client = docker.DockerClient(base_url=daemon.host, timeout=60)
        self.usable = threading.Event()
        self.usable.set()
        del self.kinds["the outermost process is killed"]
        self.kinds |= {
            "the container is killed": lambda: self._tell("kill"),
            "the container is removed": lambda: self._tell("remove"),
            "the shim is killed": self._kill_shim,
            "the streams are held up": self._hold_up,
            "the streams are cut": lambda: self._wire.cut() > 0,
            "one stream is cut": self._cut_one,
            "the daemon is killed": lambda: self._kill_daemon(False),
            "daemon and containers are killed": lambda: self._kill_daemon(True),
        }

    def below(self) -> list[int]:
        return self._daemon._descendants()

    def _containers(self) -> list[str]:
        ours = f"{LABEL}={socket.gethostname()}/{os.getpid()}"
        found = self._client.api.containers(filters={"label": ours, "status": "running"})
        return [one["Id"] for one in found]

    def lanes(self) -> list[Lane]:
        found = []
        with contextlib.suppress(docker.errors.APIError):
            for container in self._containers():
                pid = self._client.api.inspect_container(container)["State"]["Pid"]
                zygotes = children(pid) if pid else []
                if pid:
                    found.append(Lane(None, pid, zygotes[0] if zygotes else None))
        return found

    def _tell(self, what: str) -> bool:
        containers = self._containers()
        if not containers:
            return False
        with contextlib.suppress(docker.errors.APIError):
            if what == "kill":
                self._client.api.kill(self._dice.choice(containers))
            else:
                self._client.api.remove_container(self._dice.choice(containers), force=True)
            return True
        return False

    def _kill_shim(self) -> bool:
        lane = self._some_lane()
        if lane is None:
            return False
        status = Path(f"/proc/{lane.supervisor}/status").read_text("utf-8")
        shim = int(status.partition("PPid:")[2].split()[0])
        return strike(shim, self.below)

    def _hold_up(self) -> bool:
        self._wire.hold_up(self._dice.uniform(0.1, 1.5))
        return True

    def _cut_one(self) -> bool:
        for sandbox in list(self.pool._made) if self.pool is not None else []:
            if (lane := sandbox._lane) is not None:
                lane.interrupt()
                return True
        return False

    def _kill_daemon(self, containers: bool) -> bool:
        if self._dice.random() < 0.5:  # it takes long to come back
            return False
        self._some_lane()
        self.usable.clear()
        try:
            self._daemon.kill(containers=containers)
            time.sleep(self._dice.uniform(0, 1))
            self._daemon.start()
        finally:
            self.usable.set()
        return True

    def _run(self) -> None:
        try:
            super()._run()
        finally:
            self.usable.set()
            self._client.close()


def test_subprocess_lanes_under_fire() -> None:
    """Every job gets what it merits, or no verdict; nothing of any lane is left."""

    def make() -> Sandbox:
        return SubprocessSandbox(allow_code_exec=True, recycle=100)

    jobs = mixture(JOBS, seed=1)
    faults = Faults(2, INTERVAL_S)
    with nothing_left(faults.seen):
        with faults:
            outcome = grade_under(faults, make, jobs)
        judge(outcome, make, jobs, faults)
    assert outcome.interruptions == []
    assert len(outcome.without_verdict) < 0.05 * JOBS + 5


@pytest.fixture
def daemon() -> Iterator[ThrowawayDaemon]:
    """A daemon that nobody else uses, with the image."""
    if reason := available():
        pytest.skip(reason)
    with ThrowawayDaemon() as daemon:
        with contextlib.closing(docker.DockerClient(base_url=daemon.host, timeout=600)) as client:
            images.build(from_host=True, client=client)
        yield daemon


def test_containers_under_fire(daemon: ThrowawayDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with containers, their shims, their streams and the daemon itself."""
    with contextlib.closing(Wire(daemon.host)) as wire:
        monkeypatch.setenv("DOCKER_HOST", wire.host)
        jobs = mixture(JOBS, seed=3)
        faults = ContainerFaults(4, daemon, wire)
        with faults:
            outcome = grade_under(faults, DockerSandbox, jobs, lambda: usable(faults))
        with DockerSandbox() as sandbox:
            sandbox.warm_up()  # sweeps what was left while the daemon was away
        with nothing_left(faults.seen):
            judge(outcome, DockerSandbox, jobs, faults)
        assert len(outcome.without_verdict) < 0.1 * JOBS + 5
        assert containers_of(daemon) == []


def usable(faults: ContainerFaults) -> None:
    assert faults.usable.wait(120)


def containers_of(daemon: ThrowawayDaemon) -> list[str]:
    """What is left on the daemon, but for what was just made: the next sweep takes that."""
    with contextlib.closing(docker.DockerClient(base_url=daemon.host, timeout=60)) as client:
        return [
            f"{found['Names']} {found['State']}"
            for found in client.api.containers(all=True)
            if found["State"] != "created"
        ]
