"""The codec of split grading: what it carries, and what becomes of bytes that nobody sent."""

from __future__ import annotations

import builtins
import collections
import contextlib
import datetime
import decimal
import json
import math
import random
import socket
import threading
import tracemalloc
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from isograd.runner import codec, split, wire

EXAMPLES = settings(
    max_examples=80,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
FEW = settings(EXAMPLES, max_examples=30)


# Values


TEXT = st.text(max_size=8) | st.text("\ud83d\ude00 a", max_size=8)
"""Lone surrogates too, and two of them that are not one character."""

ZONES = st.none() | st.just(datetime.UTC)
TIMES = (
    st.dates()
    | st.timedeltas()
    | st.times()
    | st.datetimes(timezones=ZONES, allow_imaginary=False)
    | st.builds(lambda when, fold: when.replace(fold=fold), st.datetimes(), st.integers(0, 1))
)
NUMBERS = (
    st.integers()
    | st.integers(min_value=-(1 << 300), max_value=1 << 300)
    | st.sampled_from([n + d for n in (1 << 63, -(1 << 63), 1 << 64, 0) for d in (-1, 0, 1)])
    | st.floats()
    | st.complex_numbers()
    | st.decimals()
    | st.fractions()
)
ATOMS = (
    st.none()
    | st.booleans()
    | NUMBERS
    | TEXT
    | st.binary(max_size=8)
    | TIMES
    | st.sampled_from([Ellipsis, NotImplemented, *codec.SAFE_TYPES.values()])
)
ENDS = st.none() | st.integers(-5, 5)
PLAIN = st.none() | st.integers() | st.sampled_from([1 << 70, -(1 << 70)])
RANGES = st.builds(range, st.integers(), st.integers(), st.integers(1)) | st.builds(
    slice, PLAIN, PLAIN, PLAIN
)
KEYS = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT | st.binary(max_size=4) | TIMES,
    lambda part: st.tuples(part, part) | st.frozensets(part, max_size=3),
    max_leaves=4,
)
FACTORIES = st.none() | st.sampled_from([int, list, dict, str, collections.Counter])


