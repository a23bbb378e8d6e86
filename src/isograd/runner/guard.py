"""Shared grading: what the candidate may not have changed when a check is believed.

Candidate and checks share one process, and with it the builtins, the standard library and the
runner. A change there is not prevented, it is noticed: after the candidate is loaded, and after
each check, before its result is told.
"""

from __future__ import annotations

import builtins
import contextlib
import itertools
import operator
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from . import checks, codec, split, wire, words

_FREE = frozenset({
    "print", "input", "open", "exit", "quit", "help", "excepthook", "displayhook", "unraisablehook",
    "showwarning",
})  # fmt: skip
"""Names that honest programs replace and that judge nothing."""

_IMPORT = "__import__"
"""The denylist replaces it, once for a lane or for a job, so it is held when that is done."""

_MADE_LATER = frozenset({"__annotations__", "__annotations_cache__", "__annotate__"})
"""Names that a class gets by being looked at."""

_BUILTIN_NAMES = (
    frozenset(vars(builtins)) - _FREE - {"__doc__", "__name__", "__loader__", "__spec__"}
)

_IMMUTABLE = 1 << 8
"""Py_TPFLAGS_IMMUTABLETYPE: a class that no program can change."""

_MAKE_NONE = frozenset("bisect cmath copy heapq itertools math operator random re time".split())
"""Modules that many checks use and of which nothing makes a value that compares in Python."""

_LOADED = sys.modules
_PARTS = operator.attrgetter("__code__", "__defaults__", "__kwdefaults__")


def take_copies(*modules: types.ModuleType) -> None:
    """Gives modules copies of their own of the library modules that they have by name, so that
    what a candidate changes there is not what they use."""
    for namespace in map(_namespace, modules):
        for name, value in [*namespace.items()]:
            library = type(value) is types.ModuleType and not value.__name__.startswith("_isograd")
            if library and value not in (sys, builtins):
                namespace[name] = types.SimpleNamespace(**_namespace(value))


def take_own_copies() -> None:
    """As ``take_copies``, for the part of the runner that judges. Done before the fork."""
    take_copies(checks, codec, split, wire, words, sys.modules[__name__])


class Watch:
    """What judges, as it was before the candidate ran.

    That is the builtins and the modules that the checks use; where they use names that may stand
    for any module, all that are loaded. ``modules`` are these, the genuine ones; ``by_library`` is
    whether the checks use anything but plain names and builtins.
    """

    def __init__(self, names: checks.Names) -> None:
        self.modules: dict[str, types.ModuleType] = {}
        self._held: list[_Held] = []
        self._import = _Held("builtins", vars(builtins), [_IMPORT])
        self.by_library = any(names)
        if not self.by_library:
            return
        for name in names.modules | names.imported:
            with contextlib.suppress(Exception):
                self.modules[name] = split.standard_module(name)
        for name, module in self.modules.items():
            self._held.append(_of_module(name, module))
            classes = [*_classes(module)]
            self._held += map(_of_class, classes)
            self._held += _homes(classes, but=name)
        if names.aliases:
            for name, module in [*_LOADED.items()]:
                known = "." in name or name in self.modules
                if not known and isinstance(module, types.ModuleType):
                    self.modules[name] = module
                    self._held.append(_of_module(name, module))
        plain = not names.classes and self.modules.keys() <= _MAKE_NONE
        self._held += _EXCEPTIONS if plain else _IN_PYTHON

    def changed(self, values: bool = False) -> str | None:
        """A name that means something else now, or None. Asks the candidate's objects nothing.

        ``values`` is whether the candidate gave a value that compares in Python: then, and where
        the checks may make one themselves, the classes of such values count. The exceptions of
        the builtins do where code of others raises and catches them: checks have the genuine ones.
        """
        for name, module in self.modules.items():
            if _LOADED.get(name) is not module:
                return name
        always = (*_BUILTINS, self._import)
        for held in itertools.chain(always, _IN_PYTHON if values else (), self._held):
            if (name_changed := held.changed()) is not None:
                return name_changed
        return None


