"""JSON Lines, read strictly: plain or gzip, UTF-8, one object a line.

A line that is wrong is yielded as a ``LineError``, so that a reader can report every bad
line of a file. What makes the rest of a file unreadable (it is missing, a directory, a
damaged gzip stream) is raised as an ``InputError``.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import stat
import tempfile
import weakref
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from isograd.errors import InputError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

GZIP_MAGIC = b"\x1f\x8b"
MAX_DEPTH = 100
"""How deep objects and lists may nest: far above any benchmark, far below Python's limit."""
MAX_LINE_BYTES = 2**28
SHOWN_ERRORS = 20


class LineError(InputError):
    """One line of a file breaks a rule. ``task_id`` is what the line calls itself, if it does."""

    def __init__(
        self, path: Path, line: int, rule: str, *, field: str = "", task_id: str | None = None
    ) -> None:
        field = field if field.isprintable() else ascii(field)[1:-1]
        field = field if len(field) <= 80 else field[:80] + "…"
        where = f"field '{field}': " if field else ""
        super().__init__(f"{path}:{line}: {where}{rule}")
        self.line = line
        self.field = field
        self.rule = rule
        self.task_id = task_id


class ErrorList:
    """Bad lines on their way to one message: all are counted, the first twenty are kept."""

    def __init__(self) -> None:
        self.first: list[InputError] = []
        self.count = 0

    def add(self, error: InputError) -> None:
        self.count += 1
        if len(self.first) < SHOWN_ERRORS:
            self.first.append(error)

    def raise_if_any(self, advice: str = "") -> None:
        if not self.count:
            return
        lines = [str(error) for error in self.first]
        if self.count > len(self.first):
            lines.append(f"and {self.count - len(self.first)} more bad lines")
        if advice:
            lines.append(advice)
        raise InputError("\n".join(lines))


