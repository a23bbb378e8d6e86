"""The corpus against every backend and both gradings: a pass of a wrong program is a defect."""

from __future__ import annotations

import pytest

from isograd import Sandbox, SubprocessSandbox
from isograd.contract import ExitCode
from isograd.redteam import CORPUS, MECHANISMS, Attack, Exam, Outcome, run_attack, table

STOPPED_IN_ONE_PROCESS = {
    "early exit",
    "forged record",
    "trace and hooks",
    "attacked watcher",
    "starved watcher",
    "left for the next",
    "blame on the grader",
}
"""Mechanisms that win nothing even where candidate and checks share one process."""


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
    "attack", [a for a in CORPUS if a.mechanism in STOPPED_IN_ONE_PROCESS], ids=named
)
def test_one_process_stops_these(attack: Attack, denylist_empty: bool, sandbox: Sandbox) -> None:
    """In one process, exits, forged records and attacks on the watcher win nothing either."""
    outcome = run_attack(sandbox, attack, "shared", denylist_empty)
    assert outcome.fault is None
    assert not outcome.won


def test_table_counts_wins_by_mechanism() -> None:
    """The table has a row for each mechanism and a sum."""
    first, second = CORPUS[0], CORPUS[1]
    outcomes = {"a": [Outcome(first, True), Outcome(second, False)], "b": [Outcome(first, False)]}
    assert table(outcomes) == [
        ["mechanism", "attacks", "a", "b"],
        [first.mechanism, "2", "1", "0"],
        ["all", "2", "1", "0"],
    ]
