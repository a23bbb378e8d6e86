"""The cases: real-world trouble in one JSON line each, as jobs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isograd import Assertions, Job, Limits
from isograd.scoring import extract
from isograd.scoring.code_exec import names_of

FILE = Path(__file__).resolve().parents[1] / "cases.jsonl"


@dataclass(frozen=True)
class Case:
    """One runnable case: its job, and the verdicts that are right."""

    id: str
    fields: dict[str, Any]

    @property
    def packages(self) -> tuple[str, ...]:
        return tuple(self.fields.get("requires", ()))

    @property
    def job(self) -> Job:
        fields = self.fields
        code = fields.get("code")
        if "code_expr" in fields:
            code = eval(fields["code_expr"])
        tests = eval(fields["tests_expr"]) if "tests_expr" in fields else fields["tests"]
        checks = Assertions(tests)
        entry_point = fields.get("entry_point")
        if "generation" in fields:
            code = extract(fields["generation"], "auto", names_of(checks, entry_point))
        return Job(
            code=code,
            checks=checks,
            entry_point=entry_point,
            limits=Limits(timeout_s=fields.get("timeout_s", 3.0)),
            task_id=self.id,
        )

    @property
    def right_exit_codes(self) -> set[str]:
        expect = self.fields["expect"]
        return {expect["exit_code"], *expect.get("exit_code_any", ())}

    @property
    def right_scores(self) -> set[float]:
        expect = self.fields["expect"]
        return {expect["score"], *expect.get("score_any", ())}


def cases() -> list[Case]:
    """Every case that runs a program."""
    rows = [json.loads(line) for line in FILE.read_text("utf-8").splitlines()]
    return [Case(row["id"], row) for row in rows if row["runnable"] and "expect" in row]
