"""A job: one candidate, its checks and its limits. This is what a sandbox runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from isograd.contract._base import Frozen
from isograd.contract.denylist import DEFAULT_DENYLIST
from isograd.contract.limits import Limits

Grading = Literal["auto", "split", "shared"]
"""Whether candidate and checks run in two processes (split) or in one (shared)."""


class Assertions(Frozen):
    """Checks that are strings: each a Python expression or an ``assert`` statement.

    ``Assertions(["add(1, 2) == 3", "assert add(0, 0) == 0"])`` has two checks. ``setup`` is
    source that runs once, after the candidate and before the first check.
    """

    kind: Literal["assertions"] = "assertions"
    checks: tuple[str, ...]
    setup: str = ""

    def __init__(self, checks: Sequence[str] = (), /, **fields: Any) -> None:
        if isinstance(checks, str):
            raise TypeError("Assertions takes a list of strings, not one string")
        super().__init__(**({"checks": tuple(checks)} | fields))


class Program(Frozen):
    """A test program, as in HumanEval: run ``source``, then call ``check(entry_point)``.

    It is one check: it holds if the call returns.
    """

    kind: Literal["program"] = "program"
    source: str
    entry_point: str

    def __init__(self, source: str = "", entry_point: str = "", /, **fields: Any) -> None:
        super().__init__(**({"source": source, "entry_point": entry_point} | fields))


Checks = Annotated[Assertions | Program, Field(discriminator="kind")]


class Job(Frozen):
    """One candidate to run and grade.

    ``code`` is the whole program, or None where no code could be extracted: its verdict is
    ``error`` with reason ``no_code``. ``task_id`` and ``sample`` only label the result; the
    runner never sees them.
    """

    code: str | None
    checks: Checks
    limits: Limits = Limits()
    denylist: tuple[str, ...] = DEFAULT_DENYLIST
    entry_point: str | None = Field(default=None, description="the name that the checks are about")
    prompt: str = Field(default="", description="source that the checks may use helpers of")
    grading: Grading = Field(
        default="auto", description="auto is split where the kind of checks allows it"
    )
    task_id: str = ""
    sample: int = Field(default=0, description="index of the sample within its task")

    def to_wire(self) -> dict[str, Any]:
        """The job as the runner reads it: plain JSON types, without the labels."""
        wire = self.model_dump(mode="json", exclude={"task_id", "sample"})
        return {**wire, "grading": self.resolved_grading}

    @property
    def resolved_grading(self) -> Literal["split", "shared"]:
        """Which grading "auto" stands for: split, which every kind of checks so far allows."""
        return "shared" if self.grading == "shared" else "split"
