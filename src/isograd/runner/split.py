"""The candidate at one end, its checks at the other, and what may pass between them.

In split grading each end is a process and a socket lies between them; in shared grading both are
in one process and a message is handed over as it is. The rules are the same ones.

Requests go both ways and nest: the grader asks the candidate's process to look a name up, to call,
to read an attribute; while it waits, the candidate's process may ask the grader to call what it
was given. Each request and each answer is one message, on a socket one frame::

    {"do": OPERATION, "of": [VALUE, …], "with": [[NAME, VALUE], …], "nodes": […]}
    {"is": VALUE, "nodes": […], "now": [[N, NODE], …]}
    {"raised": [TYPE, TEXT, CLASS], "nodes": […], "now": [[N, NODE], …]}

``now`` says what mutable arguments of the request hold afterwards. Values are the codec's; what
does not cross is a handle: ``["H", id, class id, …]`` of an object of the sender's, ``["P", id]``
of one of the receiver's.

What the grader may ask is ``_OPERATIONS``; what the candidate's process may ask is to call and to
iterate. Each rule here closes a way to pass without being right; ``Proxy`` has the important ones.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import importlib
import itertools
import operator
import os
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from . import checks, codec, packages, wire, words

_T = TypeVar("_T")
_Outcome = tuple[Any, BaseException | None]
"""What a request gives, and what it raises instead."""

_MAX_BYTES = 64 << 20
_MAX_MESSAGES = 1_000_000
_MAX_DEPTH = 100
_LOOKS = 1_000
_LEAVING = ("SystemExit", "KeyboardInterrupt", "GeneratorExit")
_NONSENSE = (wire.Malformed, ValueError, TypeError, KeyError, IndexError, AttributeError)


class LinkBroken(BaseException):
    """The link is closed, or what came over it breaks its rules: no check may go on."""


class CandidateLeft(BaseException):
    """A call raised SystemExit or its like, which never rises in the grader by itself."""


class End:
    """One end of the link: sends requests, answers those that come while it waits.

    Without a descriptor the other end is in this process, and ``join`` says where.
    """

    handles: tuple[type, ...]
    """Classes of what stands for objects of either side, and never crosses."""

    def __init__(self, fd: int | None) -> None:
        self.gone = False
        self.fault: str | None = None
        self._fd = fd
        self._other: End | None = None
        self._reader = None if fd is None else wire.Reader(_MAX_BYTES)
        self._exports: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._depth = 0
        self._bytes = 0
        self._messages = 0

    # What the two ends do differently.

    def operation(self, name: str, of: list[Any]) -> Callable[..., Any]:
        """What is to be called with a request's values. Raises KeyError."""
        raise NotImplementedError

    def describe(self, value: Any) -> list[Any]:
        """The node of an object that does not cross."""
        return ["H", self.export(value)]

    def resolve(self, node: list[Any]) -> Any:
        """The object of a node that only handles have."""
        if node[0] == "P":
            number = node[1]
            if type(number) is not int or not 0 <= number < len(self._exports):
                raise wire.Malformed("a handle of nothing")
            return self._exports[number]
        raise wire.Malformed("an unknown kind of node")

    def raised(self, error: BaseException) -> list[Any]:
        raise NotImplementedError

    def rise(self, raised: list[Any]) -> BaseException:
        raise NotImplementedError

    # What they share.

    def export(self, value: Any) -> int:
        """The number under which the other side knows an object of ours; kept for good."""
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self._exports)
            self._exports.append(value)
        return number

    def ask(self, operation: str, *of: Any, **named: Any) -> Any:
        """What the other side answers; raises what it raised, or LinkBroken."""
        if self.gone or self.fault:
            raise LinkBroken
        self._depth += 1
        try:
            if self._depth > _MAX_DEPTH:
                raise self._blame("calls are nested too deeply")
            outcome = None if self._other is None else self._hand_over(operation, of, named)
            if outcome is None:
                table = codec.Table(self.describe)
                request = {"do": operation, "of": [table.add(value) for value in of]}
                if named:
                    request["with"] = [[name, table.add(value)] for name, value in named.items()]
                request["nodes"] = table.nodes
                outcome = self._take(table.objects, self._exchange(request))
        finally:
            self._depth -= 1
        value, error = outcome
        if error is not None:
            raise error
        return value

    def _hand_over(
        self, operation: str, of: tuple[Any, ...], named: dict[str, Any]
    ) -> _Outcome | None:
        """Asks the other end, which is in this process, and puts nothing into a wire form.

        What comes of it is the same. None, and nothing is asked, if that takes a wire form.
        """
        other = self._other
        assert other is not None
        there = codec.Copies({}, self._as_handle)
        try:
            given = [there.copy(value) for value in of]
            given_named = {_plain(name): there.copy(value) for name, value in named.items()}
        except Exception:  # what a set of the candidate's objects raised, too: the codec decides
            return None
        try:
            action = other.operation(operation, given)
        except _NONSENSE:
            raise other._blame("what crossed from the candidate is no request") from None
        before = [codec.snapshot(theirs) for _, theirs in there.made]
        value, error = _outcome(action, given, given_named)
        changed = [
            n
            for n, (_, theirs) in enumerate(there.made)
            if before[n] is not None and not codec.unchanged(theirs, before[n])
        ]
        crossed = there.made + there.other
        if error is None:
            known = {id(theirs): ours for ours, theirs in crossed if not _atom(theirs)}
            back = codec.Copies(known, other._as_handle)
            # No class of the library's: the candidate may have changed it.
            try:
                answer = back.copy(value)
                contents = [back.content(crossed[n][1]) for n in changed]
                self._hear(())
                for n, content in zip(changed, contents, strict=True):
                    codec.fill_plain(crossed[n][0], content)
                return answer, None
            except Exception:
                pass  # the codec decides
        arguments = {id(theirs): n for n, (_, theirs) in enumerate(crossed) if not _atom(theirs)}
        told = other._in_wire_form((value, error), arguments, [(n, crossed[n][1]) for n in changed])
        return self._take([ours for ours, _ in crossed], told)

    def _as_handle(self, value: Any) -> Any:
        """What an object that never crosses is to the other end, in this process."""
        assert self._other is not None
        if type(value) is not types.FunctionType and type(value) not in self.handles:
            raise codec.NotPlain
        return self._other.resolve(self.describe(value))

    def _exchange(self, request: dict[str, Any]) -> dict[str, Any]:
        """The other end's answer to a request."""
        if self._other is not None:
            return self._other._answer(request)
        self._send(request)
        while "do" in (answer := self._receive()):
            self._send(self._answer(answer))
        return answer

    def _note(self, nodes: Any) -> None:
        """Told of the nodes of each request."""

    def _hear(self, nodes: Any) -> None:
        """Told of the nodes of each answer, before anything is made of it."""

    def _take(self, objects: list[Any], answer: dict[str, Any]) -> _Outcome:
        """What an answer says of a request with these objects. Raises LinkBroken."""
        try:
            nodes = answer.get("nodes")
            self._hear(nodes)
            decoder = codec.Decoder(nodes, self.resolve, objects)
            for index, node in answer.get("now", ()):
                self._update(objects, index, node, decoder)
            if "raised" in answer:
                return None, self.rise(answer["raised"])
            return decoder.value(answer["is"]), None
        except codec.CannotChange as change:
            return None, TypeError(f"a change to an argument cannot be brought back: {change}")
        except _NONSENSE:
            raise self._blame("what crossed from the candidate is no value") from None

    def _blame(self, why: str) -> LinkBroken:
        self.fault = self.fault or why
        return LinkBroken(why)

    def _update(self, objects: list[Any], index: Any, node: Any, decoder: codec.Decoder) -> None:
        """Brings a change to a mutable argument back into the argument."""
        if type(index) is not int or not 0 <= index < len(objects):
            raise wire.Malformed("a change of nothing")
        target = objects[index]
        if codec.snapshot(target) is None or not codec.same_kind(target, node):
            raise wire.Malformed("a change of what does not change")
        codec.fill(target, node, decoder.value)

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Does what the other side asks; what came of it."""
        try:
            decoder = codec.Decoder(request.get("nodes"), self.resolve)
            of = [decoder.value(value) for value in request["of"]]
            named = {_plain(name): decoder.value(value) for name, value in request.get("with", ())}
            operation = self.operation(str(request["do"]), of)
        except _NONSENSE:
            raise self._blame("what crossed from the candidate is no request") from None
        self._note(request["nodes"])
        # What is this side's own does not change by a change of it being told over there.
        before = [
            (n, value, codec.snapshot(value))
            for n, value in enumerate(decoder.objects)
            if request["nodes"][n][0] != "P"
        ]
        outcome = _outcome(operation, of, named)
        changed = [
            (n, value)
            for n, value, held in before
            if held is not None and not codec.unchanged(value, held)
        ]
        arguments = {id(value): n for n, value in enumerate(decoder.objects) if not _atom(value)}
        return self._in_wire_form(outcome, arguments, changed)

    def _in_wire_form(
        self, outcome: _Outcome, arguments: dict[int, int], changed: list[tuple[int, Any]]
    ) -> dict[str, Any]:
        """An answer, where the objects of the request are known by ``arguments``."""
        value, error = outcome
        table = codec.Table(self.describe, arguments)
        answer: dict[str, Any] = {}
        if error is None:
            try:
                answer["is"] = table.add(value)
            except BaseException as failed:
                table, error = codec.Table(self.describe, arguments), failed
        if error is not None:
            answer["raised"] = self.raised(error)
        now = [[n, table.content(value)] for n, value in changed]
        answer["nodes"] = table.nodes
        if now:
            answer["now"] = now
        return answer

    def _send(self, message: dict[str, Any]) -> None:
        assert self._fd is not None
        data = wire.pack(message)
        self._count(len(data))
        try:
            wire.write_all(self._fd, data)
        except OSError:
            self.gone = True
            raise LinkBroken("the link is closed") from None

    def _receive(self) -> dict[str, Any]:
        assert self._fd is not None
        assert self._reader is not None
        try:
            while (message := self._reader.next()) is None:
                try:
                    data = os.read(self._fd, 1 << 16)
                except OSError:
                    data = b""
                if not data:
                    self.gone = True
                    raise LinkBroken("the link is closed")
                self._count(len(data))
                self._reader.feed(data)
        except wire.Malformed:
            raise self._blame("what crossed from the candidate is no message") from None
        return message

    def _count(self, size: int) -> None:
        self._bytes += size
        self._messages += 1
        if self._bytes > _MAX_BYTES or self._messages > _MAX_MESSAGES:
            raise self._blame("too much crosses between the candidate and its checks")


def _outcome(action: Callable[..., Any], of: list[Any], named: dict[str, Any]) -> _Outcome:
    """What a call gives, and what it raises; LinkBroken rises."""
    try:
        return action(*of, **named), None
    except LinkBroken:
        raise
    except BaseException as error:
        return None, error


_plain = str.__str__
"""The text of a string, be its class whose it may."""


def _atom(value: Any) -> bool:
    """Whether an object may be shared by accident, so that its identity says nothing."""
    return value is None or type(value) in (int, float, bytes, type, types.FunctionType)


# The candidate's side


class Stranger:
    """What the candidate has of an object of the grader's: it can be called and iterated."""

    __slots__ = ("_isograd_ask",)

    def __init__(self, ask: Callable[..., Any]) -> None:
        self._isograd_ask = ask

    def __call__(self, *of: Any, **named: Any) -> Any:
        return self._isograd_ask("call", *of, **named)

    def __iter__(self) -> Any:
        return self._isograd_ask("iter")

    def __next__(self) -> Any:
        return self._isograd_ask("next")