def holders(part: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Every container of the codec's, with ``part`` in it."""
    dicts = st.dictionaries(KEYS, part, max_size=4)
    return (
        st.lists(part, max_size=4)
        | st.lists(part, max_size=4).map(tuple)
        | st.sets(KEYS, max_size=4)
        | st.frozensets(KEYS, max_size=4)
        | dicts
        | dicts.map(collections.OrderedDict)
        | dicts.map(collections.Counter)
        | st.builds(collections.defaultdict, FACTORIES, dicts)
        | dicts.map(lambda d: d.keys())
        | dicts.map(lambda d: d.values())
        | dicts.map(lambda d: d.items())
        | st.builds(collections.deque, st.lists(part, max_size=4), st.none() | st.integers(0, 6))
        | st.binary(max_size=8).map(bytearray)
        | st.lists(part, min_size=1, max_size=2).map(lambda items: [*items, items[0], items])
    )


VALUES = st.recursive(ATOMS | RANGES, holders, max_leaves=12)


class Same:
    """Whether two values are the same: types, contents, order, and who is identical with whom."""

    def __init__(self) -> None:
        self._pairs: dict[int, int] = {}
        self._back: dict[int, int] = {}
        self._entered: set[int] = set()

    def __call__(self, one: Any, other: Any) -> bool:
        kind = type(one)
        if type(other) is not kind:
            return False
        parts = _parts(one)
        if parts is None:
            return _same_atom(one, other)
        if kind not in (frozenset, tuple, range, slice):
            if self._pairs.setdefault(id(one), id(other)) != id(other):
                return False
            if self._back.setdefault(id(other), id(one)) != id(one):
                return False
            if id(one) in self._entered:
                return True
            self._entered.add(id(one))
        others = _parts(other)
        assert others is not None
        if kind in (set, frozenset):
            return _unordered(one) == _unordered(other)
        return len(parts) == len(others) and all(map(self, parts, others))


def _parts(value: Any) -> list[Any] | None:
    kind = type(value)
    if kind in (list, tuple, set, frozenset, type({}.keys()), type({}.values())):
        return list(value)
    if kind in (dict, collections.OrderedDict, collections.Counter):
        return [part for pair in value.items() for part in pair]
    if kind is type({}.items()):
        return [part for pair in value for part in pair]
    if kind is collections.defaultdict:
        return [value.default_factory, *(part for pair in value.items() for part in pair)]
    if kind is collections.deque:
        return [value.maxlen, *value]
    if kind in (range, slice):
        return [value.start, value.stop, value.step]
    return None


def _unordered(value: Any) -> Any:
    return collections.Counter((type(item).__name__, item) for item in value)


def _same_atom(one: Any, other: Any) -> bool:
    if isinstance(one, float):
        same_sign = math.copysign(1, one) == math.copysign(1, other)
        return (math.isnan(one) and math.isnan(other)) or (one == other and same_sign)
    if isinstance(one, complex):
        return _same_atom(one.real, other.real) and _same_atom(one.imag, other.imag)
    if isinstance(one, decimal.Decimal):
        return str(one) == str(other)
    if isinstance(one, datetime.datetime | datetime.time):
        return bool(one == other and one.fold == other.fold and one.tzinfo is other.tzinfo)
    if isinstance(one, type) or one is None or one is Ellipsis or one is NotImplemented:
        return one is other
    return bool(one == other)


def no_handle(value: Any) -> list[Any]:
    raise AssertionError(f"no value crosses as a handle here: {value!r}")


def refused(node: list[Any]) -> Any:
    raise wire.Malformed("an unknown kind of node")


def sent(message: dict[str, Any]) -> dict[str, Any]:
    """What comes out of a stream into which a message went."""
    reader = wire.Reader()
    reader.feed(wire.pack(message))
    received = reader.next()
    assert received is not None
    return received


def crossed(value: Any) -> Any:
    """A value as the other side has it."""
    table = codec.Table(no_handle)
    message = sent({"is": table.add(value), "nodes": table.nodes})
    return codec.Decoder(message["nodes"], refused).value(message["is"])


@EXAMPLES
@given(VALUES)
def test_values_cross_as_they_are(value: Any) -> None:
    """Types, contents, order and the identity of parts survive, however they are nested."""
    assert Same()(value, crossed(value))


@EXAMPLES
@given(st.lists(VALUES, min_size=1, max_size=3), st.data())
def test_parts_that_are_shared_stay_shared(values: list[Any], data: st.DataObject) -> None:
    """Any knot of lists, dictionaries and tuples, with cycles, comes out as the same knot."""
    knots: list[Any] = [[], {}, collections.deque(), collections.OrderedDict(), []]
    knots.append((knots[0], knots[1]))
    pool = [*knots, *values]
    for _ in range(data.draw(st.integers(1, 12))):
        into = data.draw(st.integers(0, 4))
        what = pool[data.draw(st.integers(0, len(pool) - 1))]
        target = knots[into]
        if isinstance(target, dict):
            target[data.draw(st.integers(0, 3))] = what
        else:
            target.append(what)
    assert Same()(knots, crossed(knots))


def test_the_comparison_of_these_tests_sees_differences() -> None:
    """A list twice is not two equal lists, 1 is not True, and 0.0 is not -0.0."""
    one: list[Any] = []
    loop: list[Any] = []
    loop.append(loop)
    for a, b in (([one, one], [[], []]), ([1], [True]), ([0.0], [-0.0]), ((1,), [1]), (loop, [[]])):
        assert Same()(a, a)
        assert not Same()(a, b)


def test_an_ordered_dictionary_keeps_its_order() -> None:
    """Also the order that it was given with move_to_end."""
    value = collections.OrderedDict.fromkeys("abc")
    value.move_to_end("a")
    assert list(crossed(value)) == ["b", "c", "a"]


@pytest.mark.parametrize("depth", [1_000, 20_000])
def test_depth_is_no_trouble(depth: int) -> None:
    """Neither way recurses: lists and tuples as deep as a candidate likes."""
    for wrap in (lambda inner: [inner], lambda inner: (inner,)):
        value: Any = 0
        for _ in range(depth):
            value = wrap(value)
        value = crossed(value)
        for _ in range(depth):
            (value,) = value
        assert value == 0


def test_what_is_of_no_known_type_becomes_a_handle() -> None:
    """Subclasses of values never cross: only exact types do."""
    own = [
        type(f"Own{kind.__name__}", (kind,), {})()
        for kind in (int, float, str, bytes, list, tuple, dict, set, frozenset, bytearray)
    ]
    handles: list[Any] = []
    table = codec.Table(lambda value: handles.append(value) or ["H", len(handles)])
    table.add([*own, object(), len, json, type("Own", (), {})])
    assert {id(value) for value in own} <= {id(value) for value in handles}
    assert len(handles) == len(own) + 4


# Both ends of a link


either_grading = pytest.mark.parametrize("grading", ["split", "shared"])


@contextlib.contextmanager
def linked(grading: str, source: str, **given: Any) -> Iterator[Callable[..., Any]]:
    """The function ``f`` of a candidate's, as the grader has it; ``given`` are more globals."""
    module = types.ModuleType("candidate")
    module.__dict__.update(given)
    exec(source, module.__dict__)
    if grading == "shared":
        end = split.GraderEnd(None, frozenset())
        split.join(end, split.CandidateEnd(None, module, lambda: None))
        yield end.look_up("f", as_handle=True)[1]
        return
    ours, theirs = socket.socketpair()

    def serve() -> None:
        with contextlib.suppress(split.LinkBroken):
            split.CandidateEnd(theirs.fileno(), module, lambda: None).serve()

    with theirs, ours:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            end = split.GraderEnd(ours.fileno(), frozenset())
            end.meet()
            yield end.look_up("f", as_handle=True)[1]
        finally:
            ours.shutdown(socket.SHUT_RDWR)
            thread.join()


def meddle(seed: int, *values: Any) -> Any:
    """Changes what can be changed in its arguments, at random, and returns some of it."""
    dice = random.Random(seed)
    found: list[Any] = []
    queue: list[Any] = list(values)
    while queue:
        value = queue.pop()
        if any(value is known for known in found):
            continue
        if type(value) in (list, set, bytearray, tuple, collections.deque):
            found.append(value)
            queue += [part for part in value if type(value) is not bytearray]
        elif isinstance(value, dict):
            found.append(value)
            queue += list(value.values())
    changing = [value for value in found if type(value) is not tuple]
    for _ in range(dice.randrange(6)):
        if not changing:
            break
        target = dice.choice(changing)
        new = dice.choice([dice.randrange(9), "new", None, [], (1, [2]), dice.choice(found)])
        if isinstance(target, bytearray):
            target += b"x"
        elif isinstance(target, set):
            target.add(dice.randrange(9))
        elif isinstance(target, dict):
            if type(target) is collections.OrderedDict and target and dice.random() < 0.4:
                target.move_to_end(next(iter(target)))
            elif target and dice.random() < 0.4:
                target.pop(next(iter(target)))
            else:
                target[dice.randrange(9)] = new
        elif target and dice.random() < 0.4:
            target.pop()
        else:
            target.append(new)
    return [dice.choice(found or [0]) for _ in range(2)]


@either_grading
@FEW
@given(st.lists(holders(ATOMS | holders(ATOMS)), max_size=3), st.integers(0, 1 << 30))
def test_what_a_call_changes_comes_back(grading: str, values: list[Any], seed: int) -> None:
    """Arguments after a call, and what it returns, are as if it had been called right here."""
    here = crossed(values)
    expected = meddle(seed, *here), here
    with linked(grading, "", f=meddle) as f:
        got = f(seed, *values), values
    assert Same()(list(expected), list(got))


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda part: (
        st.lists(part, max_size=4)
        | st.lists(part, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=2) | st.tuples(st.integers()), part, max_size=3)
        | st.sets(st.integers() | st.text(max_size=2), max_size=9)
        | st.frozensets(st.integers() | st.tuples(st.text(max_size=2)), max_size=9)
    ),
    max_leaves=8,
)
"""What crosses inside one process without a wire form."""


