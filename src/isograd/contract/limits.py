"""The limits of one job: one frozen value, handed down whole to the runner."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo

from isograd.contract._base import Frozen

MIN_TIMEOUT_S = 0.1
DEFAULT_TIMEOUT_CEILING_S = 30.0


def _clamp_timeout(value: float, info: ValidationInfo) -> float:
    ceiling = float(info.data.get("timeout_ceiling_s", DEFAULT_TIMEOUT_CEILING_S))
    return min(max(value, MIN_TIMEOUT_S), ceiling)


class Limits(Frozen):
    """What one job may use. The unit stands in each name; MB are 2**20 bytes.

    ``timeout_s`` outside 0.1 … ``timeout_ceiling_s`` is clamped, never refused.
    Every limit holds for the job in all, except ``file_mb`` and ``open_files``,
    which hold for one file and one process.
    """

    timeout_ceiling_s: float = Field(
        default=DEFAULT_TIMEOUT_CEILING_S, ge=MIN_TIMEOUT_S, le=86_400, description="seconds"
    )
    timeout_s: Annotated[float, AfterValidator(_clamp_timeout)] = Field(
        default=3.0,
        gt=0,
        allow_inf_nan=False,
        description="wall seconds for import and checks together",
    )
    cpu_s: float | None = Field(
        default=None, gt=0, description="CPU seconds of one process, or no limit"
    )
    output_bytes: int = Field(
        default=262_144, ge=0, description="raw bytes of stdout and stderr together"
    )
    memory_mb: int = Field(default=512, ge=16, description="memory above the interpreter's own")
    processes: int = Field(default=64, ge=1, description="processes and threads")
    scratch_mb: int = Field(default=64, ge=1, description="bytes in the scratch directory, in MB")
    scratch_files: int = Field(
        default=4_096, ge=1, description="files and directories in the scratch directory"
    )
    file_mb: int = Field(default=32, ge=1, description="size of any one file")
    open_files: int = Field(default=256, ge=32, description="descriptors of one process")
