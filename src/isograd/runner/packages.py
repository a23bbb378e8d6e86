"""Distributions that a candidate may import beside the standard library, by name."""

from __future__ import annotations

import importlib.machinery
import os
import re
import sys
from typing import Any

_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*")


modules: frozenset[str] = frozenset()
"""The top-level modules that may be imported beside the standard library's."""


class Missing(Exception):
    """A distribution that was asked for is not installed behind this wall."""


class _Finder:
    """Finds the named top-level modules in ``path``, and no others."""

    def __init__(self, names: frozenset[str], path: list[str]) -> None:
        self._names = names
        self._path = path

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if path is not None or name not in self._names:
            return None
        return importlib.machinery.PathFinder.find_spec(name, self._path, target)


def allow(distributions: list[str], path: list[str]) -> dict[str, str]:
    """Makes ``distributions`` and what they require importable from the directories ``path``.

    An empty ``path`` is where this Python keeps what is installed. Returns the version of each
    distribution by its canonical name. Raises Missing.
    """
    import importlib.metadata

    path = path or _site_directories()
    installed = {
        _canonical(distribution.metadata["Name"]): distribution
        for distribution in importlib.metadata.distributions(path=path)
        if distribution.metadata["Name"]
    }
    global modules  # noqa: PLW0603
    versions: dict[str, str] = {}
    found_modules: set[str] = set()
    queue = [_canonical(name) for name in distributions]
    wanted = set(queue)
    while queue:
        name = queue.pop()
        if name in versions:
            continue
        distribution = installed.get(name)
        if distribution is None:
            if name in wanted:
                raise Missing(name)
            continue
        versions[name] = distribution.version
        for file in distribution.files or ():
            top = file.parts[0].partition(".")[0]
            if top.isidentifier() and (len(file.parts) > 1 or file.suffix in (".py", ".so")):
                found_modules.add(top)
        for requirement in distribution.requires or ():
            found = _NAME.match(requirement)
            if found and "extra ==" not in requirement:
                queue.append(_canonical(found.group()))
    modules = frozenset(found_modules)
    sys.meta_path.append(_Finder(modules, path))
    return versions


def _site_directories() -> list[str]:
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    return [
        place
        for place in (
            f"{sys.prefix}/lib/{version}/site-packages",
            f"/usr/local/lib/{version}/dist-packages",
            "/usr/lib/python3/dist-packages",
        )
        if os.path.isdir(place)
    ]


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
