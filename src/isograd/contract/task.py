"""Tasks and samples: what formats read from a benchmark's own files."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from isograd.contract._base import Frozen
from isograd.contract.job import Checks


class Task(Frozen):
    """One task of a benchmark.

    ``prefix`` is source that stands in front of every candidate (HumanEval's prompt, MBPP's
    set-up code); ``prompt`` is what the model was asked and is never run.
    """

    task_id: str = Field(min_length=1)
    prompt: str = ""
    prefix: str = ""
    entry_point: str | None = None
    checks: Checks
    reference: str | None = Field(default=None, description="a solution known to be right, if any")
    timeout_s: float | None = Field(
        default=None, gt=0, description="wall seconds, wins over the run's"
    )
    memory_mb: int | None = Field(default=None, ge=16, description="MB, wins over the run's")
    metadata: dict[str, Any] = Field(default_factory=dict)


class Sample(Frozen):
    """One generation for a task. ``index`` counts the samples of one task, from 0 or 1."""

    task_id: str = Field(min_length=1)
    index: int = Field(ge=0)
    text: str
    metadata: dict[str, Any] = Field(default_factory=dict)
