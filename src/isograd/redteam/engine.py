"""Runs attacks on a grader and counts what they win."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from isograd.contract import Envelope
from isograd.errors import SandboxError
from isograd.sandbox import Sandbox

from .attack import Attack
from .corpus import CORPUS


@dataclass(frozen=True)
class Outcome:
    """What one attack got: ``won`` is a pass, ``fault`` what kept the grader from a verdict."""

    attack: Attack
    won: bool
    envelope: Envelope | None = None
    fault: str | None = None


def run_attacks(
    make: Callable[[], Sandbox],
    *,
    grading: Literal["split", "shared"] = "split",
    denylist_empty: bool = False,
    attacks: Sequence[Attack] = CORPUS,
) -> list[Outcome]:
    """Runs each attack on one sandbox of ``make``'s, what comes before it first."""
    with make() as sandbox:
        return [run_attack(sandbox, attack, grading, denylist_empty) for attack in attacks]


def run_attack(
    sandbox: Sandbox,
    attack: Attack,
    grading: Literal["split", "shared"] = "split",
    denylist_empty: bool = False,
) -> Outcome:
    """Runs one attack; a fault of the sandbox's is an outcome too."""
    envelope = None
    won = False
    try:
        for code in (*attack.before, attack.code):
            job = attack.tests.job(code, grading=grading, denylist_empty=denylist_empty)
            envelope = sandbox.run(job)
            won = won or envelope.exit_code == "pass"
    except SandboxError as error:
        return Outcome(attack, won, None, f"{type(error).__name__}: {error}")
    return Outcome(attack, won, envelope)


def run_against_command(
    command: Sequence[str],
    attacks: Sequence[Attack] = CORPUS,
    *,
    jobs: int = 1,
    timeout_s: float = 20.0,
) -> list[Outcome]:
    """Runs each attack through a grader that is a command: ``CMD CANDIDATE.py TESTS.json``.

    Exit status 0 is a pass and anything else a fail; what it prints is ignored. TESTS.json holds
    ``checks`` (assertion strings), ``setup``, ``program`` (source with a ``check``, or empty),
    ``entry_point`` and ``prompt``. The command runs the candidate as it sees fit, so it belongs
    inside a container of its own: this function adds no wall.
    """

    def one(attack: Attack) -> Outcome:
        won = False
        for code in (*attack.before, attack.code):
            status = _status(command, code, tests_of(attack), timeout_s)
            if status is None:
                return Outcome(attack, won, fault=f"no answer in {timeout_s:g}s")
            won = won or status == 0
        return Outcome(attack, won)

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, attacks))


def tests_of(attack: Attack) -> dict[str, Any]:
    """The tests of an attack as a command reads them."""
    tests = attack.tests
    return {
        "checks": list(tests.checks),
        "setup": tests.setup,
        "program": tests.program,
        "entry_point": tests.entry_point,
        "prompt": tests.prompt,
    }


def _status(
    command: Sequence[str], code: str, tests: dict[str, Any], timeout_s: float
) -> int | None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        candidate, given = Path(place, "candidate.py"), Path(place, "tests.json")
        candidate.write_text(code, encoding="utf-8", errors="surrogatepass")
        given.write_text(json.dumps(tests), encoding="ascii")
        try:
            return subprocess.run(
                [*command, str(candidate), str(given)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=timeout_s,
                start_new_session=True,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            return None


def table(outcomes: Mapping[str, Sequence[Outcome]]) -> list[list[str]]:
    """Rows to print, the heading first: mechanism, attacks, and what each grader lets win."""
    graders = list(outcomes)
    found: dict[str, dict[str, list[Outcome]]] = {}
    for grader in graders:
        for outcome in outcomes[grader]:
            of = found.setdefault(outcome.attack.mechanism, {})
            of.setdefault(grader, []).append(outcome)
    rows = [["mechanism", "attacks", *graders]]
    for mechanism, of in found.items():
        attacks = max(len(of.get(grader, ())) for grader in graders)
        rows.append([mechanism, str(attacks), *(_wins(of.get(grader, ())) for grader in graders)])
    total = max((len(some) for some in outcomes.values()), default=0)
    rows.append(["all", str(total), *(_wins(outcomes[grader]) for grader in graders)])
    return rows


def _wins(outcomes: Sequence[Outcome]) -> str:
    return str(sum(outcome.won for outcome in outcomes))