def _call(function: Any, /, *of: Any, **named: Any) -> Any:
    return function(*of, **named)


def _next(iterator: Any, /) -> list[Any]:
    """The next item in a list of its own; an empty list at the end."""
    try:
        return [next(iterator)]
    except StopIteration:
        return []


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": _call,
    "next": _next,
    "iter": iter,
    "len": len,
    "bool": bool,
    "repr": repr,
    "str": str,
    "format": format,
    "reversed": reversed,
    "getattr": getattr,
    "setattr": setattr,
    "delattr": delattr,
    "dir": dir,
    "isinstance_of": lambda kind, value: isinstance(value, kind),
    "issubclass_of": lambda kind, value: issubclass(value, kind),
    "enter": lambda manager: type(manager).__enter__(manager),
    "exit": lambda manager: type(manager).__exit__(manager, None, None, None),
    "int": int,
    "float": float,
    "complex": complex,
    "round": round,
    "divmod": divmod,
    "pow": pow,
    "abs": abs,
    **{
        name: getattr(operator, name)
        for name in (
            "getitem setitem delitem contains eq ne lt le gt ge add sub mul matmul truediv floordiv"
            " mod lshift rshift and_ or_ xor neg pos invert index"
        ).split()
    },
}


_GREETING = {"loaded": True}
"""What the candidate's end says first, so that no check and no setup runs before it is there."""


