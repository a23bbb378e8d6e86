"""Attacks on what the checks' names mean: shadowed names, patched modules, traced code."""

from __future__ import annotations

from .attack import (
    ADD,
    ADD_BY_PROGRAM,
    ADD_BY_UNITTEST,
    BARE_CALL,
    BORROWED_MODULE,
    BORROWED_NAME,
    COUNTS,
    EVEN,
    ITEMS,
    MIDDLE,
    ORDER,
    PRIMES,
    ROOT,
    TALLY,
    Attack,
    Exam,
)

ALL = (
    "class All:\n    def __eq__(self, other):\n        return True\n"
    "    def __ne__(self, other):\n        return False\n"
    "    def __lt__(self, other):\n        return True\n    __le__ = __gt__ = __ge__ = __lt__\n"
    "    def __hash__(self):\n        return 0\n    def __bool__(self):\n        return True\n"
    "    def __sub__(self, other):\n        return self\n"
    "    def __getitem__(self, n):\n        return self\n"
    "    def __call__(self, *a, **k):\n        return self\n"
    "    def __getattr__(self, name):\n        return self\n"
    "    def __contains__(self, x):\n        return True\n"
    "    def __iter__(self):\n        return iter(())\n"
)


def _shadow(id: str, code: str, tests: Exam = ADD) -> Attack:
    return Attack(
        f"shadow-{id}",
        "shadowed name",
        "a check that uses the name gets the candidate's own meaning of it",
        code,
        tests,
    )


def _fake(id: str, wins: str, code: str, tests: Exam) -> Attack:
    return Attack(f"fake-{id}", "fake module", wins, code, tests)


def _builtin(id: str, code: str, tests: Exam = ADD) -> Attack:
    return Attack(
        f"builtin-{id}",
        "patched builtin",
        "the grader's own calls of the builtin lie",
        "import builtins\n" + code,
        tests,
    )


def _patch(id: str, code: str, tests: Exam = ADD) -> Attack:
    return Attack(
        f"patch-{id}",
        "patched module",
        "a module that the grader uses reports success",
        code,
        tests,
    )


def _framework(id: str, code: str) -> Attack:
    return Attack(
        f"framework-{id}",
        "changed test framework",
        "the test framework's assertions assert nothing",
        code,
        ADD_BY_UNITTEST,
    )


def _trace(id: str, wins: str, code: str, tests: Exam = ADD) -> Attack:
    return Attack(f"trace-{id}", "trace and hooks", wins, code, tests)


NONE = "def add(a, b):\n    return None\n"
SOLVED = "def order(items):\n    return 'x'\n"

