"""The contract's models: frozen, strict, and consistent by construction."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from isograd import Assertions, Envelope, ExitCode, Job, Limits, Program, Reason


@pytest.mark.parametrize(
    ("asked", "got"), [(0.01, 0.1), (0.1, 0.1), (3, 3.0), (30, 30.0), (31, 30.0), (1e9, 30.0)]
)
def test_timeouts_are_clamped(asked: float, got: float) -> None:
    """A timeout outside 0.1 … 30 is brought inside; the ceiling is a setting."""
    assert Limits(timeout_s=asked).timeout_s == got
    assert Limits(timeout_s=asked, timeout_ceiling_s=1e4).timeout_s == max(0.1, min(asked, 1e4))


@pytest.mark.parametrize(
    "fields",
    [
        {"timeout_s": 0}, {"timeout_s": -1}, {"timeout_s": float("nan")},
        {"timeout_s": float("inf")}, {"memory_mb": 1}, {"processes": 0}, {"no_such": 1},
        {"output_bytes": -1},
    ],
)  # fmt: skip
def test_limits_that_are_none_are_refused(fields: dict[str, Any]) -> None:
    """A limit that cannot be one, or that nobody knows, is an error."""
    with pytest.raises(ValidationError):
        Limits(**fields)


def test_models_are_frozen() -> None:
    """Nothing changes a job or its limits on their way."""
    job = Job(code="", checks=Assertions(["x"]))
    with pytest.raises(ValidationError):
        job.code = "y"  # type: ignore[misc]
    with pytest.raises(ValidationError):
        job.limits.memory_mb = 9  # type: ignore[misc]


@pytest.mark.parametrize("checks", [Assertions(["a", "b"], setup="s"), Program("src", "f")])
def test_jobs_survive_json(checks: Assertions | Program) -> None:
    """A job is the same after a round trip through JSON, whatever kind its checks are."""
    job = Job(code="x\ud800", checks=checks, denylist=("os.fork*",), task_id="t", sample=3)
    assert Job.model_validate(json.loads(json.dumps(job.model_dump()))) == job


def test_labels_stay_on_the_host() -> None:
    """The runner is not told which task or sample it runs."""
    wire = Job(code="", checks=Assertions(["x"]), task_id="secret", sample=9).to_wire()
    assert "secret" not in json.dumps(wire) and "sample" not in wire


def test_a_string_is_not_a_list_of_checks() -> None:
    """One string would otherwise be a check a character."""
    with pytest.raises(TypeError, match="list of strings"):
        Assertions("add(1, 2) == 3")  # type: ignore[arg-type]


GOOD = {
    "exit_code": "assertion_fail", "score": 0.5, "passed": 1, "total": 2,
    "per_assertion": [True, False], "detail": "check 2: false",
}  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {"score": 0.6}, {"score": 1.5}, {"passed": 2}, {"total": 3}, {"exit_code": "pass"},
        {"exit_code": "timeout"}, {"exit_code": "killed"}, {"reason": "bored"},
        {"per_assertion": [True]}, {"extra": 1}, {"version": 2},
        {"exit_code": "pass", "score": 0.0, "passed": 0, "total": 0, "per_assertion": []},
    ],
)  # fmt: skip
def test_an_envelope_that_contradicts_itself_is_refused(changes: dict[str, Any]) -> None:
    """Score, counts and exit code follow from each other, or it is no envelope."""
    Envelope.model_validate(GOOD)
    with pytest.raises(ValidationError):
        Envelope.model_validate(GOOD | changes)


def test_an_envelope_has_the_contracts_fields() -> None:
    """The JSON of an envelope is the contract's, in its order."""
    envelope = Envelope(
        exit_code=ExitCode.ERROR, reason=Reason.DENIED, score=0.0, passed=0, total=1,
        per_assertion=(None,), stdout="é\ud800",
    )  # fmt: skip
    fields = json.loads(envelope.canonical().decode())
    assert list(fields) == [
        "version", "exit_code", "reason", "score", "passed", "total", "detail", "per_assertion",
        "stdout", "stderr", "truncated", "grading",
    ]  # fmt: skip
    assert (fields["exit_code"], fields["reason"]) == ("error", "denied")


def test_the_vocabularies_are_closed() -> None:
    """Five exit codes and thirteen reasons, by these names."""
    assert {code.value for code in ExitCode} == {
        "pass", "assertion_fail", "syntax_error", "timeout", "error",
    }  # fmt: skip
    assert {reason.value for reason in Reason} == {
        "denied", "output_overflow", "memory", "processes", "scratch", "signal", "early_exit",
        "tampered", "raised", "no_checks", "no_code", "import_missing", "sandbox_killed",
    }  # fmt: skip
