"""The doctor: is each protection of a wall in force, seen from inside it?

The supervisor says what it is and what is mounted; a probe that runs as a candidate, with the
denylist empty, says what a candidate can see and do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from isograd.contract import Assertions, ExitCode, Job, Limits
from isograd.errors import SandboxCrashed
from isograd.sandbox import Sandbox

_SUPERVISOR_CAPABILITIES = 0b1110_0000  # KILL, SETGID, SETUID
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

print(json.dumps({
    "status": status(),
    "uids": os.getresuid(),
    "interfaces": [name for _, name in socket.if_nameindex()],
    "connect": refused(connect),
    "write_root": refused(lambda: write("/isograd-probe")),
    "write_library": refused(lambda: write(os.path.dirname(os.__file__) + "/isograd_probe.py")),
    "read_only_root": bool(os.statvfs("/").f_flag & os.ST_RDONLY),
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
    findings = list(_about_candidate(candidate, limits))
    findings += _about_supervisor(inside, in_container)
    if in_container:
        findings += _about_container(inside)
    return findings


def _about_candidate(seen: dict[str, Any], limits: Limits) -> Iterator[Finding]:
    status = seen["status"]
    yield Finding(
        "no network",
        seen["interfaces"] in ([], ["lo"]) and seen["connect"] is not None,
        f"interfaces {', '.join(seen['interfaces']) or 'none'}; connect: {seen['connect']}",
    )
    yield Finding(
        "read-only root",
        seen["read_only_root"] and None not in (seen["write_root"], seen["write_library"]),
        f"writing gives {seen['write_root']} and {seen['write_library']}",
    )
    yield Finding("candidate is not root", 0 not in seen["uids"], f"uid {seen['uids'][0]}")
    capabilities = [status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")]
    yield Finding(
        "candidate has no capabilities",
        all(int(value, 16) == 0 for value in capabilities),
        f"permitted {capabilities[1]}, effective {capabilities[2]}",
    )
    yield Finding("no_new_privs", status["NoNewPrivs"] == "1", f"candidate {status['NoNewPrivs']}")
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


def _about_supervisor(inside: dict[str, Any], in_container: bool) -> Iterator[Finding]:
    status = inside["status"]
    bounding = int(status["CapBnd"], 16)
    yield Finding(
        "supervisor has few capabilities",
        bounding & ~_SUPERVISOR_CAPABILITIES == 0,
        f"bounding set {status['CapBnd']}",
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
    if in_container:
        yield Finding("seccomp", status.get("Seccomp") == "2", f"mode {status.get('Seccomp')}")
        yield Finding(
            "container starts with no_new_privs",
            inside["born_no_new_privs"] == "1",
            str(inside["born_no_new_privs"]),
        )


def _about_container(inside: dict[str, Any]) -> Iterator[Finding]:
    for name in ("memory", "pids", "cpu"):
        value = inside["cgroup"].get(name)
        yield Finding(f"{name} limit of the container", value is not None, str(value))


def _writable_mounts(mountinfo: str) -> Iterator[str]:
    for line in mountinfo.splitlines():
        fields = line.split()
        options = {*fields[5].split(","), *fields[-1].split(",")}
        if "rw" in fields[5].split(",") and "ro" not in options:
            yield fields[4]
