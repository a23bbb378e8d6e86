"""Frames: a 4-byte big-endian length, then that many bytes.

What comes from behind a wall, from a child or over the link, is JSON: a candidate may have
written it. Orders, from the host to a supervisor and from there to a child, are marshalled: they
come from nobody else, and reading them costs little time and touches little memory.
"""

from __future__ import annotations

import json
import marshal
import os
import struct
from typing import Any

_HEADER = struct.Struct(">I")
# Taken now, and in C: a candidate may change the json and os modules of its process later.
_write = os.write
_encode = json.encoder.c_make_encoder(  # type: ignore[attr-defined]
    None, None, json.encoder.encode_basestring, None, ":", ",", False, False, True
)
_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
_EVERY_PYTHONS = 4  # the version of marshal's format: there may be another Python behind the wall
MAX_FRAME = 256 * 1024 * 1024


class Malformed(Exception):
    """The bytes on a stream are not a frame."""


def pack(message: dict[str, Any]) -> bytes:
    """One message as a frame. Surrogates as they are: two escapes would come out as one."""
    body = "".join(_encode(message, 0)).encode("utf-8", "surrogatepass")
    return _HEADER.pack(len(body)) + body


def _parse(body: bytes) -> Any:
    text = body.decode("utf-8", "surrogatepass")
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        raise ValueError("no JSON") from None
    if end != len(text):
        raise ValueError("more than JSON")
    return value


class Reader:
    """Cuts a byte stream into messages. ``feed`` it bytes, then take ``next`` until None.

    With ``orders`` it reads what ``pack_order`` made, which nobody else may have written.
    """

    def __init__(self, limit: int = MAX_FRAME, *, orders: bool = False) -> None:
        self._buffer = bytearray()
        self._limit = limit
        self._parse = marshal.loads if orders else _parse

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next(self) -> dict[str, Any] | None:
        """The next whole message, or None. Raises Malformed."""
        buffer = self._buffer
        if len(buffer) < 4:
            return None
        size = _HEADER.unpack_from(buffer)[0]
        if size > self._limit:
            raise Malformed(f"a frame of {size} bytes")
        if len(buffer) < 4 + size:
            return None
        body = bytes(buffer[4 : 4 + size])
        del buffer[: 4 + size]
        try:
            message = self._parse(body)
        except (ValueError, RecursionError) as error:
            raise Malformed("a frame that is no message") from error
        if not isinstance(message, dict):
            raise Malformed("a frame that is not an object")
        return message


def pack_order(message: dict[str, Any] | tuple[Any, ...] | str) -> bytes:
    """One message to a supervisor or a child: ``Reader`` and ``read_order`` read it."""
    body = marshal.dumps(message, _EVERY_PYTHONS)
    return _HEADER.pack(len(body)) + body


def read_order(fd: int) -> Any:
    """Reads one order from a blocking descriptor, and no byte more. Raises EOFError."""
    return marshal.loads(_read(fd, _HEADER.unpack(_read(fd, 4))[0]))


def _read(fd: int, size: int) -> bytearray:
    data = bytearray(size)
    left = memoryview(data)
    while left:
        part = os.readv(fd, [left])
        if not part:
            raise EOFError("the stream ended inside a frame")
        left = left[part:]
    return data


def write_all(fd: int, data: bytes | bytearray) -> None:
    """Writes every byte to a blocking descriptor."""
    view = memoryview(data)
    while view:
        view = view[_write(fd, view) :]
