"""How a bare interpreter becomes the runner. Imported on the host, never behind the wall.

``python -I -S -c STAGE1`` replaces itself, once a lane, with ``python -s -P -S -c STAGE2`` and an
environment of exactly our variables: ``-I`` would ignore PYTHONHASHSEED and leave the order of
sets to chance. STAGE2 reads the runner's sources and its configuration from a descriptor, makes
modules of the sources, each with builtins of its own that no candidate can change, and enters
``supervisor.main`` or, for a fresh child, ``child.main``.
"""

from __future__ import annotations

import base64
import functools
import importlib.machinery
import importlib.util
import marshal
from importlib import resources
from types import CodeType
from typing import Any

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
    parts = []
    while size:
        part = os.read(fd, min(size, 1 << 20)) if at is None else os.pread(fd, size, at)
        if not part:
            sys.exit("isograd: the runner's sources ended early")
        parts.append(part)
        size -= len(part)
        at = None if at is None else at + len(part)
    return b"".join(parts)
def boot(fd, at):
    import binascii, importlib.util, json, marshal, types
    size = int.from_bytes(read(fd, 4, at), "big")
    frame = read(fd, size, None if at is None else at + 4)
    message = json.loads(frame)
    package = sys.modules["_isograd"] = types.ModuleType("_isograd")
    package.__path__ = []
    builtins = vars(sys.modules["builtins"])
    compiled = message["compiled"]
    if compiled.pop("magic") != importlib.util.MAGIC_NUMBER.hex():
        compiled = {}
    for name, source in message["sources"]:
        code = compiled.get(name)
        module = types.ModuleType("_isograd." + name)
        module.__package__ = "_isograd"
        module.__builtins__ = dict(builtins)
        sys.modules[module.__name__] = module
        if code is not None:
            code = marshal.loads(binascii.a2b_base64(code))
        exec(code or compile(source, "<isograd " + name + ">", "exec"), module.__dict__)
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


def first_message(config: dict[str, Any]) -> dict[str, Any]:
    """What a lane is sent first: the runner's sources, in order, and the lane's configuration.

    ``config`` has ``scratch`` (the lane's directory), ``private`` (whether /tmp and /dev/shm are
    file systems of the lane's own), ``spawn``, ``uid_seed`` (or None: keep the uid),
    ``packages``, ``site`` (where these are; empty: where this Python keeps them), ``preload``,
    ``denylist`` (what to have ready), ``landlock`` (whether to use it where the kernel has it)
    and ``idle_s`` (how long a lane waits for a frame before it ends).
    """
    return {**_runner(), "config": {**config, "stage2": STAGE2}}


@functools.cache
def _runner() -> dict[str, Any]:
    """The runner's sources, and what they compile to for who has the same bytecode.

    Compiled is what this Python's import system keeps beside the sources, so that a lane is
    spared the compiler.
    """
    place = resources.files(__package__)
    sources = [(name, place.joinpath(f"{name}.py").read_text("utf-8")) for name in MODULES]
    compiled = {"magic": importlib.util.MAGIC_NUMBER.hex()}
    for name in MODULES:
        spec = importlib.util.find_spec(f"{__package__}.{name}")
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            code = spec.loader.get_code(spec.name)
            if code is not None:
                plain = marshal.dumps(_named(code, f"<isograd {name}>"))
                compiled[name] = base64.b64encode(plain).decode("ascii")
    return {"sources": sources, "compiled": compiled}


def _named(code: CodeType, filename: str) -> CodeType:
    """Code as if it had been compiled from a file of that name."""
    constants = tuple(
        _named(constant, filename) if isinstance(constant, CodeType) else constant
        for constant in code.co_consts
    )
    return code.replace(co_filename=filename, co_consts=constants)
