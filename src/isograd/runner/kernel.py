"""What the runner asks of the kernel: identities, limits, processes, protections. Linux only."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import contextlib
import ctypes
import math
import os
import resource
import signal
import struct
from collections.abc import Iterator
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_GET_PDEATHSIG = 2
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_SECCOMP = 22
_PR_SET_NO_NEW_PRIVS = 38
_PR_GET_NO_NEW_PRIVS = 39
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_LINUX_CAPABILITY_VERSION_3 = 0x20080522
_MIB = 1 << 20

_libc = ctypes.CDLL(None, use_errno=True)
_with_gil = ctypes.PyDLL(None, use_errno=True)
_prctl = _libc.prctl
_prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4


def _control(option: int, value: int) -> None:
    if _prctl(option, value, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl {option}: {os.strerror(error)}")


def set_dumpable(on: bool) -> None:
    """Whether processes of the same uid may read this one through /proc and ptrace."""
    _control(_PR_SET_DUMPABLE, int(on))


def set_no_new_privs() -> None:
    """From now on no execve gives this process or its children more than they have."""
    _control(_PR_SET_NO_NEW_PRIVS, 1)


def has_no_new_privs() -> bool:
    return bool(_prctl(_PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1)


def become_subreaper() -> None:
    """Orphans below this process become its children."""
    _control(_PR_SET_CHILD_SUBREAPER, 1)


def volunteer_for_oom() -> None:
    """Makes this process and its children the first to go when memory runs out."""
    set_dumpable(True)  # else the file is root's
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("1000")
    finally:
        set_dumpable(False)


def block_signals() -> None:
    """Nothing but SIGKILL and SIGSTOP reaches this process."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Capabilities(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint32) for name in ("effective", "permitted", "inheritable"))


def _capabilities(call: str, data: Any) -> None:
    header = _Header(_LINUX_CAPABILITY_VERSION_3, 0)
    if getattr(_libc, call)(ctypes.byref(header), data) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{call}: {os.strerror(error)}")


def drop_capabilities() -> None:
    """Gives up every capability of this process; a uid change does it by itself."""
    _capabilities("capset", (_Capabilities * 2)())


def keep_capabilities_to_ourselves() -> None:
    """No capability of this process survives in what it starts, or in a change of uid."""
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    data = (_Capabilities * 2)()
    _capabilities("capget", data)
    for word in data:
        word.inheritable = 0
    _capabilities("capset", data)


# Landlock. The numbers are the same on every architecture.
_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446
_LANDLOCK_VERSION = 1
_RULE_PATH_BENEATH = 1
_WRITE_FILE, _TRUNCATE = 1 << 1, 1 << 14
_CHANGE_TREE = sum(1 << bit for bit in range(4, 14))  # remove, make, and move between directories
_TCP_BIND_CONNECT = 0b11
_SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11


