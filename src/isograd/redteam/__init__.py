"""Attacks on graders, as data, and what runs them: how many wrong programs get a pass?

The attacks are programs that are wrong for their checks and do what they can to be called right.
Only a sandbox, or a grader inside one, may run them.
"""

from .attack import Attack, Exam
from .corpus import CORPUS, MECHANISMS
from .engine import Outcome, run_against_command, run_attack, run_attacks, table

__all__ = [
    "CORPUS",
    "MECHANISMS",
    "Attack",
    "Exam",
    "Outcome",
    "run_against_command",
    "run_attack",
    "run_attacks",
    "table",
]
