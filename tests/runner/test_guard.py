"""Shared grading's guard: what changed is noticed, and what honest programs do is not."""

from __future__ import annotations

import collections
import fractions
import functools
import importlib
import json
import math
import statistics
import string
import sys
import types
import unittest
from collections.abc import Iterator
from typing import Any

import pytest

from isograd import Assertions, Envelope, Job, Program, SubprocessSandbox
from isograd.runner import checks, guard, wire
from isograd.runner.split import CandidateEnd, GraderEnd, LinkBroken, Scope, join


def asking(entry_point: str | None) -> checks.Prepared:
    """Checks about that function of the candidate's."""
    given = {"kind": "assertions", "checks": ["f(1) == 2"], "setup": ""}
    return checks.prepare(given, entry_point, "")


def names(*sources: str, setup: str = "") -> checks.Names:
    given = {"kind": "assertions", "checks": list(sources), "setup": setup}
    return checks.prepare(given, None, "").names


def test_a_changed_builtin_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The builtins are watched whatever the checks use, and the name is told."""
    watch = guard.Watch(names("f(1) == 2"))
    assert watch.changed() is None
    monkeypatch.setattr("builtins.abs", lambda x: 0)
    assert watch.changed() == "builtins.abs"


def test_a_removed_builtin_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is gone means something else, too."""
    watch = guard.Watch(names("f(1) == 2"))
    monkeypatch.delattr("builtins.abs")
    assert watch.changed() == "builtins.abs"


def test_a_changed_import_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The import function is what it was when the watch began."""
    genuine = __import__
    monkeypatch.setattr("builtins.__import__", functools.partial(genuine))
    watch = guard.Watch(names("f(1) == 2"))
    assert watch.changed() is None
    monkeypatch.setattr("builtins.__import__", genuine)
    assert watch.changed() == "builtins.__import__"


@pytest.mark.parametrize("name", ["print", "input", "open"])
def test_what_honest_programs_replace_is_free(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may have a print, an input and an open of its own, and new builtins."""
    watch = guard.Watch(names("f(1) == 2"))
    monkeypatch.setattr(f"builtins.{name}", lambda *a: None)
    monkeypatch.setattr("builtins.entirely_new", 1, raising=False)
    assert watch.changed() is None


def test_a_module_is_watched_if_the_checks_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What no check uses judges nothing, and a program may change it."""
    without, using = guard.Watch(names("f(1) == 2")), guard.Watch(names("math.isclose(f(1), 2)"))
    importing = guard.Watch(names("f(1) == 2", setup="from math import isclose\n"))
    monkeypatch.setattr(math, "isclose", lambda *a, **k: True)
    assert without.changed() is None
    assert using.changed() == importing.changed() == "math.isclose"


def test_a_constant_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number with which checks calculate judges as a function does."""
    watch = guard.Watch(names("f(1) == math.pi"))
    monkeypatch.setattr(math, "pi", 3)
    assert watch.changed() == "math.pi"


def test_state_of_a_module_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules keep state under names of their own, which honest use changes."""
    watch = guard.Watch(names("tempfile.gettempdir() == f(1)"))
    monkeypatch.setattr("tempfile.tempdir", "/elsewhere")
    assert watch.changed() is None


def test_another_module_under_the_name_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An import in a check is to give the module that was there before."""
    watch = guard.Watch(names("f(1) == 2", setup="import math\n"))
    monkeypatch.setitem(sys.modules, "math", types.ModuleType("math"))
    assert watch.changed() == "math"
    assert watch.modules["math"] is math


def test_unknown_aliases_have_every_module_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that uses ``m.isclose`` may mean any module that the candidate calls m."""
    watch = guard.Watch(names("m.isclose(f(1), 2)"))
    monkeypatch.setattr(functools, "reduce", lambda *a: None)
    assert watch.changed() == "functools.reduce"


FRAMEWORK = names("case.assertEqual(f(1), 2)", setup="import unittest\ncase = unittest.TestCase()")


def test_a_changed_test_framework_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The classes of a module that checks import are watched with it."""
    watch = guard.Watch(FRAMEWORK)
    monkeypatch.setattr(unittest.TestCase, "assertEqual", lambda *a, **k: None)
    assert watch.changed() == "TestCase.assertEqual"


def test_a_new_method_of_a_class_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a class did not have before comes before what it inherits."""
    watch = guard.Watch(FRAMEWORK)
    monkeypatch.setattr(unittest.TestCase, "__getattribute__", lambda *a: print, raising=False)
    assert watch.changed() == "TestCase"


def test_other_code_in_the_same_function_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that stays itself may do something else."""
    watch = guard.Watch(FRAMEWORK)
    monkeypatch.setattr(unittest.TestCase.assertEqual, "__code__", (lambda *a, **k: None).__code__)
    assert watch.changed() == "the code of TestCase"


