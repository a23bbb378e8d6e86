"""The contract's own examples, behind every wall."""

from __future__ import annotations

import pytest

from isograd import Assertions, Job, Limits, Program, Reason, Sandbox, extract_code
from isograd.contract import Checks

ADD = "def add(a, b):\n    return a + b\n"


def run(sandbox: Sandbox, code: str | None, *checks: str, **settings: object) -> object:
    return sandbox.run(Job.model_validate({"code": code, "checks": Assertions(checks), **settings}))


def test_two_of_three_assertions_score_two_thirds(sandbox: Sandbox) -> None:
    """The score is the fraction of checks that hold."""
    envelope = sandbox.run(
        Job(code=ADD, checks=Assertions(["add(1, 2) == 3", "assert add(0, 0) == 0", "add(1, 1) == 3"]))
    )
    assert envelope.exit_code == "assertion_fail"
    assert envelope.score == pytest.approx(0.667, abs=1e-3)
    assert envelope.per_assertion == (True, True, False)
    assert envelope.detail == "check 3: false"
