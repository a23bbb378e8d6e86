"""How a bare interpreter becomes the runner. Imported on the host, never behind the wall.

``python -I -S -c STAGE1`` replaces itself, once a lane, with ``python -s -P -S -c STAGE2`` and an
environment of exactly our variables: ``-I`` would ignore PYTHONHASHSEED and leave the order of
sets to chance. STAGE2 reads the runner's sources and its configuration from a descriptor, makes
modules of the sources, each with builtins of its own that no candidate can change, and enters
``supervisor.main`` or, for a fresh child, ``child.main``.
"""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import marshal
from importlib import resources
from types import CodeType
from typing import Any

from . import wire

MODULES = (
    "wire",
    "words",
    "kernel",
    "scratch",
    "packages",
    "denylist",
    "checks",
    "codec",
    "split",
    "guard",
    "child",
    "zygote",
    "run",
    "supervisor",
)

ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
}
"""The whole environment behind the wall, but for HOME and TMPDIR, which name the scratch."""

STAGE2 = """\
import gc, os, sys
gc.disable()
def read(fd, size, at=None):
    data = bytearray(size)
    left = memoryview(data)
    while left:
        part = os.readv(fd, [left]) if at is None else os.preadv(fd, [left], at)
        if not part:
            sys.exit("isograd: the runner's sources ended early")
        left = left[part:]
        at = None if at is None else at + part
    return data
def boot(fd, at):
    import importlib.util, marshal, types
    size = int.from_bytes(read(fd, 4, at), "big")
    frame = read(fd, size, None if at is None else at + 4)
    message = marshal.loads(frame)
    if message["config"]["spawn"] != "fresh":
        frame = bytearray()  # nobody else will read it
    package = sys.modules["_isograd"] = types.ModuleType("_isograd")
    package.__path__ = []
    builtins = dict(vars(sys.modules["builtins"]))
    # A candidate holds functions of these two.
    apart = {"denylist": dict(builtins), "split": dict(builtins)}
    same = message["magic"] == importlib.util.MAGIC_NUMBER
    for name, source, code in message["modules"]:
        module = types.ModuleType("_isograd." + name)
        module.__package__ = "_isograd"
        module.__builtins__ = apart.get(name, builtins)
        sys.modules[module.__name__] = module
        if same and code:
            code = marshal.loads(code)
        else:
            code = compile(source, "<isograd " + name + ">", "exec")
        exec(code, module.__dict__)
        setattr(package, name, module)
    return package, message["config"], frame
if sys.argv[1] == "child":
    uid = None if sys.argv[2] == "-" else int(sys.argv[2])
    package, config, _ = boot(5, 0)
    os.close(5)
    package.zygote.prepare(config)
    package.child.main(uid)
package, config, frame = boot(0, None)
package.supervisor.main(config, frame)
"""


def direct(scratch: str) -> tuple[list[str], dict[str, str]]:
    """As ``command``, for who can give a process an environment: STAGE2's arguments and its."""
    home = f"{scratch}/job"
    return (
        ["-s", "-P", "-S", "-c", STAGE2, "lane"],
        {**ENVIRONMENT, "HOME": home, "TMPDIR": home},
    )


def command(scratch: str) -> list[str]:
    """The arguments, after the interpreter, that start the runner with its files in ``scratch``."""
    words, environment = direct(scratch)
    stage1 = (
        "import os, sys\n"
        f"os.execve(sys.executable, [sys.executable, *{words!r}], {environment!r})\n"
    )
    return ["-I", "-S", "-c", stage1]


def first_frame(config: dict[str, Any]) -> bytes:
    """What a lane is sent first: the runner's modules, in order, and the lane's configuration.

    An order, which nobody but us writes; reading it leaves little behind in the memory that each
    candidate's process is a copy of.

    ``config`` has ``scratch`` (the lane's directory), ``private`` (whether /tmp and /dev/shm are
    file systems of the lane's own), ``spawn``, ``uid_seed`` (or None: keep the uid),
    ``packages``, ``site`` (where these are; empty: where this Python keeps them), ``preload``,
    ``denylist`` (what to have ready), ``landlock`` (whether to use it where the kernel has it)
    and ``idle_s`` (how long a lane waits for a frame before it ends).
    """
    message = {
        "modules": _modules(),
        "magic": importlib.util.MAGIC_NUMBER,
        "config": {**config, "stage2": STAGE2},
    }
    return wire.pack_order(message)


@functools.cache
def _modules() -> list[tuple[str, bytes, bytes]]:
    """The runner's modules: name, source, and what that compiles to.

    Compiled is what this Python's import system keeps beside the sources, so that a lane with the
    same bytecode is spared the compiler; empty if there is nothing.
    """
    place = resources.files(__package__)
    modules = []
    for name in MODULES:
        compiled = b""
        spec = importlib.util.find_spec(f"{__package__}.{name}")
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            code = spec.loader.get_code(spec.name)
            if code is not None:
                compiled = marshal.dumps(_named(code, f"<isograd {name}>"))
        modules.append((name, place.joinpath(f"{name}.py").read_bytes(), compiled))
    return modules


def _named(code: CodeType, filename: str) -> CodeType:
    """Code as if it had been compiled from a file of that name."""
    constants = tuple(
        _named(constant, filename) if isinstance(constant, CodeType) else constant
        for constant in code.co_consts
    )
    return code.replace(co_filename=filename, co_consts=constants)
