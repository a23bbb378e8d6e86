"""What a verdict is, behind every wall."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from isograd import Assertions, Envelope, ExitCode, Job, Limits, Program, Reason, Sandbox
from isograd.sandbox.base import Spawn

ADD = "def add(a, b):\n    return a + b\n"
ONE = ("one() == 1",)


def graded(sandbox: Sandbox, code: str | None, *checks: str, **fields: Any) -> Envelope:
    return sandbox.run(Job(code=code, checks=Assertions(checks), **fields))


def test_two_of_three_assertions_score_two_thirds(sandbox: Sandbox) -> None:
    """The score is the fraction of the checks that hold."""
    envelope = graded(sandbox, ADD, "add(1, 2) == 3", "assert add(0, 0) == 0", "add(1, 1) == 3")
    assert envelope == Envelope(
        exit_code=ExitCode.ASSERTION_FAIL,
        score=2 / 3,
        passed=2,
        total=3,
        detail="check 3: false",
        per_assertion=(True, True, False),
        grading=envelope.grading,
    )
    assert round(envelope.score, 3) == 0.667


VERDICTS: dict[str, tuple[str | None, tuple[str, ...], str, str | None, str]] = {
    "all hold": (ADD, ("add(1, 2) == 3",), "pass", None, ""),
    "no assertions": (ADD, (), "error", "no_checks", "no checks"),
    "no code": (None, ONE, "error", "no_code", "no code"),
    "empty code": (" \n", ONE, "error", "no_code", "no code"),
    "denied import": ("import socket\n", ONE, "error", "denied", "denied"),
    "denied import, caught": (
        "try:\n    import socket\nexcept ImportError:\n    pass\ndef one():\n    return 1\n",
        ONE, "pass", None, "",
    ),
    "denied import in a check": (
        "def one():\n    import subprocess\n    return 1\n",
        ONE, "assertion_fail", "denied", "denied",
    ),
    "denied call": ("import os\nos.system('true')\n", ONE, "error", "denied", "denied"),
    "missing module": ("import no_such_module\n", ONE, "error", "import_missing", "no_such_module"),
    "print loop": (
        "while True:\n    print('x' * 1000)\n", ONE, "error", "output_overflow", "output overflow",
    ),
    "raises at import": ("x = 1 / 0\n", ONE, "error", "raised", "ZeroDivisionError"),
    "raises in a check": (
        "def one():\n    return 1 / 0\n", ONE, "assertion_fail", None, "ZeroDivisionError",
    ),
    "does not compile": ("def one(:\n", ONE, "syntax_error", None, "SyntaxError"),
    "indentation": ("def one():\nreturn 1\n", ONE, "syntax_error", None, "IndentationError"),
    "null byte": ("x = 1\0\n", ONE, "syntax_error", None, "null bytes"),
    "lone surrogate in code": ("x = '\ud800'\n", ONE, "syntax_error", None, "surrogate"),
    "deeply nested code": ("x = " + "(" * 5000 + ")" * 5000, ONE, "syntax_error", None, ""),
    "exit at import": ("import sys\nsys.exit(0)\n", ONE, "error", "early_exit", "SystemExit: 0"),
    "exit() at import": ("exit()\n", ONE, "error", "early_exit", "SystemExit"),
    "exit in a check": (
        "import sys\ndef one():\n    sys.exit(0)\n", ONE, "error", "early_exit", "SystemExit: 0",
    ),
    "os._exit": ("import os\nos._exit(0)\n", ONE, "error", "early_exit", "status 0"),
    "name missing": ("x = 1\n", ONE, "assertion_fail", None, "NameError"),
    "check is no Python": (ADD, ("add(1, 2) ==",), "assertion_fail", None, "SyntaxError"),
    "input at import": ("n = int(input())\n", ONE, "error", "raised", "EOFError"),
    "memory in a check": (
        "def one():\n    return len(bytearray(10 ** 10))\n", ONE, "assertion_fail", "memory",
        "MemoryError",
    ),
    "byte-order mark": ("\ufeffdef one():\n    return 1\n", ONE, "pass", None, ""),
    "main block": (
        "if __name__ == '__main__':\n    raise SystemExit\ndef one():\n    return 1\n",
        ONE, "pass", None, "",
    ),
    "endless recursion": (
        "def one():\n    return one()\n", ONE, "assertion_fail", None, "RecursionError",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("code", "checks", "exit_code", "reason", "detail"), VERDICTS.values(), ids=VERDICTS
)
def test_verdicts(
    sandbox: Sandbox,
    code: str | None,
    checks: tuple[str, ...],
    exit_code: str,
    reason: str | None,
    detail: str,
) -> None:
    """Each way to end has its exit code, its reason and a detail that says so."""
    envelope = graded(sandbox, code, *checks)
    assert (envelope.exit_code, envelope.reason) == (exit_code, reason), envelope.detail
    assert detail in envelope.detail


def test_the_grading_is_split_unless_asked(backend: str, sandbox: Sandbox) -> None:
    """The envelope says which grading was used; by default the candidate never meets a check."""
    expected = "shared" if backend.endswith("-shared") else "split"
    assert graded(sandbox, ADD, "add(1, 2) == 3").grading == expected


def test_a_sleeping_import_times_out(sandbox: Sandbox) -> None:
    """The clock covers the import: half a second is half a second."""
    code = "import time\nprint('before', flush=True)\ntime.sleep(60)\n"
    envelope = graded(sandbox, code, *ONE, limits=Limits(timeout_s=0.5))
    assert envelope.exit_code == "timeout"
    assert envelope.detail == "timeout after 0.50s"
    assert envelope.per_assertion == (None,)
    assert envelope.stdout == "before\n"


def test_a_timeout_keeps_what_was_decided_and_scores_zero(sandbox: Sandbox) -> None:
    """`passed` counts the checks before the one that hung; the score does not."""
    code = "def one(n):\n    while n:\n        pass\n    return 1\n"
    envelope = graded(
        sandbox, code, "one(0) == 1", "one(1) == 1", "one(0)", limits=Limits(timeout_s=0.5)
    )
    assert (envelope.exit_code, envelope.score, envelope.passed) == ("timeout", 0.0, 1)
    assert envelope.per_assertion == (True, None, None)


def test_after_an_overflow_the_first_output_is_kept(sandbox: Sandbox) -> None:
    """Of a killed run each stream keeps its first 2 KiB, and the envelope says so."""
    code = (
        "import sys\nsys.stderr.write('e' * 3000)\nwhile True:\n    sys.stdout.write('o' * 999)\n"
    )
    envelope = graded(sandbox, code, *ONE)
    assert (envelope.stdout, envelope.stderr) == ("o" * 2048, "e" * 2048)
    assert envelope.truncated


@pytest.mark.parametrize(("size", "exit_code"), [(1000, "pass"), (1001, "error")])
def test_the_output_cap_is_exact(sandbox: Sandbox, size: int, exit_code: str) -> None:
    """Output up to the cap is kept whole, stdout and stderr together; one byte more is an error."""
    code = f"import sys\nprint('a' * 499)\nsys.stderr.write('b' * {size - 500})\ndef one():\n    return 1\n"
    envelope = graded(sandbox, code, *ONE, limits=Limits(output_bytes=1000))
    assert envelope.exit_code == exit_code
    assert envelope.stdout == "a" * 499 + "\n"


NOT_CHECKS = [
    "", " ", "# one() == 2", "pass", "True", "'text'", "(one() == 2, 'message')", "one() == 2,",
    "assert (one() == 2, 'message')", "def check(f):\n    assert f() == 2", "lambda: one() == 2",
    "[one() == 2]", "f'{one()}'", "class Test:\n    def test(self):\n        assert one() == 2",
    "assert True", "not None",
]  # fmt: skip


@pytest.mark.parametrize("check", NOT_CHECKS)
def test_what_cannot_fail_is_no_check(sandbox: Sandbox, check: str) -> None:
    """A job with a check that decides nothing is an error, and the detail names the check."""
    envelope = graded(sandbox, "def one():\n    return 1\n", "one() == 1", check)
    assert (envelope.exit_code, envelope.reason) == ("error", "no_checks")
    assert "check 2" in envelope.detail


CHECKS = {
    "expression": ("one()", True),
    "false expression": ("one() == 2", False),
    "None": ("print(one())", False),
    "assert": ("assert one() == 1, 'message'", True),
    "several statements": ("x = one()\nassert x == 1", True),
    "last expression counts": ("x = one()\nx == 2", False),
    "first expression counts": ("one() == 2\none() == 1", False),
    "last call may give None": ("def check(f):\n    assert f() == 1\ncheck(one)", True),
    "last call that raises": ("def check(f):\n    assert f() == 2\ncheck(one)", False),
    "last call that is false": ("import math\nmath.isclose(one(), 2)", False),
    "loop": ("for i in range(3):\n    assert one() == 1", True),
    "loop that fails": ("for i in range(3):\n    assert one() == i", False),
    "expected exception": (
        "try:\n    one(1)\nexcept TypeError:\n    pass\nelse:\n    assert False",
        True,
    ),
    "class that uses the candidate": ("class T:\n    x = one()\nassert T.x == 1", True),
    "closure over the candidate": ("assert [one() for _ in range(2)] == [1, 1]", True),
    "leading blanks": ("   one() == 1", True),
    "a check's own name wins": ("one = lambda: 5\nassert one() == 5", True),
}


@pytest.mark.parametrize(("check", "holds"), CHECKS.values(), ids=CHECKS)
def test_checks(sandbox: Sandbox, check: str, holds: bool) -> None:
    """An expression passes if it is true, statements if they run to their end."""
    envelope = graded(sandbox, "def one():\n    return 1\n", check)
    assert envelope.per_assertion == (holds,), envelope.detail


@pytest.mark.parametrize("repeat", ["first", "again"])
def test_no_check_and_no_setup_runs_before_the_candidate_has_loaded(
    sandbox: Sandbox, repeat: str
) -> None:
    """What asks the candidate nothing still comes after it: it finds what the candidate left."""
    code = "import time\ntime.sleep(0.05)\nopen('out.txt', 'w').write('hi')\n"
    checks = Assertions(
        ["found == 'hi'", "open('out.txt').read() == 'hi'"], setup="found = open('out.txt').read()"
    )
    envelope = sandbox.run(Job(code=code, checks=checks))
    assert envelope.exit_code == "pass", envelope.detail


def test_compiling_checks_says_nothing_to_the_candidates_stderr(sandbox: Sandbox) -> None:
    """What Python's compiler warns of in a check is nobody's output, the first time and later."""
    runs = [graded(sandbox, "def one():\n    return 1\n", "one() is 1 or True") for _ in range(2)]
    assert {run.stderr for run in runs} == {""}


def test_a_check_changes_nothing_for_the_next(sandbox: Sandbox) -> None:
    """Names that one check binds are gone in the next, and the candidate never sees them."""
    code = "n = 1\ndef get():\n    return n\n"
    envelope = graded(sandbox, code, "n = 5\nassert get() == 1", "n == 1", "get() == 1")
    assert envelope.exit_code == "pass", envelope.detail


def test_checks_see_globals_as_they_are_now(sandbox: Sandbox) -> None:
    """A global that the candidate rebinds is seen with its new value."""
    code = "n = 0\ndef up():\n    global n\n    n += 1\n"
    envelope = graded(sandbox, code, "up()\nassert n == 1")
    assert envelope.exit_code == "pass", envelope.detail


def test_setup_runs_before_the_checks(sandbox: Sandbox) -> None:
    """Set-up source defines what checks use; where it fails no check holds."""
    for setup, exit_code in (("k = one() + 1", "pass"), ("k = 1 / 0", "assertion_fail")):
        checks = Assertions(["one() + 1 == k"], setup=setup)
        assert (
            sandbox.run(Job(code="def one():\n    return 1\n", checks=checks)).exit_code
            == exit_code
        )


TEST = "def check(candidate):\n    assert candidate(2, 3) == 5\n"


@pytest.mark.parametrize(
    ("code", "source", "exit_code", "reason"),
    [
        (ADD, TEST, "pass", None),
        ("def add(a, b):\n    return a\n", TEST, "assertion_fail", None),
        ("def sub(a, b):\n    return a\n", TEST, "assertion_fail", None),
        (ADD, "def test(candidate):\n    assert candidate(2, 3) == 5\n", "error", "no_checks"),
        (ADD, "def check(candidate):\n    pass\n", "error", "no_checks"),
        (ADD, "METADATA = {}\n", "error", "no_checks"),
        (ADD + "def check(candidate):\n    pass\n", "METADATA = {}\n", "error", "no_checks"),
        (ADD, TEST + "check(add)\n", "pass", None),
    ],
)
def test_programs(
    sandbox: Sandbox, code: str, source: str, exit_code: str, reason: str | None
) -> None:
    """A test program is one check: that its own check(entry_point) returns."""
    envelope = sandbox.run(Job(code=code, checks=Program(source, "add")))
    assert (envelope.exit_code, envelope.reason, envelope.total) == (exit_code, reason, 1)


REAL_PROGRAMS = {
    "pathlib": "import pathlib\npathlib.Path('a.txt').write_text('x')\n"
    "def one():\n    return len(list(pathlib.Path('.').iterdir()))\n",
    "tempfile": "import tempfile\ndef one():\n    with tempfile.TemporaryDirectory() as d, "
    "tempfile.NamedTemporaryFile() as f:\n        f.write(b'x')\n        return f.tell()\n",
    "asyncio": "import asyncio\nasync def main():\n    await asyncio.sleep(0)\n    return 1\n"
    "def one():\n    return asyncio.run(main())\n",
    "zipfile": "import zipfile, io\ndef one():\n    b = io.BytesIO()\n"
    "    with zipfile.ZipFile(b, 'w') as z:\n        z.writestr('a', 'x')\n"
    "    return len(zipfile.ZipFile(b).namelist())\n",
    "dataclasses": "from __future__ import annotations\nfrom dataclasses import dataclass\n"
    "@dataclass\nclass P:\n    x: int\ndef one():\n    return P(1).x\n",
    "unittest.mock": "from unittest.mock import Mock\ndef one():\n    return Mock(return_value=1)()\n",
    "pickle": "import pickle\nclass C:\n    n = 1\n"
    "def one():\n    return pickle.loads(pickle.dumps(C())).n\n",
    "inspect": "import inspect\ndef one():\n    return int('return int' in inspect.getsource(one))\n",
    "threads": "from concurrent.futures import ThreadPoolExecutor\n"
    "def one():\n    with ThreadPoolExecutor(8) as e:\n        return sum(e.map(int, '1')) \n",
    "process pool": "import multiprocessing\ndef same(n):\n    return n\n"
    "def one():\n    with multiprocessing.get_context('fork').Pool(2) as p:\n"
    "        return p.map(same, [1])[0]\n",
    "sqlite": "import sqlite3\ndef one():\n"
    "    return sqlite3.connect('db').execute('select 1').fetchone()[0]\n",
    "logging, csv, xml": "import logging, csv, xml.etree.ElementTree as E\n"
    "def one():\n    return int(E.fromstring('<a>1</a>').text)\n",
    "import of the denied by others": "import email.message, http.server, uuid\n"
    "def one():\n    return 1\n",
}


@pytest.mark.parametrize("denylist", [None, ()], ids=["denylist", "no denylist"])
@pytest.mark.parametrize("code", REAL_PROGRAMS.values(), ids=REAL_PROGRAMS)
def test_real_programs_run(sandbox: Sandbox, code: str, denylist: tuple[str, ...] | None) -> None:
    """What the standard library does for a candidate works, denylist or not."""
    fields = {} if denylist is None else {"denylist": denylist}
    envelope = graded(sandbox, code, *ONE, limits=Limits(timeout_s=10), **fields)
    assert envelope.exit_code == "pass", envelope.detail


DOORS = [
    "import socket", "from socket import socket", "import urllib.request",
    "from urllib import parse", "from http import client", "import shutil as s",
    "__import__('subprocess')", "import importlib\nimportlib.import_module('subprocess')",
    "import importlib\nimportlib.__import__('subprocess')",
    "import tempfile, sys\nsys.modules['shutil'].rmtree", "exec('import socket')",
    "exec('import socket', {})", "eval(\"__import__('ctypes')\")", "import asyncio.subprocess",
    "import multiprocessing.util, sys\nsys.modules['subprocess'].run",
    "import os\nos.fork()", "from os import execv\nexecv('/bin/true', ['true'])",
    "import posix\nposix.fork()", "import os\nos.kill(1, 0)", "import os\nos.popen('true')",
    "import os\nos.posix_spawn('/bin/true', ['true'], {})", "import os\nos.pidfd_open(1)",
    "import requests",
]  # fmt: skip


@pytest.mark.parametrize("code", DOORS)
def test_the_denylist_closes(sandbox: Sandbox, code: str) -> None:
    """What is denied is denied by every door, in the same words."""
    envelope = graded(sandbox, code, "True is True")
    assert (envelope.exit_code, envelope.reason) == ("error", "denied"), envelope.detail
    assert "denied: " in envelope.detail


def test_the_denylist_is_the_jobs(sandbox: Sandbox) -> None:
    """A job may bring another denylist, or an empty one."""
    code = "import socket, ctypes\ndef one():\n    return 1\n"
    assert graded(sandbox, code, *ONE, denylist=()).exit_code == "pass"
    assert graded(sandbox, "import json\n", *ONE, denylist=("json",)).reason is Reason.DENIED


def test_nothing_of_ours_can_be_imported(sandbox: Sandbox) -> None:
    """Candidates see the standard library, not what this project or its tests install."""
    for name in ("isograd", "_isograd", "pytest", "pydantic", "docker", "pip"):
        assert graded(sandbox, f"import {name}\n", *ONE).reason is Reason.IMPORT_MISSING


def test_five_megabytes_of_code_and_of_checks_work(sandbox: Sandbox) -> None:
    """Large programs and large expected values travel like small ones."""
    filler = "x = '" + "y" * 97 + "'\n"
    code = filler * (5_000_000 // len(filler)) + "def one():\n    return 1\n"
    assert graded(sandbox, code, *ONE, limits=Limits(timeout_s=20)).exit_code == "pass"
    text = "z" * 5_000_000
    code = "def text():\n    return 'z' * 5_000_000\n"
    assert graded(sandbox, code, f"text() == '{text}'").exit_code == "pass"


def test_jobs_do_not_see_each_other(sandbox: Sandbox) -> None:
    """Modules, files, environment and names of one job are gone in the next."""
    first = (
        "import os, sys, math, builtins\nmath.pi = 3\nbuiltins.mine = 1\nos.environ['MINE'] = '1'\n"
        "sys.modules['mine'] = sys\nopen('left', 'w').close()\nopen('/tmp/left', 'w').close()\n"
        "open('/dev/shm/left', 'w').close()\nos.chdir('/')\nsys.setrecursionlimit(50)\n"
    )
    assert graded(sandbox, first, "True is True").exit_code == "pass"
    second = (
        "import os, sys, math, builtins\n"
        "def one():\n"
        "    assert math.pi > 3 and not hasattr(builtins, 'mine') and 'MINE' not in os.environ\n"
        "    assert 'mine' not in sys.modules and sys.getrecursionlimit() == 1000\n"
        "    assert os.listdir('.') == [] and os.getcwd() == os.environ['HOME']\n"
        "    assert not [n for d in ('/tmp', '/dev/shm') for n in os.listdir(d) if n == 'left']\n"
        "    return 1\n"
    )
    envelope = graded(sandbox, second, *ONE)
    assert envelope.exit_code == "pass", envelope.detail


def test_details_are_the_same_every_time(sandbox: Sandbox) -> None:
    """Addresses, scratch paths and process ids never get into a detail."""
    code = (
        "import os\nclass C:\n    pass\n"
        "def one():\n    raise ValueError(C(), os.getcwd(), f'/proc/{os.getpid()}/x pid {os.getpid()}')\n"
    )
    details = {graded(sandbox, code, *ONE).detail for _ in range(3)}
    assert details == {
        "check 1: ValueError: (<candidate.C object at 0x…>, '<scratch>', '/proc/…/x pid …') "
        "(candidate.py, line 5)"
    }


def test_details_are_bounded(sandbox: Sandbox) -> None:
    """A detail has at most 2 kB, whatever text an exception has."""
    envelope = graded(sandbox, "raise ValueError('é' * 10 ** 6)\n", *ONE)
    assert 1900 < len(envelope.detail.encode()) <= 2000


def test_odd_output_is_kept_readable(sandbox: Sandbox) -> None:
    """Bytes that are no UTF-8 are shown as escapes."""
    code = "import os\nos.write(1, b'a\\xff\\n')\nprint('é')\ndef one():\n    return 1\n"
    assert graded(sandbox, code, *ONE).stdout == "a\\xff\né\n"


OBSERVATIONS = """
import decimal, locale, os, random, sys, time
print(list({'a', 'b', 'c', 'd', (1, 'x'), b'y', 2.5, 10 ** 20}), hash('a'), hash(b'a'), hash((1, 'a')))
print(tuple(time.localtime(0)), time.tzname, time.strftime('%A %c', time.gmtime(0)))
print(locale.setlocale(locale.LC_ALL), locale.getpreferredencoding(False), sys.getfilesystemencoding())
print(0.1 + 0.2, 1e22, 2 ** 0.5, decimal.Decimal(1) / 3, sys.float_info.max)
print(sys.argv, __name__, sys.getrecursionlimit(), sys.flags, sys.path)
print(sorted(os.environ.items()), os.getcwd(), os.listdir('.'), oct(os.umask(0o22)))
print(sorted(m for m in sys.modules if not m.startswith('encodings')), sys.version)
print(sorted(os.listdir('/proc/self/fd')), os.getpriority(os.PRIO_PROCESS, 0), sys.stdin.encoding)
class C: pass
print(sorted(vars(sys.modules['__main__'])), C.__module__, sys.stdout.encoding, sys.stdout.errors)
def one():
    return 1
