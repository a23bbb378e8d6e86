"""The contract: the data that crosses every border of isograd. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isograd._lazy import lazily

if TYPE_CHECKING:
    from isograd.contract.denylist import DEFAULT_DENYLIST
    from isograd.contract.envelope import UNFINISHED, Envelope, ExitCode, Reason, score_of
    from isograd.contract.job import Assertions, Checks, Grading, Job, Program
    from isograd.contract.limits import Limits
    from isograd.contract.result import Measurement, Result
    from isograd.contract.task import Sample, Task

__all__ = [
    "DEFAULT_DENYLIST",
    "UNFINISHED",
    "Assertions",
    "Checks",
    "Envelope",
    "ExitCode",
    "Grading",
    "Job",
    "Limits",
    "Measurement",
    "Program",
    "Reason",
    "Result",
    "Sample",
    "Task",
    "score_of",
]

__getattr__ = lazily(
    __name__,
    {
        "isograd.contract.envelope": "UNFINISHED Envelope ExitCode Reason score_of",
        "isograd.contract.denylist": "DEFAULT_DENYLIST",
        "isograd.contract.job": "Assertions Checks Grading Job Program",
        "isograd.contract.limits": "Limits",
        "isograd.contract.result": "Measurement Result",
        "isograd.contract.task": "Sample Task",
    },
)
