"""Claims about loading samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from isograd.contract import Sample
from isograd.errors import InputError
from isograd.formats import TaskSet, load_samples, load_tasks, truncate_at

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


def write(path: Path, *rows: dict[str, Any] | str) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def mbpp(task_id: int | str) -> dict[str, Any]:
    return {
        "task_id": task_id,
        "text": "t",
        "code": "def f(): return 1",
        "test_list": ["assert f() == 1"],
    }


@pytest.fixture
def tasks(tmp_path: Path) -> TaskSet:
    return load_tasks(write(tmp_path / "tasks.jsonl", mbpp(1), mbpp("two")))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "samples.jsonl"


def test_samples_are_numbered_as_they_come(file: Path, tasks: TaskSet) -> None:
    """Repeated task ids are numbered from 0 within their task, whatever stands between."""
    rows = [{"task_id": task, "completion": str(n)} for n, task in enumerate([1, "two", "1", 1])]
    samples = load_samples(write(file, *rows), tasks)
    assert [(s.task_id, s.index, s.text) for s in samples] == [
        ("1", 0, "0"),
        ("two", 0, "1"),
        ("1", 1, "2"),
        ("1", 2, "3"),
    ]
    assert samples.counts == {"1": 3, "two": 1}
    assert len(samples) == 4


@pytest.mark.parametrize(
    ("row", "text", "metadata"),
    [
        ({"completion": "c"}, "c", {}),
        ({"generation": "g"}, "g", {}),
        ({"solution": "s"}, "s", {"standalone": True}),
        (
            {"completion": "c", "solution": "s"},
            "s",
            {"completion": "c", "standalone": True},
        ),
        ({"completion": "c", "solution": None}, "c", {}),
        ({"completion": "c", "generation": "g"}, "c", {"generation": "g"}),
        ({"completion": "c", "recorded": "pass"}, "c", {"recorded": "pass"}),
        ({"completion": "c", "standalone": True}, "c", {}),
        ({"completion": ""}, "", {}),
        ({"completion": "\ud800"}, "\ud800", {}),
    ],
)
def test_the_text_of_a_sample(
    file: Path, tasks: TaskSet, row: dict[str, Any], text: str, metadata: dict[str, Any]
) -> None:
    """solution wins and is marked standalone, then completion, then generation; the rest stays."""
    samples = load_samples(write(file, {"task_id": 1} | row), tasks)
    assert list(samples) == [Sample(task_id="1", index=0, text=text, metadata=metadata)]


@pytest.mark.parametrize(
    ("row", "index", "metadata"),
    [
        ({"sample": 5}, 5, {}),
        ({"index": 6}, 6, {}),
        ({"sample": 5, "index": "row 9"}, 5, {"index": "row 9"}),
        ({"sample": None, "index": None}, 0, {}),
        ({"sample": 2**62}, 2**62, {}),
    ],
)
def test_the_index_of_a_sample(
    file: Path, tasks: TaskSet, row: dict[str, Any], index: int, metadata: dict[str, Any]
) -> None:
    """A sample's number is its field sample, else index, else the order of appearance."""
    (sample,) = load_samples(write(file, {"task_id": 1, "completion": ""} | row), tasks)
    assert (sample.index, sample.metadata) == (index, metadata)


BAD_ROWS: list[tuple[dict[str, Any] | str, str]] = [
    ({"completion": "c"}, "field 'task_id': is missing"),
    ({"task_id": 1}, "field 'completion': is missing: one of completion, solution, generation"),
    ({"task_id": 1, "completion": None}, "field 'completion': must be a string (got null)"),
    ({"task_id": 1, "completion": ["c"]}, "field 'completion': must be a string (got a list of 1)"),
    ({"task_id": 1, "solution": 1}, "field 'solution': must be a string (got 1)"),
    ({"task_id": None, "completion": ""}, "field 'task_id': must be a non-empty string or an int"),
    ({"task_id": True, "completion": ""}, "(got true)"),
    ({"task_id": "3", "completion": ""}, "field 'task_id': no such task in {tasks}: \"3\""),
    ({"task_id": "\ud800", "completion": ""}, "field 'task_id': must not contain a lone surrogate"),
    ({"task_id": 1, "completion": "", "sample": -1}, "must be an integer from 0 (got -1)"),
    ({"task_id": 1, "completion": "", "sample": "0"}, "field 'sample': must be an integer from 0"),
    ({"task_id": 1, "completion": "", "sample": 1.0}, "must be an integer from 0 (got 1.0)"),
    ({"task_id": 1, "completion": "", "sample": True}, "must be an integer from 0 (got true)"),
    ({"task_id": 1, "completion": "", "sample": 10**400}, "(got an integer of 1329 bits)"),
    ({"task_id": 1, "completion": "", "index": "a"}, "field 'index': must be an integer from 0"),
    ({"task_id": 1, "completion": "", "sample": float("nan")}, "field 'sample': must be a finite"),
    ({"task_id": "two", "completion": "", "sample": 0}, 'duplicate: task "two" already has a'),
    ('{"task_id": 1', "column 14: not JSON: Expecting ',' delimiter"),
    ("[]", "must be a JSON object (got [])"),
    ('{"task_id": 1, "completion": "", "completion": ""}', "field 'completion': stands twice"),
]