"""


def test_all_lanes_look_alike(make_sandbox: Callable[[str], Callable[[], Sandbox]]) -> None:
    """Set order, hashes, time zone, locale, floats, environment, modules: one answer anywhere."""
    envelopes: dict[str, Envelope] = {}
    for name in ("subprocess", "subprocess-fresh", "docker", "docker-fresh", "bubblewrap"):
        for lane in range(2):
            with make_sandbox(name)() as sandbox:
                envelopes[f"{name} {lane}"] = graded(sandbox, OBSERVATIONS, *ONE)
    first = envelopes["subprocess 0"]
    assert first.exit_code == "pass", first.detail
    assert first.stdout.count("\n") == 9
    for name, envelope in envelopes.items():
        assert envelope.stdout == first.stdout, name
        assert envelope.canonical() == first.canonical(), name


def test_secrets_of_the_host_stay_there(
    monkeypatch: pytest.MonkeyPatch,
    make_sandbox: Callable[[str], Callable[[], Sandbox]],
    backend: str,
) -> None:
    """Nothing of the environment of the tool can be read from behind a wall."""
    monkeypatch.setenv("OPENAI_API_KEY", "canary-7f3a")
    code = (
        "import os\n"
        "def one():\n"
        "    found = str(dict(os.environ)).encode()\n"
        "    for pid in filter(str.isdigit, os.listdir('/proc')):\n"
        "        try:\n"
        "            with open(f'/proc/{pid}/environ', 'rb') as file:\n"
        "                found += file.read()\n"
        "        except OSError:\n"
        "            pass\n"
        "    return 1 - found.count(b'canary' + b'-7f3a')\n"
    )
    with make_sandbox(backend)() as sandbox:
        assert graded(sandbox, code, *ONE).exit_code == "pass"


@pytest.mark.parametrize("spawn", ["zygote", "fresh"])
def test_measurements(make_sandbox: Callable[[str], Callable[[], Sandbox]], spawn: Spawn) -> None:
    """What differs from run to run stands beside the envelope."""
    name = "subprocess" if spawn == "zygote" else "subprocess-fresh"
    code = "def one():\n    return sum(range(2_000_000)) > 1\n"
    with make_sandbox(name)() as sandbox:
        result = sandbox.run_measured(
            Job(code=code, checks=Assertions(["one()"]), task_id="t", sample=7)
        )
    assert (result.task_id, result.sample, result.fault) == ("t", 7, None)
    measured = result.measurement
    assert measured is not None
    assert (measured.backend, measured.spawn, measured.retries) == ("subprocess", spawn, 0)
    assert measured.wall_s > 0 and measured.cpu_s > 0 and measured.peak_memory_mb > 1
    assert "no_new_privs" in measured.layers and measured.python.startswith("3.")
