"""Thousands of hostile jobs on the same two lanes: nothing grows and nothing is left.

ISOGRAD_SOAK_JOBS says how many jobs; 10,000 without it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import docker
import pytest

from isograd import Job, Limits, Pool, Sandbox
from isograd.sandbox.docker import LABEL
from sandbox.test_faults import ATTACKS, SMALL, Lane, children, job_of, lane_of, nothing_left

JOBS = int(os.environ.get("ISOGRAD_SOAK_JOBS", "10000"))
GROWTH_MB = 10.0
HASTY = Limits(timeout_s=0.1, **SMALL, open_files=64, output_bytes=20_000)
SLOW = {"spins", "bombs", "stops itself", "makes many files", "digs"}


def hostile(count: int) -> Iterator[Job]:
    """Attacks, those that take until the timeout less often."""
    dice = random.Random(5)
    weights = [0.2 if kind in SLOW else 1.0 for kind in ATTACKS]
    for sample, kind in enumerate(dice.choices(list(ATTACKS), weights, k=count)):
        yield job_of(kind, sample).model_copy(update={"limits": HASTY})


@dataclass(frozen=True)
class Usage:
    """What there is in the middle of a run: resident MB by process, and our descriptors."""

    host_mb: float
    supervisors_mb: tuple[float, ...]
    zygotes_mb: tuple[float, ...]
    supervisors_fds: tuple[int, ...]
    host_fds: int
    lanes: frozenset[int]


def usage(lanes: list[Lane]) -> Usage:
    gc.collect()
    return Usage(
        resident_mb(os.getpid()),
        tuple(resident_mb(lane.supervisor) for lane in lanes),
        tuple(resident_mb(lane.zygote or 0) for lane in lanes),
        tuple(len(os.listdir(f"/proc/{lane.supervisor}/fd")) for lane in lanes),
        len(os.listdir("/proc/self/fd")),
        frozenset(lane.supervisor for lane in lanes),
    )


def resident_mb(pid: int) -> float:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text("utf-8").splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    return 0.0


def lanes_of(pool: Pool) -> list[Lane]:
    """The lanes of a pool of either kind."""
    if all(sandbox.backend != "docker" for sandbox in pool._made):
        return [lane for sandbox in pool._made if (lane := lane_of(sandbox)) is not None]
    found = []
    with contextlib.closing(docker.from_env()) as client:
        for one in containers(client):
            pid = client.api.inspect_container(one)["State"]["Pid"]
            found.append(Lane(None, pid, next(iter(children(pid)), None)))
    return found


def containers(client: docker.DockerClient) -> list[str]:
    ours = f"{LABEL}={socket.gethostname()}/{os.getpid()}"
    return [one["Id"] for one in client.api.containers(all=True, filters={"label": ours})]


def files() -> set[str]:
    """What is in the places where a lane on this host may write."""
    return {
        f"{place}/{name}"
        for place in ("/tmp", "/dev/shm", "/var/tmp")
        for name in os.listdir(place)
        if os.stat(f"{place}/{name}", follow_symlinks=False).st_uid >= 1 << 30
    }


@pytest.mark.parametrize("backend", ["subprocess", "docker"])
def test_nothing_grows(backend: str, make_sandbox: Callable[[str], Callable[[], Sandbox]]) -> None:
    """Memory and descriptors after all jobs are those after the first tenth; nothing is left."""
    make = make_sandbox(backend)
    there = files()
    codes: Counter[str] = Counter()
    seen: list[Usage] = []
    replaced: set[int] = set()
    with nothing_left(set()), Pool(make, lanes=2) as pool:
        for done, result in enumerate(pool.grade(hostile(JOBS)), 1):
            assert result.envelope is not None, result.fault
            assert result.envelope.exit_code != "pass" and result.envelope.score == 0.0
            codes[f"{result.envelope.exit_code.value} {result.envelope.reason or ''}"] += 1
            if done % max(1, JOBS // 10) == 0:
                seen.append(usage(lanes_of(pool)))
                replaced |= seen[-1].lanes
                print(f"\n{done}: {seen[-1]}", end="")
    print(f"\n{backend}: {len(replaced)} lanes; {dict(codes)}")
    first, last = seen[0], seen[-1]
    assert last.host_mb - first.host_mb < GROWTH_MB
    for name in ("supervisors_mb", "zygotes_mb"):
        assert max(getattr(last, name)) - max(getattr(first, name)) < GROWTH_MB
    assert last.host_fds <= first.host_fds + 2
    assert max(last.supervisors_fds) <= max(first.supervisors_fds) + 16
    assert files() <= there
    if backend == "docker":
        with contextlib.closing(docker.from_env()) as client:
            assert containers(client) == []
