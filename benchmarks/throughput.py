"""What does a candidate cost behind each wall, beside a bare fork with no isolation?

The limit is a program that forks and, in the fork, executes candidate and test with the same
modules loaded: no limits, no clean-up, no reading of output, the verdict an exit status. Each
side grades the same candidates, HumanEval's canonical solutions, in turns of one round each, so
that a busy machine slows all of them alike. Printed are seconds a candidate: the median of the
rounds, the lowest and the highest, and the median's ratio to the limit.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from isograd import (
    BubblewrapSandbox,
    DockerSandbox,
    Job,
    Pool,
    Program,
    Sandbox,
    SubprocessSandbox,
)
from isograd.errors import SandboxUnavailable
from isograd.formats import load_tasks
from isograd.runner.zygote import COMMON

Side = Callable[[Sequence[Job]], None]


class BareFork:
    """``bare_fork.py`` in an interpreter that has the zygote's modules loaded and no others."""

    def __init__(self, jobs: Sequence[Job], lanes: int) -> None:
        programs = [
            [job.code, job.checks.source, job.checks.entry_point]
            for job in jobs
            if isinstance(job.checks, Program)
        ]
        with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as file:
            json.dump(programs, file)
        self._file = file.name
        script = Path(__file__).with_name("bare_fork.py")
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(script), str(lanes), *COMMON],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, jobs: Sequence[Job]) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(self._file + "\n")
        self._process.stdin.flush()
        if "failed" in self._process.stdout.readline():
            raise SystemExit("a candidate failed in a bare fork")

    def close(self) -> None:
        self._process.communicate()
        os.unlink(self._file)


def in_pool(pool: Pool) -> Side:
    def grade(jobs: Sequence[Job]) -> None:
        for result in pool.grade(jobs):
            if result.envelope is None or result.envelope.exit_code != "pass":
                raise SystemExit(f"{result.task_id}: {result}")

    return grade


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", default="humaneval", help='a HumanEval file, or "humaneval"')
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--lanes", type=int, default=1)
    words = parser.parse_args()
    jobs = [
        Job(code=task.prefix + (task.reference or ""), checks=task.checks, prompt=task.prefix)
        for task in load_tasks(words.tasks).tasks.values()
    ]
    walls: dict[str, tuple[Callable[[], Sandbox], str]] = {}
    for wall, make in (
        ("subprocess", lambda: SubprocessSandbox(allow_code_exec=True)),
        ("bubblewrap", BubblewrapSandbox),
        ("docker", DockerSandbox),
    ):
        for grading in ("shared", "split"):
            walls[f"{wall}, {grading}"] = (make, grading)
    limit_side = BareFork(jobs, words.lanes)
    sides: dict[str, Side] = {"the limit: a bare fork": limit_side}
    pools = []
    for name, (make, grading) in walls.items():
        try:
            pool = Pool(make, lanes=words.lanes)
            with ThreadPoolExecutor(words.lanes) as threads:
                list(threads.map(lambda job, pool=pool: pool.run(job), jobs[: 2 * words.lanes]))
        except SandboxUnavailable as error:
            print(f"without {name}: {error}")
            continue
        pools.append(pool)
        grade = in_pool(pool)
        sides[name] = lambda all_, grade=grade, how=grading: grade(
            [job.model_copy(update={"grading": how}) for job in all_]
        )
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(words.rounds):
        for name, side in sides.items():
            begun = time.perf_counter()
            side(jobs)
            seconds[name].append((time.perf_counter() - begun) / len(jobs))
    for pool in pools:
        pool.close()
    limit_side.close()
    limit = statistics.median(next(iter(seconds.values())))
    print(f"\n{words.lanes} lanes, {words.rounds} rounds of {len(jobs)} candidates, ms a candidate")
    for name, values in seconds.items():
        middle = statistics.median(values)
        spread = f"{min(values) * 1e3:.2f} … {max(values) * 1e3:.2f}"
        print(f"{name:>24} {middle * 1e3:7.2f}  ({spread})  {middle / limit:5.2f} x")


if __name__ == "__main__":
    main()
