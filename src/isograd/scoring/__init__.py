"""Scoring: extract the code, grade it, and count what passed."""

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
