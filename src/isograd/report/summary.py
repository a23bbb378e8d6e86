"""The summary of a batch: what its table and its JSON object show."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from typing import Any

from isograd.contract import ExitCode, Result
from isograd.scoring import bootstrap_interval, pass_at_k_estimator, undefined_ks

_SLOWEST = 5


class Summary:
    """Counts results as they come; keeps one bit a sample and nothing else that grows."""

    def __init__(self) -> None:
        self.samples = 0
        self.merged = 0
        self.retried = 0
        self.retries_changed = 0
        self.exit_codes: Counter[str] = Counter({code.value: 0 for code in ExitCode})
        self.reasons: Counter[str] = Counter()
        self.faults: list[tuple[str, int, str]] = []
        self._passed: dict[str, list[bool]] = {}
        self._scores = 0.0
        self._slowest: list[tuple[float, str, int, str]] = []

    def add(self, result: Result) -> None:
        if result.envelope is None:
            self.faults.append((result.task_id, result.sample, result.fault or ""))
            return
        envelope = result.envelope
        self.samples += 1
        self.exit_codes[envelope.exit_code.value] += 1
        if envelope.reason is not None:
            self.reasons[envelope.reason.value] += 1
        passed = envelope.exit_code is ExitCode.PASS
        self._passed.setdefault(result.task_id, []).append(passed)
        self._scores += envelope.score
        measurement = result.measurement
        if measurement is not None and measurement.merged:
            self.merged += 1
            return
        wall_s = measurement.wall_s if measurement else 0.0
        row = (wall_s, result.task_id, result.sample, envelope.exit_code.value)
        if len(self._slowest) < _SLOWEST:
            heapq.heappush(self._slowest, row)
        else:
            heapq.heappushpop(self._slowest, row)

    @property
    def mean_score(self) -> float:
        """The mean score of the samples that have a verdict, 0.0 … 1.0."""
        return self._scores / self.samples if self.samples else 0.0

    def pass_at_k(self, ks: Sequence[int]) -> dict[int, float]:
        return pass_at_k_estimator(list(self._passed.values()), ks)

    def as_json(self, ks: Sequence[int]) -> dict[str, Any]:
        """The object that ``isograd run --json`` prints."""
        samples = list(self._passed.values())
        estimates = self.pass_at_k(ks)
        return {
            "samples": self.samples,
            "tasks": len(samples),
            "merged": self.merged,
            "mean_score": self.mean_score,
            "exit_codes": dict(self.exit_codes),
            "reasons": dict(sorted(self.reasons.items())),
            "pass_at_k": {str(k): value for k, value in estimates.items()},
            "pass_at_k_interval": {str(k): list(bootstrap_interval(samples, k)) for k in estimates},
            "pass_at_k_undefined": {str(k): why for k, why in undefined_ks(samples, ks).items()},
            "slowest": [
                {"task_id": task_id, "sample": sample, "exit_code": code, "wall_s": wall_s}
                for wall_s, task_id, sample, code in sorted(self._slowest, reverse=True)
            ],
            "timeouts_retried": {"retried": self.retried, "changed": self.retries_changed},
            "infrastructure_faults": [
                {"task_id": task_id, "sample": sample, "fault": fault}
                for task_id, sample, fault in self.faults
            ],
        }