@either_grading
@EXAMPLES
@given(st.lists(PLAIN, max_size=3), st.integers(0, 1 << 30))
def test_plain_values_cross_the_same_way_in_one_process(
    grading: str, values: list[Any], seed: int
) -> None:
    """Nothing that both sides could change is shared; the order in sets is the wire's too."""
    here = crossed(values)
    expected = meddle(seed, *here), here
    with linked(grading, "", f=meddle) as f:
        got = f(seed, *values), values
    assert Same()(list(expected), list(got))
    arguments: list[Any] = []
    with linked(grading, "", f=lambda *of: arguments.append(of)) as f:
        f(*values)
    mutable = [value for value in values if type(value) in (list, dict, set)]
    assert not {*map(id, mutable)} & {*map(id, arguments[0])}


@either_grading
def test_what_crosses_twice_is_one_object(grading: str) -> None:
    """An argument that comes back, its parts, cycles, functions: each is what it was."""
    source = """if 1:
        def f(what, *of):
            return globals()[what](*of)
        def give(*of): return of
        def loop(one): one.append(one); return one
        def deep(one): return one[0][0]
        def same(*of): return len({*map(id, of)})
        def method(): return f
    """
    with linked(grading, source) as f:
        one: list[Any] = [1]
        both = f("give", one, one, (one,))
        assert both[0] is both[1] is both[2][0] is one
        assert f("loop", one) is one
        assert one[1] is one
        inner: list[Any] = []
        assert f("deep", [[inner]]) is inner
        assert f("same", one, one, inner) == 2
        assert f("method") is f
        assert f("give", f) == (f,)
        knot: list[Any] = []
        knot.append((knot,))
        assert f("give", knot)[0] is knot