class _Ruleset(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def landlock_ruleset(trees: tuple[str, ...], files: tuple[str, ...], tcp: bool) -> int | None:
    """A ruleset that leaves only these directories and files to be written to; None if the
    kernel has none that can say so. Without ``tcp`` it refuses to bind and connect, and where
    the kernel can, no signal leaves the processes that it restricts.
    """
    syscall = _libc.syscall
    version = syscall(_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_VERSION)
    if version < 3:
        return None
    attributes = _Ruleset(fs=_WRITE_FILE | _TRUNCATE | _CHANGE_TREE)
    if version >= 4 and not tcp:
        attributes.net = _TCP_BIND_CONNECT
    if version >= 6:
        attributes.scoped = _SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset: int = syscall(_LANDLOCK_CREATE_RULESET, ctypes.byref(attributes), size, 0)
    if ruleset < 0:
        return None
    writes = _WRITE_FILE | _TRUNCATE
    for places, allowed in ((trees, writes | _CHANGE_TREE), (files, writes)):
        for place in places:
            with contextlib.suppress(FileNotFoundError):
                parent = os.open(place, os.O_PATH | os.O_CLOEXEC)
                try:
                    rule = _PathBeneath(allowed=allowed, parent=parent)
                    added = ctypes.byref(rule)
                    if syscall(_LANDLOCK_ADD_RULE, ruleset, _RULE_PATH_BENEATH, added, 0) != 0:
                        os.close(ruleset)
                        return None
                finally:
                    os.close(parent)
    return ruleset


def lane_uid(seed: int) -> int:
    """A high, unprivileged uid for this lane that the user namespace can express."""
    try:
        with open("/proc/self/uid_map", encoding="ascii") as file:
            spans = [[int(part) for part in line.split()] for line in file]
    except OSError:
        spans = [[0, 0, 1 << 32]]
    first, _, count = max(spans, key=lambda span: span[2])
    low, high = (
        (1 << 30, (1 << 31) - 2) if count > (1 << 31) else (first + count // 2, first + count)
    )
    return low + seed % max(1, high - low - 1)


def become(uid: int | None, group: int | None) -> None:
    """Turns this process into a user of the lane's for good; None only drops privilege."""
    if uid is None:
        drop_capabilities()
        return
    group = uid if group is None else group
    os.setgroups([])
    os.setresgid(group, group, group)
    os.setresuid(uid, uid, uid)


def confine(uid: int | None, group: int | None, ruleset: int | None, *, readable: bool) -> None:
    """Makes this process a candidate's or a grader's for good: its user, its end with its
    parent's, Landlock's ``ruleset`` (whose descriptor is closed), whether processes of its user
    may read it, no signal blocked. One function, for each is a few pages to copy. Raises OSError.
    """
    become(uid, group)
    done = _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if done == 0 and ruleset is not None:
        done = _libc.syscall(_LANDLOCK_RESTRICT_SELF, ruleset, 0)
        os.close(ruleset)
    if done == 0:
        done = _prctl(_PR_SET_DUMPABLE, int(readable), 0, 0, 0)
    if done != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"not confined: {os.strerror(error)}")
    # signal's own makes a member of an enumeration of each signal that was blocked.
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())


@contextlib.contextmanager
def acting_as(uid: int | None) -> Iterator[None]:
    """Acts as the lane's user for a while: its files, and signals to its processes only."""
    if uid is None:
        yield
        return
    ends_with_parent = ctypes.c_int()
    _prctl(_PR_GET_PDEATHSIG, ctypes.addressof(ends_with_parent), 0, 0, 0)
    os.setresgid(uid, uid, 0)
    os.setresuid(uid, uid, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)
        os.setresgid(0, 0, 0)
        _control(_PR_SET_PDEATHSIG, ends_with_parent.value)  # another uid has cleared it


def in_own_user_namespace() -> bool:
    """Whether this uid is mapped alone: then the kernel counts its processes here alone."""
    try:
        with open("/proc/self/uid_map", encoding="ascii") as file:
            return [int(line.split()[2]) for line in file] == [1]
    except (OSError, ValueError, IndexError):
        return False


def can_become(uid: int) -> bool:
    """Whether a child can turn into ``uid`` and still read and start the interpreter."""
    import sys

    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            become(uid, uid)
            with open(os.__file__, "rb"):
                pass
            os.listdir(os.path.dirname(os.__file__))
            status = 0 if os.access(sys.executable, os.R_OK | os.X_OK) else 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def return_memory() -> None:
    """Gives back the pages that this process has freed: forks are spared them."""
    with contextlib.suppress(AttributeError):  # a C library that has no such call
        _libc.malloc_trim(0)


fork = _with_gil.fork
"""Forks this process, which has one thread, without Python's own handlers for it: 0, the child's
pid, or -1. They put in order what other threads held, and cost a quarter of a fork in pages that
they write to. The caller sees to the state of ``random``."""


