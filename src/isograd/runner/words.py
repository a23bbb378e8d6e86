"""How exceptions are put into words: bounded, safe, and the same every time."""

from __future__ import annotations

import errno
import re

SOURCE = "candidate.py"
"""The file name that a candidate's code has."""

_DETAIL = 2_000


# An exception is the candidate's object: what it is, is asked of Python's own classes, not of it.
_TRACEBACK = BaseException.__dict__["__traceback__"].__get__
_ERRNO = OSError.__dict__["errno"].__get__
_STRERROR = OSError.__dict__["strerror"].__get__
_FILENAME = OSError.__dict__["filename"].__get__
_ARGS = BaseException.__dict__["args"].__get__
_DICT = BaseException.__dict__["__dict__"].__get__
_NAME = type.__dict__["__name__"].__get__
_QUALNAME = type.__dict__["__qualname__"].__get__


def is_a(error: BaseException, *classes: type[BaseException]) -> bool:
    return issubclass(type(error), classes)


def reason_of(error: BaseException) -> str | None:
    """The reason of the contract that an exception names, or None."""
    if is_a(error, MemoryError):
        return "memory"
    text = text_of(error)
    if is_a(error, ImportError) and text.startswith("denied: import of "):
        return "denied"
    if is_a(error, ModuleNotFoundError):
        return "import_missing"
    if is_a(error, OSError):
        number, words = _ERRNO(error), _STRERROR(error)
        if is_a(error, PermissionError) and type(words) is str and words.startswith("denied: "):
            return "denied"
        if type(number) is not int:
            return None
        if number == errno.EAGAIN and is_a(error, BlockingIOError):
            return "processes"
        if number in (errno.EFBIG, errno.ENOSPC, errno.EDQUOT):
            return "scratch"
        if number == errno.ENOMEM:
            return "memory"
    if is_a(error, RuntimeError) and text == "can't start new thread":
        return "processes"
    return None


def name_of(kind: type) -> str:
    "The qualified name of a class, whatever its metaclass says."
    return str(_QUALNAME(kind))


def args_of(error: BaseException) -> tuple[object, ...]:
    return tuple(_ARGS(error))


def system_of(error: BaseException) -> tuple[object, object, object]:
    "An OSError's number, text and file name."
    return _ERRNO(error), _STRERROR(error), _FILENAME(error)


def text_of(error: BaseException) -> str:
    """The text of an exception, whatever its class does to prevent it."""
    try:
        text = str(error)
        return text[: 2 * _DETAIL] if type(text) is str else str.__str__(text)[: 2 * _DETAIL]
    except BaseException:
        return "<no text: its __str__ raised>"


_ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]+")
_PROC_PID = re.compile(r"/proc/[0-9]+")
_PID = re.compile(r"\b(pid)([ =:]+)[0-9]+", re.IGNORECASE)


def describe(error: BaseException, scratch: str) -> str:
    """One line that names an exception, its text and the candidate's line; the same every time."""
    name = _NAME(type(error))
    text = text_of(error)
    line = None if is_a(error, SyntaxError) else line_of(error)
    detail = str(name) + (f": {text}" if text else "")
    detail = _ADDRESS.sub("at 0x…", detail.replace(scratch, "<scratch>"))
    detail = _PID.sub(r"\1\2…", _PROC_PID.sub("/proc/…", detail))
    where = f" ({SOURCE}, line {line})" if line is not None else ""
    return clip(detail, _DETAIL - len(where)) + where


def line_of(error: BaseException) -> int | None:
    """The last line of the candidate's that an exception came through, here or over there."""
    given = _DICT(error).get("_isograd_line")
    line = given if type(given) is int else None
    traceback = _TRACEBACK(error)
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == SOURCE:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line


def clip(text: str, size: int) -> str:
    """``text`` made safe for UTF-8 and cut to ``size`` bytes."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= size:
        return data.decode()
    return data[: size - 3].decode("utf-8", "ignore") + "…"