class CandidateEnd(End):
    """The candidate's process: answers the grader until it is killed."""

    def __init__(self, fd: int | None, module: types.ModuleType, flush: Callable[[], None]) -> None:
        super().__init__(fd)
        self._globals = module.__dict__
        self._flush = flush
        self._strangers: dict[int, Stranger] = {}
        self._lent: set[str] = set()

    def greet(self) -> None:
        """Tells the grader that there is a candidate."""
        self._send(_GREETING)

    def serve(self) -> None:
        """Answers until the link is closed or the supervisor ends this process."""
        self.greet()
        while True:
            self.serve_one()

    def serve_one(self) -> None:
        """Waits for a request and answers it."""
        self._send(self._answer(self._receive()))

    def operation(self, name: str, of: list[Any]) -> Callable[..., Any]:
        return self._look_up if name == "name" else _OPERATIONS[name]

    def _send(self, message: dict[str, Any]) -> None:
        self._flush()
        super()._send(message)

    def _look_up(self, name: str, as_handle: bool) -> tuple[Any, ...]:
        """A global of the candidate's: (), ("module", its name), ("value", itself)."""
        if name not in self._globals:
            return ()
        value = self._globals[name]
        if type(value) is types.ModuleType and sys.modules.get(value.__name__) is value:
            return ("module", value.__name__)
        return ("value", _Opaque(value) if as_handle else value)

    def describe(self, value: Any) -> list[Any]:
        if type(value) is Stranger:
            for number, stranger in self._strangers.items():
                if stranger is value:
                    return ["P", number]
        if type(value) is _Opaque:
            value = value.value
        elif type(value) is types.BuiltinFunctionType and value.__name__ in self._lent:
            return ["n", value.__name__]
        kind = type(value)
        bases = []
        if isinstance(value, type) and issubclass(value, BaseException):
            bases = [_builtin_exception(value).__name__]
        return ["H", self.export(value), self.export(kind), bases, words.name_of(kind)[:200]]

    def resolve(self, node: list[Any]) -> Any:
        if node[0] == "n":
            self._lent.add(node[1])
            return getattr(builtins, node[1])
        if node[0] != "H":
            return super().resolve(node)
        number = node[1]
        if number not in self._strangers:

            def ask(operation: str, *of: Any, **named: Any) -> Any:
                answer = self.ask(operation, number, *of, **named)
                if operation == "next":
                    if not answer:
                        raise StopIteration
                    return answer[0]
                return answer

            self._strangers[number] = Stranger(ask)
        return self._strangers[number]

    def raised(self, error: BaseException) -> list[Any]:
        kind = type(error)
        builtin = _builtin_exception(kind)
        own = [] if kind is builtin else [self.export(kind), words.name_of(kind)[:200]]
        text = words.text_of(error)
        args = words.args_of(error)
        if words.is_a(error, KeyError) and args and type(args[0]) is str:
            text = args[0][:4000]
        system = []
        if words.is_a(error, OSError):
            known = words.system_of(error)
            system = [part if type(part) in (int, str) else None for part in known]
        return [builtin.__name__, text, own, system, words.line_of(error)]

    def rise(self, raised: list[Any]) -> BaseException:
        """The grader's exceptions come as a type and nothing more."""
        kind = getattr(builtins, str(raised[0]), RuntimeError)
        return kind() if isinstance(kind, type) and issubclass(kind, Exception) else RuntimeError()


