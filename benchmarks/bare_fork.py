"""The limit: forks, runs the candidate and its test in the fork, and believes the exit status.

No isolation of any kind; only for candidates that are known to be harmless. Reads a line for each
round: the path of a JSON list of [code, test, entry point]. Answers with the seconds that it took.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time


def run(programs: list[list[str]]) -> None:
    for code, test, entry_point in programs:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                namespace: dict[str, object] = {"__name__": "candidate"}
                exec(compile(code, "candidate", "exec"), namespace)
                exec(compile(test, "test", "exec"), namespace)
                namespace["check"](namespace[entry_point])  # type: ignore[operator]
                status = 0
            finally:
                os._exit(status)
        if os.waitpid(child, 0)[1] != 0:
            os._exit(1)


lanes = int(sys.argv[1])
for name in sys.argv[2:]:
    importlib.import_module(name)
for line in sys.stdin:
    with open(line.strip(), encoding="utf-8") as file:
        programs = json.load(file)
    begun = time.perf_counter()
    workers = []
    for lane in range(lanes):
        pid = os.fork()
        if pid == 0:
            run(programs[lane::lanes])
            os._exit(0)
        workers.append(pid)
    failed = [os.waitpid(pid, 0)[1] for pid in workers]
    print("failed" if any(failed) else time.perf_counter() - begun, flush=True)
