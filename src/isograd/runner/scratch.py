"""The places where a job may leave files: measured while it runs, emptied afterwards."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import Any

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def empty(path: str, keep: frozenset[str] = frozenset()) -> None:
    """Removes everything below ``path`` but the entries named in ``keep``.

    Works by descriptor, follows no link and does not recurse: a directory that is found inside
    another is moved up to the top first, so that depth costs nothing. What belongs to somebody
    else and cannot be removed is left alone.
    """
    try:
        top = os.open(path, _DIRECTORY)
    except OSError:
        return
    try:
        for name in os.listdir(top):
            if name in keep:
                continue
            queue = [name]
            while queue:
                _remove(top, queue)
    finally:
        os.close(top)


def _remove(top: int, queue: list[str]) -> None:
    """Removes the last name of ``queue``; directories inside it join the queue."""
    name = queue.pop()
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=top)
        return
    with contextlib.suppress(OSError):
        os.chmod(name, 0o700, dir_fd=top)
    try:
        inside = os.open(name, _DIRECTORY, dir_fd=top)
    except OSError:
        return
    try:
        for entry in os.listdir(inside):
            try:
                os.unlink(entry, dir_fd=inside)
                continue
            except OSError:
                pass
            hoisted = f".isograd-{os.urandom(16).hex()}"  # a name that nobody can have taken
            with contextlib.suppress(OSError):
                os.chmod(entry, 0o700, dir_fd=inside)
            with contextlib.suppress(OSError):
                os.rename(entry, hoisted, src_dir_fd=inside, dst_dir_fd=top)
                queue.append(hoisted)
    finally:
        os.close(inside)
    with contextlib.suppress(OSError):
        os.rmdir(name, dir_fd=top)


def appearance(path: str) -> tuple[Any, ...] | None:
    """What shows that an empty directory is as it was; None if there is none.

    Any change to it, or to what it holds, changes a time that only the kernel sets; within one
    tick of that clock the rest shows it.
    """
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    names: list[str] = []
    with contextlib.suppress(OSError):  # a file system that keeps none
        names = os.listxattr(path, follow_symlinks=False)
    return *found[:7], found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns, *names


class Usage:
    """How much a job has stored in ``places``: bytes and files.

    A place that is a file system of its own is asked with one system call, and what is unlinked
    but still open counts too; in any other place, the files are counted.
    """

    def __init__(self, places: tuple[str, ...], private: bool) -> None:
        self._places = places
        self._private = private
        self._start = (0, 0)
        self._start = self.now(1 << 62)

    def now(self, at_most: int) -> tuple[int, int]:
        """(bytes, files) in use above the start; stops counting beyond ``at_most`` files."""
        used = files = 0
        for place in self._places:
            if self._private:
                status = os.statvfs(place)
                used += (status.f_blocks - status.f_bfree) * status.f_frsize
                files += status.f_files - status.f_ffree
            else:
                count = _count(place, at_most)
                used, files = used + count[0], files + count[1]
        return used - self._start[0], files - self._start[1]


def _count(place: str, at_most: int) -> tuple[int, int]:
    used = files = 0
    queue = [place]
    while queue and files <= at_most:
        with contextlib.suppress(OSError), os.scandir(queue.pop()) as entries:
            for entry in entries:
                files += 1
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    used += status.st_blocks * 512
                    if stat.S_ISDIR(status.st_mode):
                        queue.append(entry.path)
                if files > at_most:
                    break
    return used, files
