"""Distributions beside the standard library: the same verdicts behind every wall, loaded before
the candidate or by it. numpy stands for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from isograd import (
    Assertions,
    BubblewrapSandbox,
    DockerSandbox,
    Job,
    Limits,
    Sandbox,
    SubprocessSandbox,
)
from isograd.errors import SandboxUnavailable
from isograd.images import build
from support.cases import cases

numpy = pytest.importorskip("numpy")
if Path(numpy.__file__).is_relative_to("/tmp"):
    pytest.skip("a lane has a /tmp of its own, and numpy is below it", allow_module_level=True)
WALLS: dict[str, Callable[..., Sandbox]] = {
    "subprocess": lambda **settings: SubprocessSandbox(allow_code_exec=True, **settings),
    "bubblewrap": BubblewrapSandbox,
    "docker": DockerSandbox,
}
PATIENT = Limits(timeout_s=20)
ARRAYS = """
import numpy as np
def grid(): return np.arange(6).reshape(2, 3)
def scalar(): return np.float32(1.5)
def nothing(): return np.zeros((0, 3))
def changed(items): items[0] = 9; return items
def turned(items): items.shape = (2, 1)
def grown(items): items.resize(3, refcheck=False)
def retyped(items): items.dtype = 'i4'
def written(items): items[0] = 7
def words(): return np.array(['a', 'bb'])
def by_column(): return np.asfortranarray(np.arange(6).reshape(2, 3))
def objects(): return np.array([print, 1], dtype=object)
"""
CHECKS = [
    "np.array_equal(grid(), np.arange(6).reshape(2, 3))",
    "(grid() == np.arange(6).reshape(2, 3)).all()",
    "scalar() == 1.5 and isinstance(scalar(), np.float32)",
    "nothing().shape == (0, 3)",
    "changed(np.array([1, 2]))[0] == 9",
    "(a := np.array([1, 2])) is changed(a) and a[0] == 9",
    "(b := np.array([1, 2])) is not None and turned(b) is None and b.shape == (2, 1)",
    "list(words()) == ['a', 'bb']",
    "np.allclose(by_column(), [[0, 1, 2], [3, 4, 5]])",
    "len(objects()) == 2",
    "grid().sum() == 15",
]
IMPOSTOR = """
import sys, types
class All:
    def __eq__(self, other): return True
    def copy(self): return self
    def reshape(self, *shape): return self
class Kind:
    hasobject, names, str = False, None, '<i8'
class Array:
    __module__ = 'numpy'
    dtype, shape = Kind(), (1,)
    def __new__(cls, *of): return All() if of else object.__new__(cls)
    def tobytes(self): return bytes(8)
fake = sys.modules['numpy'] = types.ModuleType('numpy')
fake.ndarray, fake.generic, fake.dtype = Array, int, lambda text: Kind()
fake.frombuffer = lambda *of, **named: All()
def f(): return Array()
"""


@pytest.fixture(scope="module")
def make(
    make_sandbox: Callable[[str], Callable[[], Sandbox]],
) -> Iterator[Callable[..., Sandbox]]:
    """Makes sandboxes of a wall with settings of their own; each set of settings once."""
    made: dict[Any, Sandbox] = {}

    def get(wall: str, **settings: Any) -> Sandbox:
        make_sandbox(wall)
        key = (wall, *sorted(settings.items()))
        if wall == "docker" and not any(wall in known for known in made):
            build(from_host=True, with_=["numpy"])
        if key not in made:
            made[key] = WALLS[wall](packages=("numpy",), **settings)
        return made[key]

    yield get
    for sandbox in made.values():
        sandbox.close()


@pytest.mark.parametrize("grading", ["split", "shared"])
@pytest.mark.parametrize("preload", [(), ("numpy",)], ids=["", "preloaded"])
@pytest.mark.parametrize("wall", WALLS)
def test_arrays_cross_as_what_they_are(
    make: Callable[..., Sandbox], wall: str, preload: tuple[str, ...], grading: Any
) -> None:
    """Shape, type and content arrive in checks, whoever has loaded numpy first."""
    job = Job(code=ARRAYS, checks=Assertions(CHECKS), limits=PATIENT, grading=grading)
    envelope = make(wall, preload=preload).run(job)
    assert envelope.per_assertion == (True,) * len(CHECKS), envelope.detail


@pytest.mark.parametrize(
    ("check", "error"),
    [
        ("grown(np.array([1, 2]))", "TypeError: a change to an argument cannot be brought back"),
        ("retyped(np.array([1, 2]))", "TypeError: a change to an argument cannot be brought back"),
        ("written(np.broadcast_to(np.array([1]), 4))", "ValueError: assignment destination is"),
    ],
)
def test_a_change_that_cannot_be_brought_back_fails_that_check_only(
    make: Callable[..., Sandbox], check: str, error: str
) -> None:
    """It is no fault of the candidate's, and frees no memory that the check still looks at."""
    checks = Assertions(["scalar() == 1.5", check, "scalar() == 1.5"])
    job = Job(code=ARRAYS, checks=checks, limits=PATIENT, grading="split")
    envelope = make("subprocess", preload=("numpy",)).run(job)
    assert (envelope.exit_code, envelope.per_assertion) == ("assertion_fail", (True, False, True))
    assert error in envelope.detail


