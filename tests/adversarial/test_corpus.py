"""The corpus against every backend and both gradings: a pass of a wrong program is a defect."""

from __future__ import annotations

import pytest

from isograd import Sandbox, SubprocessSandbox
from isograd.contract import ExitCode
from isograd.redteam import CORPUS, MECHANISMS, Attack, Exam, Outcome, run_attack, table

UNSTOPPED_IN_ONE_PROCESS = {
    "frame-send": "its caller's frames hold the function that reports",
    "frame-send-in-call": "its caller's frames hold the function that reports",
    "frame-key": "its caller's frames hold the key of the records",
    "frame-constants": "its caller's frame is the check, with the answer among its constants",
    "heap-gc-send": "the collector shows every object, the function that reports among them",
    "callback-getattr-equality": "the check hands it getattr, and with it everything",
    "callback-eval": "the check hands it eval, and with it everything",
}
"""Attacks that win where candidate and checks share one process, and why none can stop them."""


def named(attack: Attack) -> str:
    return attack.id


def test_the_corpus_is_large_and_its_names_are_unique() -> None:
    """At least eighty attacks in at least twenty mechanisms, each with a name and a prize."""
    assert len(CORPUS) >= 80
    assert len(MECHANISMS) >= 20
    assert len({attack.id for attack in CORPUS}) == len(CORPUS)
    for attack in CORPUS:
        compile(attack.code, attack.id, "exec")
        assert attack.wins


def test_every_task_can_be_solved() -> None:
    """A right program passes each attack's checks, in both gradings."""
    tasks: list[Exam] = list({id(attack.tests): attack.tests for attack in CORPUS}.values())
    with SubprocessSandbox(allow_code_exec=True) as sandbox:
        for tests in tasks:
            for grading in ("split", "shared"):
                envelope = sandbox.run(tests.job(tests.reference, grading=grading))
                assert envelope.exit_code == ExitCode.PASS, (tests.checks, envelope)


DENYLISTS = pytest.mark.parametrize("denylist_empty", [False, True], ids=["denied", "open"])


@DENYLISTS
@pytest.mark.parametrize("backend", ["subprocess", "docker", "bubblewrap"], indirect=True)
@pytest.mark.parametrize("attack", CORPUS, ids=named)
def test_no_attack_wins(attack: Attack, denylist_empty: bool, sandbox: Sandbox) -> None:
    """In two processes no wrong program passes, or scores anything, and none escapes its 0."""
    outcome = run_attack(sandbox, attack, "split", denylist_empty)
    assert outcome.fault is None
    assert not outcome.won
    assert outcome.envelope is not None
    assert outcome.envelope.score == 0, outcome.envelope


@DENYLISTS
@pytest.mark.parametrize("backend", ["subprocess-shared", "docker-shared"], indirect=True)
@pytest.mark.parametrize(
    "attack", [a for a in CORPUS if a.id not in UNSTOPPED_IN_ONE_PROCESS], ids=named
)
def test_one_process_stops_these(attack: Attack, denylist_empty: bool, sandbox: Sandbox) -> None:
    """In one process no wrong program passes either, but for a few that nothing there can stop."""
    outcome = run_attack(sandbox, attack, "shared", denylist_empty)
    assert outcome.fault is None
    assert not outcome.won


@pytest.mark.parametrize("backend", ["subprocess-shared"], indirect=True)
@pytest.mark.parametrize(
    "attack", [a for a in CORPUS if a.id in UNSTOPPED_IN_ONE_PROCESS], ids=named
)
def test_one_process_does_not_stop_these(attack: Attack, sandbox: Sandbox) -> None:
    """Each exception is one: it still wins."""
    assert run_attack(sandbox, attack, "shared", denylist_empty=True).won


def test_the_exceptions_are_few_and_of_the_corpus() -> None:
    """At most twelve, and no exit, no forged record and no changed framework among them."""
    exceptions = [attack for attack in CORPUS if attack.id in UNSTOPPED_IN_ONE_PROCESS]
    assert len(exceptions) == len(UNSTOPPED_IN_ONE_PROCESS) <= 12
    assert {"early exit", "forged record", "changed test framework"}.isdisjoint(
        attack.mechanism for attack in exceptions
    )


def test_table_counts_wins_by_mechanism() -> None:
    """The table has a row for each mechanism and a sum."""
    first, second = CORPUS[0], CORPUS[1]
    outcomes = {"a": [Outcome(first, True), Outcome(second, False)], "b": [Outcome(first, False)]}
    assert table(outcomes) == [
        ["mechanism", "attacks", "a", "b"],
        [first.mechanism, "2", "1", "0"],
        ["all", "2", "1", "0"],
    ]