class _Held:
    """Names of a namespace as they were, all or some, and the code of the functions among them.

    It keeps what they meant, so that nothing new comes to lie where that lay. As long as nothing
    changed it touches values only, and no names: in a forked process each object that it
    touches is a page to be copied.
    """

    def __init__(
        self, name: str, namespace: Mapping[str, Any], keys: Iterable[str] | None = None
    ) -> None:
        self._name = name
        self._namespace = namespace
        self._whole = keys is None
        self._names = [*(namespace.keys() - _MADE_LATER if keys is None else keys)]
        self._values = _values_of(self._names)
        self._was = self._values(namespace)
        self._functions = [was for was in self._was if type(was) is types.FunctionType]
        self._parts = [*itertools.chain.from_iterable(map(_PARTS, self._functions))]
        # Only what is written in Python looks names up, and finds a new one before a builtin.
        looks_up = not self._whole and self._has_python()
        self._shadows = _BUILTIN_NAMES - namespace.keys() if looks_up else frozenset()

    def _has_python(self) -> bool:
        return bool(self._functions) or any(map(_is_python, self._was))

    def changed(self) -> str | None:
        """As ``Watch.changed``."""
        namespace = self._namespace
        try:
            same = all(map(operator.is_, self._values(namespace), self._was))
        except KeyError:
            same = False
        if not same:
            pairs = zip(self._names, self._was, strict=True)
            changed = (f"{self._name}.{key}" for key, was in pairs if namespace.get(key) is not was)
            return next(changed, self._name)
        if self._whole and len(namespace) != len(self._names) + sum(
            name in namespace for name in _MADE_LATER
        ):
            return self._name
        if self._shadows and not namespace.keys().isdisjoint(self._shadows):
            return f"{self._name}.{min(self._shadows & namespace.keys())}"
        parts = itertools.chain.from_iterable(map(_PARTS, self._functions))
        return None if all(map(operator.is_, parts, self._parts)) else f"the code of {self._name}"


def _values_of(keys: list[str]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """What gives the values of these names and touches no name."""
    if len(keys) > 1:
        return operator.itemgetter(*keys)
    return lambda namespace: tuple(namespace[key] for key in keys)


def _of_class(kind: type) -> _Held:
    """All that a class has, and that it has no more: that would come before what it inherits."""
    return _Held(kind.__name__, vars(kind))


def _of_module(name: str, module: types.ModuleType, but: Iterable[str] = ()) -> _Held:
    """What can be called in a module and what is calculated with; its other names hold state
    that an honest program changes."""
    namespace = _namespace(module)
    free = _FREE.union(but, [_IMPORT])
    judging = [
        key
        for key, value in namespace.items()
        if (callable(value) or type(value) in (float, types.ModuleType)) and key not in free
    ]
    return _Held(name, namespace, judging)


def _is_python(value: Any) -> bool:
    """Whether it is a class that a program can change, and so one with functions in Python."""
    return isinstance(value, type) and not value.__flags__ & _IMMUTABLE


def _homes(classes: Iterable[type], but: str = "") -> Iterator[_Held]:
    """The modules whose names the methods of classes look up."""
    for home in sorted({kind.__module__ for kind in classes} - {but}):
        if home in _LOADED:
            yield _of_module(home, _LOADED[home])


def _classes(module: types.ModuleType) -> Iterator[type]:
    """The classes that a module has of its own package's and that a program can change."""
    package = module.__name__.partition(".")[0]
    for kind in _namespace(module).values():
        if _is_python(kind) and kind.__module__.partition(".")[0] == package:
            yield kind


def _namespace(module: types.ModuleType) -> dict[str, Any]:
    """A module's namespace, without asking the module: the denylist may have closed it."""
    namespace: dict[str, Any] = types.ModuleType.__getattribute__(module, "__dict__")
    return namespace


# Held before a candidate is forked.
_RAISED = [
    name
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, BaseException)
]
_BUILTINS = [_of_module("builtins", builtins, _RAISED)]
_EXCEPTIONS = [_Held("builtins", vars(builtins), _RAISED)]
_IN_PYTHON = [
    *_EXCEPTIONS,
    *(_of_class(kind) for kind in codec.IN_PYTHON),
    *_homes(codec.IN_PYTHON),
]
