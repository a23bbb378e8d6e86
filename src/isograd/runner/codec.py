"""The codec of split grading: values between the candidate's process and the grader's.

Values cross by exact type, as a flat table of nodes, so that neither depth nor cycles nor shared
parts are any trouble and decoding needs no recursion. What is not of a known type does not cross:
the other side gets a handle. Nothing here ever runs code that the bytes name; bytes that are no
value are Malformed.

A value on the wire is None, a boolean, a string, a float, an integer of at most 64 bits, or
``[n]``: node n of the table; ``[-1 - n]`` is node n of the request that is being answered, which
is how an argument that is returned stays the same object. A node is ``[kind, …]``.
"""

from __future__ import annotations

import base64
import collections
import datetime
import decimal
import fractions
import importlib
import sys
from collections.abc import Callable
from typing import Any

from .wire import Malformed

_LONG = 1 << 63
_UTC = datetime.UTC

SAFE_TYPES: dict[str, type] = {
    f"{kind.__module__}.{kind.__qualname__}": kind
    for kind in (
        object, type, int, float, complex, bool, str, bytes, bytearray, list, tuple, dict, set,
        frozenset, range, slice, type(None), collections.Counter, collections.deque,
        collections.OrderedDict, collections.defaultdict, decimal.Decimal, fractions.Fraction,
        datetime.date, datetime.time, datetime.datetime, datetime.timedelta, datetime.timezone,
    )
}  # fmt: skip
SAFE_TYPES |= {
    f"builtins.{name}": kind
    for name, kind in vars(sys.modules["builtins"]).items()
    if isinstance(kind, type) and issubclass(kind, BaseException)
}
IN_PYTHON = (collections.Counter, fractions.Fraction)
"""Those of them that compare in Python, and so by what a program can change."""
_TYPE_NAMES = {kind: name for name, kind in SAFE_TYPES.items()}
_SINGLETONS = {"Ellipsis": Ellipsis, "NotImplemented": NotImplemented}

_EMPTY: dict[Any, Any] = {}
_KEYS, _VALUES, _ITEMS = type(_EMPTY.keys()), type(_EMPTY.values()), type(_EMPTY.items())
_SEQUENCES: dict[type, str] = {
    list: "L",
    tuple: "T",
    set: "S",
    frozenset: "F",
    _KEYS: "dk",
    _VALUES: "dv",
    _ITEMS: "di",
}
_MAPPINGS: dict[type, str] = {dict: "D", collections.Counter: "N", collections.OrderedDict: "O"}
_MUTABLE = frozenset(
    {list, set, bytearray, dict, collections.Counter, collections.OrderedDict}
    | {collections.deque, collections.defaultdict}
)

Handle = Callable[[Any], list[Any]]


_ATOMS = frozenset({type(None), bool, int, float, str})
_DEEPEST = 32


class NotPlain(Exception):
    """A value that crosses in its wire form only."""


