"""What a candidate finds in memory: its own program, no check and nothing of any other job.

A marker is HEAD and 24 characters more, of which a candidate knows the hash only. So it can look
for markers in everything that it may read without having one in its own memory.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import pytest

from conftest import MAKERS
from isograd import Assertions, Job, Limits, Program, Sandbox
from isograd.contract import Checks

HEAD = "isograd.marker."
REST = 24

SEARCH = """
import glob, hashlib, json, os, socket

HEAD = "isograd.marker."
KNOWN = {known}
FORMS = [(1, HEAD.encode()), (2, HEAD.encode("utf-16-le")), (4, HEAD.encode("utf-32-le"))]
STEP, OVERLAP = 1 << 20, 4 * (len(HEAD) + {rest})
looked_at = set()
amount = 0

def look(data, where, found):
    global amount
    amount += len(data)
    looked_at.add(where)
    for width, head in FORMS:
        at = data.find(head)
        while at >= 0:
            begin = at + len(head)
            name = KNOWN.get(hashlib.sha256(data[begin : begin + width * {rest} : width]).hexdigest())
            if name is not None:
                found.add(name)
            at = data.find(head, at + 1)

def look_at_file(path, where, found):
    try:
        with open(path, "rb", buffering=0) as file:
            kept = b""
            for _ in range(64):
                data = file.read(STEP)
                if not data:
                    break
                look(kept + data, where, found)
                kept = data[-OVERLAP:]
    except OSError:
        pass

def look_at_memory(pid, where, found):
    try:
        with open(f"/proc/{{pid}}/maps") as file:
            regions = [line.split() for line in file]
        memory = open(f"/proc/{{pid}}/mem", "rb", buffering=0)
    except OSError:
        return
    with memory:
        for region in regions:
            begin, end = (int(part, 16) for part in region[0].split("-"))
            while "r" in region[1] and begin < end:
                try:
                    memory.seek(begin)
                    data = memory.read(min(STEP + OVERLAP, end - begin))
                except (OSError, OverflowError, ValueError):
                    break
                look(data, where, found)
                begin += STEP

def look_at_sockets(found):
    for name in os.listdir("/proc/self/fd"):
        try:
            kept = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        with kept:
            try:
                look(kept.recv(STEP, socket.MSG_PEEK | socket.MSG_DONTWAIT), "socket", found)
            except OSError:
                pass

def search(when):
    "Looks at everything that there is, and prints what it found."
    found = set()
    look_at_memory("self", "memory", found)
    look_at_sockets(found)
    me = os.getpid()
    for place in glob.glob("/proc/[0-9]*"):
        pid = int(place[6:])
        whose = "self" if pid == me else "other"
        if pid != me:
            look_at_memory(pid, "other memory", found)
        for name in ("cmdline", "environ", "stack", "syscall", "wchan", "comm", "status"):
            look_at_file(f"{{place}}/{{name}}", f"{{whose}} {{name}}", found)
        for link in glob.glob(f"{{place}}/fd/*") + glob.glob(f"{{place}}/map_files/*"):
            try:
                look(os.readlink(link).encode("utf-8", "replace"), "descriptor", found)
            except OSError:
                continue
            if os.path.isfile(link):
                look_at_file(link, "open file", found)
    for place in ("/tmp", "/dev/shm", "/var/tmp", os.getcwd()):
        for folder, folders, files in os.walk(place):
            for name in folders + files:
                look(name.encode("utf-8", "replace"), "name", found)
                look_at_file(f"{{folder}}/{{name}}", "file", found)
    print(json.dumps({{
        "when": when, "found": sorted(found), "places": sorted(looked_at), "amount": amount,
    }}))
    return 0
"""

ATTACK = SEARCH + "\nown = {own!r}\nsearch('import')\n"

FORMER = """
import os
kept = {code!r}
print({output!r})
for place in (os.getcwd(), '/dev/shm', '/tmp'):
    try:
        with open(f'{{place}}/kept', 'w') as file:
            file.write({file!r})
    except OSError:
        pass
