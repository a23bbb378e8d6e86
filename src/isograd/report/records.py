"""The results file: a header, then one line a graded sample, appended as they come.

The header holds a digest of everything that the verdicts depend on; a run that resumes must have
the same. A line that was cut short is cut off and its sample is graded again. Samples that our
own side failed are not in the file, so that resuming grades them.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import ValidationError

from isograd.contract import Result
from isograd.errors import InputError, IsogradError

_VERSION = 1
_MARK = b'{"isograd_results":'


def digest_of(settings: dict[str, Any]) -> str:
    """The SHA-256 of settings, the same for equal settings."""
    text = json.dumps(settings, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


class ResultsFile:
    """A results file that is being written; locked until it is closed.

    ``settings`` are what the verdicts depend on. A file that exists is refused unless ``resume``,
    and then if its settings differ. ``done`` has what it held. Raises InputError; IsogradError
    where there is no room.
    """

    def __init__(self, path: Path, settings: dict[str, Any], *, resume: bool) -> None:
        self._path = path
        self._settings = settings
        self.done: list[Result] = []
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o644)
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}: choose another --out") from error
        try:
            self._refuse_special()
            self._lock()
            self._begin(resume)
        except BaseException:
            os.close(self._fd)
            raise

    def _refuse_special(self) -> None:
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            raise InputError(f"{self._path}: not a regular file: choose another --out")

    def _lock(self) -> None:
        try:
            import fcntl
        except ImportError:
            return self._lock_elsewhere()
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise self._taken() from error

    def _lock_elsewhere(self) -> None:
        try:
            import msvcrt

            msvcrt.locking(self._fd, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        except ImportError:
            return
        except OSError as error:
            raise self._taken() from error

    def _taken(self) -> InputError:
        return InputError(
            f"{self._path}: another run is writing it: wait for it, or choose another --out"
        )

    def _begin(self, resume: bool) -> None:
        size = os.fstat(self._fd).st_size
        if size and not resume:
            raise InputError(
                f"{self._path} exists: add --resume to go on with it, or choose another --out"
            )
        header = {
            "isograd_results": _VERSION,
            "digest": digest_of(self._settings),
            "settings": self._settings,
        }
        with open(os.dup(self._fd), "rb") as file:
            data_end = 0
            for number, line in enumerate(file, 1):
                if number == 1:
                    self._compare(line, header)
                if not line.endswith(b"\n"):
                    break
                data_end += len(line)
                if number > 1:
                    self.done.append(_parse(self._path, number, line))
        if data_end < size:
            os.ftruncate(self._fd, data_end)
        os.lseek(self._fd, 0, os.SEEK_END)
        if data_end == 0:
            self._write(header)

    def _compare(self, line: bytes, header: dict[str, Any]) -> None:
        if line.startswith(_MARK) and _line_of(header)[:-1].startswith(line):
            return  # this very header, cut short
        try:
            found = json.loads(line)
            version, digest, settings = (
                found[name] for name in ("isograd_results", "digest", "settings")
            )
            if not isinstance(settings, dict):
                raise TypeError
        except (ValueError, KeyError, TypeError, RecursionError):
            raise InputError(
                f"{self._path}, line 1: not a results file of isograd: choose another --out"
            ) from None
        if version != _VERSION:
            raise InputError(
                f"{self._path}: results of another version ({version}): choose another --out"
            )
        if digest != header["digest"]:
            differ = sorted(
                name
                for name in {*settings, *self._settings}
                if settings.get(name) != json.loads(json.dumps(self._settings.get(name)))
            )
            raise InputError(
                f"{self._path} was made with other settings ({', '.join(differ)}): "
                "repeat them, or choose another --out"
            )

    def append(self, result: Result) -> None:
        """Adds one result, in one write. A result without an envelope is not kept."""
        if result.envelope is not None:
            self._write(json.loads(result.model_dump_json(exclude={"fault"})))

    def _write(self, record: dict[str, Any]) -> None:
        view = memoryview(_line_of(record))
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            raise IsogradError(
                f"{self._path}: {error.strerror}: make room, then go on with --resume"
            ) from error

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _line_of(record: dict[str, Any]) -> bytes:
    return json.dumps(record, ensure_ascii=True, separators=(",", ":")).encode("ascii") + b"\n"


def _parse(path: Path, number: int, line: bytes) -> Result:
    try:
        return Result.model_validate_json(line)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"])) or "record"
        raise InputError(f"{path}, line {number}, field {where}: {problem['msg']}") from None


def read_results(path: Path) -> Iterator[Result]:
    """The results that a file holds. Raises InputError for a line that is none."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if number > 1 and line.endswith(b"\n"):
                yield _parse(path, number, line)
