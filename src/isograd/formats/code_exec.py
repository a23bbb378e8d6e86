"""The code_exec task: a prompt, and targets that are assertions or expressions.

The model's reply is the whole program once its code has been extracted; nothing stands in
front of it. ``metadata.timeout_s`` and ``metadata.memory_mb`` win over the run's limits.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, ConfigDict, Field

from isograd.contract import Assertions, Task
from isograd.formats.record import Format, Record, TaskRecord


def _trimmed(prompt: str) -> str:
    if not prompt:
        raise ValueError("must not be empty")
    if prompt != prompt.rstrip():
        raise ValueError("must not end in whitespace")
    return prompt


class _Example(Record):
    model_config = ConfigDict(extra="forbid")

    prompt: str
    completion: str


class _Metadata(Record):
    timeout_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    memory_mb: int | None = Field(default=None, ge=16, lt=2**31)
    language: Literal["python", "python3"] | None = None


class CodeExecRecord(TaskRecord):
    """A line of a code_exec file; fields that it does not know are refused."""

    model_config = ConfigDict(extra="forbid")

    rules: ClassVar = {
        "task_id": "a string of letters, digits, _ and -",
        "category": "'code_exec'",
        "prompt": "a string",
        "targets": "a non-empty list of strings",
        "targets.*": "a string",
        "metric_name": "'code_exec'",
        "post_process": "'extract_code_block'",
        "few_shot_examples": "a list of at most 8 objects {prompt, completion}",
        "few_shot_examples.*": "an object {prompt, completion}",
        "few_shot_examples.*.prompt": "a string",
        "few_shot_examples.*.completion": "a string",
        "metadata": "an object",
        "metadata.timeout_s": "a positive number of seconds",
        "metadata.memory_mb": "an integer of at least 16",
        "metadata.language": "'python': other languages cannot be run",
    }

    task_id: str = Field(pattern=r"^[A-Za-z0-9_-]+$")
    category: Literal["code_exec"]
    prompt: Annotated[str, AfterValidator(_trimmed)]
    targets: list[str] = Field(min_length=1)
    metric_name: Literal["code_exec"]
    post_process: Literal["extract_code_block"]
    few_shot_examples: list[_Example] = Field(default=[], max_length=8)
    metadata: _Metadata = _Metadata()

    def to_task(self) -> Task:
        metadata: dict[str, Any] = self.metadata.model_dump(exclude_unset=True)
        if self.few_shot_examples:
            metadata["few_shot_examples"] = [e.model_dump() for e in self.few_shot_examples]
        named = metadata.get("entry_point")
        return Task(
            task_id=self.task_id,
            prompt=self.prompt,
            entry_point=named if isinstance(named, str) and named.isidentifier() else None,
            checks=Assertions(self.targets),
            reference=None,
            timeout_s=self.metadata.timeout_s,
            memory_mb=self.metadata.memory_mb,
            metadata=metadata,
        )


FORMAT = Format(
    name="code_exec",
    record=CodeExecRecord,
    marks=(frozenset({"targets"}), frozenset({"metric_name"}), frozenset({"post_process"})),
)
