"""What crosses between candidate and checks, where the candidate makes trouble on the way."""

from __future__ import annotations

import pytest

from isograd import Assertions, Job, Program, Sandbox

STOPS = "def stop(self, *a): raise StopIteration\n"
KEYED = (
    "class K:\n    def __hash__(self): raise {error}\ndef mk(): return K()\ndef f(x): return 0\n"
)

WRONG = {
    "a library class that the runner might use": (
        "import contextlib\n" + STOPS + "def f(x):\n"
        "    contextlib.suppress.__exit__ = stop\n    return 0\n",
        "all(a == b for a, b in zip(map(f, [1, 2, 3]), [2, 4, 6]))",
    ),
    "a Counter that typing makes": (
        "import collections\ncollections.Counter.__eq__ = lambda *a: True\ndef f(x): return {}\n",
        "import typing\nassert typing.Counter('aab') == f('aab')",
    ),
    "a Counter given to a callback": (
        "import collections\ncollections.Counter.__eq__ = lambda *a: True\n"
        "def f(give): give(collections.Counter('b'))\n",
        "out = []\nf(lambda c: out.append(c))\nassert out[0] == {'a': 2}",
    ),
    "the code of the import": (
        "import builtins, math\ndef evil(*a, **k):\n    class M:\n"
        "        isclose = staticmethod(lambda *a: True)\n    return M\n"
        "builtins.__import__.__code__ = evil.__code__\ndef f(x): return 0\n",
        "import math\nassert math.isclose(f(1), 2)",
    ),
    "names of keywords that equal everything": (
        "class S(str):\n    def __eq__(self, o): return True\n    __hash__ = str.__hash__\n"
        "def f(give): give(**{S('zzz'): 1})\n",
        "seen = []\nf(lambda **named: seen.extend(named))\nassert seen == ['expected']",
    ),
    "a hash that ends the iteration": (
        KEYED.format(error="StopIteration"),
        "ps = [mk(), mk()]\nassert all(map(f, [{p} for p in ps]))",
    ),
    "a hash that raises what is expected": (
        KEYED.format(error="ValueError"),
        "try:\n    f({mk(): 1})\nexcept ValueError:\n    pass\nelse:\n    assert False",
    ),
    "a builtin of the runner's": (
        "import builtins\nspace = getattr(builtins.__import__, '__globals__', {})\n"
        "own = space.get('__builtins__')\n"
        "if isinstance(own, dict): own['bool'] = lambda v: True\ndef f(x): return 0\n",
        "f(1) == 2",
    ),
    "the friends of the import": (
        "import builtins\nspace = getattr(builtins.__import__, '__globals__', {})\n"
        "for one in space.get('friends', ()):\n"
        "    if isinstance(one, dict) and 'holds' in one: one['holds'] = lambda *a: True\n"
        "def f(x): return 0\n",
        "f(1) == 2",
    ),
}


@pytest.mark.parametrize("grading", ["shared", "split"])
@pytest.mark.parametrize("trouble", WRONG)
def test_a_wrong_program_does_not_pass_by(sandbox: Sandbox, trouble: str, grading: str) -> None:
    """It ends as some failure, with either grading."""
    code, check = WRONG[trouble]
    job = Job(code=code, checks=Assertions([check]), entry_point="f", grading=grading)
    assert sandbox.run(job).exit_code != "pass"


@pytest.mark.parametrize("grading", ["shared", "split"])
def test_a_helper_of_the_prompt_counts_as_the_candidate_left_it(
    sandbox: Sandbox, grading: str
) -> None:
    """What it imports is watched as what the checks import."""
    prompt = "from collections import Counter\ndef ref(s):\n    return Counter(s)\ndef f(s):\n"
    code = "import collections\ncollections.Counter.__eq__ = lambda *a: True\n" + prompt
    job = Job(
        code=code + "    return {}\n",
        checks=Program("def check(c):\n    assert ref('aab') == c('aab')\n", "f"),
        prompt=prompt,
        entry_point="f",
        grading=grading,
    )
    assert sandbox.run(job).exit_code != "pass"


def test_a_directory_closed_to_all_is_the_lanes_trouble(sandbox: Sandbox) -> None:
    """A right program that shuts the directory above its own keeps its verdict."""
    code = (
        "import os\ntry:\n    os.chmod(os.path.dirname(os.getcwd()), 0)\n"
        "except OSError:\n    pass\ndef f(x): return x\n"
    )
    job = Job(code=code, checks=Assertions(["f(1) == 1"]), denylist=())
    for _ in range(2):
        assert sandbox.run(job).exit_code == "pass"
