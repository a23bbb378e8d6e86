"""Public names that are imported when they are first asked for: a command needs few of them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazily(package: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package whose names stand in other modules.

    ``places`` has a module for each key and its names, separated by spaces, for the value.
    """
    found = {name: module for module, names in places.items() for name in names.split()}

    def __getattr__(name: str) -> Any:
        if name not in found:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(found[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return __getattr__
