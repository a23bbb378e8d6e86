"""Scratch: emptied whatever is in it, and nothing beyond it."""

from __future__ import annotations

import os
from pathlib import Path

from isograd.runner import scratch


def deep(place: Path, depth: int) -> None:
    fd = os.open(place, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(os.open("leaf", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)


def test_three_thousand_nested_directories_are_no_trouble(tmp_path: Path) -> None:
    """Depth beyond PATH_MAX and beyond the recursion limit is removed like any other."""
    deep(tmp_path, 3000)
    scratch.empty(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_every_kind_of_file_goes(tmp_path: Path) -> None:
    """Links, pipes, closed directories and odd names are removed."""
    (tmp_path / "file").write_text("x")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "dangling").symlink_to("nowhere")
    closed = tmp_path / "closed"
    closed.mkdir()
    (closed / "inside").write_text("x")
    (closed / "below").mkdir()
    closed.chmod(0)
    os.mkdir(os.fsencode(tmp_path) + b"/\xff\n")
    wide = tmp_path / "wide"
    wide.mkdir()
    for n in range(300):
        (wide / str(n)).mkdir()
    scratch.empty(str(tmp_path))
    assert os.listdir(tmp_path) == []


def test_no_link_is_followed(tmp_path: Path) -> None:
    """What a link points at stays as it was, mode included."""
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir(mode=0o750)
    inside.mkdir()
    (outside / "kept").write_text("x")
    (inside / "directory").symlink_to(outside)
    (inside / "file").symlink_to(outside / "kept")
    os.link(outside / "kept", inside / "hard")
    scratch.empty(str(inside))
    assert (outside / "kept").read_text() == "x"
    assert outside.stat().st_mode & 0o777 == 0o750
    assert list(inside.iterdir()) == []


def test_a_place_that_is_a_link_is_left_alone(tmp_path: Path) -> None:
    """A candidate that replaces its scratch by a link empties nothing."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "kept").write_text("x")
    (tmp_path / "link").symlink_to("real")
    scratch.empty(str(tmp_path / "link"))
    assert (tmp_path / "real" / "kept").exists()


def test_kept_names_are_kept(tmp_path: Path) -> None:
    """The lane's own directory survives the emptying of what is around it."""
    (tmp_path / "lane").mkdir()
    (tmp_path / "other").mkdir()
    scratch.empty(str(tmp_path), frozenset({"lane"}))
    assert [entry.name for entry in tmp_path.iterdir()] == ["lane"]


def test_usage_counts_bytes_and_files(tmp_path: Path) -> None:
    """Usage is what came since the start, and counting stops when there is too much."""
    (tmp_path / "before").write_bytes(b"x" * 5000)
    usage = scratch.Usage((str(tmp_path),), private=False)
    assert usage.now(100) == (0, 0)
    (tmp_path / "d").mkdir()
    for n in range(9):
        (tmp_path / "d" / str(n)).write_bytes(b"x" * 4096)
    used, files = usage.now(100)
    assert files == 10 and used >= 9 * 4096
    assert usage.now(3)[1] <= 5
