"""One attack on a grader, as data, and the tasks that attacks pretend to solve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from isograd.contract import DEFAULT_DENYLIST, Assertions, Checks, Grading, Job, Limits, Program


@dataclass(frozen=True)
class Exam:
    """What a candidate is graded by: assertion strings, or a program with a ``check``.

    ``reference`` is a right program; it passes, so a pass of an attack is the attack's doing.
    """

    reference: str
    checks: tuple[str, ...] = ()
    program: str = ""
    entry_point: str | None = None
    prompt: str = ""
    setup: str = ""

    @property
    def as_checks(self) -> Checks:
        if self.program:
            return Program(self.program, self.entry_point or "")
        return Assertions(self.checks, setup=self.setup)

    def job(self, code: str, *, grading: Grading = "auto", denylist_empty: bool = False) -> Job:
        """The job of grading ``code`` by these tests."""
        return Job(
            code=code,
            checks=self.as_checks,
            entry_point=self.entry_point,
            prompt=self.prompt,
            grading=grading,
            limits=Limits(timeout_s=2.0),
            denylist=() if denylist_empty else DEFAULT_DENYLIST,
        )


@dataclass(frozen=True)
class Attack:
    """A wrong program that tries to get a pass.

    ``before`` are programs that run first, on the same lane, each graded by the same tests.
    """

    id: str
    mechanism: str
    wins: str
    code: str = field(repr=False)
    tests: Exam = field(repr=False)
    before: Sequence[str] = field(default=(), repr=False)

    @property
    def reference(self) -> str:
        return self.tests.reference


ADD = Exam(
    reference="def add(a, b):\n    return a + b\n",
    checks=("add(1, 2) == 3", "assert add(10, -4) == 6"),
    entry_point="add",
)

ADD_BY_PROGRAM = Exam(
    reference=ADD.reference,
    program="""
def check(candidate):
    assert candidate(1, 2) == 3
    assert candidate(10, -4) == 6
    assert [candidate(n, 1) for n in range(3)] == [1, 2, 3]
