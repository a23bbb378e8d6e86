"""Frames: what goes in comes out, and what is no frame is refused."""

from __future__ import annotations

import os
import random
import threading

import pytest

from isograd.runner import wire

MESSAGES = [
    {},
    {"text": "é\ud800\0\u2028", "n": 10**30, "deep": [[{"a": None}]]},
    {"large": "x" * 3_000_000},
]


@pytest.mark.parametrize("size", [1, 3, 1000, 1 << 20])
def test_messages_survive_any_cut(size: int) -> None:
    """A reader gives the same messages whatever pieces the stream comes in."""
    stream = b"".join(map(wire.pack, MESSAGES[: 2 if size < 1000 else 3]))
    reader, got = wire.Reader(), []
    for start in range(0, len(stream), size):
        reader.feed(stream[start : start + size])
        while (message := reader.next()) is not None:
            got.append(message)
    assert got == MESSAGES[: len(got)] and len(got) >= 2


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        b"\0\0\0\x03abc",
        b"\0\0\0\x02[]",
        b"\0\0\0\x04null",
        b"\0\0\0\0",
        (100_000).to_bytes(4, "big") + b"[" * 100_000,
        (200_001).to_bytes(4, "big"),
    ],
)
def test_what_is_no_frame_is_malformed(data: bytes) -> None:
    """Too long, not JSON, not an object or nested without end: Malformed, nothing else."""
    reader = wire.Reader(limit=200_000)
    reader.feed(data)
    with pytest.raises(wire.Malformed):
        reader.next()


def test_random_bytes_are_never_anything_else() -> None:
    """Whatever bytes come, a reader waits, gives a message or says Malformed."""
    source = random.Random(0)
    outcomes = set()
    for _ in range(2000):
        reader = wire.Reader(limit=1000)
        reader.feed(bytes(2) + source.randbytes(source.randrange(40)))
        try:
            outcomes.add(type(reader.next()))
        except wire.Malformed:
            outcomes.add(wire.Malformed)
    assert outcomes <= {type(None), dict, wire.Malformed} and wire.Malformed in outcomes


def test_an_order_arrives_as_it_was_given_however_large() -> None:
    """Surrogates too, which JSON would not keep; half an order is none."""
    reading, writing = os.pipe()
    order = {"code": "\ud800" + "x" * 300_000, "limits": [(1, 2, 3)], "known": b"\x00"}
    packed = wire.pack_order(order)
    try:
        thread = threading.Thread(target=wire.write_all, args=(writing, packed))
        thread.start()
        assert wire.read_order(reading) == order
        thread.join()
        os.write(writing, packed[:100])
        os.close(writing)
        with pytest.raises(EOFError):
            wire.read_order(reading)
    finally:
        os.close(reading)
