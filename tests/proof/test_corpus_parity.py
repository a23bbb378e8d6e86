"""The adversarial corpus gets the same verdicts behind every wall."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from isograd import Sandbox
from isograd.parity import compare
from isograd.redteam import CORPUS


@pytest.mark.parametrize("denylist_empty", [False, True], ids=["denylist", "open"])
def test_the_walls_agree_on_every_attack(
    make_sandbox: Callable[[str], Callable[[], Sandbox]], denylist_empty: bool
) -> None:
    """No attack gets one verdict from a subprocess and another from a container."""
    sides = {name: make_sandbox(name) for name in ("subprocess", "docker", "bubblewrap")}
    again = {name: make_sandbox(f"{name}-fresh") for name in sides}
    jobs = [
        attack.tests.job(code, grading="split", denylist_empty=denylist_empty).model_copy(
            update={"task_id": attack.id, "sample": number}
        )
        for attack in CORPUS
        for number, code in enumerate((*attack.before, attack.code))
    ]
    outcome = compare(jobs, sides, again=again, by="verdict", accepted=())
    for difference in outcome.differences:
        print(f"  {difference.kind}: {difference.task_id} sample {difference.sample}")
        for side, envelopes in difference.envelopes.items():
            print("   ", side, *{(e.exit_code, e.reason, e.per_assertion) for e in envelopes})
    print(f"{outcome.jobs} jobs, {outcome.identical} identical")
    assert outcome.count("divergent") == 0
    assert outcome.faults == []