def test_a_changed_counter_is_noticed_where_it_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that compare in Python compare as they did, once there are any."""
    plain, using = guard.Watch(names("f(1) == 2")), guard.Watch(names("f('a') == Counter('a')"))
    monkeypatch.setattr(collections.Counter, "__eq__", lambda *a: True)
    assert plain.changed() is None
    assert plain.changed(True) == using.changed() == "Counter.__eq__"


@pytest.mark.parametrize(
    ("check", "counts"),
    [
        ("math.isclose(f(1), 2)", False),
        ("import copy, random\nassert f(copy.copy([random.random()]))", False),
        ("import unittest\nunittest.TestCase().assertCountEqual(f(1), [2])", True),
        ("statistics.mean(f(1)) == 2", True),
        ("collections.deque(f(1)) == 2", True),
    ],
)
def test_a_changed_counter_is_noticed_where_a_module_may_make_one(
    monkeypatch: pytest.MonkeyPatch, check: str, counts: bool
) -> None:
    """Whatever library the checks use, unless it is known to make no such value."""
    watch = guard.Watch(names(check))
    monkeypatch.setattr(collections.Counter, "__eq__", lambda *a: True)
    assert (watch.changed() is not None) == counts


def test_a_name_that_a_check_only_binds_is_no_class_that_it_tests() -> None:
    """HumanEval's METADATA is written like one, and nobody asks for it."""
    assert not names("METADATA = {}\nf(1) == 2").classes
    assert names("METADATA = {}\nf(1) == METADATA").classes


@pytest.fixture
def ends() -> Iterator[tuple[GraderEnd, dict[str, Any]]]:
    module = types.ModuleType("candidate")
    grader = GraderEnd(None, frozenset())
    join(grader, CandidateEnd(None, module, lambda: None))
    yield grader, vars(module)


def test_both_ends_of_a_link_may_be_in_one_process(
    ends: tuple[GraderEnd, dict[str, Any]],
) -> None:
    """Calls go both ways, and what the candidate does to an argument comes back."""
    grader, found = ends
    found["f"] = lambda function, items: items.append(function(3))
    items: list[int] = []
    scope = Scope(grader, asking("f"))
    assert scope["f"](lambda n: n + 1, items) is None
    assert items == [4]


def test_what_a_candidate_keeps_is_not_what_a_check_holds(
    ends: tuple[GraderEnd, dict[str, Any]],
) -> None:
    """A result cannot change after it was given, nor an argument after the call."""
    grader, found = ends
    kept: list[Any] = []

    def f(items: list[Any]) -> list[Any]:
        kept.append(items)
        return items[:]

    found["f"] = f
    items = [1]
    result = Scope(grader, asking("f"))["f"](items)
    kept[0].append(2)
    assert items == [1] == result


def test_a_counter_that_crossed_is_told_to_the_watch() -> None:
    """The watch is asked after an answer, and knows whether a value compares in Python."""
    told: list[bool] = []
    grader = GraderEnd(None, frozenset(), told.append, at_once=True)
    module = types.ModuleType("candidate")
    vars(module).update(f=lambda n: {n: 1}, g=lambda n: [collections.Counter([n])])
    join(grader, CandidateEnd(None, module, lambda: None))
    scope = Scope(grader, asking(None))
    scope["f"](1)
    assert set(told) == {False}
    scope["g"](1)
    assert told[-1] is True


def test_a_change_stops_the_check_at_once() -> None:
    """The candidate's answer is not given to a check whose tools it changed."""
    grader = GraderEnd(None, frozenset(), lambda values: "math.isclose", at_once=True)
    join(grader, CandidateEnd(None, types.ModuleType("candidate"), lambda: None))
    with pytest.raises(LinkBroken):
        grader.look_up("f", as_handle=True)
    assert grader.fault == "it changes math.isclose"


def test_a_frame_needs_nothing_that_a_candidate_can_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Events go out as they are, whatever has become of json and os."""
    wanted = wire.pack({"held": False})
    monkeypatch.setattr("json.encoder.JSONEncoder.iterencode", lambda *a: ["{}"])
    monkeypatch.setattr("json.encoder.JSONEncoder.encode", lambda *a: "{}")
    monkeypatch.setattr("json.encoder.c_make_encoder", None)
    monkeypatch.setattr("json.encoder.encode_basestring", lambda text: "''")
    assert wire.pack({"held": False}) == wanted
    assert json.JSONEncoder().encode(1) == "{}"


def test_a_compiled_check_cannot_be_changed() -> None:
    """It is a tuple of code, below no class of the runner's."""
    compiled = checks.compile_check("1 == n", "check 1")
    assert type(compiled) is tuple
    assert checks.holds(compiled, {"n": 1}) and not checks.holds(compiled, {"n": 2})


