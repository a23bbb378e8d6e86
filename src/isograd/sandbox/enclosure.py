"""The subprocess wall, where Linux namespaces can be had. Run by ``python -I -c``, stdlib only.

argv[1] is a marshalled dictionary in hexadecimal: ``command`` and its ``environment``, ``show``
(directories that it must see), ``scratch_mb`` and ``scratch_files`` (the size of /tmp),
``status`` (a descriptor: why it cannot be had is written there; it is closed without a word once
the command runs).

The command becomes PID 1 of namespaces of its own (process ids, mounts, IPC, network, host name)
on a root that holds the system's libraries and what ``show`` names, read-only, with a private
/tmp and /dev/shm, and with no capability but SETUID, SETGID and KILL: the shape of the
container. Nothing is started where that cannot be had.
"""

from __future__ import annotations

import _socket  # not socket, signal or json: what they import takes as long as all of this
import contextlib
import ctypes
import fcntl
import marshal
import os
import struct
import sys

_NEWNS, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = (
    0x00020000,
    0x04000000,
    0x08000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _REC, _PRIVATE = (
    1,
    2,
    4,
    8,
    32,
    4096,
    16384,
    1 << 18,
)
_RELATIME = 1 << 21  # unlike the others, not the bit that statvfs reports
_DETACH = 2
_SIGKILL = 9
_KEPT_CAPABILITIES = {5, 6, 7}  # KILL, SETGID, SETUID
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_STAGE = "/sys"  # any directory that exists everywhere and holds no interpreter

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    encoded = [None if text is None else text.encode() for text in (source, target, kind, data)]
    flag = ctypes.c_ulong(flags)
    try:
        _call("mount", encoded[0], encoded[1], encoded[2], flag, encoded[3])
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror} ({target})") from None


def _enter_namespaces() -> None:
    wanted = _NEWNS | _NEWUTS | _NEWIPC | _NEWPID | _NEWNET
    uid, gid = os.geteuid(), os.getegid()
    try:
        _call("unshare", wanted)
        return
    except OSError:
        if uid == 0:
            raise
    _call("unshare", wanted | _NEWUSER)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {uid} 1"),
        ("gid_map", f"{gid} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def _bind(source: str, target: str) -> None:
    """Shows ``source`` at ``target``, read-only and with whatever flags it had."""
    if os.path.isdir(source):
        os.makedirs(target, 0o755, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), 0o755, exist_ok=True)
        with open(target, "a", encoding="ascii"):
            pass
    _mount(source, target, None, _BIND | _REC)
    kept = os.statvfs(target).f_flag
    flags = _REMOUNT | _BIND | _RDONLY | _NOSUID
    flags |= kept & (_NODEV | _NOEXEC | os.ST_NOATIME | os.ST_NODIRATIME)
    flags |= _RELATIME if kept & os.ST_RELATIME else 0
    _mount(source, target, None, flags)


def _build_root(show: list[str], scratch_mb: int, scratch_files: int) -> None:
    """Makes a root of read-only pieces and moves into it."""
    _mount("none", "/", None, _REC | _PRIVATE)
    _mount("isograd", _STAGE, "tmpfs", _NOSUID | _NODEV, "mode=755,size=4m")
    for place in _SYSTEM:
        if os.path.islink(place):
            os.symlink(os.readlink(place), _STAGE + place)
        elif os.path.isdir(place):
            _bind(place, _STAGE + place)
    for name in _ETC:
        if os.path.exists(f"/etc/{name}"):
            _bind(f"/etc/{name}", f"{_STAGE}/etc/{name}")
    for place in show:
        if not os.path.exists(_STAGE + place):
            _bind(place, _STAGE + place)
    os.makedirs(f"{_STAGE}/etc", 0o755, exist_ok=True)
    for name, text in (
        ("passwd", "root:x:0:0:root:/:/bin/false\n"),
        ("group", "root:x:0:\n"),
        ("hosts", "127.0.0.1 localhost isograd\n"),
    ):
        with open(f"{_STAGE}/etc/{name}", "w", encoding="ascii") as file:
            file.write(text)
    for place in ("/proc", "/sys", "/tmp", "/dev/shm", "/dev/mqueue"):
        os.makedirs(_STAGE + place, 0o755, exist_ok=True)
    for name in _DEVICES:
        with open(f"{_STAGE}/dev/{name}", "w", encoding="ascii"):
            pass
        _mount(f"/dev/{name}", f"{_STAGE}/dev/{name}", None, _BIND)
    with contextlib.suppress(OSError):
        os.mkdir(f"{_STAGE}/dev/pts", 0o755)
        options = "newinstance,ptmxmode=0666,mode=0620"
        _mount("devpts", f"{_STAGE}/dev/pts", "devpts", _NOSUID | _NOEXEC, options)
        os.symlink("pts/ptmx", f"{_STAGE}/dev/ptmx")
    os.symlink("/proc/self/fd", f"{_STAGE}/dev/fd")
    for index, name in enumerate(("stdin", "stdout", "stderr")):
        os.symlink(f"/proc/self/fd/{index}", f"{_STAGE}/dev/{name}")
    quiet = _NOSUID | _NODEV | _NOEXEC
    _mount("proc", f"{_STAGE}/proc", "proc", quiet)
    size = f"mode=1777,size={scratch_mb}m,nr_inodes={scratch_files}"
    _mount("tmpfs", f"{_STAGE}/tmp", "tmpfs", quiet, size)
    _mount("shm", f"{_STAGE}/dev/shm", "tmpfs", quiet, size)
    with contextlib.suppress(OSError):
        _mount("mqueue", f"{_STAGE}/dev/mqueue", "mqueue", quiet)
    _mount("isograd", _STAGE, None, _REMOUNT | _BIND | _RDONLY | _NOSUID | _NODEV)
    os.chdir(_STAGE)
    _call("pivot_root", b".", b".")
    _call("umount2", b".", _DETACH)
    os.chdir("/")


def _raise_loopback() -> None:
    any_socket = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
    request = struct.pack("16sh", b"lo", 1 | 64)  # IFF_UP | IFF_RUNNING
    fcntl.ioctl(any_socket.fileno(), 0x8914, request)  # SIOCSIFFLAGS
    any_socket.close()


def _drop_bounding_set() -> None:
    with open("/proc/sys/kernel/cap_last_cap", encoding="ascii") as file:
        last = int(file.read())
    for number in range(last + 1):
        if number not in _KEPT_CAPABILITIES:
            _call("prctl", 24, number, 0, 0, 0)


def main() -> None:
    settings = marshal.loads(bytes.fromhex(sys.argv[1]))
    status = settings["status"]
    os.set_inheritable(status, False)
    try:
        _enter_namespaces()
        pid = os.fork()
        if pid == 0:
            _call("prctl", 1, _SIGKILL, 0, 0, 0)
            _build_root(settings["show"], settings["scratch_mb"], settings["scratch_files"])
            _raise_loopback()
            _socket.sethostname("isograd")
            _drop_bounding_set()
            command = settings["command"]
            os.execve(command[0], command, settings["environment"])
    except BaseException as error:
        os.write(status, str(error).encode()[:4000])
        os._exit(1)
    os.close(status)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.waitpid(pid, 0)
    os._exit(0)


main()