class Copies:
    """Values that cross inside one process as they would over a link, but without a wire form.

    That is for what nearly all calls have: lists, tuples, dictionaries and sets of ``_ATOMS`` and
    of each other. ``known`` holds, by their ids, objects that the other side has given, and what
    they are there; ``otherwise`` gives what becomes of any other object, or raises NotPlain.
    """

    def __init__(self, known: dict[int, Any], otherwise: Callable[[Any], Any]) -> None:
        self._known = known
        self._otherwise = otherwise
        self.made: list[tuple[Any, Any]] = []
        """What was copied, and its copy."""
        self.other: list[tuple[Any, Any]] = []
        """What was not, and what it is there."""

    def copy(self, value: Any, depth: int = 0) -> Any:
        """What a value is on the other side. Raises NotPlain."""
        kind = type(value)
        if kind in _ATOMS:
            return value
        known = self._known.get(id(value))
        if known is not None:
            return known
        copy: Any
        if kind is list or kind is dict or kind is set:
            copy = self._known[id(value)] = kind()
            fill_plain(copy, self.content(value, depth))
        elif kind is tuple or kind is frozenset:
            content = self.content(value, depth)
            # It may have come up in there, on its way round.
            copy = self._known.setdefault(id(value), kind(content))
        else:
            copy = self._known[id(value)] = self._otherwise(value)
            self.other.append((value, copy))
            return copy
        self.made.append((value, copy))
        return copy

    def content(self, value: Any, depth: int = 0) -> list[Any]:
        """What is in an object, as the other side has it: items or pairs. Raises NotPlain."""
        if type(value) is dict:
            keys, values = self._items(value, depth), self._items(value.values(), depth)
            return [*zip(keys, values, strict=True)]
        return self._items(value, depth)

    def _items(self, values: Any, depth: int) -> list[Any]:
        items = list(values)
        if _ATOMS.issuperset(map(type, items)):
            return items
        if depth >= _DEEPEST:  # a tuple that holds itself has no end
            raise NotPlain
        return [self.copy(item, depth + 1) for item in items]


def fill_plain(target: Any, content: list[Any]) -> None:
    """Makes a list, set or dictionary hold these items or pairs and nothing else."""
    target.clear()
    (target.extend if type(target) is list else target.update)(content)


def compare_in_python(nodes: list[Any]) -> bool:
    """Whether there are objects of a class ``IN_PYTHON`` among nodes."""
    return any(node[0] in ("N", "q") for node in nodes)


class Table:
    """Values on their way out. ``handle`` gives the node of what cannot cross."""

    def __init__(self, handle: Handle, arguments: dict[int, int] | None = None) -> None:
        self.nodes: list[Any] = []
        self.objects: list[Any] = []
        self._handle = handle
        self._seen: dict[int, int] = {}
        self._arguments = arguments or {}
        self._queue: list[int] = []

    def add(self, value: Any) -> Any:
        """The wire form of a value; its nodes go into the table."""
        reference = self._refer(value)
        self._work_off()
        return reference

    def content(self, value: Any) -> list[Any]:
        """The node of a value itself, even if the other side knows the value already."""
        node = self._node(value)
        self._work_off()
        return node

    def _work_off(self) -> None:
        while self._queue:
            index = self._queue.pop()
            self.nodes[index] = self._node(self.objects[index])

    def _refer(self, value: Any) -> Any:
        kind = type(value)
        if value is None or kind is bool or kind is str or kind is float:
            return value
        if kind is int and -_LONG < value < _LONG:
            return value
        known = self._arguments.get(id(value))
        if known is not None:
            return [-1 - known]
        index = self._seen.get(id(value))
        if index is None:
            index = self._seen[id(value)] = len(self.nodes)
            self.nodes.append(None)
            self.objects.append(value)
            self._queue.append(index)
        return [index]

    def _node(self, value: Any) -> list[Any]:
        """The node of a value; what is in it is queued."""
        kind = type(value)
        refer = self._refer
        if kind in _SEQUENCES:
            items = value if kind is not _ITEMS else [tuple(pair) for pair in value]
            return [_SEQUENCES[kind], [refer(item) for item in items]]
        if kind in _MAPPINGS:
            return [_MAPPINGS[kind], [[refer(k), refer(v)] for k, v in value.items()]]
        if kind is int:
            return ["i", hex(value)]
        if kind is bytes or kind is bytearray:
            return ["b" if kind is bytes else "B", base64.b64encode(value).decode("ascii")]
        if kind is complex:
            return ["c", value.real, value.imag]
        if kind is range or kind is slice:
            parts = [refer(part) for part in (value.start, value.stop, value.step)]
            return ["r" if kind is range else "s", *parts]
        if kind is collections.deque:
            return ["Q", [refer(item) for item in value], refer(value.maxlen)]
        if kind is collections.defaultdict:
            pairs = [[refer(k), refer(v)] for k, v in dict.items(value)]
            return ["E", pairs, refer(value.default_factory)]
        if kind is decimal.Decimal:
            return ["d", str(value)]
        if kind is fractions.Fraction:
            return ["q", refer(value.numerator), refer(value.denominator)]
        if (node := _time_node(value, kind)) is not None:
            return node
        if isinstance(value, type) and value in _TYPE_NAMES:
            return ["t", _TYPE_NAMES[value]]
        for name, singleton in _SINGLETONS.items():
            if value is singleton:
                return ["1", name]
        if (array := _array_node(value)) is not None:
            return array
        return self._handle(value)