def address_space() -> int:
    """The size of this process in bytes."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def resource_limits(limits: dict[str, Any], *, count_processes: bool) -> list[tuple[int, int, int]]:
    """The resource limits of a job, for ``limit_this_process``: which, soft, hard.

    ``count_processes`` where the kernel counts no processes but this job's under its uid. The
    address space is what the job may have beyond the size of its process at its start, so that
    preloaded modules cost the candidate nothing.
    """
    wanted = {
        resource.RLIMIT_AS: limits["memory_mb"] * _MIB,
        resource.RLIMIT_FSIZE: limits["file_mb"] * _MIB,
        resource.RLIMIT_NOFILE: limits["open_files"],
    }
    if count_processes:
        wanted[resource.RLIMIT_NPROC] = limits["processes"]
    given = [(which, value, value) for which, value in wanted.items()]
    if limits["cpu_s"] is not None:
        seconds = max(1, math.ceil(limits["cpu_s"]))
        # One more until the hard limit: reaching both at once is SIGKILL, which names nothing.
        given.append((resource.RLIMIT_CPU, seconds, seconds + 1))
    return given


def limits_in_force() -> list[tuple[int, int, int]]:
    """The limits of this process of those that jobs have, as they are."""
    which = (resource.RLIMIT_AS, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE)
    return [(one, *resource.getrlimit(one)) for one in which]


EVERY_JOB = [
    (which, value, value)
    for which, value in (
        (resource.RLIMIT_STACK, 8 * _MIB),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MSGQUEUE, 819_200),
        (resource.RLIMIT_RTPRIO, 0),
        (resource.RLIMIT_NICE, 0),
    )
]
"""The resource limits that are the same for every job: which, soft, hard."""

_NOT_EVERYWHERE = (resource.RLIMIT_MSGQUEUE, resource.RLIMIT_RTPRIO, resource.RLIMIT_NICE)
"""Limits that a kernel without queues or priorities (gVisor) has no use for."""


def limit_this_process(limits: list[tuple[int, int, int]], size: int) -> None:
    """Puts resource limits on this process, which had ``size`` bytes at its start.

    Raises OSError where a limit cannot be had.
    """
    for which, soft, hard in limits:
        more = size if which == resource.RLIMIT_AS else 0
        try:
            resource.setrlimit(which, (soft + more, hard + more))
        except (OSError, ValueError) as error:
            if which not in _NOT_EVERYWHERE:
                raise OSError(f"resource limit {which} cannot be {soft}: {error}") from error


_RLIMITS = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})


def standing(pids: tuple[int, ...]) -> list[Any]:
    """Limits, priority, affinity and scheduler of our own processes, to compare later."""
    return [
        (
            [resource.prlimit(pid, which) for which in _RLIMITS],
            os.getpriority(os.PRIO_PROCESS, pid),
            os.sched_getaffinity(pid),
            os.sched_getscheduler(pid),
        )
        for pid in pids
    ]


def stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name: state first, parent second."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()


def unbacked_bytes(pid: int) -> int:
    """Resident memory of a process that no file on a disk backs; 0 if it is gone."""
    found = 0
    with (
        contextlib.suppress(OSError, ValueError, IndexError),
        open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file,
    ):
        for line in file:
            if line.startswith(("RssAnon:", "RssShmem:")):
                found += int(line.split()[1]) << 10
    return found


# fmt: off
_SECCOMP_NUMBERS: dict[str, tuple[int, int, int, tuple[int, ...]]] = {
    # audit architecture, clone, clone3, and what is refused: memfd_create memfd_secret shmget
    # semget msgget mq_open add_key request_key keyctl unshare setns ptrace process_vm_readv
    # process_vm_writev pidfd_getfd io_uring_setup userfaultfd bpf perf_event_open
    "x86_64": (0xC000003E, 56, 435, (319, 447, 29, 64, 68, 240, 248, 249, 250, 272, 308, 101,
                                     310, 311, 438, 425, 323, 321, 298)),
    "aarch64": (0xC00000B7, 220, 435, (279, 447, 194, 190, 186, 180, 217, 218, 219, 97, 268, 117,
                                       270, 271, 438, 425, 282, 280, 241)),
}
# fmt: on
_CLONE_REFUSED = 0x7E020000 | 0x8000 | 0x2000  # new namespaces, CLONE_PARENT, CLONE_PTRACE


def close_side_doors() -> bool:
    """Refuses (EPERM) system calls that keep memory, objects or processes where no limit looks.

    For good, in this process and all below it. False where that cannot be had.
    """
    known = _SECCOMP_NUMBERS.get(os.uname().machine)
    if known is None:
        return False
    arch, clone, clone3, refused = known
    load, equal, greater, masked, give = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, eperm, enosys = 0x7FFF0000, 0x00050001, 0x00050026
    # Each jump is relative; the three ends stand last: allow, EPERM, ENOSYS.
    program: list[tuple[int, str | int, str | int, int]] = [
        (load, 0, 0, 4),
        (equal, 0, "eperm", arch),
        (load, 0, 0, 0),
        (greater, "eperm", 0, 0x40000000),
        (equal, "enosys", 0, clone3),
        *((equal, "eperm", 0, number) for number in refused),
        (equal, 0, "allow", clone),
        (load, 0, 0, 16),
        (masked, "eperm", "allow", _CLONE_REFUSED),
        (give, 0, 0, allow),
        (give, 0, 0, eperm),
        (give, 0, 0, enosys),
    ]
    ends = {"allow": len(program) - 3, "eperm": len(program) - 2, "enosys": len(program) - 1}

    def jump(to: str | int, at: int) -> int:
        return ends[to] - at - 1 if isinstance(to, str) else to

    code = b"".join(
        struct.pack("=HBBI", what, jump(then, at), jump(other, at), value)
        for at, (what, then, other, value) in enumerate(program)
    )
    text = ctypes.create_string_buffer(code, len(code))
    filter_ = struct.pack("@HxxxxxxP", len(program), ctypes.addressof(text))
    address = ctypes.create_string_buffer(filter_, len(filter_))
    return bool(_prctl(_PR_SET_SECCOMP, 2, ctypes.addressof(address), 0, 0) == 0)


# Sockets, without the socket module: it would double what the runner imports.


Socket = _socket.socket


def socket_pair(*, packets: bool = False, nonblocking: bool = False) -> tuple[int, int]:
    """The descriptors of a pair of local sockets, a stream or packets.

    The first may be non-blocking; what is sent to it out of band comes in line.
    """
    kind = _socket.SOCK_SEQPACKET if packets else _socket.SOCK_STREAM
    one, other = _socket.socketpair(_socket.AF_UNIX, kind)
    if nonblocking:
        one.setsockopt(_socket.SOL_SOCKET, _socket.SO_OOBINLINE, 1)
        one.setblocking(False)
    return one.detach(), other.detach()


def packet_socket(fd: int) -> Socket:
    """One end of a pair of packets, as what ``send_fds`` uses."""
    return _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, fd)


def give_up_after(control: Socket, seconds: float) -> None:
    """Has ``recv`` raise BlockingIOError after so long."""
    interval = struct.pack("@ll", int(seconds), 0)
    control.setsockopt(_socket.SOL_SOCKET, _socket.SO_RCVTIMEO, interval)


def send_fds(control: Socket, message: bytes, fds: tuple[int, ...]) -> None:
    """Sends a packet with copies of these descriptors. Raises OSError."""
    packed = struct.pack(f"{len(fds)}i", *fds)
    control.sendmsg([message], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, packed)])


def room_for_fds(most: int) -> int:
    """How much ancillary data ``recvmsg`` needs for so many descriptors."""
    return _socket.CMSG_LEN(most * 4)


def fds_in(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    """The descriptors that came with a packet."""
    return [fd for _, _, data in ancillary for fd in memoryview(data).cast("i").tolist()]


def all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def descendants(root: int) -> list[int]:
    """Every process below ``root``, by parent links, zombies included."""
    parents: dict[int, list[int]] = {}
    for pid in all_pids():
        with contextlib.suppress(OSError, ValueError, IndexError):
            parents.setdefault(int(stat_fields(pid)[1]), []).append(pid)
    found: list[int] = []
    queue = [root]
    while queue:
        below = parents.get(queue.pop(), [])
        found += below
        queue += below
    return found


def reap_orphans(keep: int) -> None:
    """Collects every dead child but ``keep``."""
    while True:
        try:
            dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if dead is None or dead.si_pid == keep:
            return
        os.waitpid(dead.si_pid, 0)


def own_status() -> dict[str, str]:
    """/proc/self/status."""
    with open("/proc/self/status", encoding="utf-8", errors="replace") as file:
        return dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)


def cgroup_limits() -> dict[str, str]:
    """The limits of memory, pids and cpu that this cgroup has, as far as they can be seen."""
    found = {}
    for name, places in (
        ("memory", ("memory.max", "memory/memory.limit_in_bytes")),
        ("pids", ("pids.max", "pids/pids.max")),
        ("cpu", ("cpu.max", "cpu/cpu.cfs_quota_us", "cpu,cpuacct/cpu.cfs_quota_us")),
    ):
        for place in places:
            with contextlib.suppress(OSError):
                with open(f"/sys/fs/cgroup/{place}", encoding="ascii") as file:
                    value = file.read().strip()
                # Version 1 says "none" with a number that no machine has.
                if not value.startswith(("max", "-1")) and value[:19] != "9223372036854771712":
                    found[name] = value
    return found


def is_dead(pid: int) -> bool:
    """Whether a process has ended, collected or not."""
    try:
        return stat_fields(pid)[0] in ("Z", "X")
    except (OSError, IndexError):
        return True


def kill_each(pids: list[int]) -> None:
    """Stops every process before it kills any, so that none can start another meanwhile."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, number)


