"""Does memory grow, or a candidate's cost, over 100,000 jobs?

Printed as the batch goes: resident memory of this process and of its lanes' processes, and
milliseconds a job in the last tenth.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Iterator

from isograd import Job, Pool
from isograd.runner import kernel
from measure import WALLS, canonical_jobs, machine


def resident_mb(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except (OSError, IndexError):
        return 0.0


def lanes_mb() -> float:
    """Of the processes below this one that live longer than a job."""
    pids = kernel.descendants(os.getpid())
    time.sleep(0.05)
    return sum(resident_mb(pid) for pid in set(pids) & set(kernel.descendants(os.getpid())))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--sandbox", choices=sorted(WALLS), default="subprocess")
    parser.add_argument("--grading", choices=["shared", "split"], default="split")
    words = parser.parse_args()
    print(machine())
    once = [job.model_copy(update={"grading": words.grading}) for job in canonical_jobs()]

    def jobs() -> Iterator[Job]:
        for number, job in enumerate(itertools.islice(itertools.cycle(once), words.jobs)):
            yield job.model_copy(update={"sample": number})

    step = max(1, words.jobs // 10)
    first = begun = 0.0
    with Pool(WALLS[words.sandbox], lanes=2) as pool:
        for done, result in enumerate(pool.grade(jobs()), 1):
            assert result.envelope is not None, result.fault
            if done == min(1_000, step):
                first, begun, last = resident_mb(os.getpid()), time.perf_counter(), done
            elif done % step == 0:
                took = (time.perf_counter() - begun) / (done - last) * 1e3
                host = resident_mb(os.getpid())
                print(
                    f"{done:>8} jobs: host {host:6.1f} MB ({host - first:+.1f} since job 1,000), "
                    f"lanes {lanes_mb():6.1f} MB, {took:5.2f} ms a job",
                    flush=True,
                )
                begun, last = time.perf_counter(), done


if __name__ == "__main__":
    main()
