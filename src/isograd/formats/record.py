"""Records: what one line of a benchmark's file must look like, and the task it stands for."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from isograd.contract import Task
from isograd.formats.jsonl import shown


class FieldError(Exception):
    """A field of a record breaks a rule; whoever knows file and line makes it a LineError."""

    def __init__(self, field: str, rule: str) -> None:
        super().__init__(field, rule)
        self.field = field
        self.rule = rule


class Record(BaseModel):
    """One line of a file, checked strictly: no type is ever converted.

    ``rules`` says of each field what it must be, for the error message; the name of a field
    inside a field is dotted, and an item of a list is ``name.*``.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")

    rules: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> Self:
        """The record, or a FieldError for its first broken rule."""
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            details = error.errors(include_url=False)
            raise _field_error(details[0], cls.rules) from None

    @property
    def extra(self) -> dict[str, Any]:
        """The fields that the format does not know."""
        return dict(self.model_extra or {})


class TaskRecord(Record):
    """A record that stands for a task."""

    def to_task(self) -> Task:
        raise NotImplementedError


@dataclass(frozen=True)
class Format:
    """A benchmark's format: how to know it, read it and, for some, find it.

    A file is of this format if its first record has all of one of the sets in ``marks``.
    """

    name: str
    record: type[TaskRecord]
    marks: tuple[frozenset[str], ...]
    packaged: Callable[[], Path] | None = field(default=None)

    def matches(self, keys: set[str]) -> bool:
        return any(mark <= keys for mark in self.marks)


def _normalise_id(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63:
        return str(value)
    return value


def _identifier(value: str) -> str:
    if not value.isidentifier() or keyword.iskeyword(value):
        raise ValueError("must be a Python name")
    return value


TaskId = Annotated[str, BeforeValidator(_normalise_id)]
"""A task id; MBPP numbers its tasks, and the number becomes a string."""

Identifier = Annotated[str, AfterValidator(_identifier)]


def _field_error(details: ErrorDetails, rules: Mapping[str, str]) -> FieldError:
    location = details["loc"]
    name = ""
    for part in location:
        name += f"[{part}]" if isinstance(part, int) else f".{part}" if name else part
    key = ".".join("*" if isinstance(part, int) else part for part in location)
    match details["type"]:
        case "missing":
            rule = f"is missing: must be {rules[key]}" if key in rules else "is missing"
        case "extra_forbidden":
            known = ", ".join(key for key in rules if "." not in key)
            rule = f"is not a known field (known: {known})"
        case "string_unicode":
            rule = f"must not contain a lone surrogate (got {shown(details['input'])})"
        case "value_error":
            rule = f"{details['ctx']['error']} (got {shown(details['input'])})"
        case _:
            must = f"must be {rules[key]}" if key in rules else details["msg"]
            rule = f"{must} (got {shown(details['input'])})"
    return FieldError(name, rule)
