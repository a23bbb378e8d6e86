"""Parity: agreement is found, and each kind of disagreement gets its name."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from isograd import (
    Assertions,
    Envelope,
    ExitCode,
    FakeSandbox,
    InputError,
    Job,
    Sandbox,
    SandboxCrashed,
    SubprocessSandbox,
)
from isograd.parity import Accepted, compare, differing_facts
from support.cases import Case, cases

PASS = Envelope(exit_code=ExitCode.PASS, score=1.0, passed=1, total=1, per_assertion=(True,))
FAIL = Envelope(
    exit_code=ExitCode.ASSERTION_FAIL, score=0.0, passed=0, total=1, per_assertion=(False,)
)
TALK = PASS.model_copy(update={"stdout": "host\n"})


def job(code: str = "x = 1", task_id: str = "t") -> Job:
    return Job(code=code, checks=Assertions(["x"]), task_id=task_id)


def always(envelope: Envelope) -> Callable[[], Sandbox]:
    return lambda: FakeSandbox(envelope)


def varying() -> Callable[[], Sandbox]:
    outcomes = itertools.cycle([PASS, FAIL])
    return lambda: FakeSandbox(lambda job: next(outcomes))


def test_equal_envelopes_are_identical() -> None:
    """What both sides say alike counts as identical, and parity holds."""
    outcome = compare([job()] * 5, {"a": always(PASS), "b": always(PASS)})
    assert (outcome.jobs, outcome.identical, outcome.agrees) == (5, 5, True)


def test_a_stable_difference_is_divergent() -> None:
    """Sides that each say one thing, and not the same, are our fault; one byte is enough."""
    outcome = compare([job()], {"a": always(PASS), "b": always(TALK)})
    assert outcome.count("divergent") == 1 and not outcome.agrees
    assert len(outcome.differences[0].envelopes["a"]) == 4
    assert outcome.as_json()["divergent"] == 1


def test_verdict_fields_may_be_all_that_is_compared() -> None:
    """By verdict, output is not compared; a verdict is."""
    sides = {"a": always(PASS), "b": always(TALK)}
    assert compare([job()], sides, by="verdict").identical == 1
    sides = {"a": always(PASS), "b": always(FAIL)}
    assert compare([job()], sides, by="verdict").count("divergent") == 1


def test_a_side_that_varies_is_nondeterministic() -> None:
    """If a re-run of a side gives something else, the candidate is a gambler."""
    outcome = compare([job()], {"a": varying(), "b": always(FAIL)}, again=None)
    assert outcome.count("nondeterministic") == 1 and outcome.agrees


@pytest.mark.parametrize(
    "code", ["import os\nprint(os.getuid())", "open('/proc/self/status')", "socket.gethostname()"]
)
def test_who_looks_at_the_wall_may_say_what_it_saw(code: str) -> None:
    """Text that depends on the wall is environmental; a verdict that does is divergent."""
    outcome = compare([job(code)], {"a": always(PASS), "b": always(TALK)})
    assert outcome.count("environmental") == 1 and outcome.agrees
    outcome = compare([job(code)], {"a": always(PASS), "b": always(FAIL)})
    assert outcome.count("divergent") == 1


def test_accepted_differences_have_a_reason_and_go_stale() -> None:
    """A listed difference is accepted by name; one that no longer occurs fails."""
    known = Accepted("t", 0, "sqlite words its refusal itself")
    outcome = compare([job()], {"a": always(PASS), "b": always(TALK)}, accepted=(known,))
    assert outcome.agrees and outcome.differences[0].reason == known.reason
    outcome = compare([job()], {"a": always(PASS), "b": always(PASS)}, accepted=(known,))
    assert outcome.stale == [known] and not outcome.agrees


def test_our_faults_are_apart() -> None:
    """A side whose lane cannot be had is no disagreement."""
    broken = lambda: FakeSandbox(SandboxCrashed("lost"))  # noqa: E731
    outcome = compare([job()], {"a": always(PASS), "b": broken})
    assert (outcome.jobs, outcome.identical, len(outcome.faults)) == (1, 0, 1)


def test_parity_takes_two() -> None:
    """One sandbox agrees with nobody."""
    with pytest.raises(InputError, match="twice"):
        compare([job()], {"a": always(PASS)})


def test_different_environments_are_named() -> None:
    """Another Python or another numpy is said before anything else."""
    sides = {"a": {"python": "3.11.7", "packages": {}}, "b": {"python": "3.12.1", "packages": {}}}
    assert differing_facts(sides) == ["python: a has 3.11.7, b has 3.12.1"]
    assert differing_facts({"a": sides["a"], "b": sides["a"]}) == []


RUNNABLE = [case for case in cases() if not case.packages]


def test_the_walls_agree_on_every_case(
    make_sandbox: Callable[[str], Callable[[], Sandbox]],
) -> None:
    """Real-world trouble gets byte-identical envelopes from zygote, fresh and container lanes."""
    sides = {
        name: make_sandbox(name)
        for name in ("subprocess", "subprocess-fresh", "docker", "bubblewrap")
    }
    again = {name: make_sandbox(f"{name.removesuffix('-fresh')}-fresh") for name in sides}
    outcome = compare([case.job for case in RUNNABLE], sides, again=again)
    assert [
        (d.task_id, d.kind, d.envelopes) for d in outcome.differences if d.kind == "divergent"
    ] == []
    assert outcome.faults == []
    assert outcome.jobs == len(RUNNABLE)


def test_layers_below_python_change_no_byte(
    make_sandbox: Callable[[str], Callable[[], Sandbox]],
) -> None:
    """With Landlock and without, every case has the same envelope; the measurement tells."""
    make_sandbox("subprocess")
    sides: dict[str, Callable[[], Sandbox]] = {
        "with": lambda: SubprocessSandbox(allow_code_exec=True),
        "without": lambda: SubprocessSandbox(allow_code_exec=True, landlock=False),
    }
    outcome = compare([case.job for case in RUNNABLE], sides)
    assert [(d.task_id, d.envelopes) for d in outcome.differences if d.kind == "divergent"] == []
    assert "landlock" not in outcome.sides["without"]["layers"]


FORGED_IN_ONE_PROCESS = {"fp-reads-constant-from-caller-frame"}
"""Cases that no grader can tell while candidate and checks share one process."""


@pytest.mark.parametrize("case", RUNNABLE, ids=[case.id for case in RUNNABLE])
def test_every_case_gets_its_right_verdict(
    case: Case, backend: str, sandbox: Sandbox, request: pytest.FixtureRequest
) -> None:
    """Trouble that people reported gets the verdict that it should have had."""
    if case.id in FORGED_IN_ONE_PROCESS and backend.endswith("-shared"):
        reason = "candidate and checks share one process"
        request.applymarker(pytest.mark.xfail(reason=reason, strict=True))
    envelope = sandbox.run(case.job)
    assert envelope.exit_code in case.right_exit_codes, envelope.detail
    assert envelope.score in case.right_scores
    assert case.fields["expect"].get("detail_contains", "") in envelope.detail
