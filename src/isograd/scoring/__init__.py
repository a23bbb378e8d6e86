"""Scoring: extract the code, grade it, and count what passed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isograd._lazy import lazily

if TYPE_CHECKING:
    from isograd.scoring.code_exec import (
        grade,
        job_of,
        program_of,
        run_candidate,
        score,
        score_code_exec,
    )
    from isograd.scoring.extract import POLICIES, extract, extract_code, names_called
    from isograd.scoring.passk import (
        bootstrap_interval,
        pass_at_k,
        pass_at_k_estimator,
        undefined_ks,
    )

__all__ = [
    "POLICIES",
    "bootstrap_interval",
    "extract",
    "extract_code",
    "grade",
    "job_of",
    "names_called",
    "pass_at_k",
    "pass_at_k_estimator",
    "program_of",
    "run_candidate",
    "score",
    "score_code_exec",
    "undefined_ks",
]

__getattr__ = lazily(
    __name__,
    {
        "isograd.scoring.code_exec": "grade job_of program_of run_candidate score score_code_exec",
        "isograd.scoring.extract": "POLICIES extract extract_code names_called",
        "isograd.scoring.passk": "bootstrap_interval pass_at_k pass_at_k_estimator undefined_ks",
    },
)