class _Opaque:
    """Marks a value that is to stay here and be a handle there, whatever it is."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def _builtin_exception(kind: type) -> type:
    """The nearest builtin exception class of an exception class."""
    ancestry: tuple[type, ...] = type.__dict__["__mro__"].__get__(kind)
    for base in ancestry:
        if base.__module__ == "builtins" and getattr(builtins, base.__name__, None) is base:
            found: type = base
            return found
    return Exception


def rehearse(grader: GraderEnd, candidate: CandidateEnd) -> None:
    """Has two ends of a link in one process take turns: what is small enough passes."""

    def exchange(request: dict[str, Any]) -> dict[str, Any]:
        grader._send(request)
        candidate.serve_one()
        return grader._receive()

    candidate.greet()
    grader.meet()
    grader._exchange = exchange  # type: ignore[method-assign]


CandidateEnd.handles = (_Opaque, Stranger)


def join(grader: GraderEnd, candidate: CandidateEnd) -> None:
    """Makes two ends without a descriptor the ends of one link."""
    grader._other, candidate._other = candidate, grader


# The grader's side


class GraderEnd(End):
    """The grader's process: the candidate's objects as proxies, its names on request.

    ``named`` are the names of classes that the checks or the prompt use: only objects of such a
    class of the candidate's may answer for themselves against plain values.

    Where the candidate is in this process, ``watch`` says what it has changed here, told whether
    it has given a value that compares in Python. With ``at_once`` it is asked after each of the
    first answers, lest a change undo itself in what the check does next.
    """

    def __init__(
        self,
        fd: int | None,
        named: frozenset[str],
        watch: Callable[[bool], str | None] | None = None,
        *,
        at_once: bool = False,
    ) -> None:
        super().__init__(fd)
        self._named = named
        self._watch = watch
        self._looks = _LOOKS if at_once else 0
        self._got_python = False
        self._proxies: dict[int, Any] = {}
        self._classes: dict[int, type] = {}
        self._tested: set[int] = set()
        self._made: set[int] = set()
        self._seen: set[int] = set()
        self._items: dict[int, list[Any] | None] = {}
        self._lent: dict[str, Any] = {}
        self.left: str | None = None

    def meet(self) -> None:
        """Waits until the candidate has loaded; what keeps it from that stands in ``gone`` and
        ``fault``."""
        with contextlib.suppress(LinkBroken):
            if self._receive() != _GREETING:
                self._blame("what crossed from the candidate is no greeting")

    def look(self) -> None:
        """Makes a fault of a change to what judges."""
        if self._watch is not None and (changed := self._watch(self._got_python)) is not None:
            self._blame(f"it changes {changed}")

    def _note(self, nodes: Any) -> None:
        if self._watch is not None:
            self._got_python = self._got_python or codec.compare_in_python(nodes)

    def _hear(self, nodes: Any) -> None:
        self._note(nodes)
        if self._looks:
            self._looks -= 1
            self.look()
            if self.fault:
                raise LinkBroken

    def look_up(self, name: str, *, as_handle: bool) -> tuple[Any, ...]:
        """A global of the candidate's: (), ("module", name) or ("value", value)."""
        found = self.ask("name", name, as_handle)
        if type(found) is not tuple or len(found) not in (0, 2):
            raise wire.Malformed("an answer to another question")
        return found

    def test(self, name: str, value: Any) -> None:
        """Notes that the checks use this object of the candidate's under this name."""
        if name in self._named and type(value) is Proxy:
            self._tested.add(_number(value))

    def is_tested(self, class_number: int) -> bool:
        return class_number in self._tested

    def may_answer(self, proxy: Any) -> bool:
        """Whether the checks made this object themselves, of a class that they name.

        What a method gives back is an answer, not an object under test, be it the object itself:
        or a class could answer for all its methods by being equal to everything.
        """
        return _number(proxy) in self._made

    def note_made(self, maker: Any, value: Any, operation: str) -> Any:
        """Keeps account of what is under test; gives ``value``."""
        if type(value) is not Proxy:
            return value
        number = _number(value)
        if operation == "call":
            if _number(maker) in self._tested and number not in self._seen:
                self._made.add(number)
            else:
                self._made.discard(number)
        elif object.__getattribute__(value, "_isograd_class") in self._tested:
            self._made.add(number)
        self._seen.add(number)
        return value

    def items(self, proxy: Any, at_most: int) -> list[Any] | None:
        """What an object iterates over, asked once, so that it has one length and one content;
        None if it does not iterate."""
        number = _number(proxy)
        if number not in self._items:
            try:
                self._items[number] = list(itertools.islice(iter(proxy), at_most))
            except TypeError:
                self._items[number] = None
        return self._items[number]

    def kept_items(self, proxy: Any) -> list[Any] | None:
        """The items that it has shown already. Raises TypeError if it had none to show."""
        if self._items.get(_number(proxy), ()) is None:
            raise TypeError("an object of the candidate's is not iterable")
        return self._items.get(_number(proxy))

    def forget_items(self, proxy: Any) -> None:
        """It may be changed now."""
        self._items.pop(_number(proxy), None)

    def operation(self, name: str, of: list[Any]) -> Callable[..., Any]:
        """The candidate may call and iterate what it was given."""
        number = of.pop(0)
        if type(number) is not int or not 0 <= number < len(self._exports):
            raise wire.Malformed("a handle of nothing")
        offered: dict[str, Callable[..., Any]] = {"call": _call, "iter": iter, "next": _next}
        return functools.partial(offered[name], self._exports[number])

    def describe(self, value: Any) -> list[Any]:
        if type(value) is Proxy:
            return ["P", _number(value)]
        if (
            isinstance(value, type)
            and (number := value.__dict__.get("_isograd_number")) is not None
        ):
            return ["P", number]
        if type(value) is types.BuiltinFunctionType and value.__module__ == "builtins":
            # Its own getattr or eval over there, never ours.
            self._lent[value.__name__] = value
            return ["n", value.__name__]
        return ["H", self.export(value)]

    def resolve(self, node: list[Any]) -> Any:
        if node[0] == "n":
            return self._lent[node[1]]
        if node[0] != "H":
            return super().resolve(node)
        number, class_number, bases = node[1:4]
        if type(number) is not int or type(class_number) is not int:
            raise wire.Malformed("a handle without a number")
        if bases:
            return self._exception_class(number, str(bases[0]), str(node[4]))
        if number not in self._proxies:
            self._proxies[number] = Proxy(self, number, class_number)
        return self._proxies[number]

    def _exception_class(self, number: int, base: str, name: str) -> type:
        """A class of ours for an exception class of the candidate's, to be caught by."""
        known = self._classes.get(number)
        if known is not None:
            return known
        parent = getattr(builtins, base, None)
        if not (isinstance(parent, type) and issubclass(parent, Exception)):
            parent = Exception
        made: type = type(name, (parent,), {"_isograd_number": number})
        self._classes[number] = made
        return made

    def raised(self, error: BaseException) -> list[Any]:
        """Towards the candidate an exception has no text."""
        if isinstance(error, CandidateLeft):
            raise error
        return [_builtin_exception(type(error)).__name__, "", [], [], None]

    def rise(self, raised: list[Any]) -> BaseException:
        name, text, own, system, line = raised
        if type(name) is not str or type(text) is not str:
            raise wire.Malformed("no exception")
        if name in _LEAVING:
            self.left = self.left or (f"{name}: {text}" if text else name)
            return CandidateLeft(name)
        kind: Any = getattr(builtins, name, None)
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            kind = Exception
        if issubclass(kind, StopIteration | StopAsyncIteration):
            kind, text = RuntimeError, f"{name}: {text}" if text else name
        if own and type(own[0]) is int:
            kind = self._exception_class(own[0], kind.__name__, str(own[1]))
        error = _saying(kind, text)
        if isinstance(error, OSError) and system and type(system[0]) is int:
            error.errno, error.strerror, error.filename = system
        if type(line) is int:
            error._isograd_line = line  # type: ignore[attr-defined]
        return error


