"""Attacks that return a value which claims to be equal to whatever it is compared with."""

from __future__ import annotations

from .attack import (
    ADD,
    ADD_BY_PROGRAM,
    ADD_BY_UNITTEST,
    BOTH,
    CONSTANT,
    COUNTS,
    ITEMS,
    METHOD,
    METHOD_OF_PROMPT,
    ORDER,
    PRIMES,
    ROOT,
    TALLY,
    TEXT,
    Attack,
    Exam,
)

EQUAL = "    def __eq__(self, other):\n        return True\n"
EQUAL += "    def __ne__(self, other):\n        return False\n"
EQUAL += "    def __hash__(self):\n        return 0\n"
ALL = f"class All:\n{EQUAL}"


def _equal(id: str, wins: str, code: str, tests: Exam = ADD) -> Attack:
    return Attack(f"equal-{id}", "equal to everything", wins, code, tests)


def _near(id: str, wins: str, code: str, tests: Exam = ROOT) -> Attack:
    return Attack(f"near-{id}", "tolerance", wins, code, tests)


def _subclass(kind: str, tests: Exam, function: str, made: str) -> Attack:
    return Attack(
        f"subclass-{kind}",
        "subclass of a builtin",
        f"a {kind} by isinstance whose comparison is the candidate's",
        f"class All({kind}):\n{EQUAL}def {function}(*a):\n    return All({made})\n",
        tests,
    )


def _library(id: str, code: str, tests: Exam = ADD) -> Attack:
    return Attack(
        f"library-{id}",
        "library object that equals",
        "an object of the standard library that says it is equal",
        code,
        tests,
    )


