"""The doctor: is each protection of a wall in force, seen from inside it?

The supervisor says what it is and what is mounted; a probe that runs as a candidate, with the
denylist empty, says what a candidate can see and do.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from isograd.contract import Assertions, ExitCode, Job, Limits
from isograd.errors import SandboxCrashed
from isograd.sandbox import Sandbox

_SUPERVISOR_CAPABILITIES = 0b1110_0000  # KILL, SETGID, SETUID
_HOSTS_IPC = "ipc:[4026531839]"
"""The IPC namespace that Linux starts with; gVisor has none to show, and one for each sandbox."""

_WRITABLE = ("/tmp", "/dev", "/proc", "/sys/fs/cgroup")

_PROBE = """
import errno, json, os, resource, socket, sys

def status():
    with open("/proc/self/status") as file:
        return dict(line.rstrip("\\n").split(":\\t", 1) for line in file if ":\\t" in line)

def refused(action):
    try:
        action()
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error.errno))
    return None

def connect():
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as any_socket:
        any_socket.settimeout(1)
        any_socket.connect(("192.0.2.1", 9))

def write(path):
    with open(path, "w"):
        os.unlink(path)

import ctypes

print(json.dumps({
    "status": status(),
    "no_new_privs": ctypes.CDLL(None).prctl(39, 0, 0, 0, 0),  # PR_GET_NO_NEW_PRIVS
    "uids": os.getresuid(),
    "interfaces": [name for _, name in socket.if_nameindex()],
    "connect": refused(connect),
    "write_root": refused(lambda: write("/isograd-probe")),
    "write_library": refused(lambda: write(os.path.dirname(os.__file__) + "/isograd_probe.py")),
    "ipc": os.readlink("/proc/self/ns/ipc") if os.path.lexists("/proc/self/ns/ipc") else None,
    "signal_supervisor": refused(lambda: os.kill(os.getppid(), 0)),
    "limits": {
        name: resource.getrlimit(getattr(resource, "RLIMIT_" + name))
        for name in ("FSIZE", "NOFILE", "CORE", "NPROC", "AS")
    },
}))
"""


@dataclass(frozen=True)
class Finding:
    """One protection: whether it is in force, and what was seen."""

    name: str
    holds: bool
    seen: str


def examine(sandbox: Sandbox) -> list[Finding]:
    """Verifies a wall's protections from inside. Raises SandboxUnavailable, SandboxCrashed."""
    inside = sandbox.inspect()
    limits = Limits(output_bytes=1 << 20)
    envelope = sandbox.run(
        Job(code=_PROBE, checks=Assertions(["True is True"]), limits=limits, denylist=())
    )
    if envelope.exit_code is not ExitCode.PASS:
        raise SandboxCrashed(f"the probe ended with {envelope.exit_code.value}: {envelope.detail}")
    candidate = json.loads(envelope.stdout)
    in_container = sandbox.backend == "docker"
    root_is_read_only = "/" not in _writable_mounts(inside["mountinfo"])
    findings = list(_about_candidate(candidate, limits, root_is_read_only))
    gvisor = sandbox.facts().get("runtime") == "runsc"  # its kernel stands where seccomp would
    findings += _about_supervisor(inside, in_container, gvisor)
    if in_container and not gvisor:  # whose limits are the sandbox's own, unseen from inside
        findings += _about_container(inside)
    return findings


