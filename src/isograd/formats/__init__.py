"""Formats: a benchmark's own files in, tasks and samples out.

Everything in a file is validated before anything runs; what is wrong with it is an
``InputError`` that names file, line, field and rule.
"""

from isograd.formats.record import Format
from isograd.formats.samples import SampleSet, load_samples, truncate_at
from isograd.formats.tasks import FORMATS, TaskSet, load_tasks

__all__ = [
    "FORMATS",
    "Format",
    "SampleSet",
    "TaskSet",
    "load_samples",
    "load_tasks",
    "truncate_at",
]