ATTACKS = (
    _equal("plain", "every == of a check is true", ALL + "def add(a, b):\n    return All()\n"),
    _equal(
        "program",
        "every == inside check() is true",
        ALL + "def add(a, b):\n    return All()\n",
        ADD_BY_PROGRAM,
    ),
    _equal(
        "nested",
        "equal inside an honest container",
        ALL + "def order(items):\n    return [All() for _ in items]\n",
        ORDER,
    ),
    _equal(
        "entry-class",
        "the entry point is a class whose instances equal everything",
        f"class add:\n    def __init__(self, *a):\n        pass\n{EQUAL}",
    ),
    _equal(
        "metaclass",
        "the result is a class whose metaclass compares",
        f"class Meta(type):\n{EQUAL}class All(metaclass=Meta):\n    pass\n"
        "def add(a, b):\n    return All\n",
    ),
    _equal(
        "class-lies",
        "__class__ says int, so that isinstance agrees",
        ALL + "    __class__ = int\ndef add(a, b):\n    return All()\n",
    ),
    _equal(
        "reflected",
        "only the reflected operators answer",
        "class All:\n"
        "    def __eq__(self, other):\n        return NotImplemented\n"
        "    def __getattr__(self, name):\n        return lambda *a: True\n"
        "class Left(All):\n    def __eq__(self, other):\n        return True\n"
        "def add(a, b):\n    return Left()\n",
    ),
    _equal(
        "truthy-result",
        "== gives an object that is true, not True",
        "class Yes:\n    def __bool__(self):\n        return True\n"
        "class All:\n    def __eq__(self, other):\n        return Yes()\n"
        "def add(a, b):\n    return All()\n",
    ),
    _equal(
        "hash-known",
        "found as a key: hash and equality of every small value",
        "class Key(str):\n    def __hash__(self):\n        return hash('HI!')\n"
        "    def __eq__(self, other):\n        return True\n"
        "def shout(text):\n    return Key()\n",
        TEXT,
    ),
    _equal(
        "contains",
        "has every member, no wrong one, and the length that is asked for",
        "class Bag(list):\n    turn = 0\n"
        "    def __contains__(self, item):\n        return item != 9\n"
        "    def __len__(self):\n        return 4\n"
        "    def __iter__(self):\n        return iter([All()] * 4)\n"
        + ALL
        + "def primes(n):\n    return Bag()\n",
        PRIMES,
    ),
    _equal(
        "bool-like",
        "true when truth is wanted and equal to False as well",
        ALL + "    def __bool__(self):\n        self.n = not getattr(self, 'n', False)\n"
        "        return self.n\n"
        "both = All()\ndef is_even(n):\n    return both\n",
        BOTH,
    ),
    _equal(
        "learns",
        "returns on the second ask what the first comparison showed it",
        "class Spy:\n    def __eq__(self, other):\n        seen.append(other)\n"
        "        return True\n"
        "    __hash__ = None\nseen = []\n"
        "def add(a, b):\n    return seen[-1] if len(seen) > 5 else Spy()\n",
        ADD_BY_PROGRAM,
    ),
    _equal(
        "peeks-frame",
        "reads the wanted value from the comparison's frame and is honest to a sentinel",
        "import sys\n"
        "class Some:\n    def __eq__(self, other):\n        return type(other) is int\n"
        "    __hash__ = None\n"
        "def add(a, b):\n    return Some()\n",
    ),
    _equal(
        "method-returns-self",
        "the class that the checks name returns itself, equal to every answer",
        f"class Solution:\n    def pair(self, *a):\n        return self\n{EQUAL}",
        METHOD,
    ),
    _equal(
        "method-returns-other",
        "a method makes another instance of the class that the checks name",
        f"class Solution:\n    def pair(self, *a):\n        return type(self)()\n{EQUAL}",
        METHOD,
    ),
    _equal(
        "prompt-class",
        "the class that the prompt names answers for a number",
        f"class Ruler:\n    def area(self, *a):\n        return self\n{EQUAL}"
        "    def __sub__(self, other):\n        return 0.0\n",
        METHOD_OF_PROMPT,
    ),
    _equal(
        "imported-class",
        "a class under the name of the one that the prompt imports",
        f"class Counter:\n{EQUAL}def counts(text):\n    return Counter()\n",
        COUNTS,
    ),
    _equal(
        "imported-subclass",
        "a subclass of the class that the prompt imports, under its name",
        f"import collections\nclass Counter(collections.Counter):\n{EQUAL}"
        "def counts(text):\n    return Counter()\n",
        COUNTS,
    ),
    _equal(
        "constant-is-class",
        "a constant of the prompt's becomes a class whose instances equal everything",
        f"class MOD:\n{EQUAL}def power(a, n):\n    return MOD()\n",
        CONSTANT,
    ),
    _equal(
        "length-lies-twice",
        "the length is right when compared and 0 when looped over",
        "class Lie:\n    lengths = None\n"
        "    def __init__(self, n):\n        self.lengths = [n]\n"
        "    def __len__(self):\n        return self.lengths.pop() if self.lengths else 0\n"
        "    def __iter__(self):\n        return iter(())\n"
        "    def __getitem__(self, n):\n        raise IndexError\n"
        "def order(items):\n    return Lie(len(items))\n",
        ITEMS,
    ),
    _equal(
        "ordering",
        "less, greater and equal at once, so that every sort accepts it",
        ALL
        + "    def __lt__(self, other):\n        return True\n"
        + "    __le__ = __gt__ = __ge__ = __lt__\n"
        + "def order(items):\n    return (All(), All(), All())[:len(items)]\n",
        ORDER,
    ),
    _equal(
        "instancecheck",
        "a class that everything is an instance of, as the result",
        f"class Meta(type):\n    def __instancecheck__(cls, x):\n        return True\n{EQUAL}"
        "class dict_(metaclass=Meta):\n    pass\n"
        "def tally(text):\n    return dict_\n",
        TALLY,
    ),
    _equal(
        "almost-equal",
        "satisfies assertEqual and assertAlmostEqual",
        ALL + "    def __sub__(self, other):\n        return 0\n    __rsub__ = __sub__\n"
        "def add(a, b):\n    return All()\n",
        ADD_BY_UNITTEST,
    ),
    _near(
        "sub-zero",
        "the difference from every number is a plain 0.0",
        f"class Near:\n{EQUAL}"
        "    def __sub__(self, other):\n        return 0.0\n    __rsub__ = __sub__\n"
        "    def __round__(self, n=0):\n        return self\n"
        "def root(x):\n    return Near()\n",
    ),
    _near(
        "float-subclass",
        "a float whose difference and rounding are its own",
        f"class Near(float):\n{EQUAL}"
        "    def __sub__(self, other):\n        return 0.0\n"
        "    def __round__(self, n=0):\n        return self\n"
        "def root(x):\n    return Near(0)\n",
    ),
    _near(
        "abs-of-difference",
        "the difference is an object whose absolute value is below every bound",
        "class Small:\n    def __abs__(self):\n        return self\n"
        "    def __lt__(self, other):\n        return True\n    __le__ = __lt__\n"
        "class Near(float):\n    def __sub__(self, other):\n        return Small()\n"
        "    def __round__(self, n=0):\n        return self\n"
        f"{EQUAL}"
        "def root(x):\n    return Near('nan')\n",
    ),
    _near(
        "complex",
        "a complex number whose absolute value is a lie",
        f"class Near(complex):\n{EQUAL}"
        "    def __sub__(self, other):\n        return 0j\n"
        "    def __round__(self, n=0):\n        return self\n"
        "def root(x):\n    return Near()\n",
    ),
    _near("nan", "NaN is not above any bound", "def root(x):\n    return float('nan')\n"),
    _near(
        "infinity",
        "infinity is within any relative bound of itself",
        "def root(x):\n    return float('inf')\n",
    ),
    _subclass("int", ADD, "add", ""),
    _subclass("str", TEXT, "shout", ""),
    _subclass("list", ORDER, "order", "[0, 0, 0]"),
    _subclass("dict", TALLY, "tally", "{'a': 0}"),
    _subclass("float", ADD_BY_UNITTEST, "add", "0.0"),
    _subclass("tuple", ORDER, "order", "(0, 0, 0)"),
    _subclass("set", PRIMES, "primes", "{1, 4}"),
    _subclass("bytes", TEXT, "shout", "b''"),
    _library("mock-any", "from unittest.mock import ANY\ndef add(a, b):\n    return ANY\n"),
    _library(
        "mock-any-class",
        "from unittest import mock\ndef add(a, b):\n    return type(mock.ANY)()\n",
        ADD_BY_PROGRAM,
    ),
    _library(
        "magicmock",
        "from unittest.mock import MagicMock\n"
        "m = MagicMock()\nm.__eq__ = lambda self, other: True\n"
        "m.__sub__ = lambda self, other: 0.0\nm.__round__ = lambda self, n=0: m\n"
        "def root(x):\n    return m\n",
        ROOT,
    ),
    _library(
        "mock-call",
        "from unittest.mock import call\ndef add(a, b):\n    return call\n",
    ),
    _library(
        "dataclass",
        "import dataclasses\n@dataclasses.dataclass(eq=False)\nclass All:\n    x: int = 0\n"
        "    __eq__ = lambda self, other: True\n    __hash__ = None\n"
        "def add(a, b):\n    return All()\n",
    ),
    _library(
        "enum",
        "import enum\nclass All(enum.IntEnum):\n    A = 0\n"
        "    def __eq__(self, other):\n        return True\n    __hash__ = int.__hash__\n"
        "def add(a, b):\n    return All.A\n",
    ),
    _library(
        "cmp-to-key",
        "import functools\nK = functools.cmp_to_key(lambda a, b: 0)\n"
        "def add(a, b):\n    return K(0)\n",
    ),
    _library(
        "userlist",
        "import collections\n"
        "class All:\n    __eq__ = lambda self, other: True\n    __hash__ = None\n"
        "def order(items):\n    u = collections.UserList(items)\n    u.data = All()\n"
        "    return u\n",
        ORDER,
    ),
    _library(
        "proxy",
        "import weakref\nclass All:\n    __eq__ = lambda self, other: True\n    __hash__ = None\n"
        "kept = All()\ndef add(a, b):\n    return weakref.proxy(kept)\n",
    ),
)
