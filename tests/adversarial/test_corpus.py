"""The corpus against every backend and both gradings: a pass of a wrong program is a defect."""

from __future__ import annotations

import pytest

from isograd import Sandbox, SubprocessSandbox
from isograd.contract import ExitCode
from isograd.redteam import CORPUS, MECHANISMS, Attack, Exam, Outcome, run_attack, table

IN_PROCESS = {
    "frame-send": "it calls the sender that it finds in the frames above, as the runner would",
    "frame-send-in-call": "as frame-send, from inside a check",
    "frame-key": "it reads the key of the records where the runner keeps it",
    "frame-constants": "it reads the wanted value in the check's own code: an oracle, no forgery",
    "frame-traceback": "as frame-constants, through an exception's traceback",
    "frame-generator": "as frame-constants, through inspect.stack()",
    "heap-gc-send": "as frame-send, through the collector's objects",
    "heap-own-memory": "the text of the checks is in its own memory",
    "callback-eval": "the check itself hands it eval, and there is one process to evaluate in",
    "callback-getattr-equality": "the check itself hands it getattr, and there is one process",
    "equal-length-lies-twice": "the length and the items are asked of one object, its own",
}
"""Attacks that win in shared grading, and why nothing in their own process can stop them."""


def named(attack: Attack) -> str:
    return attack.id


def test_the_corpus_is_large_and_its_names_are_unique() -> None:
    assert len(CORPUS) >= 80
    assert len(MECHANISMS) >= 20
    assert len({attack.id for attack in CORPUS}) == len(CORPUS)
    for attack in CORPUS:
        compile(attack.code, attack.id, "exec")
        assert attack.wins


def test_exceptions_are_few_and_none_is_an_exit_a_forged_record_or_a_changed_framework() -> None:
    mechanisms = {attack.id: attack.mechanism for attack in CORPUS}
    assert len(IN_PROCESS) <= 12
    assert not {mechanisms[name] for name in IN_PROCESS} & {
        "early exit",
        "exception as an end",
        "forged record",
        "changed test framework",
    }


def test_every_task_can_be_solved() -> None:
    tasks: list[Exam] = list({id(attack.tests): attack.tests for attack in CORPUS}.values())
    with SubprocessSandbox(allow_code_exec=True) as sandbox:
        for tests in tasks:
            for grading in ("split", "shared"):
                envelope = sandbox.run(tests.job(tests.reference, grading=grading))
                assert envelope.exit_code == ExitCode.PASS, (tests.checks, envelope)


@pytest.mark.parametrize("denylist_empty", [False, True], ids=["denied", "open"])
@pytest.mark.parametrize("attack", CORPUS, ids=named)
def test_no_attack_wins(
    attack: Attack, denylist_empty: bool, backend: str, sandbox: Sandbox
) -> None:
    shared = backend.endswith("-shared")
    if shared and attack.id in IN_PROCESS:
        pytest.skip(f"shared grading: {IN_PROCESS[attack.id]}")
    outcome = run_attack(sandbox, attack, "shared" if shared else "split", denylist_empty)
    assert outcome.fault is None
    assert not outcome.won
    assert outcome.envelope is not None
    if not shared:
        assert outcome.envelope.score == 0, outcome.envelope


@pytest.mark.parametrize("name", IN_PROCESS)
def test_exceptions_of_shared_grading_do_not_win_in_split(name: str) -> None:
    attack = next(attack for attack in CORPUS if attack.id == name)
    with SubprocessSandbox(allow_code_exec=True) as sandbox:
        assert not run_attack(sandbox, attack, "split", True).won


def test_table_counts_wins_by_mechanism() -> None:
    first, second = CORPUS[0], CORPUS[1]
    outcomes = {"a": [Outcome(first, True), Outcome(second, False)], "b": [Outcome(first, False)]}
    assert table(outcomes) == [
        ["mechanism", "attacks", "a", "b"],
        [first.mechanism, "2", "1", "0"],
        ["all", "2", "1", "0"],
    ]
