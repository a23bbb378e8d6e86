"""How exceptions are put into words: bounded, safe, and the same every time."""

from __future__ import annotations

import errno
import re

SOURCE = "candidate.py"
"""The file name that a candidate's code has."""

_DETAIL = 2_000


def reason_of(error: BaseException) -> str | None:
    """The reason of the contract that an exception names, or None."""
    if isinstance(error, MemoryError):
        return "memory"
    text = text_of(error)
    if isinstance(error, ImportError) and text.startswith("denied: import of "):
        return "denied"
    if isinstance(error, PermissionError) and str(error.strerror).startswith("denied: "):
        return "denied"
    if isinstance(error, ModuleNotFoundError):
        return "import_missing"
    if isinstance(error, OSError):
        if error.errno == errno.EAGAIN and isinstance(error, BlockingIOError):
            return "processes"
        if error.errno in (errno.EFBIG, errno.ENOSPC, errno.EDQUOT):
            return "scratch"
        if error.errno == errno.ENOMEM:
            return "memory"
    if isinstance(error, RuntimeError) and text == "can't start new thread":
        return "processes"
    return None


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
    name = type.__getattribute__(type(error), "__name__")
    text = text_of(error)
    line = None if isinstance(error, SyntaxError) else line_of(error)
    detail = str(name) + (f": {text}" if text else "")
    detail = _ADDRESS.sub("at 0x…", detail.replace(scratch, "<scratch>"))
    detail = _PID.sub(r"\1\2…", _PROC_PID.sub("/proc/…", detail))
    where = f" ({SOURCE}, line {line})" if line is not None else ""
    return clip(detail, _DETAIL - len(where)) + where


def line_of(error: BaseException) -> int | None:
    """The last line of the candidate's that an exception came through, here or over there."""
    line = getattr(error, "_isograd_line", None)
    traceback = error.__traceback__
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