def _time_node(value: Any, kind: type) -> list[Any] | None:
    if kind is datetime.timedelta:
        return ["td", value.days, value.seconds, value.microseconds]
    if kind is datetime.date:
        return ["dd", value.isoformat()]
    if kind is datetime.time and value.tzinfo is None:
        return ["dt", value.isoformat(), value.fold]
    if kind is datetime.datetime and (value.tzinfo is None or value.tzinfo is _UTC):
        return ["dz", value.isoformat(), value.fold]
    if value is _UTC:
        return ["1", "UTC"]
    return None


_HEAP_TYPE = 1 << 9
"""Py_TPFLAGS_HEAPTYPE: a class that Python code has made."""
_FLAGS = type.__dict__["__flags__"].__get__


def _numpy() -> tuple[Any, Any, Any] | None:
    """numpy's array, dtype and scalar classes where this process has numpy, and not a module of
    the candidate's that calls itself so."""
    module = sys.modules.get("numpy")
    kinds = tuple(getattr(module, name, None) for name in ("ndarray", "dtype", "generic"))
    if any(not isinstance(kind, type) or _FLAGS(kind) & _HEAP_TYPE for kind in kinds):
        return None
    return kinds[0], kinds[1], kinds[2]


def _of_numpy(value: Any) -> str | None:
    """ "array" or "scalar" for one of numpy's that crosses as type and bytes, else None."""
    kind = type(value)
    if getattr(kind, "__module__", "") != "numpy" or (numpy := _numpy()) is None:
        return None
    array, _, scalar = numpy
    if kind is not array and (not issubclass(kind, scalar) or _FLAGS(kind) & _HEAP_TYPE):
        return None
    if value.dtype.hasobject or value.dtype.names is not None:
        return None
    return "array" if kind is array else "scalar"


def _is_array(value: Any) -> bool:
    return _of_numpy(value) == "array"


def _array_node(value: Any) -> list[Any] | None:
    """Arrays and scalars of numpy, where this process has it: as type, shape, bytes, and whether
    they can be written to."""
    found = _of_numpy(value)
    if found is None:
        return None
    data = base64.b64encode(value.tobytes()).decode("ascii")
    if found == "scalar":
        return ["np", value.dtype.str, None, data, False]
    return ["np", value.dtype.str, list(value.shape), data, bool(value.flags.writeable)]


class CannotChange(Exception):
    """A change that was made to a copy cannot be made to the original: no fault of anybody's."""