def _saying(kind: Any, text: str) -> BaseException:
    """An exception of that class with that text, whatever the class makes of its arguments."""

    def make(kind: Any) -> BaseException:
        inside = (text, [Exception()]) if issubclass(kind, ExceptionGroup) else ()
        error: BaseException = kind.__new__(kind, *inside)
        error.args = (text,) if text else ()
        if isinstance(error, SyntaxError):
            error.msg = text
        return error

    error = make(kind)
    if str(error) == text or isinstance(error, KeyError | OSError):
        return error
    fields = {"__str__": lambda self: text, "__module__": kind.__module__}
    return make(type(kind.__name__, (kind,), fields))


def _number(proxy: Any) -> int:
    number: int = object.__getattribute__(proxy, "_isograd_number")
    return number


def _ask(proxy: Any, operation: str, *of: Any, **named: Any) -> Any:
    end: GraderEnd = object.__getattribute__(proxy, "_isograd_end")
    return end.ask(operation, proxy, *of, **named)


def _may_answer(proxy: Any) -> bool:
    """Whether this object is what the checks test, so that its operators count."""
    end: GraderEnd = object.__getattribute__(proxy, "_isograd_end")
    return end.may_answer(proxy)


def _is_tested(proxy: Any) -> bool:
    """Whether this object's class is what the checks test: ``7 in Stack().push(7)``."""
    end: GraderEnd = object.__getattribute__(proxy, "_isograd_end")
    return end.is_tested(object.__getattribute__(proxy, "_isograd_class"))


