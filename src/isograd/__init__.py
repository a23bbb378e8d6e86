"""isograd: run model-written code in a sandbox and grade it by what it does.

A candidate's failure is data (an ``Envelope``); our failure is an exception (``SandboxError``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from isograd._lazy import lazily

if TYPE_CHECKING:
    from isograd.contract import (
        Assertions,
        Envelope,
        ExitCode,
        Job,
        Limits,
        Measurement,
        Program,
        Reason,
        Result,
        Sample,
        Task,
    )
    from isograd.errors import (
        InputError,
        IsogradError,
        OptInRequired,
        SandboxCrashed,
        SandboxError,
        SandboxUnavailable,
    )
    from isograd.sandbox import (
        BubblewrapSandbox,
        DockerSandbox,
        FakeSandbox,
        Pool,
        Sandbox,
        SubprocessSandbox,
    )
    from isograd.scoring import (
        extract_code,
        grade,
        pass_at_k,
        pass_at_k_estimator,
        run_candidate,
        score,
        score_code_exec,
    )

__all__ = [
    "Assertions",
    "BubblewrapSandbox",
    "DockerSandbox",
    "Envelope",
    "ExitCode",
    "FakeSandbox",
    "InputError",
    "IsogradError",
    "Job",
    "Limits",
    "Measurement",
    "OptInRequired",
    "Pool",
    "Program",
    "Reason",
    "Result",
    "Sample",
    "Sandbox",
    "SandboxCrashed",
    "SandboxError",
    "SandboxUnavailable",
    "SubprocessSandbox",
    "Task",
    "extract_code",
    "grade",
    "pass_at_k",
    "pass_at_k_estimator",
    "run_candidate",
    "score",
    "score_code_exec",
]

__getattr__ = lazily(
    __name__,
    {
        "isograd.contract": (
            "Assertions Envelope ExitCode Job Limits Measurement Program Reason Result Sample Task"
        ),
        "isograd.errors": (
            "InputError IsogradError OptInRequired SandboxCrashed SandboxError SandboxUnavailable"
        ),
        "isograd.sandbox": (
            "BubblewrapSandbox DockerSandbox FakeSandbox Pool Sandbox SubprocessSandbox"
        ),
        "isograd.scoring": (
            "extract_code grade pass_at_k pass_at_k_estimator run_candidate score score_code_exec"
        ),
    },
)