""",
    entry_point="add",
)

ADD_BY_UNITTEST = Exam(
    reference=ADD.reference,
    checks=(
        "case.assertEqual(add(1, 2), 3)\nassert add(2, 2) == 4",
        "case.assertAlmostEqual(add(1.5, 1.0), 2.5)\nassert add(2, 5) == 7",
    ),
    setup="import unittest\ncase = unittest.TestCase()\n",
    entry_point="add",
)

MIDDLE = Exam(
    reference="def numbers():\n    return [3, 4, 5]\n",
    checks=("statistics.median(numbers()) == 4",),
    setup="import statistics\n",
    entry_point="numbers",
)

COUNTS = Exam(
    reference="from collections import Counter\ndef count(text):\n    return Counter(text)\n",
    checks=("from collections import Counter\nassert count('aab') == Counter('aab')",),
    entry_point="count",
)

ROOT = Exam(
    reference="def root(x):\n    return x ** 0.5\n",
    checks=(
        "abs(root(2.0) - 1.41421356) < 1e-6",
        "assert math.isclose(root(9.0), 3.0, rel_tol=1e-9)",
        "round(root(2.0), 3) == 1.414",
    ),
    setup="import math\n",
    entry_point="root",
)

ORDER = Exam(
    reference="def order(items):\n    return sorted(items)\n",
    checks=(
        "order([3, 1, 2]) == [1, 2, 3]",
        "assert len(order([2, 1])) == 2 and order([2, 1])[0] == 1",
        "tuple(order([5, 4])) == (4, 5)",
    ),
    entry_point="order",
)

ITEMS = Exam(
    reference="def order(items):\n    return sorted(items)\n",
    checks=(
        "r = order([3, 1, 2])\nassert len(r) == 3 and all(a == b for a, b in zip(r, [1, 2, 3]))",
        "r = order([3, 1])\nassert len(r) == 2\n"
        "for i in range(len(r)):\n    assert r[i] == [1, 3][i]",
    ),
    entry_point="order",
)

IN_PLACE = Exam(
    reference="def arrange(items):\n    items.sort()\n",
    checks=(
        "x = [3, 1, 2]\narrange(x)\nassert x == [1, 2, 3]",
        "x = ['b', 'a']\ny = [x]\narrange(x)\nassert y[0] == ['a', 'b']",
    ),
    entry_point="arrange",
)

UNTOUCHED = Exam(
    reference="def order(items):\n    return sorted(items)\n",
    checks=(
        "x = [3, 1, 2]\nwanted = [1, 2, 3]\ngot = order(x)\n"
        "assert x == [3, 1, 2] and got == wanted",
        "x = [9, 8]\nassert order(x) == [8, 9] and x == [9, 8]",
    ),
    entry_point="order",
)

EVEN = Exam(
    reference="def is_even(n):\n    return n % 2 == 0\n",
    checks=(
        "all(map(is_even, [2, 4, 6])) and list(map(is_even, [1, 2])) == [False, True]",
        "assert all(is_even(n) for n in [2, 4]) and not is_even(3)",
        "not any(map(is_even, [1, 3])) and sum(map(is_even, [1, 2, 4])) == 2",
        "[pair for pair in zip([1, 2], map(is_even, [1, 2]))] == [(1, False), (2, True)]",
    ),
    entry_point="is_even",
)

EVERY = Exam(
    reference="def is_even(n):\n    return n % 2 == 0\n",
    checks=(
        "all(map(is_even, [2, 4, 6]))",
        "assert not any(map(lambda n: not is_even(n), [2, 4]))",
        "assert not [n for n in map(is_even, [2, 4]) if not n]",
        "not any(a != b for a, b in zip(map(is_even, [1, 2]), [False, True]))",
    ),
    entry_point="is_even",
)

BOTH = Exam(
    reference="def is_even(n):\n    return n % 2 == 0\n",
    checks=(
        "r = is_even(2), is_even(3)\nassert r[0] and not r[1] and r == (True, False)",
        "is_even(2) is True and is_even(3) is False",
    ),
    entry_point="is_even",
)

TWICE = Exam(
    reference="def twice(function, value):\n    return function(function(value))\n",
    checks=(
        "twice(lambda n: n + 3, 4) == 10",
        "wanted = 81\ndef cube(n):\n    return n * 9\nassert twice(cube, 1) == wanted",
    ),
    entry_point="twice",
)

TWICE_BY_PROGRAM = Exam(
    reference=TWICE.reference,
    program="""
WANTED = {4: 10, 1: 7}
def check(candidate):
    seen = []
    def step(n):
        seen.append(n)
        return n + 3
    for value, wanted in WANTED.items():
        assert candidate(step, value) == wanted
    assert seen == [4, 7, 1, 4]
""",
    entry_point="twice",
)

CONSUME = Exam(
    reference="def longest(words):\n    return max(words, key=len)\n",
    checks=(
        "longest(w for w in ['a', 'abc', 'ab']) == 'abc'",
        "class Words:\n    wanted = 'wxyz'\n"
        "    def __iter__(self):\n        return iter(['x', self.wanted])\n"
        "assert longest(Words()) == 'wxyz'",
    ),
    entry_point="longest",
)

PRIMES = Exam(
    reference=(
        "def primes(n):\n"
        "    return [p for p in range(2, n + 1) if all(p % d for d in range(2, p))]\n"
    ),
    checks=(
        "7 in primes(10) and 9 not in primes(10) and len(primes(10)) == 4",
        "assert set(primes(10)) == {2, 3, 5, 7}",
        "sorted(primes(5)) == [2, 3, 5] and sum(primes(5)) == 10",
    ),
    entry_point="primes",
)

TALLY = Exam(
    reference=(
        "import collections\nfrom collections import Counter\n"
        "def tally(text):\n    return dict(Counter(text))\n"
    ),
    checks=(
        "tally('aab') == {'a': 2, 'b': 1}",
        "assert isinstance(tally('a'), dict) and tally('a')['a'] == 1",
        "collections.Counter(tally('aa')) == collections.Counter({'a': 2})",
    ),
    setup="import collections\n",
    entry_point="tally",
)

TEXT = Exam(
    reference="def shout(text):\n    return text.upper() + '!'\n",
    checks=(
        "shout('hi') == 'HI!'",
        "assert shout('a').startswith('A') and shout('a') in {'A!', 'A!!'}",
        "{'HI!': 1}.get(shout('hi')) == 1",
    ),
    entry_point="shout",
)

METHOD = Exam(
    reference=(
        "class Solution:\n    def pair(self, items, total):\n"
        "        return next([i, j] for i in range(len(items)) for j in range(i)\n"
        "                    if items[i] + items[j] == total)[::-1]\n"
    ),
    checks=(
        "Solution().pair([2, 7, 11], 9) == [0, 1]",
        "assert Solution().pair([3, 2, 4], 6) == [1, 2]",
    ),
    entry_point="Solution",
)

METHOD_OF_PROMPT = Exam(
    reference=("class Ruler:\n    def area(self, a, b):\n        return float(a * b)\n"),
    program="""