class Decoder:
    """Values on their way in. ``resolve`` gives the object of a node that only handles have.

    ``requested`` are the objects of the request that is being answered.
    """

    def __init__(
        self, nodes: Any, resolve: Callable[[list[Any]], Any], requested: list[Any] | None = None
    ) -> None:
        if not isinstance(nodes, list):
            raise Malformed("no table of nodes")
        self._nodes = nodes
        self._resolve = resolve
        self._requested = requested or []
        self.objects: list[Any] = [None] * len(nodes)
        try:
            self._decode()
        except Malformed:
            raise
        except (RecursionError, MemoryError):
            raise
        except Exception as error:
            raise Malformed(f"a node that is no value: {type(error).__name__}") from None

    def _decode(self) -> None:
        shells: list[int] = []
        for index, node in enumerate(self._nodes):
            shell = _SHELLS.get(node[0])
            if shell is not None:
                self.objects[index] = shell(node)
                shells.append(index)
        done = bytearray(len(self._nodes))
        for index in shells:
            done[index] = 2
        for index in range(len(self._nodes)):
            self._finish(index, done)
        for index in shells:
            fill(self.objects[index], self._nodes[index], self.value)

    def _finish(self, index: int, done: bytearray) -> None:
        """Builds an immutable node, those that it holds first, without recursion."""
        stack = [index]
        while stack:
            at = stack[-1]
            if done[at] == 2:
                stack.pop()
                continue
            node = self._nodes[at]
            waiting = [ref for ref in _inside(node) if done[ref] != 2]
            if not waiting:
                self.objects[at] = self._build(node)
                done[at] = 2
                stack.pop()
            elif done[at] == 1:
                raise Malformed("an immutable value that holds itself")
            else:
                done[at] = 1
                stack += waiting

    def value(self, wire: Any) -> Any:
        """The value of a wire form. Raises Malformed."""
        kind = type(wire)
        if wire is None or kind is bool or kind is str or kind is float or kind is int:
            return wire
        if kind is not list or len(wire) != 1 or type(wire[0]) is not int:
            raise Malformed("neither a value nor a reference")
        index = wire[0]
        objects = self.objects if index >= 0 else self._requested
        index = index if index >= 0 else -1 - index
        if index >= len(objects):
            raise Malformed("a reference to nothing")
        return objects[index]

    def _build(self, node: list[Any]) -> Any:
        kind, value = node[0], self.value
        if kind == "T":
            return tuple([value(item) for item in node[1]])
        if kind == "F":
            return frozenset([value(item) for item in node[1]])
        if kind == "i":
            return int(_text(node[1]), 16)
        if kind == "b":
            return base64.b64decode(_text(node[1]), validate=True)
        if kind == "c":
            return complex(node[1], node[2])
        if kind in ("r", "s"):
            return (range if kind == "r" else slice)(*[value(part) for part in node[1:4]])
        if kind == "dk":
            return dict.fromkeys([value(item) for item in node[1]]).keys()
        if kind == "dv":
            return dict(enumerate([value(item) for item in node[1]])).values()
        if kind == "di":
            return dict([value(item) for item in node[1]]).items()
        if kind == "d":
            return decimal.Decimal(_text(node[1]))
        if kind == "q":
            return fractions.Fraction(_whole(value(node[1])), _whole(value(node[2])))
        if kind == "td":
            return datetime.timedelta(*[_whole(part) for part in node[1:4]])
        if kind == "dd":
            return datetime.date.fromisoformat(_text(node[1]))
        if kind == "dt":
            return datetime.time.fromisoformat(_text(node[1])).replace(fold=_whole(node[2]))
        if kind == "dz":
            return datetime.datetime.fromisoformat(_text(node[1])).replace(fold=_whole(node[2]))
        if kind == "t":
            return SAFE_TYPES[node[1]]
        if kind == "1":
            return _UTC if node[1] == "UTC" else _SINGLETONS[node[1]]
        if kind == "np":
            return _array(node)
        return self._resolve(node)


_SHELLS: dict[str, Callable[[list[Any]], Any]] = {
    "L": lambda node: [],
    "S": lambda node: set(),
    "B": lambda node: bytearray(),
    "D": lambda node: {},
    "N": lambda node: collections.Counter(),
    "O": lambda node: collections.OrderedDict(),
    "E": lambda node: collections.defaultdict(),
    "Q": lambda node: collections.deque(maxlen=None if node[2] is None else _whole(node[2])),
}


