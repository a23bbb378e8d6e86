"""What the benchmarks share: rounds in turn, medians, spreads and ratios, and the machine."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

from isograd import (
    BubblewrapSandbox,
    DockerSandbox,
    Job,
    Pool,
    Sandbox,
    SubprocessSandbox,
)
from isograd.errors import SandboxUnavailable
from isograd.formats import load_tasks

Walls = dict[str, Callable[..., Sandbox]]

WALLS: Walls = {
    "subprocess": lambda **settings: SubprocessSandbox(allow_code_exec=True, **settings),
    "bubblewrap": BubblewrapSandbox,
    "docker": DockerSandbox,
}


def canonical_jobs(tasks: str = "humaneval") -> list[Job]:
    """HumanEval's canonical solutions, a job each."""
    return [
        Job(
            code=task.prefix + (task.reference or ""),
            checks=task.checks,
            prompt=task.prefix,
            entry_point=task.entry_point,
            task_id=task.task_id,
        )
        for task in load_tasks(tasks).tasks.values()
    ]


Side = Callable[[], int | float]
"""Does some work: how many pieces, or as a float how many seconds each took by its own clock."""


def in_turn(sides: Mapping[str, Side], rounds: int) -> dict[str, list[float]]:
    """Seconds a piece of work, for each side and round. Sides take turns, so that a busy machine
    slows all of them alike."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            begun = time.perf_counter()
            done = side()
            took = time.perf_counter() - begun
            seconds[name].append(done if isinstance(done, float) else took / done)
    return seconds


def table(
    title: str, seconds: Mapping[str, Sequence[float]], base: str, rate: bool = False
) -> None:
    """Prints a line for each side: median, lowest and highest in ms, and the ratio to ``base``."""
    print(f"\n{title}")
    width = max(map(len, seconds))
    of_base = statistics.median(seconds[base])
    for name, values in seconds.items():
        middle = statistics.median(values)
        spread = f"({min(values) * 1e3:.2f} … {max(values) * 1e3:.2f})"
        line = f"{name:>{width}} {middle * 1e3:9.2f} ms  {spread:>22}  {middle / of_base:6.2f} x"
        print(line + (f"  {1 / middle:8.1f} a second" if rate else ""), flush=True)


def command(*words: str, times: int = 1) -> Callable[[], int]:
    """A side that runs a command so many times. It raises CalledProcessError if that fails."""

    def side() -> int:
        for _ in range(times):
            subprocess.run(words, capture_output=True, check=True)
        return times

    return side


def pool_of(wall: str, lanes: int, jobs: Sequence[Job], **settings: object) -> Pool | None:
    """A pool with every lane started; None, and why is printed, where the wall is absent."""
    pool = Pool(lambda: WALLS[wall](**settings), lanes=lanes)
    try:
        list(pool.grade(list(jobs[:1]) * (4 * lanes)))
    except SandboxUnavailable as error:
        pool.close()
        print(f"without {wall} {settings or ''}: {error}")
        return None
    return pool


def grade_all(pool: Pool, jobs: Sequence[Job]) -> float:
    """Grades jobs that all pass: seconds each. Raises SystemExit if one does not.

    The first few are graded once before, untimed: lanes that waited for their turn for long
    are replaced.
    """

    def grade(some: Sequence[Job]) -> None:
        for result in pool.grade(some):
            if result.envelope is None or result.envelope.exit_code != "pass":
                raise SystemExit(f"{result.task_id}: {result}")

    grade(jobs[:16])
    begun = time.perf_counter()
    grade(jobs)
    return (time.perf_counter() - begun) / len(jobs)


def machine() -> str:
    """One line about where this ran."""
    with open("/proc/meminfo", encoding="ascii") as file:
        gib = int(file.readline().split()[1]) >> 20
    return (
        f"Python {platform.python_version()}, {os.cpu_count()} cores, {gib} GiB, "
        f"Linux {platform.release()}, load {os.getloadavg()[0]:.1f}"
    )