def check(candidate):
    assert abs(candidate().area(2, 3) - 6.0) < 1e-9
    assert candidate().area(4, 5) == 20.0
""",
    prompt='class Ruler:\n    def area(self, a, b):\n        """The area of a rectangle."""\n',
    entry_point="Ruler",
)

COUNTS = Exam(
    reference=("from collections import Counter\ndef counts(text):\n    return Counter(text)\n"),
    checks=(
        "counts('aab') == Counter('aab')",
        "assert counts('xyz') == Counter(['x', 'y', 'z'])",
    ),
    prompt='from collections import Counter\n\ndef counts(text):\n    """Letters of a text."""\n',
    entry_point="counts",
)

CONSTANT = Exam(
    reference="MOD = 97\ndef power(a, n):\n    return pow(a, n, MOD)\n",
    checks=("power(3, 10) == 3 ** 10 % MOD", "assert power(5, 40) == pow(5, 40, MOD)"),
    prompt='MOD = 97\n\ndef power(a, n):\n    """a ** n, modulo MOD."""\n',
    entry_point="power",
)

BORROWED_MODULE = Exam(
    reference="import math\ndef area(r):\n    return math.pi * r * r\n",
    checks=(
        "math.isclose(area(2), 12.566370614359172)",
        "assert math.isclose(area(1), 3.141592653589793)",
    ),
    entry_point="area",
)

BORROWED_NAME = Exam(
    reference="from math import isclose, pi\ndef area(r):\n    return pi * r * r\n",
    checks=(
        "isclose(area(2), 12.566370614359172)",
        "assert isclose(area(1), 3.141592653589793)",
    ),
    entry_point="area",
)

BARE_CALL = Exam(
    reference="def is_even(n):\n    return n % 2 == 0\n",
    checks=("n = 4\nis_even(n)", "n = 8\nis_even(n + 2)"),
    entry_point="is_even",
)

CALLED = Exam(
    reference=("def apply(function, *arguments):\n    return function(*arguments)\n"),
    checks=(
        "apply(getattr, 'abc', 'upper')() == 'ABC'",
        "WANTED = 'XY'\nassert apply(getattr, 'xy', 'upper')() == WANTED",
    ),
    entry_point="apply",
)

EVALUATED = Exam(
    reference="def each(function, items):\n    return [function(item) for item in items]\n",
    checks=(
        "each(eval, ['1 + 1', '2 * 3']) == [2, 6]",
        "assert each(eval, ['7']) == [7]",
    ),
    entry_point="each",
)

RAISES = Exam(
    reference=(
        "def positive(n):\n    if n < 0:\n        raise ValueError('negative')\n    return n + 1\n"
    ),
    checks=(
        "try:\n    positive(-1)\nexcept ValueError:\n    assert positive(2) == 3\n"
        "else:\n    assert False",
        "try:\n    got = positive(4)\nexcept BaseException:\n    got = None\nassert got == 5",
    ),
    entry_point="positive",
)