def _inside(node: list[Any]) -> list[int]:
    """The nodes that an immutable node needs before it can be built."""
    kind = node[0]
    if kind in ("T", "F", "dk", "dv", "di"):
        parts = node[1]
    elif kind in ("r", "s", "q"):
        parts = node[1:]
    else:
        return []
    return [
        part[0]
        for part in parts
        if type(part) is list and len(part) == 1 and type(part[0]) is int and part[0] >= 0
    ]


def fill(target: Any, node: list[Any], value: Callable[[Any], Any]) -> None:
    """Makes a mutable object hold what a node of its kind says, and nothing else."""
    kind = node[0]
    if kind == "np":
        _fill_array(target, _array(node))
    elif kind == "B":
        target[:] = base64.b64decode(_text(node[1]), validate=True)
    elif kind in ("D", "N", "O", "E"):
        pairs = [(value(k), value(v)) for k, v in node[1]]
        target.clear()
        for key, item in pairs:
            target[key] = item
        if kind == "E":
            target.default_factory = value(node[2])
    else:
        items = [value(item) for item in node[1]]
        target.clear()
        (target.update if kind == "S" else target.extend)(items)


def same_kind(target: Any, node: Any) -> bool:
    """Whether a node says what an object of this very type holds."""
    if _is_array(target):
        return bool(node[0] == "np" and node[2] is not None)
    shell = _SHELLS.get(node[0]) if isinstance(node, list) and node else None
    return shell is not None and type(shell([node[0], [], None])) is type(target)


def snapshot(value: Any) -> Any:
    """What a mutable object holds, to be compared with ``unchanged``; None if it is immutable."""
    kind = type(value)
    if _is_array(value):
        return (value.shape, value.tobytes())
    if kind not in _MUTABLE:
        return None
    if kind is bytearray:
        return bytes(value)
    return list(value.items()) if isinstance(value, dict) else list(value)


def unchanged(value: Any, before: Any) -> bool:
    """Whether a mutable object holds the very same things in the same order."""
    now = snapshot(value)
    if isinstance(now, bytes | tuple):
        return bool(now == before)
    if len(now) != len(before):
        return False
    if isinstance(value, dict):
        return all(a is c and b is d for (a, b), (c, d) in zip(now, before, strict=True))
    return all(a is b for a, b in zip(now, before, strict=True))


def _text(value: Any) -> str:
    if type(value) is not str:
        raise Malformed("no text")
    return value


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise Malformed("no whole number")
    return value


def _array(node: list[Any]) -> Any:
    try:
        importlib.import_module("numpy")  # the other process has loaded it
    except ImportError:
        raise Malformed("an array, and no numpy here") from None
    numpy = _numpy()
    if numpy is None:
        raise Malformed("an array, and no numpy here")
    array, kind, _ = numpy
    dtype = kind(_text(node[1]))
    if dtype.hasobject or dtype.names is not None or dtype.subdtype is not None:
        raise Malformed("an array of more than numbers and text")
    data = base64.b64decode(_text(node[3]), validate=True)
    shape = (1,) if node[2] is None else tuple([_whole(size) for size in node[2]])
    if min(shape, default=0) < 0 or (not dtype.itemsize and 0 not in shape):
        raise Malformed("an array of no size")
    if dtype.kind == "U":
        data.decode("utf-32-be" if dtype.byteorder == ">" else "utf-32-le", "surrogatepass")
    made = array(shape, dtype, data)
    if made.nbytes != len(data):
        raise Malformed("an array of another size")
    if node[2] is None:
        return made[0]
    made = made.copy()
    made.flags.writeable = node[4] is True
    return made


def _fill_array(target: Any, changed: Any) -> None:
    """Never by a resize: what else looks at the array's memory here would look at freed memory."""
    if target.dtype != changed.dtype:
        raise CannotChange(f"an array of {target.dtype} has become one of {changed.dtype}")
    try:
        if target.shape != changed.shape:
            target.shape = changed.shape
        target[...] = changed
    except (ValueError, AttributeError) as error:
        raise CannotChange(str(error)) from None