class Proxy:
    """An object of the candidate's, as the checks see it.

    It can be called and iterated, has attributes, items, a length and a truth, all of which the
    candidate answers for. It is equal to itself and, if the candidate says so, to other objects
    of the candidate's, never to a value of the grader's, which never becomes an operand over
    there: unless its class is one that the checks themselves name.
    """

    __slots__ = ("_isograd_class", "_isograd_end", "_isograd_number")

    def __init__(self, end: GraderEnd, number: int, class_number: int) -> None:
        object.__setattr__(self, "_isograd_end", end)
        object.__setattr__(self, "_isograd_number", number)
        object.__setattr__(self, "_isograd_class", class_number)

    def __call__(self, /, *of: Any, **named: Any) -> Any:
        end: GraderEnd = object.__getattribute__(self, "_isograd_end")
        end.forget_items(self)
        return end.note_made(self, _ask(self, "call", *of, **named), "call")

    def __getattr__(self, name: str) -> Any:
        object.__getattribute__(self, "_isograd_end").forget_items(self)
        return _ask(self, "getattr", name)

    def __setattr__(self, name: str, value: Any) -> None:
        _ask(self, "setattr", name, value)

    def __delattr__(self, name: str) -> None:
        _ask(self, "delattr", name)

    def __dir__(self) -> Any:
        return _ask(self, "dir")

    def __iter__(self) -> Any:
        end: GraderEnd = object.__getattribute__(self, "_isograd_end")
        if (items := end.kept_items(self)) is not None:
            return iter(items)
        iterator = _ask(self, "iter")
        return iter(iterator) if type(iterator) is not Proxy else iterator

    def __next__(self) -> Any:
        answer = _ask(self, "next")
        if type(answer) is not list or len(answer) > 1:
            raise wire.Malformed("an item that is none")
        if not answer:
            raise StopIteration
        return answer[0]

    def __reversed__(self) -> Any:
        return _ask(self, "reversed")

    def __len__(self) -> int:
        end: GraderEnd = object.__getattribute__(self, "_isograd_end")
        kept = end.kept_items(self)
        if kept is not None:
            return len(kept)
        size = _exactly(int, _ask(self, "len"))
        if not _may_answer(self):
            items = end.items(self, size + 1)
            if items is not None and len(items) != size:
                raise TypeError("an object of the candidate's has not as many items as it says")
        return size

    def __bool__(self) -> bool:
        return _exactly(bool, _ask(self, "bool"))

    def __repr__(self) -> str:
        return _exactly(str, _ask(self, "repr"))

    def __str__(self) -> str:
        return _exactly(str, _ask(self, "str"))

    def __format__(self, spec: str) -> str:
        return _exactly(str, _ask(self, "format", spec))

    def __hash__(self) -> int:
        return _number(self)

    def __getitem__(self, key: Any) -> Any:
        return _ask(self, "getitem", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        object.__getattribute__(self, "_isograd_end").forget_items(self)
        _ask(self, "setitem", key, value)

    def __delitem__(self, key: Any) -> None:
        object.__getattribute__(self, "_isograd_end").forget_items(self)
        _ask(self, "delitem", key)

    def __contains__(self, item: Any) -> bool:
        if type(item) is Proxy or _is_tested(self):
            return bool(_ask(self, "contains", item))
        end: GraderEnd = object.__getattribute__(self, "_isograd_end")
        return item in (end.items(self, _MAX_MESSAGES) or ())

    def __eq__(self, other: object) -> Any:
        if self is other:
            return True
        if type(other) is Proxy or _may_answer(self):
            return _ask(self, "eq", other)
        return False

    def __ne__(self, other: object) -> Any:
        if type(other) is Proxy or _may_answer(self):
            return _ask(self, "ne", other)
        return self is not other

    def __enter__(self) -> Any:
        return _ask(self, "enter")

    def __exit__(self, *_: object) -> Any:
        return _ask(self, "exit")

    def __instancecheck__(self, value: Any) -> bool:
        return type(value) is Proxy and _exactly(bool, _ask(self, "isinstance_of", value))

    def __subclasscheck__(self, value: Any) -> bool:
        return type(value) is Proxy and _exactly(bool, _ask(self, "issubclass_of", value))


def _exactly(kind: type[_T], value: Any) -> _T:
    if type(value) is not kind:
        raise TypeError(f"expected {kind.__name__}")
    exact: _T = value
    return exact


GraderEnd.handles = (Proxy,)


def _binary(name: str, operation: str, *, swap: bool = False) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        if type(other) is Proxy or _may_answer(self):
            end: GraderEnd = object.__getattribute__(self, "_isograd_end")
            value = end.ask(operation, *((other, self) if swap else (self, other)))
            return end.note_made(self, value, operation) if _may_answer(self) else value
        return NotImplemented

    method.__name__ = name
    return method


def _unary(name: str, operation: str, result: type | None = None) -> Callable[..., Any]:
    def method(self: Any, *of: Any) -> Any:
        if not _may_answer(self):
            raise TypeError(f"an object of the candidate's has no {name} here")
        value = _ask(self, operation, *of)
        return value if result is None else _exactly(result, value)

    method.__name__ = name
    return method


for _name, _operation in (
    ("add", "add"), ("sub", "sub"), ("mul", "mul"), ("matmul", "matmul"), ("truediv", "truediv"),
    ("floordiv", "floordiv"), ("mod", "mod"), ("divmod", "divmod"), ("pow", "pow"),
    ("lshift", "lshift"), ("rshift", "rshift"), ("and", "and_"), ("or", "or_"), ("xor", "xor"),
):  # fmt: skip
    setattr(Proxy, f"__{_name}__", _binary(f"__{_name}__", _operation))
    setattr(Proxy, f"__r{_name}__", _binary(f"__r{_name}__", _operation, swap=True))
for _name in ("lt", "le", "gt", "ge"):
    setattr(Proxy, f"__{_name}__", _binary(f"__{_name}__", _name))
for _name, _operation, _result in (
    ("neg", "neg", None), ("pos", "pos", None), ("abs", "abs", None), ("invert", "invert", None),
    ("int", "int", int), ("float", "float", float), ("complex", "complex", complex),
    ("index", "index", int), ("round", "round", None),
):  # fmt: skip
    setattr(Proxy, f"__{_name}__", _unary(f"__{_name}__", _operation, _result))


_JUDGES = {
    name: getattr(importlib.import_module(module), name)
    for name, module in {
        "isclose": "math", "fabs": "math", "sqrt": "math", "floor": "math", "ceil": "math",
        "pi": "math", "Counter": "collections", "OrderedDict": "collections",
        "defaultdict": "collections", "deque": "collections", "Fraction": "fractions",
        "Decimal": "decimal", "deepcopy": "copy", "reduce": "functools",
    }.items()
}  # fmt: skip
"""By these names checks judge and leave them to the candidate to import: always the genuine."""


_IMPORT = "__import__"
_BUILTINS = {name: value for name, value in vars(builtins).items() if name != _IMPORT}
"""The genuine ones, taken before a candidate is forked; ``__import__`` is the denylist's."""


class Scope(dict[str, Any]):
    """The builtins of a check: where its free names are found.

    In this order: the entry point, always the candidate's; a builtin; a standard module that the
    candidate has under that name, imported here; what the prompt defines, loaded here; another
    global of the candidate's. It stands where a namespace has its builtins, so that a check's own
    names come first and bind nothing in the candidate. Made before the candidate runs. Import
    statements ask the dictionary itself.

    ``genuine`` are modules that were imported before a candidate could replace them.
    """

    def __init__(
        self,
        end: GraderEnd,
        prepared: checks.Prepared,
        genuine: Mapping[str, types.ModuleType] | None = None,
    ) -> None:
        super().__init__({_IMPORT: builtins.__import__})
        self._genuine = genuine or {}
        self._end = end
        self._prepared = prepared
        self._prompt: dict[str, Any] | None = None
        self._found: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name == self._prepared.entry_point:
            return self.entry_point(name)
        if name in _BUILTINS:
            return _BUILTINS[name]
        if name == _IMPORT:
            return dict.__getitem__(self, name)
        found = self._end.look_up(name, as_handle=False)
        prompt = self.load_prompt()
        if name in prompt:
            return prompt[name]
        if not found:
            return vars(builtins)[name]
        if name in self._prepared.names.modules:
            return self._module(name)
        if name in _JUDGES:
            return _JUDGES[name]
        if found[0] == "module":
            return self._module(str(found[1]))
        self._end.test(name, found[1])
        return found[1]

    def entry_point(self, name: str) -> Any:
        """The candidate's function, always as a handle; asked for once."""
        if name in self._found:
            return self._found[name]
        found = self._end.look_up(name, as_handle=True)
        if not found or found[0] != "value":
            raise NameError(f"name {name!r} is not defined")
        self._end.test(name, found[1])
        self._found[name] = found[1]
        return found[1]

    def load_prompt(self) -> dict[str, Any]:
        """What the prompt defines for these checks; loaded once."""
        if self._prompt is None:
            self._prompt = self._prepared.load_prompt()
        return self._prompt

    def _module(self, name: str) -> Any:
        return self._genuine[name] if name in self._genuine else standard_module(name)


def standard_module(name: str) -> types.ModuleType:
    """A module that checks may have. Raises NameError, or what its import raises."""
    root = name.partition(".")[0]
    ours = root in sys.stdlib_module_names or root in packages.modules
    known = name in sys.modules or ours
    if not known or root in ("antigravity", "this", "test", "idlelib", "turtledemo", "_isograd"):
        raise NameError(f"no module {name!r} for checks")
    return importlib.import_module(name)