class JsonlFile:
    """A JSONL file that can be read more than once, and notices when it has changed.

    ``sha256`` is the digest of the file's raw bytes, compressed or not, known once
    ``records()`` has been read to its end. What is not a regular file (a pipe) is copied
    to a temporary file first.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.sha256 = ""
        self._stamp: tuple[int, int] | None = None
        self._copy: IO[bytes] | None = None

    def records(self) -> Iterator[tuple[int, dict[str, Any] | LineError]]:
        """Each line that is not blank: its number, from 1, and its object or what is wrong."""
        for number, offset, line in self._lines():
            try:
                yield number, _decode(line, offset)
            except _BadLine as bad:
                yield (
                    number,
                    LineError(
                        self.path, number, bad.rule, field=bad.field, task_id=_salvage_id(line)
                    ),
                )

    def _lines(self) -> Iterator[tuple[int, int, bytes]]:
        digest = hashlib.sha256()
        number = offset = 0
        try:
            with self._open() as file, io.BufferedReader(_Tee(file, digest), 2**16) as raw:
                zipped = raw.peek(2)[:2] == GZIP_MAGIC
                text: io.BufferedIOBase = gzip.GzipFile(fileobj=raw, mode="rb") if zipped else raw
                while line := text.readline(MAX_LINE_BYTES):
                    number += 1
                    if len(line) == MAX_LINE_BYTES:
                        raise InputError(
                            f"{self.path}:{number}: a line is longer than {MAX_LINE_BYTES} bytes"
                        )
                    start = 3 if number == 1 and line.startswith(b"\xef\xbb\xbf") else 0
                    if body := line[start:].strip():
                        yield number, offset + line.index(body[:1], start), body
                    offset += len(line)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InputError(
                f"{self.path}:{number + 1}: the gzip stream is damaged or cut short ({error})"
            ) from error
        except (OSError, ValueError) as error:
            raise InputError(f"{self.path}: {_os_rule(error)}") from error
        if self.sha256 and digest.hexdigest() != self.sha256:
            raise InputError(f"{self.path}: the file changed while it was read")
        self.sha256 = digest.hexdigest()

    def _open(self) -> IO[bytes]:
        if self._copy is not None:
            return _reopened(self._copy)
        file = self.path.open("rb", buffering=0)
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            with file:
                self._copy = tempfile.TemporaryFile()  # noqa: SIM115  it lives as long as self
                weakref.finalize(self, self._copy.close)
                shutil.copyfileobj(file, self._copy)
                self._copy.flush()
            return _reopened(self._copy)
        stamp = (status.st_size, status.st_mtime_ns)
        if self._stamp not in (None, stamp):
            file.close()
            raise InputError(f"{self.path}: the file changed since it was validated")
        self._stamp = stamp
        return file


class _Tee(io.RawIOBase):
    """A raw reader that hashes what passes through it."""

    def __init__(self, file: IO[bytes], digest: hashlib._Hash) -> None:
        self._file = file
        self._digest = digest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        chunk = self._file.read(len(memoryview(buffer)))
        self._digest.update(chunk)
        memoryview(buffer)[: len(chunk)] = chunk
        return len(chunk)


def _reopened(copy: IO[bytes]) -> IO[bytes]:
    file = os.fdopen(os.dup(copy.fileno()), "rb")
    file.seek(0)
    return file


def _os_rule(error: OSError | ValueError) -> str:
    match error:
        case FileNotFoundError():
            return "no such file"
        case IsADirectoryError():
            return "is a directory, not a file"
        case PermissionError():
            return "permission denied"
        case OSError():
            return error.strerror or str(error)
        case _:
            return f"not a file name ({error})"


class _BadLine(Exception):
    def __init__(self, rule: str, field: str = "") -> None:
        super().__init__(rule)
        self.rule = rule
        self.field = field


class _DuplicateKey(Exception):
    pass


class _NotFinite(Exception):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _DuplicateKey(key)
            seen.add(key)
    return fields


def _finite(text: str) -> float:
    number = float(text)
    if number - number != 0.0:
        raise _NotFinite
    return number


_STRICT = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_finite, parse_float=_finite)


def _decode(line: bytes, offset: int) -> dict[str, Any]:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _BadLine(f"not UTF-8 at byte offset {offset + error.start} of the text") from None
    try:
        try:
            value = _STRICT.decode(text)
        except _NotFinite:
            field, found = _first_not_finite(json.loads(text))
            raise _BadLine(f"must be a finite number or null (got {found})", field) from None
        if text.count("[") + text.count("{") > MAX_DEPTH and _depth(value) > MAX_DEPTH:
            raise RecursionError
    except json.JSONDecodeError as error:
        raise _BadLine(f"column {error.colno}: not JSON: {error.msg}") from None
    except _DuplicateKey as error:
        raise _BadLine("stands twice in one object", error.args[0]) from None
    except RecursionError:
        raise _BadLine(f"nested deeper than {MAX_DEPTH} levels") from None
    except ValueError:
        raise _BadLine("an integer has more digits than can be read") from None
    if not isinstance(value, dict):
        raise _BadLine(f"must be a JSON object (got {shown(value)})")
    return value


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level := [node for node in level if isinstance(node, (dict, list))]:
        depth += 1
        level = [
            child for node in level for child in (node.values() if isinstance(node, dict) else node)
        ]
    return depth


def _first_not_finite(value: Any) -> tuple[str, float]:
    nodes: list[tuple[str, Any]] = [("", value)]
    for path, node in nodes:
        if isinstance(node, float) and node - node != 0.0:
            return path, node
        if isinstance(node, dict):
            nodes += [(f"{path}.{key}" if path else key, child) for key, child in node.items()]
        elif isinstance(node, list):
            nodes += [(f"{path}[{index}]", child) for index, child in enumerate(node)]
    return "", float("nan")


_TASK_ID = re.compile(rb'"task_id"\s*:\s*("(?:[^"\\]|\\.){0,1000}"|\d{1,18})')


def _salvage_id(line: bytes) -> str | None:
    """The task id of a line that cannot be read, if it stands there plainly."""
    if not (found := _TASK_ID.search(line)):
        return None
    try:
        return str(json.loads(found[1]))
    except ValueError:
        return None


def shown(value: Any) -> str:
    """A value as an error message shows it: short, and printable whatever it is."""
    match value:
        case None | bool():
            return json.dumps(value)
        case int() if value.bit_length() > 128:
            return f"an integer of {value.bit_length()} bits"
        case str():
            return json.dumps(value[:60]) + ("…" if len(value) > 60 else "")
        case list():
            return f"a list of {len(value)}" if value else "[]"
        case dict():
            return f"an object of {len(value)}" if value else "{}"
        case _:
            return repr(value)
