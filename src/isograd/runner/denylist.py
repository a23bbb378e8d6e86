"""The denylist: what the candidate may not import or call. A backstop, not the wall.

It looks at who asks. Code of a module that was imported (the standard library, numpy) is let
through; the candidate, and anything that it passes to ``exec``, is not. The zygote puts the
usual list in force before it forks, so that a job with that list costs nothing.
"""

from __future__ import annotations

import builtins
import errno
import fnmatch
import importlib
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

_CALLABLE_PARENTS = {"os": ("os", "posix"), "signal": ("signal", "_signal")}

friends: list[int] = []
"""Namespaces that may import and call what they like: the runner's own and the checks'. By their
ids, for a candidate that finds this list must not find them."""

_open = False
_in_force: tuple[str, ...] = ()
_modules: set[str] = set()
_replaced: list[tuple[Any, str, Any]] = []
_guarded: list[ModuleType] = []


def install(patterns: list[str]) -> None:
    """Puts this denylist in force in this process, and no other. Patterns as in the contract."""
    global _in_force  # noqa: PLW0603
    if tuple(patterns) == _in_force:
        return
    remove()
    _in_force = tuple(patterns)
    for pattern in patterns:
        parent, _, function = pattern.partition(".")
        if parent not in _CALLABLE_PARENTS:
            _modules.add(pattern)
            continue
        for place in _CALLABLE_PARENTS[parent]:
            module = sys.modules.get(place)
            for name in fnmatch.filter(vars(module) if module else (), function):
                _replace(module, name, _denied(getattr(module, name), f"{parent}.{name}"))
    if _modules:
        for name in [name for name in sys.modules if _denies(name)]:
            _guard(sys.modules[name])
        sys.meta_path.insert(0, _FINDER)
        _replace(builtins, "__import__", _guarded_import)
        _replace(importlib, "__import__", _guarded_import)
        _replace(importlib, "import_module", _guarded_import_module)


def remove() -> None:
    """Puts everything back as it was without a denylist."""
    global _in_force  # noqa: PLW0603
    for owner, name, genuine in reversed(_replaced):
        setattr(owner, name, genuine)
    for module in _guarded:
        module.__class__ = ModuleType
    if _FINDER in sys.meta_path:
        sys.meta_path.remove(_FINDER)
    _replaced.clear()
    _guarded.clear()
    _modules.clear()
    _in_force = ()


def open_to_all() -> None:
    """Nothing is denied in this process any more: it runs checks and no candidate."""
    global _open  # noqa: PLW0603
    _open = True


def _replace(owner: Any, name: str, value: Any) -> None:
    _replaced.append((owner, name, getattr(owner, name)))
    setattr(owner, name, value)


def _trusted(namespace: dict[str, Any]) -> bool:
    """Whether code with these globals may have what is denied to the candidate."""
    if _open:
        return True
    name = namespace.get("__name__")
    if name != "candidate" and isinstance(name, str):
        module = sys.modules.get(name)
        if isinstance(module, ModuleType) and _namespace_of(module) is namespace:
            return True
    return id(namespace) in friends


friends.append(id(globals()))  # an import that has been let through goes on in here


def _namespace_of(module: ModuleType) -> dict[str, Any]:
    """A module's namespace, without asking the module: it may be a guarded one."""
    namespace: dict[str, Any] = ModuleType.__getattribute__(module, "__dict__")
    return namespace


def _denied(genuine: Callable[..., Any], shown: str) -> Callable[..., Any]:
    def denied(*args: Any, **kwargs: Any) -> Any:
        if _trusted(sys._getframe(1).f_globals):
            return genuine(*args, **kwargs)
        raise PermissionError(errno.EACCES, f"denied: {shown}")

    denied.__name__ = denied.__qualname__ = shown.rpartition(".")[2]
    return denied


def _denies(name: str) -> bool:
    while name:
        if name in _modules:
            return True
        name = name.rpartition(".")[0]
    return False


def _refuse(name: str) -> None:
    if _denies(name):
        raise ImportError(f"denied: import of {name!r}", name=name)


_genuine_import = builtins.__import__
_genuine_import_module = importlib.import_module


def _guarded_import(
    name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
) -> Any:
    asking = globals if isinstance(globals, dict) else sys._getframe(1).f_globals
    if level == 0 and isinstance(name, str) and not _trusted(asking):
        _refuse(name)
        for item in fromlist or ():
            _refuse(f"{name}.{item}")
    return _genuine_import(name, globals, locals, fromlist, level)


def _guarded_import_module(name: str, package: str | None = None) -> Any:
    if isinstance(name, str) and not _trusted(sys._getframe(1).f_globals):
        _refuse(name)
    return _genuine_import_module(name, package)


class _Guarded(ModuleType):
    """A denied module that others have imported: closed to the candidate."""

    def __getattribute__(self, attribute: str) -> Any:
        if not _trusted(sys._getframe(1).f_globals):
            raise ImportError(f"denied: import of {_namespace_of(self)['__name__']!r}")
        return ModuleType.__getattribute__(self, attribute)


def _guard(module: ModuleType) -> None:
    if type(module) is ModuleType:
        module.__class__ = _Guarded
        _guarded.append(module)


class _Finder:
    """Finds denied modules for whoever may have them, and has them closed to the candidate."""

    def __init__(self) -> None:
        self._busy: set[str] = set()

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name in self._busy or not _denies(name):
            return None
        self._busy.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._busy.discard(name)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Closing(spec.loader)  # type: ignore[assignment]
        return spec


class _Closing:
    """Loads as another loader does, then gives the module its guarded class."""

    def __init__(self, genuine: Any) -> None:
        self._genuine = genuine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._genuine, name)

    def create_module(self, spec: Any) -> Any:
        return self._genuine.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._genuine.exec_module(module)
        _guard(module)


_FINDER = _Finder()