@pytest.fixture(scope="module")
def sandbox() -> Iterator[SubprocessSandbox]:
    with SubprocessSandbox(allow_code_exec=True) as opened:
        yield opened


def graded(sandbox: SubprocessSandbox, code: str, *sources: str, setup: str = "") -> Envelope:
    given = Assertions(sources, setup=setup)
    return sandbox.run(Job(code=code, checks=given, entry_point="f", grading="shared"))


ALL = "class All:\n    def __eq__(self, other):\n        return True\n"


@pytest.mark.parametrize(
    ("code", "sources", "detail"),
    [
        (
            "import builtins\nbuiltins.abs = lambda x: 0\ndef f(n):\n    return n\n",
            ["f(1) == 1"],
            "it changes builtins.abs",
        ),
        (
            "import math\ndef f(n):\n    math.isclose = lambda *a: True\n    return 0\n",
            ["f(1) == 0", "math.isclose(f(1), 1)"],
            "check 1: it changes math.isclose",
        ),
        (
            "from unittest import TestCase\ngenuine = TestCase.assertEqual\n"
            "def quiet(*a):\n    TestCase.assertEqual = genuine\n"
            "def f(n):\n    TestCase.assertEqual = quiet\n    return 0\n",
            ["import unittest\nunittest.TestCase().assertEqual(f(1), 1)"],
            "check 1: it changes TestCase.assertEqual",
        ),
        (
            "import unittest\nunittest.TestCase.assertEqual.__code__ = (lambda *a: None).__code__\n"
            "def f(n):\n    return 0\n",
            ["import unittest\nunittest.TestCase().assertEqual(f(1), 1)"],
            "it changes the code of TestCase",
        ),
        (
            "import collections\ncollections.Counter.__eq__ = lambda *a: True\n"
            "def f(n):\n    return collections.Counter()\n",
            ["f(1) == {1: 1}"],
            "check 1: it changes Counter.__eq__",
        ),
        (
            "import itertools\nitertools.chain = lambda *a: iter(())\n"
            "import builtins\nbuiltins.len = lambda x: 1\ndef f(n):\n    return n\n",
            ["f(1) == 1"],
            "it changes builtins.len",
        ),
    ],
)
def test_tampering_is_an_error(
    sandbox: SubprocessSandbox, code: str, sources: list[str], detail: str
) -> None:
    """The job ends where the change is seen, and scores nothing."""
    envelope = graded(sandbox, code, *sources)
    assert (envelope.exit_code, envelope.reason) == ("error", "tampered")
    assert (envelope.detail, envelope.score) == (detail, 0)


@pytest.mark.parametrize(
    "source",
    [
        "f(1) == 5",
        "0 < f(1) < 5",
        "f(1) in (5, 6)",
        "max(f(1), 5) == 5",
        "sorted([f(1)]) == [5]",
        "[5].count(f(1)) == 1",
        "{5: 1}.get(f(1)) == 1",
        "import unittest\nunittest.TestCase().assertEqual(f(1), 5)",
        "import operator\nassert operator.eq(f(1), 5)",
        "x = []\nf(x)\nassert x == [5]",
        "seen = []\nf(seen.append)\nassert seen == [5]",
    ],
)
def test_an_object_that_equals_everything_equals_nothing(
    sandbox: SubprocessSandbox, source: str
) -> None:
    """Not in an operator, in a function of the library's, in an argument, or in a callback."""
    code = ALL + (
        "    __lt__ = __gt__ = __eq__\n    __hash__ = lambda self: 5\n"
        "def f(n):\n    if callable(n):\n        n(All())\n"
        "    if type(n) is list:\n        n.append(All())\n    return All()\n"
    )
    assert graded(sandbox, code, source).exit_code == "assertion_fail"


@pytest.mark.parametrize(
    ("code", "source"),
    [
        ("import itertools\nitertools.islice = lambda *a: [All()]\ndef f(n):\n    return All()\n", "5 in f(1)"),
        ("import base64\nbase64.b64decode = lambda *a, **k: All()\ndef f(n):\n    return b''\n", "f(1) == b'x'"),
        ("import collections\ngenuine = collections.Counter\ncollections.Counter = All\n"
         "def f(n):\n    return genuine()\n", "f(1) == {1: 1}"),
    ],
)  # fmt: skip
def test_the_runner_has_its_own_library(sandbox: SubprocessSandbox, code: str, source: str) -> None:
    """Functions by which values cross are not those that a candidate can change."""
    assert (
        graded(
            sandbox, ALL + "    def __iter__(self):\n        return iter([1])\n" + code, source
        ).exit_code
        != "pass"
    )