@pytest.mark.parametrize(("row", "message"), BAD_ROWS)
def test_bad_row(file: Path, tasks: TaskSet, row: dict[str, Any] | str, message: str) -> None:
    """A bad row is refused, before anything can run, with file, line, field and rule."""
    with pytest.raises(InputError) as caught:
        load_samples(write(file, {"task_id": "two", "completion": ""}, "", row), tasks)
    assert str(caught.value).startswith(f"{file}:3: ")
    assert message.replace("{tasks}", str(tasks.path)) in str(caught.value)


@pytest.mark.parametrize("first", [3, 5000, 2**40])
def test_duplicates_are_found_wherever_the_numbers_lie(
    file: Path, tasks: TaskSet, first: int
) -> None:
    """Numbers may be sparse and out of order, and a repeated one is still found."""
    rows = [{"task_id": 1, "completion": "", "sample": n} for n in [first, *range(3), first]]
    with pytest.raises(InputError, match=rf":5: .*already has a sample {first}"):
        load_samples(write(file, *rows), tasks)
    rows = [{"task_id": 1, "completion": "", "sample": n} for n in [7000, *range(7001)]]
    with pytest.raises(InputError, match=r":7002: .*already has a sample 7000"):
        load_samples(write(file, *rows), tasks)


def test_every_bad_row_is_counted(file: Path, tasks: TaskSet) -> None:
    """The first twenty bad rows are told and the others counted."""
    with pytest.raises(InputError) as caught:
        load_samples(write(file, *["{"] * 30), tasks)
    lines = str(caught.value).split("\n")
    assert len(lines) == 21
    assert lines[-1] == "and 10 more bad lines"


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_empty_file(file: Path, tasks: TaskSet, content: str) -> None:
    """A file without a sample is refused."""
    file.write_text(content)
    with pytest.raises(InputError, match="holds no samples"):
        load_samples(file, tasks)


def test_a_directory_and_a_missing_file(tmp_path: Path, tasks: TaskSet) -> None:
    """What is not a readable file is refused by name."""
    with pytest.raises(InputError, match="is a directory"):
        load_samples(tmp_path, tasks)
    with pytest.raises(InputError, match="nowhere: no such file"):
        load_samples(tmp_path / "nowhere", tasks)


def test_samples_of_a_rejected_task_are_skipped(tmp_path: Path, file: Path) -> None:
    """With bad tasks allowed, their samples are left out and counted, and no others are."""
    bad = mbpp("bad") | {"test_list": []}
    tasks = load_tasks(write(tmp_path / "t", mbpp(1), bad), allow_bad=True)
    rows = [{"task_id": task, "completion": ""} for task in ["bad", 1, "bad"]]
    samples = load_samples(write(file, *rows), tasks)
    assert (len(samples), samples.skipped) == (1, 2)
    assert [sample.task_id for sample in samples] == ["1"]
    with pytest.raises(InputError, match="no such task"):
        load_samples(write(file, *rows, {"task_id": "typo", "completion": ""}), tasks)


def test_samples_can_be_iterated_again(file: Path, tasks: TaskSet) -> None:
    """Every iteration yields the same samples."""
    samples = load_samples(write(file, {"task_id": 1, "completion": "a"}), tasks)
    assert list(samples) == list(samples)


def test_a_file_that_changes_is_noticed(file: Path, tasks: TaskSet) -> None:
    """A file that changed after it was validated is refused, not graded half and half."""
    samples = load_samples(write(file, {"task_id": 1, "completion": "a"}), tasks)
    write(file, {"task_id": 1, "completion": "abc"})
    with pytest.raises(InputError, match="the file changed since it was validated"):
        list(samples)


@pytest.mark.parametrize(
    ("stops", "kept"),
    [
        ([], "a\ndef b\nclass c"),
        (["\nclass", "\ndef"], "a"),
        (["\nclass"], "a\ndef b"),
        (["a"], ""),
        (["\nif"], "a\ndef b\nclass c"),
    ],
)
def test_truncate_at(stops: list[str], kept: str) -> None:
    """A text is cut before the first occurrence of any stop string."""
    assert truncate_at("a\ndef b\nclass c", stops) == kept


@pytest.mark.parametrize("stops", [[""], "\ndef"])
def test_truncate_at_refuses_what_cannot_be_meant(stops: Any) -> None:
    """An empty stop string, or one string for a list, is refused."""
    with pytest.raises(InputError, match="stop strings"):
        truncate_at("text", stops)


@pytest.mark.parametrize(
    ("name", "tasks_name", "count"),
    [
        ("humaneval-gpt-4.samples.jsonl.gz", "humaneval", 1640),
        ("humaneval-gpt-3.5-turbo.samples.jsonl.gz", "humaneval", 1640),
        ("humaneval-codegen16b.samples.jsonl.gz", "codet-humaneval", 16400),
        ("humaneval-deepseek-chat.samples.jsonl", "humaneval", 30),
    ],
)
def test_real_files(name: str, tasks_name: str, count: int) -> None:
    """The published generations load whole, each under its own number."""
    if not (DATA / name).exists():
        pytest.skip(f"{name} is not beside the project")
    samples = load_samples(DATA / name, load_tasks(DATA / f"{tasks_name}.tasks.jsonl.gz"))
    assert len(samples) == count
    assert len({(sample.task_id, sample.index) for sample in samples}) == count
