"""Real work: many generations of a model, each wall, with identical samples merged and not.

Give it tasks and samples; the stop strings are those of completion models.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from isograd import Job, Pool
from isograd.batch import Batch
from isograd.errors import SandboxUnavailable
from isograd.formats import load_samples, load_tasks
from measure import WALLS, machine

STOPS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint", "\nassert")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", required=True, type=Path)
    parser.add_argument("--samples", required=True, type=Path)
    parser.add_argument("--lanes", type=int, default=2)
    parser.add_argument("--sandbox", action="append", choices=sorted(WALLS), help="default: all")
    parser.add_argument("--grading", action="append", choices=["shared", "split"])
    words = parser.parse_args()
    tasks = load_tasks(words.tasks)
    samples = load_samples(words.samples, tasks)
    print(machine())
    print(f"{len(samples)} samples, {words.lanes} lanes")
    for wall in words.sandbox or WALLS:
        for grading in words.grading or ("shared", "split"):
            for dedupe in (True, False):
                jobs: list[Job] = list(Batch(tasks, samples, stops=STOPS, grading=grading).jobs())
                begun, cpu, passed, merged = time.perf_counter(), 0.0, 0, 0
                own = time.process_time()
                try:
                    with Pool(WALLS[wall], lanes=words.lanes) as pool:
                        for result in pool.grade(jobs, dedupe=dedupe):
                            assert result.envelope is not None, result.fault
                            assert result.measurement is not None
                            passed += result.envelope.exit_code == "pass"
                            cpu += result.measurement.cpu_s
                            merged += result.measurement.merged
                except SandboxUnavailable as error:
                    print(f"without {wall}: {error}")
                    break
                print(
                    f"{wall:>10} {grading:>6} {'merged' if dedupe else 'each':>6}: "
                    f"{time.perf_counter() - begun:6.1f} s, candidates {cpu:6.1f} CPU s, "
                    f"this process {time.process_time() - own:5.1f} CPU s, "
                    f"{passed} pass, {merged} merged",
                    flush=True,
                )


if __name__ == "__main__":
    main()