@either_grading
def test_an_object_of_the_candidates_may_be_changed_by_the_checks(grading: str) -> None:
    """Also where what they ask for by its name is a list: it stays over there."""
    with linked(grading, "f = [1]\n") as f:
        f[0] = 2
        f.append([3])
        assert f[0] == 2
        assert f[1] == [3]
        assert len(f) == 2


BUILTIN = {
    kind: kind.__name__
    for kind in vars(builtins).values()
    if isinstance(kind, type)
    and issubclass(kind, Exception)
    and not issubclass(kind, StopIteration | StopAsyncIteration)
}


@either_grading
@pytest.mark.parametrize("kind", BUILTIN, ids=BUILTIN.values())
def test_an_exception_crosses_as_type_and_text(kind: type[Exception], grading: str) -> None:
    """Every builtin exception, and a class of the candidate's below it, can be caught and read."""
    arguments: dict[type, tuple[Any, ...]] = {
        UnicodeDecodeError: ("utf-8", b"\xff", 0, 1, "told"),
        UnicodeEncodeError: ("utf-8", "\ud800", 0, 1, "told"),
        UnicodeTranslateError: ("\ud800", 0, 1, "told"),
        ExceptionGroup: ("told", [ValueError("inside")]),
    }
    given = arguments.get(kind, ("told",))
    text = str(kind(*given))
    source = "class Own(kind): pass\ndef f(own): raise (Own if own else kind)(*given)"
    with linked(grading, source, kind=kind, given=given) as f:
        for own in (False, True):
            with pytest.raises(kind) as caught:
                f(own)
            assert str(caught.value) == text
            assert type(caught.value).__name__ == ("Own" if own else kind.__name__)


# What nobody of ours sent


WORDS = st.sampled_from(
    "L T S F D N O E Q B b i c r s dk dv di d q td dd dt dz t 1 np H P X".split()
)
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 12) | st.floats() | TEXT | WORDS
    | st.sampled_from([1 << 40, -(1 << 70), "0x" + "f" * 50, "aGk=", "builtins.int", "1e999999"]),
    lambda part: st.lists(part, max_size=4)
    | st.tuples(st.integers(-3, 12)).map(list)
    | st.dictionaries(st.sampled_from(["nodes", "is", "now", "do", "x"]), part, max_size=3),
    max_leaves=8,
)  # fmt: skip
NODES = st.lists(
    st.tuples(WORDS, JUNK | st.lists(st.integers(0, 9).map(lambda n: [n]), max_size=3), JUNK).map(
        list
    )
    | JUNK,
    max_size=10,
)


def decoded(nodes: Any, wires: Any, requested: list[Any]) -> list[Any] | None:
    """The values, or None where they are Malformed. Nothing else may happen."""
    try:
        decoder = codec.Decoder(nodes, refused, requested)
        return [decoder.value(one) for one in wires]
    except wire.Malformed:
        return None


@EXAMPLES
@given(JUNK | NODES, st.lists(JUNK, max_size=3))
def test_any_table_is_values_or_malformed(nodes: Any, wires: list[Any]) -> None:
    """Whatever stands in a table, decoding gives values or says Malformed."""
    message = sent({"nodes": nodes, "of": wires})
    decoded(message["nodes"], message["of"], [[], {}])