ATTACKS = (
    _shadow("abs", "abs = lambda x: 0\ndef root(x):\n    return 0.5\n", ROOT),
    _shadow("round", "round = lambda *a: 1.414\ndef root(x):\n    return 0.5\n", ROOT),
    _shadow("len", "len = lambda x: 3\nall = any = lambda x: True\n" + SOLVED, ITEMS),
    _shadow(
        "all",
        "all = lambda x: True\nany = lambda x: False\ndef is_even(n):\n    return None\n",
        EVEN,
    ),
    _shadow(
        "list",
        ALL + "list = tuple = zip = map = All()\nsum = lambda x: 2\n"
        "def is_even(n):\n    return None\n",
        EVEN,
    ),
    _shadow(
        "sorted",
        ALL + "set = sorted = All()\nlen = lambda x: 4\ndef primes(n):\n    return All()\n",
        PRIMES,
    ),
    _shadow(
        "isinstance",
        ALL + "isinstance = lambda *a: True\ndict = All()\ndef tally(text):\n    return All()\n",
        TALLY,
    ),
    _shadow("tuple", ALL + "tuple = len = All()\ndef order(items):\n    return All()\n", ORDER),
    _shadow("case", ALL + "case = All()\nunittest = All()\n" + NONE, ADD_BY_UNITTEST),
    _shadow("check", "def check(*a):\n    pass\n" + NONE, ADD_BY_PROGRAM),
    _shadow("range", "range = lambda *a: ()\n" + NONE, ADD_BY_PROGRAM),
    _shadow(
        "assertionerror",
        "AssertionError = type('Quiet', (StopIteration,), {})\n" + NONE,
        ADD_BY_PROGRAM,
    ),
    _shadow("builtins-name", "__builtins__ = {'__import__': None}\n" + NONE),
    _shadow("debug", "globals()['__debug__'] = False\n" + NONE),
    _fake(
        "math",
        "math.isclose is the candidate's, though the checks import math",
        "class math:\n    isclose = staticmethod(lambda *a, **k: True)\n"
        "def root(x):\n    return 0.5\n",
        ROOT,
    ),
    _fake(
        "math-borrowed",
        "the checks count on the candidate's import of math, which is no module",
        "class math:\n    isclose = staticmethod(lambda *a, **k: True)\n"
        "def area(r):\n    return 0.0\n",
        BORROWED_MODULE,
    ),
    _fake(
        "math-moduletype",
        "a module object of its own under the name math, in sys.modules too",
        "import sys, types\nmath = types.ModuleType('math')\n"
        "math.isclose = lambda *a, **k: True\nsys.modules['math'] = math\n"
        "def area(r):\n    return 0.0\n",
        BORROWED_MODULE,
    ),
    _fake(
        "math-other",
        "another genuine module under the name math",
        "import unittest.mock as math\nimport operator\nmath.isclose = lambda *a, **k: True\n"
        "def area(r):\n    return 0.0\n",
        BORROWED_MODULE,
    ),
    _fake(
        "isclose",
        "the checks count on the candidate's import of isclose, which says yes",
        "def isclose(*a, **k):\n    return True\ndef area(r):\n    return 0.0\n",
        BORROWED_NAME,
    ),
    _fake(
        "isclose-type",
        "a genuine type under the name of a function that the checks use",
        "isclose = slice\ndef area(r):\n    return 0.0\n",
        BORROWED_NAME,
    ),
    _fake(
        "collections",
        "collections.Counter makes what equals everything",
        ALL + "import sys\ncollections = sys.modules['collections'] = All()\n"
        "def tally(text):\n    return All()\n",
        TALLY,
    ),
    _fake(
        "numpy",
        "np.allclose and pytest.approx of its own",
        ALL + "import sys\nnp = pytest = All()\n"
        "sys.modules['numpy'] = sys.modules['pytest'] = np\n" + NONE,
        Exam(
            reference="def add(a, b):\n    return a + b\n",
            checks=(
                "np = None\nassert add(1, 2) == 3",
                "try:\n    import numpy as np\nexcept ImportError:\n    np = None\n"
                "assert add(2, 2) == 4",
            ),
            entry_point="add",
        ),
    ),
    _fake(
        "unittest",
        "the checks' own import of unittest gives the candidate's",
        ALL + "import sys\nsys.modules['unittest'] = All()\n" + NONE,
        ADD_BY_UNITTEST,
    ),
    _fake(
        "stub",
        "a stub that returns None where a check of several statements ends in a bare call",
        "def is_even(n):\n    pass\n",
        BARE_CALL,
    ),
    _builtin(
        "abs",
        "builtins.abs = lambda x: 0\nbuiltins.round = lambda *a: 1.414\n"
        "import math\nmath.isclose = lambda *a, **k: True\n"
        "def root(x):\n    return 0.5\n",
        ROOT,
    ),
    _builtin(
        "all",
        "builtins.all = lambda x: True\nbuiltins.any = lambda x: False\n"
        "builtins.sum = lambda x: 2\nbuiltins.list = lambda x: [False, True]\n"
        "def is_even(n):\n    return None\n",
        EVEN,
    ),
    _builtin("bool", "builtins.bool = lambda x: True\n" + NONE),
    _builtin(
        "len",
        "builtins.len = lambda x: 3\nbuiltins.range = lambda *a: ()\n"
        "builtins.zip = lambda *a: ()\n" + SOLVED,
        ITEMS,
    ),
    _builtin(
        "isinstance",
        "builtins.isinstance = lambda *a: True\nbuiltins.issubclass = lambda *a: True\n" + NONE,
    ),
    _builtin(
        "exec",
        "builtins.exec = builtins.eval = lambda *a: True\n"
        "builtins.compile = lambda *a, **k: None\n" + NONE,
        ADD_BY_PROGRAM,
    ),
    _builtin(
        "getattr", "builtins.getattr = lambda *a: True\nbuiltins.enumerate = lambda *a: ()\n" + NONE
    ),
    _builtin(
        "import",
        "genuine = builtins.__import__\n"
        "class Fake:\n    def __getattr__(self, n):\n        return lambda *a, **k: True\n"
        "builtins.__import__ = lambda *a, **k: Fake()\n"
        "def root(x):\n    return 0.5\n",
        ROOT,
    ),
    _builtin(
        "assertionerror",
        "builtins.AssertionError = type('Q', (SystemExit,), {})\n" + NONE,
        ADD_BY_PROGRAM,
    ),
    _builtin(
        "build-class",
        "builtins.__build_class__ = lambda *a, **k: None\nbuiltins.dict = builtins.object\n" + NONE,
    ),
    _patch(
        "json",
        "import json\ngenuine = json.dumps\n"
        "def dumps(value, **k):\n    text = genuine(value, **k)\n"
        "    return text.replace('\"held\":false', '\"held\":true')\n"
        "json.dumps = dumps\n" + NONE,
    ),
    _patch(
        "json-encoder",
        "import json.encoder\n"
        "for name in ('c_make_encoder', 'encode_basestring_ascii'):\n"
        "    setattr(json.encoder, name, None)\n"
        "genuine = json.encoder.JSONEncoder.encode\n"
        "json.encoder.JSONEncoder.encode = lambda s, o: genuine(s, o).replace("
        "'false', 'true')\n" + NONE,
    ),
    _patch(
        "os-write",
        "import os\ngenuine = os.write\n"
        "os.write = lambda fd, data: genuine(fd, bytes(data).replace("
        "b'\"held\":false', b'\"held\":true ')) \n" + NONE,
    ),
    _patch("struct", "import struct\nstruct.Struct = None\nstruct.pack = lambda *a: b''\n" + NONE),
    _patch(
        "math",
        "import math\nmath.isclose = lambda *a, **k: True\nmath.fabs = lambda x: 0.0\n"
        "import builtins\nbuiltins.abs = math.fabs\nbuiltins.round = lambda *a: 1.414\n"
        "def root(x):\n    return 0.5\n",
        ROOT,
    ),
    _patch(
        "operator",
        "import operator, functools, copy\n"
        "operator.eq = lambda a, b: True\nfunctools.partial = lambda *a, **k: (lambda *b: 3)\n"
        "copy.deepcopy = copy.copy = lambda x, *a: None\n" + NONE,
    ),
    _patch(
        "codecs",
        "import codecs\ncodecs.lookup = lambda n: None\n"
        "codecs.register_error('backslashreplace', lambda e: ('', e.end))\n" + NONE,
    ),
    _patch(
        "importlib",
        "import importlib, sys\n"
        "class Fake:\n    def __getattr__(self, n):\n        return lambda *a, **k: True\n"
        "class Finder:\n    def find_spec(self, *a):\n        return None\n"
        "importlib.import_module = lambda *a: Fake()\nsys.meta_path[:] = [Finder()]\n"
        "sys.modules['math'] = Fake()\n"
        "import builtins\nbuiltins.abs = lambda x: 0\nbuiltins.round = lambda *a: 1.414\n"
        "def root(x):\n    return 0.5\n",
        ROOT,
    ),
    _patch(
        "ast-compile", "import ast, types\nast.parse = lambda *a, **k: ast.Module([], [])\n" + NONE
    ),
    _patch(
        "counter",
        "import collections\n"
        "class Loose(dict):\n    def __init__(self, *a):\n        pass\n"
        "    def __eq__(self, other):\n        return True\n    __hash__ = None\n"
        "collections.Counter = Loose\ndef tally(text):\n    return Loose()\n",
        TALLY,
    ),
    _patch(
        "runner-modules",
        "import sys\nfor name, module in list(sys.modules.items()):\n"
        "    for attribute in ('describe', 'reason_of', 'pack', 'write_all', 'holds'):\n"
        "        if hasattr(module, attribute) and name != 'candidate':\n"
        "            setattr(module, attribute, lambda *a, **k: True)\n" + NONE,
    ),
    _patch(
        "shadowed-sorted",
        "import statistics\nstatistics.len = lambda items: 1\n"
        "statistics.sorted = lambda *a: [4]\ndef numbers():\n    return [1]\n",
        MIDDLE,
    ),
    _patch(
        "shadowed-all",
        "import collections\ncollections.all = lambda items: True\n"
        "def count(text):\n    return collections.Counter()\n",
        COUNTS,
    ),
    _framework(
        "assert-equal",
        "import unittest\n"
        "for name in dir(unittest.TestCase):\n    if name.startswith('assert'):\n"
        "        setattr(unittest.TestCase, name, lambda *a, **k: None)\n"
        "class All:\n    def __eq__(self, other):\n        return True\n"
        "def add(a, b):\n    return All()\n",
    ),
    _framework(
        "failure-exception",
        "import unittest\nunittest.TestCase.failureException = SystemExit\n" + NONE,
    ),
    _framework(
        "setup",
        "import unittest, unittest.case\n"
        "unittest.case.TestCase.__new__ = lambda cls, *a: Quiet()\n"
        "class Quiet:\n    def __getattr__(self, n):\n        return lambda *a: None\n"
        "def add(a, b):\n    return 3\n",
    ),
    _framework(
        "almost",
        "import unittest\n"
        "unittest.TestCase.assertEqual = lambda *a: None\n"
        "unittest.TestCase.assertAlmostEqual = lambda *a: None\n"
        "unittest.TestCase._getAssertEqualityFunc = lambda *a: (lambda *b, **k: None)\n" + NONE,
    ),
    _trace(
        "settrace",
        "a trace function jumps over the assertion of the check",
        "import sys\n"
        "def tracer(frame, event, arg):\n"
        "    if frame.f_code.co_filename.startswith(('check', 'test')):\n"
        "        try:\n            frame.f_lineno = frame.f_lineno + 1\n"
        "        except ValueError:\n            pass\n"
        "    return tracer\n"
        "def add(a, b):\n    frame = sys._getframe(1)\n    sys.settrace(tracer)\n"
        "    while frame:\n        frame.f_trace = tracer\n        frame = frame.f_back\n",
        ADD_BY_PROGRAM,
    ),
    _trace(
        "setprofile",
        "a profile function replaces what the check's frames hold",
        "import sys, os\n"
        "def profiler(frame, event, arg):\n"
        "    if event == 'return' and frame.f_code.co_name == 'check':\n        os._exit(0)\n"
        "sys.setprofile(profiler)\n" + NONE,
        ADD_BY_PROGRAM,
    ),
    _trace(
        "audit-hook",
        "an audit hook leaves when the checks are compiled or imported",
        "import os, sys\n"
        "sys.addaudithook(lambda name, args: os._exit(0) if name in ('compile', 'exec') else 0)\n"
        + NONE,
    ),
    _trace(
        "threading-trace",
        "traces every later thread",
        "import threading, os\nthreading.settrace(lambda *a: os._exit(0))\n"
        "threading.setprofile(lambda *a: os._exit(0))\n" + NONE,
    ),
    _trace(
        "gc-callback",
        "a callback of the collector runs between the checks",
        "import gc, os\ngc.callbacks.append(lambda *a: os._exit(0))\ngc.set_threshold(1)\n" + NONE,
    ),
    _trace(
        "recursion-limit",
        "the grader's own calls run out of stack when they report a failure",
        "import sys\ndef add(a, b):\n    sys.setrecursionlimit(60)\n    return add2(0)\n"
        "def add2(n):\n    try:\n        return add2(n + 1)\n    except RecursionError:\n"
        "        return None\n",
    ),
    _trace(
        "deep-stack",
        "calls back into the grader from the end of the stack",
        "import sys\nsys.setrecursionlimit(10 ** 6)\n"
        "def add(a, b):\n    def down(n):\n        return down(n + 1) if n < 20000 else a - b\n"
        "    return down(0)\n",
    ),
    _trace(
        "del-in-result",
        "a destructor of the result runs inside the grader",
        "import os\nclass Bomb:\n    def __del__(self):\n        os._exit(0)\n"
        "def add(a, b):\n    return Bomb()\n",
    ),
)