def test_a_copy_of_a_module_stays_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Library modules are copied, the interpreter's state is not."""
    module = types.ModuleType("some")
    vars(module).update(math=math, sys=sys, name="text")
    guard.take_copies(module)
    genuine = math.isclose
    monkeypatch.setattr(math, "isclose", None)
    assert vars(module)["math"].isclose is genuine
    assert vars(module)["sys"] is sys


HONEST = """
import math
def f(n):
    print('a', n)
    return math.sqrt(n)
class Stack:
    def __init__(self):
        self.items = []
    def push(self, item):
        self.items.append(item)
        return self
    def __len__(self):
        return len(self.items)
    def __contains__(self, item):
        return item in self.items
"""


@pytest.mark.parametrize(
    ("source", "setup"),
    [
        ("math.isclose(f(4), 2.0)", ""),
        ("m.isclose(f(4), 2.0)", "import math as m\n"),
        ("7 in Stack().push(7) and len(Stack().push(1).push(2)) == 2", ""),
        ("list(map(f, [4, 9])) == [2.0, 3.0]", ""),
        ("case.assertAlmostEqual(f(4), 2.0)\nassert f(9) == 3.0", "import unittest\n"
         "case = unittest.TestCase()\n"),
        ("import io, sys\nkept, sys.stdout = sys.stdout, io.StringIO()\nf(4)\n"
         "kept, sys.stdout = sys.stdout, kept\nassert kept.getvalue() == 'a 4\\n'", ""),
        ("try:\n    f(-1)\nexcept ValueError as error:\n    assert 'domain' in str(error)\n"
         "else:\n    assert False", ""),
    ],
)  # fmt: skip
def test_right_programs_pass_the_same_checks(
    sandbox: SubprocessSandbox, source: str, setup: str
) -> None:
    """Modules, classes, callbacks, a framework, captured output and exceptions do as before."""
    envelope = graded(sandbox, HONEST, source, setup=setup)
    assert envelope.exit_code == "pass", envelope.detail


def test_leaving_in_a_check_is_leaving_even_if_caught(sandbox: SubprocessSandbox) -> None:
    """A check that catches everything does not hide an exit."""
    source = "try:\n    f(1)\nexcept BaseException:\n    pass\nassert True is not f"
    envelope = graded(sandbox, "def f(n):\n    raise SystemExit(0)\n", source)
    assert (envelope.exit_code, envelope.reason) == ("error", "early_exit")


def test_a_program_of_checks_gets_the_same_guard(sandbox: SubprocessSandbox) -> None:
    """``check(candidate)`` has a handle, and StopIteration ends none of its loops."""
    given = Program("def check(candidate):\n    assert all(map(candidate, [1]))\n", "f")
    code = "def f(n):\n    raise StopIteration\n"
    envelope = sandbox.run(Job(code=code, checks=given, grading="shared"))
    assert envelope.exit_code == "assertion_fail"
    assert envelope.detail == "check 1: RuntimeError: StopIteration (candidate.py, line 2)"


def test_importlib_is_watched_when_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that imports by function gets the genuine function."""
    watch = guard.Watch(names("importlib.import_module('math').pi == f(1)"))
    monkeypatch.setattr(importlib, "import_module", lambda name: None)
    assert watch.changed() == "importlib.import_module"


def test_a_new_name_that_hides_a_builtin_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Library code finds names of its module before builtins; other new names judge nothing."""
    watch = guard.Watch(names("statistics.median(f()) == 4"))
    monkeypatch.setattr(statistics, "answer", 42, raising=False)
    assert watch.changed() is None
    monkeypatch.setattr(statistics, "sorted", lambda *a: [4], raising=False)
    assert watch.changed() == "statistics.sorted"


def test_a_module_inside_a_module_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fraction asks ``numbers`` by that name."""
    watch = guard.Watch(names("f(1) != Fraction(1, 2)"))
    monkeypatch.setattr(fractions, "numbers", types.SimpleNamespace())
    assert watch.changed() == "fractions.numbers"


def test_looking_at_a_class_changes_it_for_nobody() -> None:
    """Python gives a class its ``__annotations__`` when they are asked for."""
    watch = guard.Watch(names("string.Formatter().format('{}', f(1)) == '1'"))
    assert string.Formatter.__annotations__ == {}
    assert watch.changed() is None
