"""The results file keeps what was graded, and never harms a file that it does not own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from isograd import Envelope, InputError, Measurement, Result
from isograd.report import ResultsFile, digest_of, read_results

SETTINGS: dict[str, Any] = {"tasks": "a", "limits": {"timeout_s": 3.0}, "stops": ["\n\n", "é"]}


def _result(sample: int = 0) -> Result:
    envelope = Envelope(
        exit_code="pass",
        score=1.0,
        passed=1,
        total=1,
        per_assertion=(True,),
        stdout="line\none é \u2028 \x00",
    )
    return Result(
        task_id="HumanEval/0",
        sample=sample,
        envelope=envelope,
        measurement=Measurement(wall_s=0.25, backend="fake"),
    )


def _file(path: Path, samples: int = 3, settings: dict[str, Any] | None = None) -> bytes:
    with ResultsFile(path, settings or SETTINGS, resume=False) as file:
        for sample in range(samples):
            file.append(_result(sample))
    return path.read_bytes()


def test_what_was_written_is_what_resuming_finds(tmp_path: Path) -> None:
    """Results come back equal, measurements and all, and new ones go behind them."""
    path = tmp_path / "results.jsonl"
    _file(path)
    with ResultsFile(path, SETTINGS, resume=True) as file:
        assert file.done == [_result(0), _result(1), _result(2)]
        file.append(_result(3))
    assert list(read_results(path)) == [_result(sample) for sample in range(4)]


def test_each_line_is_one_object(tmp_path: Path) -> None:
    """A header with the digest of the settings, then one line a result, whatever they hold."""
    header, *results = _file(tmp_path / "results.jsonl").decode("ascii").splitlines()
    assert json.loads(header) == {
        "isograd_results": 1,
        "digest": digest_of(SETTINGS),
        "settings": SETTINGS,
    }
    assert [json.loads(line)["sample"] for line in results] == [0, 1, 2]


def test_a_result_without_a_verdict_is_not_kept(tmp_path: Path) -> None:
    """What our own side failed is graded again by the run that resumes."""
    path = tmp_path / "results.jsonl"
    with ResultsFile(path, SETTINGS, resume=False) as file:
        file.append(Result(task_id="t", sample=0, envelope=None, fault="the lane died"))
    assert list(read_results(path)) == []


def test_a_file_that_exists_is_not_touched_unless_asked(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    before = _file(path)
    with pytest.raises(InputError, match="add --resume to go on with it"):
        ResultsFile(path, SETTINGS, resume=False)
    assert path.read_bytes() == before


@pytest.mark.parametrize("resume", [True, False])
def test_an_empty_file_is_a_new_one(tmp_path: Path, resume: bool) -> None:
    """Neither ``--resume`` on a file that is not there yet nor one made by touch is an error."""
    path = tmp_path / "results.jsonl"
    path.touch()
    with ResultsFile(path, SETTINGS, resume=resume) as file:
        assert file.done == []
        file.append(_result())
    assert list(read_results(path)) == [_result()]


def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    """Verdicts under different settings never stand in one file."""
    path = tmp_path / "results.jsonl"
    before = _file(path)
    others = {**SETTINGS, "tasks": "b", "extraction": "first"}
    with pytest.raises(InputError, match=r"other settings \(extraction, tasks\)"):
        ResultsFile(path, others, resume=True)
    assert path.read_bytes() == before


def test_the_digest_is_of_the_settings_and_not_of_their_order() -> None:
    backwards = dict(reversed(SETTINGS.items()))
    assert digest_of(backwards) == digest_of(SETTINGS)
    assert digest_of({**SETTINGS, "stops": ["\n\n"]}) != digest_of(SETTINGS)


@pytest.mark.parametrize("lost", [1, 2, 40])
def test_a_torn_last_line_is_cut_off(tmp_path: Path, lost: int) -> None:
    """Its sample counts as not graded; the lines before it stand."""
    path = tmp_path / "results.jsonl"
    path.write_bytes(_file(path)[:-lost])
    assert len(list(read_results(path))) == 2
    with ResultsFile(path, SETTINGS, resume=True) as file:
        assert [result.sample for result in file.done] == [0, 1]
        file.append(_result(2))
    assert list(read_results(path)) == [_result(sample) for sample in range(3)]


@pytest.mark.parametrize("kept", [19, 60, -1])
def test_a_torn_header_is_written_again(tmp_path: Path, kept: int) -> None:
    """A run that was killed in its first write can be resumed."""
    path = tmp_path / "results.jsonl"
    whole = _file(path, samples=0)
    path.write_bytes(whole[:kept])
    with ResultsFile(path, SETTINGS, resume=True) as file:
        assert file.done == []
    assert path.read_bytes() == whole


@pytest.mark.parametrize("resume", [True, False])
@pytest.mark.parametrize(
    "content",
    [
        b"my notes",
        b"my notes\nand more\n",
        b"{",
        b'{"task_id": "t", "completion": "x"}',
        b'{"task_id": "t", "completion": "x"}\n',
        b'[1, 2]\n{"isograd_results": 1}\n',
        b'{"isograd_results":1,"digest":"00',
        b'{"isograd_results":2,"digest":"","settings":{}}\n',
        b'{"isograd_results":1,"digest":"","settings":[]}\n',
        b'{"isograd_results":1,"digest":"","settings":null}\n',
        b"\xff\xfe\x00\n",
        b"\n",
        b"\x1f\x8b\x08\x00",
    ],
)
def test_a_file_of_somebody_elses_is_not_harmed(
    tmp_path: Path, content: bytes, resume: bool
) -> None:
    """Whatever --out names by mistake keeps every byte, also where it has no whole line."""
    path = tmp_path / "notes"
    path.write_bytes(content)
    with pytest.raises(InputError, match="choose another --out"):
        ResultsFile(path, SETTINGS, resume=resume)
    assert path.read_bytes() == content


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    """It is not skipped, for nobody can tell what else is wrong; the file keeps every byte."""
    path = tmp_path / "results.jsonl"
    lines = _file(path).splitlines(keepends=True)
    lines[2] = lines[2].replace(b'"pass"', b'"perhaps"')
    path.write_bytes(b"".join(lines))
    with pytest.raises(InputError, match=r"line 3, field envelope\.exit_code"):
        ResultsFile(path, SETTINGS, resume=True)
    assert path.read_bytes() == b"".join(lines)


def test_a_file_is_locked_while_a_run_writes_it(tmp_path: Path) -> None:
    """The second run is refused, and may have the file once the first has ended."""
    path = tmp_path / "results.jsonl"
    with ResultsFile(path, SETTINGS, resume=False):
        for resume in (True, False):
            with pytest.raises(InputError, match="another run is writing it"):
                ResultsFile(path, SETTINGS, resume=resume)
    with ResultsFile(path, SETTINGS, resume=True) as file:
        assert file.done == []


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("missing/results.jsonl", "No such file or directory"),
        (".", "Is a directory"),
        ("/dev/null", "not a regular file"),
        ("/dev/zero", "not a regular file"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path, place: str, why: str) -> None:
    """A device would swallow the results, or be read for ever."""
    with pytest.raises(InputError, match=f"{why}: choose another --out"):
        ResultsFile(tmp_path / place, SETTINGS, resume=True)
