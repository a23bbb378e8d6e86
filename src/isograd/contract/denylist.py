"""What candidates are denied unless a job says otherwise."""

from __future__ import annotations

DEFAULT_DENYLIST: tuple[str, ...] = (
    "subprocess",
    "socket",
    "requests",
    "urllib",
    "http.client",
    "ctypes",
    "shutil",
    "asyncio.subprocess",
    "_posixsubprocess",
    "_socket",
    "_ctypes",
    "os.system",
    "os.popen",
    "os.fork*",
    "os.exec*",
    "os.spawn*",
    "os.posix_spawn*",
    "os.kill",
    "os.killpg",
    "os.pidfd_*",
    "signal.pidfd_*",
)
"""What a candidate may not import or call by default.

A module's name denies the module and everything below it. A name below ``os`` or
``signal`` denies a function; ``*`` matches any ending. It is a backstop for accidents:
the clock, the caps and the wall hold with it empty.
"""
