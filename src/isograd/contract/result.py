"""A result: an envelope with what differs from run to run kept apart from it."""

from __future__ import annotations

from pydantic import Field

from isograd.contract._base import Frozen
from isograd.contract.envelope import Envelope


class Measurement(Frozen):
    """What one run cost and where it ran. It differs from run to run; no verdict rests on it."""

    wall_s: float = Field(default=0.0, description="wall seconds of import and checks")
    cpu_s: float = Field(
        default=0.0, description="user and system CPU seconds of the job's processes"
    )
    peak_memory_mb: float = Field(
        default=0.0, description="peak resident memory of the main process"
    )
    backend: str = Field(default="", description="subprocess, docker, fake, …")
    runtime: str = Field(default="", description="the OCI runtime, where there is one")
    spawn: str = Field(default="", description="zygote or fresh")
    python: str = Field(default="", description="version of the Python behind the wall")
    image: str = Field(default="", description="digest of the image, where there is one")
    layers: tuple[str, ...] = Field(
        default=(), description="the protections in force behind the wall"
    )
    merged: bool = Field(
        default=False, description="whether an identical job of the batch ran, and not this one"
    )
    retries: int = Field(
        default=0, description="times that the job was run again after a lane died"
    )


class Result(Frozen):
    """One job's outcome.

    ``envelope`` is None exactly when ``fault`` says what went wrong on our side; such a result
    counts in no score.
    """

    task_id: str
    sample: int
    envelope: Envelope | None
    measurement: Measurement | None = None
    fault: str | None = None
