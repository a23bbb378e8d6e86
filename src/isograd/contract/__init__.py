"""The contract: the data that crosses every border of isograd. No I/O."""

from isograd.contract.envelope import UNFINISHED, Envelope, ExitCode, Reason, score_of
from isograd.contract.job import DEFAULT_DENYLIST, Assertions, Checks, Grading, Job, Program
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
