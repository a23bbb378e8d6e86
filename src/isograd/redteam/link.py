"""Attacks that write to the link of split grading themselves, and poisoned values for its codec.

Behind a grader without such a link these programs are merely wrong.
"""

from __future__ import annotations

from .attack import (
    ADD,
    ADD_BY_PROGRAM,
    BORROWED_MODULE,
    BOTH,
    EVERY,
    IN_PLACE,
    ITEMS,
    METHOD,
    ORDER,
    PRIMES,
    ROOT,
    TALLY,
    TWICE,
    UNTOUCHED,
    Attack,
    Exam,
)

SERVER = """
import json, os, struct, sys
def tell(**message):
    message.setdefault('nodes', [])
    body = json.dumps(message).encode()
    os.write(4, struct.pack('>I', len(body)) + body)
def hear():
    data = b''
    while len(data) < 4 or len(data) < 4 + struct.unpack('>I', data[:4])[0]:
        more = os.read(4, 4 + struct.unpack('>I', data[:4])[0] - len(data)
                       if len(data) >= 4 else 4 - len(data))
        if not more:
            os._exit(0)
        data += more
    return json.loads(data[4:])
def value(node, *rest):
    tell(**{'is': [0], 'nodes': [node, *rest]})
def handle(number, kind=1):
    return ['H', number, kind, [], 'function']
def loaded():
    frame = sys._getframe()
    while frame:
        send = frame.f_locals.get('send')
        if callable(send):
            return send('loaded')
        frame = frame.f_back
def named(request):
    value(['T', ['value', [1]]], handle(1))
def greet():
    body = json.dumps({'loaded': True}).encode()
    os.write(4, struct.pack('>I', len(body)) + body)
def serve(call, name=named, other=None):
    loaded()
    greet()
    while True:
        request = hear()
        what = request.get('do')
        (name if what == 'name' else call if what == 'call' else other or call)(request)
"""


def _raw(id: str, wins: str, code: str, tests: Exam = ADD) -> Attack:
    return Attack(f"link-{id}", "forged answers on the link", wins, SERVER + code, tests)


def _update(id: str, wins: str, code: str, tests: Exam = UNTOUCHED) -> Attack:
    return Attack(f"update-{id}", "forged updates on the link", wins, SERVER + code, tests)


def _poison(id: str, wins: str, code: str, tests: Exam = ADD) -> Attack:
    return Attack(f"poison-{id}", "poisoned value", wins, code, tests)


def _codec(id: str, wins: str, code: str, tests: Exam = ADD) -> Attack:
    return Attack(f"codec-{id}", "patched codec", wins, code, tests)


NONE = "def add(a, b):\n    return None\n"