@EXAMPLES
@given(VALUES, st.integers(0, 1 << 30))
def test_a_table_with_errors_in_it_is_values_or_malformed(value: Any, seed: int) -> None:
    """A true table of which some parts were exchanged, dropped or doubled."""
    table = codec.Table(no_handle)
    message = sent({"nodes": table.nodes, "of": [table.add(value)]})
    message["nodes"] = json.loads(json.dumps(table.nodes))
    dice = random.Random(seed)
    for _ in range(dice.randrange(1, 5)):
        _spoil(message["nodes"], dice)
    decoded(message["nodes"], message["of"], [])


def _spoil(nodes: Any, dice: random.Random) -> None:
    places = [nodes]
    for place in places:
        places += [part for part in place if isinstance(part, list)][:50]
    place = dice.choice([place for place in places if place] or [[0]])
    at = dice.randrange(len(place))
    how = dice.randrange(4)
    if how == 0:
        place[at] = dice.choice([None, True, -1, 0, 3, 1 << 70, "", "T", "L", [0], [1], [-1], {}])
    elif how == 1:
        del place[at]
    elif how == 2:
        place.append(place[at])
    else:
        other = dice.choice([place for place in places if place] or [[0]])
        place[at] = json.loads(json.dumps(dice.choice(other)))


@EXAMPLES
@given(st.lists(st.binary(max_size=64), max_size=4))
def test_any_bytes_are_messages_or_malformed(pieces: list[bytes]) -> None:
    """The reader and the codec together take any bytes at all."""
    reader = wire.Reader(1 << 20)
    with contextlib.suppress(wire.Malformed):
        for piece in pieces:
            reader.feed(piece)
            while (message := reader.next()) is not None:
                decoded(message.get("nodes"), message.get("of", ()), [])


@FEW
@given(st.lists(st.dictionaries(st.sampled_from(
    ["is", "raised", "now", "nodes", "do", "of", "with"]
), JUNK | NODES, max_size=5) | st.binary(max_size=30), min_size=1, max_size=3))  # fmt: skip
def test_a_forged_answer_is_a_value_or_the_end_of_the_link(answers: list[Any]) -> None:
    """What a candidate writes to its link is a value, an exception of its own, or its fault."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for answer in answers:
            theirs.sendall(answer if isinstance(answer, bytes) else wire.pack(answer))
        theirs.shutdown(socket.SHUT_WR)
        end = split.GraderEnd(ours.fileno(), frozenset())
        proxy = split.Proxy(end, 0, 0)
        try:
            proxy([1], {"a": 2})
        except (split.LinkBroken, split.CandidateLeft):
            pass
        except Exception as error:
            assert type(error).__module__ == "builtins"
            assert end.fault is None
        else:
            assert end.fault is None


@pytest.mark.parametrize(
    "node",
    [
        ["Q", [], 10**30],
        ["r", 0, 10**15, 1],
        ["d", "1e999999999"],
        ["td", 10**9, 0, 0],
        ["td", 10**30, 0, 0],
        ["q", 1, 0],
        ["i", "0x" + "f" * 100_000],
        ["np", "<f8", [10**12], ""],
        ["np", "V1000000000", None, ""],
        ["B", "A" * 100_001],
        ["dv", [[0]] * 1_000],
        ["T", [[0]]],
        ["F", [[1]]],
    ],
    ids=lambda node: f"{node[0]} {str(node[1])[:12]}",
)
def test_a_small_message_is_a_small_value(node: list[Any]) -> None:
    """No few bytes become many megabytes, and none take long."""
    decoded([["np", "<f8", None, ""]], [[0]], [])  # imports numpy, where there is one
    tracemalloc.start()
    try:
        decoded([node, ["F", [[0]]]], [[0]], [])
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_shared_parts_are_built_once() -> None:
    """Fifty doublings are fifty tuples, not 2 ** 50."""
    nodes = [["T", [[n + 1], [n + 1]]] for n in range(50)] + [["T", []]]
    (value,) = decoded(nodes, [[0]], []) or ()
    for _ in range(50):
        assert value[0] is value[-1]
        value = value[0]
    assert value == ()