def _about_candidate(
    seen: dict[str, Any], limits: Limits, root_is_read_only: bool
) -> Iterator[Finding]:
    status = seen["status"]
    yield Finding(
        "no network",
        seen["interfaces"] in ([], ["lo"]) and seen["connect"] is not None,
        f"interfaces {', '.join(seen['interfaces']) or 'none'}; connect: {seen['connect']}",
    )
    yield Finding(
        "read-only root",
        root_is_read_only and None not in (seen["write_root"], seen["write_library"]),
        f"writing gives {seen['write_root']} and {seen['write_library']}",
    )
    yield Finding(
        "private IPC", seen["ipc"] not in (_HOSTS_IPC, _own_ipc()), f"namespace {seen['ipc']}"
    )
    yield Finding("candidate is not root", 0 not in seen["uids"], f"uid {seen['uids'][0]}")
    capabilities = [status.get(name, "0") for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")]
    yield Finding(
        "candidate has no capabilities",
        all(int(value, 16) == 0 for value in capabilities),
        f"permitted {capabilities[1]}, effective {capabilities[2]}",
    )
    yield Finding("no_new_privs", seen["no_new_privs"] == 1, f"candidate {seen['no_new_privs']}")
    yield Finding(
        "candidate cannot signal the supervisor",
        seen["signal_supervisor"] is not None,
        str(seen["signal_supervisor"]),
    )
    expected = {
        "FSIZE": limits.file_mb << 20,
        "NOFILE": limits.open_files,
        "CORE": 0,
        "NPROC": limits.processes,
    }
    wrong = [
        f"{name} is {seen['limits'][name]}, not {value}"
        for name, value in expected.items()
        if seen["limits"][name] != [value, value]
    ]
    address_space = seen["limits"]["AS"][0]
    if not 0 < address_space < (limits.memory_mb << 20) + (1 << 30):
        wrong.append(f"AS is {address_space}")
    yield Finding("resource limits", not wrong, "; ".join(wrong) or "as the job asks")


def _own_ipc() -> str:
    try:
        return os.readlink("/proc/self/ns/ipc")
    except OSError:
        return _HOSTS_IPC


def _about_supervisor(
    inside: dict[str, Any], in_container: bool, gvisor: bool
) -> Iterator[Finding]:
    status = inside["status"]
    # Where it started with no_new_privs nothing can give back what is not permitted.
    name = "CapPrm" if inside["born_no_new_privs"] else "CapBnd"
    yield Finding(
        "supervisor has few capabilities",
        int(status[name], 16) & ~_SUPERVISOR_CAPABILITIES == 0,
        f"{name} {status[name]}",
    )
    yield Finding("process ids of its own", inside["pid"] == 1, f"process id {inside['pid']}")
    writable = [
        place
        for place in _writable_mounts(inside["mountinfo"])
        if not any(place == known or place.startswith(known + "/") for known in _WRITABLE)
    ]
    yield Finding(
        "nothing else is writable", not writable, ", ".join(writable[:5]) or "only scratch"
    )
    if in_container and not gvisor:
        yield Finding("seccomp", status.get("Seccomp") == "2", f"mode {status.get('Seccomp')}")
    if in_container:
        yield Finding(
            "container starts with no_new_privs",
            inside["born_no_new_privs"],
            str(inside["born_no_new_privs"]),
        )


def _about_container(inside: dict[str, Any]) -> Iterator[Finding]:
    for name in ("memory", "pids", "cpu"):
        value = inside["cgroup"].get(name)
        yield Finding(f"{name} limit of the container", value is not None, str(value))
    scratch = _options_of("/tmp", inside["mountinfo"])
    bounded = any(option.startswith("size=") for option in scratch)
    yield Finding(
        "scratch is bounded, nosuid and nodev",
        bounded and {"nosuid", "nodev"} <= scratch,
        ", ".join(sorted(scratch)) or "no file system of its own",
    )


def _writable_mounts(mountinfo: str) -> list[str]:
    found = {}
    for line in mountinfo.splitlines():
        fields = line.split()
        options = {*fields[5].split(","), *fields[-1].split(",")}
        found[fields[4]] = "ro" not in options  # the last mount on a place is the one that counts
    return [place for place, writable in found.items() if writable]


def _options_of(place: str, mountinfo: str) -> set[str]:
    """The options of the file system at ``place``, its own and its mount's."""
    found: set[str] = set()
    for line in mountinfo.splitlines():
        fields = line.split()
        if fields[4] == place:
            found = {*fields[5].split(","), *fields[-1].split(",")}
    return found