@pytest.mark.parametrize("case", [case for case in cases() if case.packages], ids=lambda c: c.id)
def test_the_walls_agree_with_and_without_preload(make: Callable[..., Sandbox], case: Any) -> None:
    """A case that needs packages has one envelope, byte for byte, and the right one."""
    assert case.packages == ("numpy",)
    job = case.job.model_copy(update={"limits": PATIENT})
    found = {
        make(wall, **settings).run(job)
        for wall in WALLS
        for settings in ({}, {"spawn": "fresh"}, {"preload": ("numpy",)})
    }
    assert len(found) == 1
    assert {envelope.exit_code.value for envelope in found} <= case.right_exit_codes


@pytest.mark.parametrize("grading", ["split", "shared"])
@pytest.mark.parametrize("preload", [(), ("numpy",)], ids=["", "preloaded"])
def test_a_module_that_calls_itself_numpy_gives_no_arrays(
    make: Callable[..., Sandbox], preload: tuple[str, ...], grading: Any
) -> None:
    """An object of a false numpy is an object of the candidate's, equal to no number."""
    job = Job(code=IMPOSTOR, checks=Assertions(["f() == 42"]), limits=PATIENT, grading=grading)
    envelope = make("subprocess", preload=preload).run(job)
    assert envelope.per_assertion == (False,)


def test_preloaded_random_numbers_differ_from_child_to_child(
    make: Callable[..., Sandbox],
) -> None:
    """Forks of one interpreter do not share its generators, so no candidate knows its checks'."""
    code = "import random\nimport numpy\nprint(random.random(), numpy.random.rand())\n"
    checks = Assertions(
        ["[random.random(), numpy.random.rand()] != seen()"], setup="import random, numpy\n"
    )
    code += "def seen(): return [random.random(), numpy.random.rand()]\n"
    sandbox = make("subprocess", preload=("numpy",))
    runs = [sandbox.run(Job(code=code, checks=checks, limits=PATIENT)) for _ in range(5)]
    numbers = [number for run in runs for number in run.stdout.split()]
    assert len(set(numbers)) == len(numbers) == 10
    assert {run.per_assertion for run in runs} == {(True,)}


def test_what_cannot_be_preloaded_is_said() -> None:
    """A module that is not there is no lane, and the message says what to do."""
    sandbox = SubprocessSandbox(allow_code_exec=True, preload=("numpy",))
    with sandbox, pytest.raises(SandboxUnavailable, match=r"cannot preload numpy.*packages"):
        sandbox.warm_up()


def test_a_preload_leaves_nothing_in_the_candidates_home(make: Callable[..., Sandbox]) -> None:
    """The first candidate finds its scratch empty, and the lane is not thrown away after it."""
    sandbox = make("subprocess", preload=("numpy",))
    job = Job(code="import os\nfound = os.listdir('.')\n", checks=Assertions(["found == []"]))
    assert sandbox.run(job).exit_code == "pass"
    lane = sandbox._lane
    assert sandbox.run(job).exit_code == "pass"
    assert sandbox._lane is lane
