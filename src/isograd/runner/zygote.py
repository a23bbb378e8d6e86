"""The zygote: a pristine interpreter that turns into one process after another.

It is single-threaded and has never seen a candidate, a check or another job. It is asked over a
SOCK_SEQPACKET pair with numbers and descriptors only::

    F mode    + [stdin, stdout, stderr, channel(, link)]   fork; answered with the new pid, or -1
    R pid                                                  collect; answered with the status
    R 0                                                    collect what nobody forked; answered

The mode says whether the fork starts a new interpreter (FRESH) and which uid it is to have
(GRADER).
"""

from __future__ import annotations

import _random
import functools
import gc
import importlib
import os
import random
import struct
import sys
from collections.abc import Callable
from typing import Any

from . import child, denylist, kernel, packages, scratch

REQUEST = struct.Struct("!cq")
FRESH, GRADER = 1, 2
CONTROL, SOURCES, HANDED = 10, 11, 12
"""The zygote's descriptors: for its requests, the runner's sources, the first that it is handed."""
ENDED = struct.Struct("!qddq")

# What programs commonly import. Only names whose import binds no submodule that a program of its
# own would not have: a candidate must not pass because of what we loaded.
COMMON = """
    abc bisect collections contextlib copy datetime decimal enum fractions functools heapq io
    itertools json math operator random re string time types typing
""".split()


def prepare(config: dict[str, Any]) -> tuple[dict[str, str], bool]:
    """Loads the modules that every child starts with, and makes their pages cheap to share.

    Returns the versions of the distributions that candidates may import, and whether children
    are to be restricted by Landlock.
    """
    versions = packages.allow(config["packages"], config["site"]) if config["packages"] else {}
    for name in COMMON:
        importlib.import_module(name)
    _preload(config["preload"], config["scratch"])
    import builtins
    from _sitebuiltins import Quitter, _Helper

    builtins.exit = Quitter("exit", "Ctrl-D (i.e. EOF)")
    builtins.quit = Quitter("quit", "Ctrl-D (i.e. EOF)")
    builtins.help = _Helper()
    sys.setrecursionlimit(1000)
    # A candidate that imports ctypes gets a copy of its own, by the denylist's leave.
    for name in ("ctypes", "ctypes._endian", "_ctypes"):
        sys.modules.pop(name, None)
    if config["landlock"]:
        private = config["private"]
        trees = ("/tmp", "/dev") if private else (config["scratch"],)
        devices = ("/dev/null", "/dev/zero", "/dev/full")
        ruleset = kernel.landlock_ruleset(trees, () if private else devices, tcp=private)
        if ruleset is not None:
            child.ruleset = os.dup2(ruleset, child.RULES)
            os.close(ruleset)
    denylist.install(config["denylist"])
    child.look_ordinary()
    kernel.limit_this_process(kernel.EVERY_JOB, 0)
    if config["spawn"] == "zygote":
        child.rehearse()
    gc.collect()
    kernel.return_memory()
    gc.freeze()
    gc.enable()  # off since the start: what the imports make stays
    child.set_aside(kernel.address_space())
    return versions, child.ruleset is not None


def _preload(names: list[str], directory: str) -> None:
    """Loads modules that candidates use. They find a home as a candidate does, and leave nothing
    there. Raises RuntimeError."""
    if not names:
        return
    home = f"{directory}/job"
    os.mkdir(home)
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:
            raise RuntimeError(
                f"cannot preload {name}: {error}: name its distribution in packages, "
                "and have it installed behind this wall"
            ) from None
    scratch.empty(home)
    os.rmdir(home)
    if len(os.listdir("/proc/self/task")) > 1:
        raise RuntimeError(f"cannot preload {', '.join(names)}: threads run after the import")


def _seeds() -> list[Callable[[], Any]]:
    """What gives the next child other random numbers than this one's, without Python's help."""
    generator = random._inst
    generator.gauss_next = None  # type: ignore[attr-defined]
    seeds: list[Callable[[], Any]] = [functools.partial(_random.Random.seed, generator)]
    numpy_random = sys.modules.get("numpy.random")
    return seeds if numpy_random is None else [*seeds, numpy_random.seed]


def serve(
    control: kernel.Socket, fresh: tuple[list[str], dict[str, str], int], uid: int | None
) -> None:
    """Answers requests until the supervisor is gone. Returns only in that process's own end.

    ``fresh`` is the command, the environment and the descriptor of the runner's sources with
    which a new interpreter is started.

    What it writes to after a fork is copied, page by page, so it calls no function of ours and
    has at hand what it uses.
    """
    receive, send, room = control.recvmsg, control.send, kernel.room_for_fds(5)
    unpack, pack, pack_ended, size = REQUEST.unpack, REQUEST.pack, ENDED.pack, REQUEST.size
    fork, wait, close, seeds = kernel.fork, os.wait4, os.closerange, _seeds()
    forked: set[int] = set()
    ended: dict[int, bytes] = {}
    nothing = pack_ended(0, 0.0, 0.0, 0)
    while True:
        message, ancillary, _, _ = receive(size, room)
        if not message:
            return
        kind, number = unpack(message)
        if kind == b"F":
            pid = fork()
            if pid == 0:
                _become_child(number, kernel.fds_in(ancillary), fresh, uid)
            for seed in seeds:
                seed()
            close(HANDED, child.RULES)
            if pid > 0:
                forked.add(pid)
            send(pack(b"P", pid))
            continue
        # Not that child alone: threads that it made us trace, and processes that it made our
        # children, have to be collected before it can be, or at all.
        while number not in ended:
            try:
                pid, status, usage = wait(-1, 0 if number else os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid in forked and not os.WIFSTOPPED(status):
                ended[pid] = pack_ended(status, usage[0], usage[1], usage[2])
                forked.discard(pid)
        send(ended.pop(number, nothing))


def _become_child(
    mode: int, fds: list[int], fresh: tuple[list[str], dict[str, str], int], uid: int | None
) -> Any:
    try:
        if mode & GRADER and uid is not None:
            uid += 1
        if not mode & FRESH:
            child.take_place(*fds)
            child.main(uid)
        command, environment, sources = fresh
        child.ruleset = None  # the new interpreter makes its own
        kept = os.dup2(sources, 70)
        child.take_place(*fds)
        os.dup2(kept, child.SOURCES, inheritable=True)
        os.close(kept)
        os.execve(command[0], [*command, "-" if uid is None else str(uid)], environment)
    finally:
        os._exit(1)