ATTACKS = (
    _raw(
        "grader-object",
        "a handle of an object of the grader's as the answer",
        "serve(lambda r: value(['P', 0]))\n",
        TWICE,
    ),
    _raw("own-function", "the function itself as the answer", "serve(lambda r: value(['P', 1]))\n"),
    _raw(
        "not-implemented",
        "NotImplemented as the answer",
        "serve(lambda r: value(['1', 'NotImplemented']))\n",
        BOTH,
    ),
    _raw(
        "ellipsis",
        "Ellipsis as the answer, which is true",
        "serve(lambda r: value(['1', 'Ellipsis']))\n",
        BOTH,
    ),
    _raw(
        "type-object",
        "the class object as the answer",
        "serve(lambda r: value(['t', 'builtins.object']))\n",
    ),
    _raw("nan", "NaN as the answer", "serve(lambda r: tell(**{'is': float('nan')}))\n", ROOT),
    _raw(
        "infinity",
        "a float beyond floats as the answer",
        "serve(lambda r: tell(**{'is': 1e999}))\n",
        ROOT,
    ),
    _raw(
        "decimal-snan",
        "a signalling NaN, whose comparison raises",
        "serve(lambda r: value(['d', 'sNaN']))\n",
        ROOT,
    ),
    _raw(
        "bool-as-int",
        "True as the answer to a question for a length",
        "serve(lambda r: value(handle(2)), other=lambda r: tell(**{'is': True}))\n",
        PRIMES,
    ),
    _raw(
        "handle-says-equal",
        "every question about the result is answered with yes",
        "serve(lambda r: value(handle(2)), other=lambda r: tell(**{'is': True}))\n",
    ),
    _raw(
        "handle-of-tested-class",
        "says that the result is of the class that the checks name",
        "serve(lambda r: value(handle(2, 1)), other=lambda r: tell(**{'is': True}))\n",
        METHOD,
    ),
    _raw(
        "class-number-of-entry",
        "the result's class is the entry point itself",
        "serve(lambda r: value(handle(1, 1)), other=lambda r: tell(**{'is': True}))\n",
        ADD_BY_PROGRAM,
    ),
    _raw(
        "function-of-named-class",
        "the named class and its instances share one number",
        "serve(lambda r: value(handle(7, 7)), name=lambda r: value(['T', ['value', [1]]],"
        " handle(7, 7)), other=lambda r: tell(**{'is': 0.0}))\n",
        METHOD,
    ),
    _raw(
        "exception-class",
        "an exception class of the grader's making as the answer",
        "serve(lambda r: value(['H', 2, 1, ['Exception'], 'All']))\n",
    ),
    _raw(
        "exception-class-name",
        "the making of an exception class gets a poisoned name",
        "serve(lambda r: value(['H', 2, 1, ['BaseException'], '\\x00']))\n",
    ),
    _raw(
        "iterates-nothing",
        "the length that is asked for, and no items",
        "serve(lambda r: value(handle(2)), other=lambda r: "
        "tell(**{'is': 3}) if r['do'] == 'len' else value(['L', []]))\n",
        ITEMS,
    ),
    _raw(
        "next-of-two",
        "two items for one question",
        "serve(lambda r: value(handle(2)), other=lambda r: value(['L', [1, 2]]))\n",
        PRIMES,
    ),
    _raw(
        "raised-stop",
        "StopIteration raised into the check's loop",
        "serve(lambda r: tell(raised=['StopIteration', '', [], [], None]))\n",
        EVERY,
    ),
    _raw(
        "raised-own-stop",
        "a class of its own below StopIteration raised into the loop",
        "serve(lambda r: tell(raised=['StopIteration', '', [9, 'Stop'], [], None]))\n",
        EVERY,
    ),
    _raw(
        "raised-generatorexit",
        "GeneratorExit raised into the check's loop",
        "serve(lambda r: tell(raised=['GeneratorExit', '', [], [], None]))\n",
        EVERY,
    ),
    _raw(
        "raised-base",
        "a type that is no exception raised into the check",
        "serve(lambda r: tell(raised=['BaseException', '', [], [], None]))\n",
        EVERY,
    ),
    _raw(
        "raised-function",
        "a builtin function in the place of an exception type",
        "serve(lambda r: tell(raised=['exec', 'print(1)', [], [], None]))\n",
        EVERY,
    ),
    _raw(
        "raised-nonsense",
        "an exception with parts of the wrong types",
        "serve(lambda r: tell(raised=[['ValueError'], {}, 3, 'x', 'y']))\n",
        EVERY,
    ),
    _raw(
        "before-the-question",
        "answers that stand there before the questions",
        "loaded()\ngreet()\nfor _ in range(50):\n    value(['T', ['value', [1]]], handle(1))\n"
        "serve(lambda r: None, name=lambda r: None)\n",
    ),
    _raw(
        "two-answers",
        "two answers to each question, shifted by one",
        "serve(lambda r: (tell(**{'is': True}), tell(**{'is': True})), other=lambda r: None)\n",
    ),
    _raw(
        "answer-and-question",
        "a message that is answer and question at once",
        "serve(lambda r: tell(**{'is': True, 'do': 'call', 'of': [0]}))\n",
        TWICE,
    ),
    _raw(
        "call-nothing",
        "calls a number of nothing in the grader",
        "serve(lambda r: tell(do='call', of=[99, 1]))\n",
        TWICE,
    ),
    _raw(
        "call-negative",
        "calls the last object by a negative number",
        "serve(lambda r: tell(do='call', of=[-1, 1]))\n",
        TWICE,
    ),
    _raw(
        "attribute-of-grader",
        "asks for an attribute of the grader's function",
        "serve(lambda r: tell(do='getattr', of=[0, '__globals__']))\n",
        TWICE,
    ),
    _raw(
        "name-of-grader",
        "asks the grader to look a name up",
        "serve(lambda r: tell(do='name', of=[0, 'WANTED', False]))\n",
        TWICE,
    ),
    _raw(
        "reenter",
        "questions inside questions, without end",
        "def call(r):\n    tell(do='call', of=[0, 1])\nserve(call)\n",
        TWICE,
    ),
    _raw(
        "flood",
        "a million messages",
        "def call(r):\n    while True:\n        tell(do='iter', of=[0])\n        hear()\n"
        "serve(call)\n",
        TWICE,
    ),
    _raw(
        "huge",
        "more bytes than may cross",
        "def call(r):\n    os.write(4, struct.pack('>I', 1 << 31) + b'x' * 100)\nserve(call)\n",
    ),
    _raw(
        "not-json",
        "bytes that are no message",
        "def call(r):\n    os.write(4, struct.pack('>I', 4) + b'True')\nserve(call)\n",
    ),
    _raw(
        "deep-json",
        "JSON that is nested too deeply to be read",
        "def call(r):\n    b = b'[' * 200000\n    os.write(4, struct.pack('>I', len(b)) + b)\n"
        "serve(call)\n",
    ),
    _raw(
        "holds-itself", "a tuple that holds itself", "serve(lambda r: value(['T', [[0]]]))\n", ORDER
    ),
    _raw(
        "unhashable", "a set of lists", "serve(lambda r: value(['S', [[1]]], ['L', []]))\n", PRIMES
    ),
    _raw(
        "module-of-choice",
        "another genuine module for the name that the checks use",
        "serve(lambda r: tell(**{'is': 0.0}), name=lambda r: value(['T', ['module',"
        " 'unittest.mock']]) if r['of'][0] != 'area' else named(r))\n",
        BORROWED_MODULE,
    ),
    _raw(
        "module-with-main",
        "a module whose import leaves, for the name that the checks use",
        "serve(lambda r: tell(**{'is': 0.0}), name=lambda r: value(['T', ['module',"
        " 'unittest.__main__']]) if r['of'][0] != 'area' else named(r))\n",
        BORROWED_MODULE,
    ),
    _raw(
        "name-is-type",
        "a class of the grader's as the entry point",
        "serve(lambda r: tell(**{'is': 0}), name=lambda r: value(['T', ['value', [1]]],"
        " ['t', 'builtins.slice']))\n",
    ),
    _raw(
        "entry-is-plain",
        "a plain value as the entry point",
        "serve(lambda r: tell(**{'is': 0}), name=lambda r: value(['T', ['value', 3]]))\n",
    ),
    _raw(
        "close",
        "closes the link in the middle of a check",
        "serve(lambda r: (os.close(4), os.close(3), __import__('time').sleep(9)))\n",
    ),
    _raw("shut-down", "closes the link and leaves with status 0", "serve(lambda r: os._exit(0))\n"),
    _raw(
        "says-end",
        "says on its own channel that the run is over and passed",
        "def call(r):\n    frame = sys._getframe()\n    while frame:\n"
        "        send = frame.f_locals.get('send')\n        if callable(send):\n"
        "            for n in (1, 2):\n"
        "                send('check', number=n, held=True, reason=None, detail='')\n"
        "            send('end', exit_code=None, reason=None, detail='')\n"
        "        frame = frame.f_back\nserve(call)\n",
    ),
    _raw(
        "descriptors",
        "sends descriptors of its own over the link",
        "import socket\n"
        "def call(r):\n    s = socket.socket(fileno=os.dup(4))\n"
        "    socket.send_fds(s, [struct.pack('>I', 21) + b'{\"is\":true,\"nodes\":[]}'[:21]],"
        " [0, 1, 2])\nserve(call)\n",
    ),
    _update(
        "argument",
        "an update empties an argument and returns it",
        "serve(lambda r: tell(**{'is': [-1], 'nodes': [], 'now': [[0, ['L', []]]]}))\n",
        ORDER,
    ),
    _update(
        "not-an-argument",
        "an update of a list that was never an argument",
        "serve(lambda r: tell(**{'is': None, 'now': [[n, ['L', [1, 2, 3]]] for n in "
        "range(50)]}))\n",
    ),
    _update(
        "negative",
        "an update of the last object by a negative number",
        "serve(lambda r: tell(**{'is': None, 'now': [[-1, ['L', [1, 2, 3]]]]}))\n",
    ),
    _update(
        "other-kind",
        "an update turns a list into a mapping",
        "serve(lambda r: tell(**{'is': None, 'now': [[0, ['D', [[1, 2]]]]]}))\n",
        IN_PLACE,
    ),
    _update(
        "of-handle",
        "an update of a handle",
        "serve(lambda r: tell(**{'is': None, 'now': [[0, ['H', 1, 1, [], 'x']]]}))\n",
        TWICE,
    ),
    _update(
        "with-handles",
        "an update puts objects that equal everything into the list",
        "serve(lambda r: tell(**{'is': None, 'nodes': [handle(3), handle(4)],"
        " 'now': [[n, ['L', [[0], [0], [1]]]] for n in range(1)]}),"
        " other=lambda r: tell(**{'is': True}))\n",
        IN_PLACE,
    ),
    _update(
        "itself",
        "an update puts the list into itself",
        "serve(lambda r: tell(**{'is': [-2], 'now': [[1, ['L', [[-2], [-2], [-2]]]]]}))\n",
        IN_PLACE,
    ),
    _update(
        "at-name",
        "an update comes with the answer to a name",
        "serve(lambda r: tell(**{'is': None}), name=lambda r: tell(**{'is': [0], 'nodes':"
        " [['T', ['value', [1]]], handle(1)], 'now': [[0, ['L', []]]]}))\n",
    ),
    _poison(
        "deep",
        "a list nested 100,000 deep",
        "def add(a, b):\n    x = []\n    for _ in range(100000):\n        x = [x]\n    return x\n",
    ),
    _poison(
        "cycle",
        "a list that holds itself, whose comparison recurs",
        "def order(items):\n    items[:] = [items] * 3\n    return items\n",
        ORDER,
    ),
    _poison(
        "huge", "an integer of ten million digits", "def add(a, b):\n    return 1 << 40000000\n"
    ),
    _poison(
        "many",
        "more values than may cross",
        "def order(items):\n    return [{} for _ in range(3000000)]\n",
        ORDER,
    ),
    _poison(
        "infinite",
        "an iterator that never ends",
        "import itertools\ndef primes(n):\n    return itertools.count()\n",
        PRIMES,
    ),
    _poison(
        "nan-list",
        "NaN inside containers, equal by identity",
        "nan = float('nan')\ndef order(items):\n    return [nan] * len(items)\n",
        ORDER,
    ),
    _poison(
        "set-of-handles",
        "a set of objects that equal everything",
        "class All:\n    def __eq__(self, other):\n        return True\n"
        "    def __hash__(self):\n        return 2\n"
        "def primes(n):\n    return {All()}\n",
        PRIMES,
    ),
    _poison(
        "mutating-keys",
        "a mapping whose keys change their hash and equality",
        "class Key:\n    n = 0\n    def __hash__(self):\n        self.n += 1\n"
        "        return self.n\n    def __eq__(self, other):\n        return True\n"
        "def tally(text):\n    return {Key(): 2, Key(): 1}\n",
        TALLY,
    ),
    _poison(
        "qualname",
        "a class whose names lie and raise",
        "class Meta(type):\n    __qualname__ = __name__ = property(lambda c: 1 / 0)\n"
        "    __mro__ = property(lambda c: (int,))\n"
        "    __module__ = 'builtins'\n"
        "class int_(metaclass=Meta):\n    __module__ = 'builtins'\n"
        "    def __eq__(self, other):\n        return True\n    __hash__ = None\n"
        "int_.__class__ = Meta\ndef add(a, b):\n    return int_()\n",
    ),
    _poison(
        "class-property",
        "__class__ is a property that raises or says bool",
        "class All:\n    __class__ = property(lambda s: bool)\n"
        "    def __eq__(self, other):\n        return True\n    __hash__ = None\n"
        "    def __bool__(self):\n        raise StopIteration\n"
        "def is_even(n):\n    return All()\n",
        BOTH,
    ),
    _poison(
        "reduce",
        "an object whose pickle would run code",
        "import os\nclass Bomb:\n    def __reduce__(self):\n"
        "        return (exec, ('import os; os._exit(0)',))\n"
        "    def __reduce_ex__(self, n):\n        return self.__reduce__()\n"
        "    def __deepcopy__(self, memo):\n        os._exit(0)\n"
        "def add(a, b):\n    return Bomb()\n",
    ),
    _poison(
        "exception-class",
        "raises an exception whose class names itself after a builtin",
        "class AssertionError(Exception):\n    __module__ = 'builtins'\n"
        "    def __str__(self):\n        raise SystemExit(0)\n"
        "def add(a, b):\n    raise AssertionError\n",
    ),
    _poison(
        "exception-text",
        "an exception whose text is a frame of the wire",
        "def add(a, b):\n    raise ValueError('\\x00\\x00\\x00\\x02{}\\n{\"held\": true}' * 99)\n",
    ),
    _poison(
        "surrogates",
        "lone surrogates and null bytes in what crosses",
        "def add(a, b):\n    return '\\ud800\\x00' * 1000\n",
    ),
    _poison(
        "repr",
        "a repr that leaves, prints and lies",
        "import os\nclass R:\n    def __repr__(self):\n        os._exit(0)\n"
        "    __str__ = __format__ = __repr__\ndef add(a, b):\n    return R()\n",
        ADD_BY_PROGRAM,
    ),
    _codec(
        "own-type-names",
        "its codec calls an object that equals everything an int",
        "import sys, gc\n"
        "class All:\n    def __eq__(self, other):\n        return True\n    __hash__ = None\n"
        "def add(a, b):\n    frame = sys._getframe(1)\n    while frame:\n"
        "        codec = frame.f_globals.get('codec')\n        if codec:\n"
        "            codec._TYPE_NAMES[All] = 'builtins.int'\n"
        "            codec.SAFE_TYPES['builtins.int'] = All\n"
        "            codec._SEQUENCES[All] = 'L'\n"
        "        frame = frame.f_back\n    return All\n",
    ),
    _codec(
        "end",
        "its end of the link is replaced while a call is answered",
        "import sys\ndef add(a, b):\n    frame = sys._getframe(1)\n    while frame:\n"
        "        end = frame.f_locals.get('self')\n"
        "        if hasattr(end, '_operations'):\n"
        "            end._operations.update({n: (lambda *a: True) for n in end._operations})\n"
        "            type(end).describe = lambda s, v: ['P', 0]\n"
        "        frame = frame.f_back\n    return object()\n",
    ),
    _codec(
        "json",
        "json and base64 of its own process say what they like",
        "import json, base64\ngenuine = json.dumps\n"
        "json.dumps = lambda m, **k: genuine({**m, 'is': True} if 'is' in m else m, **k)\n"
        "base64.b64encode = lambda b: b'AAAA'\n"
        "import json.encoder\njson.encoder.c_make_encoder = None\n" + NONE,
    ),
    _codec(
        "operators",
        "the operators of its own process say yes",
        "import operator, builtins\n"
        "for name in ('eq', 'ne', 'contains', 'lt', 'le', 'sub'):\n"
        "    setattr(operator, name, lambda *a: True)\n"
        "builtins.isinstance = builtins.len = lambda *a: 3\n"
        "def order(items):\n    return iter(())\n",
        ITEMS,
    ),
)