os.environ['KEPT'] = {environ!r}
def f(x): return x
"""


class Markers:
    """Strings that occur nowhere else, by name; ``known`` is what a candidate is told of them."""

    def __init__(self) -> None:
        self._made: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        if name not in self._made:
            self._made[name] = HEAD + secrets.token_hex(REST // 2)
        return self._made[name]

    @property
    def known(self) -> dict[str, str]:
        return {
            hashlib.sha256(text.removeprefix(HEAD).encode()).hexdigest(): name
            for name, text in self._made.items()
        }


class Look(NamedTuple):
    """What a candidate saw."""

    found: list[str]
    places: list[str]
    amount: int


LIMITS = Limits(timeout_s=30, scratch_mb=8)


def former(markers: Markers, name: str, grading: Literal["split", "shared"]) -> Job:
    """A job that leaves markers wherever it can."""
    code = {part: markers[f"{name}: its {part}"] for part in ("code", "output", "file", "environ")}
    return Job(
        code=FORMER.format(**code),
        checks=Assertions(
            [f"f({markers[f'{name}: its check']!r}) == {markers[f'{name}: its check']!r}"],
            setup=f"kept = {markers[f'{name}: its setup']!r}",
        ),
        prompt=f"# {markers[f'{name}: its prompt']}\n",
        limits=LIMITS,
        denylist=(),
        grading=grading,
    )


def assertions(markers: Markers) -> Checks:
    """Checks with a marker in every part; the second one has the candidate look for them."""
    return Assertions(
        [
            f"len({markers['a check before']!r}) > 0",
            f"({markers['the check']!r}, search('check'))[1] == 0  # {markers['a comment']}",
            f"len({markers['a check after']!r} + 'é\u2026') > 0",
        ],
        setup=f"# {markers['a comment in the setup']}\nkept = [{markers['the setup']!r}] * 3\n"
        f"def helper(given={markers['a default']!r}): return search('check')\n",
    )


def program(markers: Markers) -> Checks:
    """The same as a test program."""
    return Program(
        f"# {markers['a comment']}\nkept = {{{markers['a constant']!r}: 1}}\n"
        f"def check(candidate):\n    '''{markers['a docstring']}'''\n"
        f"    expected = {markers['the check']!r} * 2\n    assert candidate('check') == 0\n"
        f"    assert {markers['a check after']!r} in kept or expected\n",
        "search",
    )


def looks_of(sandbox: Sandbox, job: Job) -> Iterator[tuple[str, Look]]:
    """What the candidate saw at its import and in a check."""
    envelope = sandbox.run(job)
    assert envelope.exit_code == "pass", (envelope.detail, envelope.stderr)
    for line in envelope.stdout.splitlines():
        seen: dict[str, Any] = json.loads(line)
        yield seen["when"], Look(seen["found"], seen["places"], seen["amount"])


def attack(markers: Markers, checks: Checks, grading: Literal["split", "shared"]) -> Job:
    own = markers["its own program"]
    code = ATTACK.format(known=repr(markers.known), rest=REST, own=own)
    return Job(code=code, checks=checks, limits=LIMITS, denylist=(), grading=grading)


# A fork of a warm interpreter is the hard case; one new interpreter is like another. gVisor has
# no /proc/PID/mem.
WALLS = [name for name in MAKERS if name == "subprocess-fresh" or "-" not in name]
WALLS.remove("gvisor")


@pytest.fixture(scope="module", params=WALLS)
def lane(
    request: pytest.FixtureRequest, make_sandbox: Callable[[str], Callable[[], Sandbox]]
) -> Iterator[Sandbox]:
    """A lane on which only these tests run."""
    with make_sandbox(request.param)() as sandbox:
        yield sandbox


@pytest.mark.parametrize("make_checks", [assertions, program])
def test_memory_holds_no_check_and_no_other_job(
    lane: Sandbox, make_checks: Callable[[Markers], Checks]
) -> None:
    """With split grading a candidate that reads all that it can finds only its own program."""
    markers = Markers()
    for name, grading in (("a former job", "split"), ("another", "shared")):
        envelope = lane.run(former(markers, name, grading))  # type: ignore[arg-type]
        assert envelope.exit_code == "pass", envelope.detail
        assert markers[f"{name}: its output"] in envelope.stdout
    before = lane._lane
    checks = make_checks(markers)
    looks = dict(looks_of(lane, attack(markers, checks, "split")))
    assert lane._lane is before
    assert list(looks) == ["import", "check"]
    for look in looks.values():
        assert look.found == ["its own program"]
        assert {"memory", "descriptor", "self cmdline", "self environ"} <= set(look.places)
        assert "other memory" not in look.places
        assert look.amount > 5 << 20


@pytest.mark.parametrize("make_checks", [assertions, program])
def test_the_same_search_finds_what_is_there(
    lane: Sandbox, make_checks: Callable[[Markers], Checks]
) -> None:
    """With shared grading every part of the checks is found, and still no other job."""
    markers = Markers()
    checks = make_checks(markers)
    here = {*markers.known.values(), "its own program"}
    lane.run(former(markers, "a former job", "split"))
    looks = dict(looks_of(lane, attack(markers, checks, "shared")))
    assert set(looks["check"].found) == here
