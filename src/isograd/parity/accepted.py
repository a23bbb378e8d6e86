"""Differences between walls that are known, each with the reason why it stays.

An entry that no longer occurs fails the run that was given it, so that the list stays true.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Accepted:
    """One difference: the job it is about, and why it is accepted."""

    task_id: str
    sample: int
    reason: str


ACCEPTED: tuple[Accepted, ...] = ()
"""None so far: the walls give the same bytes on everything that has been compared."""
