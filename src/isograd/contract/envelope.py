"""The envelope: the verdict on one job, the same bytes from every wall."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from isograd.contract._base import Frozen


class ExitCode(StrEnum):
    """How a run ended: a closed set of five."""

    PASS = "pass"
    ASSERTION_FAIL = "assertion_fail"
    SYNTAX_ERROR = "syntax_error"
    TIMEOUT = "timeout"
    ERROR = "error"


class Reason(StrEnum):
    """Why, where the exit code alone does not say it: a closed set, or null."""

    DENIED = "denied"
    OUTPUT_OVERFLOW = "output_overflow"
    MEMORY = "memory"
    PROCESSES = "processes"
    SCRATCH = "scratch"
    SIGNAL = "signal"
    EARLY_EXIT = "early_exit"
    TAMPERED = "tampered"
    RAISED = "raised"
    NO_CHECKS = "no_checks"
    NO_CODE = "no_code"
    IMPORT_MISSING = "import_missing"
    SANDBOX_KILLED = "sandbox_killed"


def _utf8_safe(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


Text = Annotated[str, AfterValidator(_utf8_safe)]
"""Text that any encoder can write: a lone surrogate becomes its escape."""

UNFINISHED = frozenset({ExitCode.TIMEOUT, ExitCode.ERROR, ExitCode.SYNTAX_ERROR})
"""Exit codes of runs that did not finish: they score 0 whatever passed before."""


class Envelope(Frozen):
    """The verdict on one job.

    ``score`` is the fraction of passed checks, 0.0 … 1.0, and 0.0 for a run that did not
    finish. ``per_assertion`` has ``total`` entries: true, false, or null for a check that was
    not run. ``detail`` is prose for people, at most 2 kB; nothing parses it. ``truncated`` says
    that ``stdout`` and ``stderr`` were cut to their first 2 KiB each.
    """

    version: Literal[1] = 1
    exit_code: ExitCode
    reason: Reason | None = None
    score: float = Field(ge=0.0, le=1.0)
    passed: int = Field(ge=0)
    total: int = Field(ge=0)
    detail: Text = ""
    per_assertion: tuple[bool | None, ...] = ()
    stdout: Text = ""
    stderr: Text = ""
    truncated: bool = False
    grading: Literal["split", "shared"] = "shared"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if len(self.per_assertion) != self.total:
            raise ValueError("per_assertion must have total entries")
        if self.passed != sum(held is True for held in self.per_assertion):
            raise ValueError("passed must count the checks that held")
        if self.score != score_of(self.exit_code, self.passed, self.total):
            raise ValueError("score must follow from exit_code, passed and total")
        if (self.exit_code is ExitCode.PASS) and (self.total == 0 or self.passed != self.total):
            raise ValueError("pass needs at least one check and all of them")
        return self

    def canonical(self) -> bytes:
        """The envelope's bytes, the same for equal envelopes: what parity compares."""
        return self.model_dump_json().encode()


def score_of(exit_code: ExitCode, passed: int, total: int) -> float:
    """The score that the contract gives to a run: passed / total, 0.0 if it did not finish."""
    if exit_code in UNFINISHED or total == 0:
        return 0.0
    return passed / total
