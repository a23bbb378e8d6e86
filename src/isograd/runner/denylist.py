"""The denylist: what the candidate may not import or call. A backstop, not the wall.

It looks at who asks. Code of a module that was imported (the standard library, numpy) is let
through; the candidate, and anything that it passes to ``exec``, is not.
"""

from __future__ import annotations

import builtins
import errno
import fnmatch
import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

_CALLABLE_PARENTS = {"os": ("os", "posix"), "signal": ("signal", "_signal")}


def install(patterns: list[str], friends: Callable[[dict[str, Any]], bool]) -> None:
    """Puts the denylist in force in this process.

    ``patterns`` are as in the contract. ``friends`` says of a namespace whether it is a check's,
    which may import what it likes.
    """
    modules = {name for name in patterns if name.split(".")[0] not in _CALLABLE_PARENTS}
    calls = [name for name in patterns if name.split(".")[0] in _CALLABLE_PARENTS]

    ours = globals()

    def trusted(namespace: dict[str, Any]) -> bool:
        if namespace is ours:  # an import that has been let through
            return True
        name = namespace.get("__name__")
        if name == "candidate" or not isinstance(name, str):
            return friends(namespace)
        module = sys.modules.get(name)
        own = isinstance(module, ModuleType) and _namespace_of(module) is namespace
        return own or friends(namespace)

    if modules:
        _deny_imports(modules, trusted)
    for pattern in calls:
        parent, _, function = pattern.partition(".")
        for place in _CALLABLE_PARENTS[parent]:
            module = sys.modules.get(place)
            for name in fnmatch.filter(vars(module) if module else (), function):
                _deny_call(module, name, f"{parent}.{name}", trusted)


def _namespace_of(module: ModuleType) -> dict[str, Any]:
    """A module's namespace, without asking the module: it may be a guarded one."""
    namespace: dict[str, Any] = ModuleType.__getattribute__(module, "__dict__")
    return namespace


def _deny_call(
    module: Any, name: str, shown: str, trusted: Callable[[dict[str, Any]], bool]
) -> None:
    genuine = getattr(module, name)

    def denied(*args: Any, **kwargs: Any) -> Any:
        if trusted(sys._getframe(1).f_globals):
            return genuine(*args, **kwargs)
        raise PermissionError(errno.EACCES, f"denied: {shown}")

    denied.__name__ = denied.__qualname__ = name
    setattr(module, name, denied)


def _deny_imports(modules: set[str], trusted: Callable[[dict[str, Any]], bool]) -> None:
    def denies(name: str) -> bool:
        while name:
            if name in modules:
                return True
            name = name.rpartition(".")[0]
        return False

    def refuse(name: str) -> None:
        if denies(name):
            raise ImportError(f"denied: import of {name!r}", name=name)

    class Guarded(ModuleType):
        """A denied module that others have imported: closed to the candidate."""

        def __getattribute__(self, attribute: str) -> Any:
            if not trusted(sys._getframe(1).f_globals):
                raise ImportError(
                    f"denied: import of {ModuleType.__getattribute__(self, '__name__')!r}"
                )
            return ModuleType.__getattribute__(self, attribute)

    class Guard(importlib.abc.MetaPathFinder, importlib.abc.Loader):
        """Imports denied modules for whoever may have them, and closes them to the candidate."""

        def __init__(self) -> None:
            self._busy: set[str] = set()

        def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
            if name in self._busy or not denies(name):
                return None
            self._busy.add(name)
            try:
                spec = importlib.util.find_spec(name)
            finally:
                self._busy.discard(name)
            if spec is not None and isinstance(spec.loader, importlib.abc.Loader):
                spec.loader = _Closing(spec.loader, Guarded)
            return spec

    for name in [name for name in sys.modules if denies(name)]:
        module = sys.modules[name]
        if type(module) is ModuleType:
            module.__class__ = Guarded
    sys.meta_path.insert(0, Guard())

    genuine_import = builtins.__import__
    genuine_import_module = importlib.import_module

    def guarded_import(
        name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:
        asking = globals if isinstance(globals, dict) else sys._getframe(1).f_globals
        if level == 0 and isinstance(name, str) and not trusted(asking):
            refuse(name)
            for item in fromlist or ():
                refuse(f"{name}.{item}")
        return genuine_import(name, globals, locals, fromlist, level)

    def guarded_import_module(name: str, package: str | None = None) -> Any:
        if isinstance(name, str) and not trusted(sys._getframe(1).f_globals):
            refuse(name)
        return genuine_import_module(name, package)

    builtins.__import__ = guarded_import
    importlib.__import__ = guarded_import
    importlib.import_module = guarded_import_module


class _Closing(importlib.abc.Loader):
    """Loads as another loader does, then gives the module its guarded class."""

    def __init__(self, genuine: Any, guarded: type[ModuleType]) -> None:
        self._genuine = genuine
        self._guarded = guarded

    def __getattr__(self, name: str) -> Any:
        return getattr(self._genuine, name)

    def create_module(self, spec: Any) -> Any:
        return self._genuine.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._genuine.exec_module(module)
        if type(module) is ModuleType:
            module.__class__ = self._guarded