def kill_everybody() -> None:
    """Kills every process that this identity may signal, but itself."""
    with contextlib.suppress(OSError):
        os.kill(-1, signal.SIGKILL)


class _Ints(ctypes.Structure):
    """Room for what SHM_INFO, SEM_INFO and MSG_INFO answer."""

    _fields_ = (("word", ctypes.c_int * 32),)


_SHM_INFO, _SEM_INFO, _MSG_INFO, _IPC_RMID = 14, 19, 12, 0


def ipc_in_use() -> bool:
    """Whether this IPC namespace holds any System V object."""
    found = _Ints()
    if _libc.shmctl(0, _SHM_INFO, ctypes.byref(found)) >= 0 and found.word[0]:
        return True
    if _libc.semctl(0, 0, _SEM_INFO, ctypes.byref(found)) >= 0 and found.word[7]:
        return True
    return _libc.msgctl(0, _MSG_INFO, ctypes.byref(found)) >= 0 and bool(found.word[0])


def remove_ipc(uid: int | None) -> None:
    """Removes every System V object of this IPC namespace that ``uid`` may remove."""
    with acting_as(uid):
        for kind, column in (("shm", 1), ("sem", 1), ("msg", 1)):
            try:
                with open(f"/proc/sysvipc/{kind}", encoding="ascii") as file:
                    found = [int(line.split()[column]) for line in list(file)[1:]]
            except OSError:
                continue
            for number in found:
                if kind == "shm":
                    _libc.shmctl(number, _IPC_RMID, None)
                elif kind == "sem":
                    _libc.semctl(number, 0, _IPC_RMID)
                else:
                    _libc.msgctl(number, _IPC_RMID, None)
