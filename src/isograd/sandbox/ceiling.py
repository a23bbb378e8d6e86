"""What one job may ask for at most, unless a sandbox is made with another ceiling."""

from __future__ import annotations

from isograd.contract import Limits
from isograd.sandbox.base import SCRATCH_FILES, SCRATCH_MB

CEILING = Limits(
    timeout_ceiling_s=86_400,
    timeout_s=86_400,
    memory_mb=4_096,
    processes=512,
    scratch_mb=SCRATCH_MB,
    scratch_files=SCRATCH_FILES,
    file_mb=512,
    open_files=4_096,
    output_bytes=32 << 20,
)
