"""Parity: proof that several walls say the same of the same jobs."""

from isograd.parity.accepted import ACCEPTED, Accepted
from isograd.parity.harness import Difference, Parity, compare, differing_facts, verdict_of

__all__ = [
    "ACCEPTED",
    "Accepted",
    "Difference",
    "Parity",
    "compare",
    "differing_facts",
    "verdict_of",
]
