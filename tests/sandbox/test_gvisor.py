"""gVisor, where it is installed: another kernel, and the same verdicts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Literal

import pytest

from isograd import Assertions, Envelope, Job, Limits, Sandbox, SandboxCrashed

RIGHT = "def f(items):\n    items.append(1)\n    return len(items)\n"


@pytest.mark.parametrize("grading", ["split", "shared"])
def test_gvisor_judges_as_the_others_do(
    make_sandbox: Callable[[str], Callable[[], Sandbox]], grading: Literal["split", "shared"]
) -> None:
    """A right program passes, a wrong one does not, one that leaves is seen; its own deaths are
    faults and no verdicts."""
    with make_sandbox("gvisor")() as sandbox:

        def verdict(code: str) -> Envelope:
            job = Job(
                code=code,
                checks=Assertions(["f([]) == 1", "(a := [0]) and f(a) == 2 and a == [0, 1]"]),
                limits=Limits(timeout_s=20),
                grading=grading,
            )
            for _ in range(3):
                with contextlib.suppress(SandboxCrashed):
                    return sandbox.run(job)
            pytest.skip("gVisor died three times")

        assert verdict(RIGHT).exit_code == "pass"
        assert verdict(RIGHT.replace("1)", "2)")).per_assertion == (True, False)
        assert verdict(f"{RIGHT}raise SystemExit(0)\n").reason == "early_exit"
