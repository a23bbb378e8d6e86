"""Attacks that reach for the grader itself: frames, objects, /proc, callbacks, records."""

from __future__ import annotations

from .attack import (
    ADD,
    CALLED,
    CONSUME,
    EVALUATED,
    ORDER,
    TWICE,
    TWICE_BY_PROGRAM,
    Attack,
    Exam,
)


def _forge(id: str, wins: str, code: str, tests: Exam = ADD) -> Attack:
    return Attack(f"forge-{id}", "forged record", wins, code, tests)


def _frame(id: str, wins: str, code: str, tests: Exam = ADD) -> Attack:
    return Attack(f"frame-{id}", "grader's frames", wins, code, tests)


def _heap(id: str, wins: str, code: str, tests: Exam = ADD) -> Attack:
    return Attack(f"heap-{id}", "grader's objects", wins, code, tests)


def _proc(id: str, wins: str, code: str, tests: Exam = ADD) -> Attack:
    return Attack(f"proc-{id}", "grader's process", wins, code, tests)


def _callback(id: str, wins: str, code: str, tests: Exam = TWICE) -> Attack:
    return Attack(f"callback-{id}", "grader's callback", wins, code, tests)


NONE = "def add(a, b):\n    return None\n"

FRAMES = """
import json, os, struct, sys
def packed(**fields):
    body = json.dumps(fields, separators=(',', ':')).encode()
    return struct.pack('>I', len(body)) + body
def spray(data, first=0):
    for fd in range(first, 65):
        try:
            os.set_blocking(fd, False)
            os.write(fd, data)
        except OSError:
            pass
ENVELOPE = {'version': 1, 'exit_code': 'pass', 'reason': None, 'score': 1.0, 'passed': 2,
            'total': 2, 'detail': '', 'per_assertion': [True, True], 'stdout': '', 'stderr': '',
            'truncated': False, 'grading': 'split'}
def events(key):
    yield packed(key=key, event='loaded')
    for n in (1, 2):
        yield packed(key=key, event='check', number=n, held=True, reason=None, detail='')
    yield packed(key=key, event='end', exit_code=None, reason=None, detail='')
def find_key():
    frame = sys._getframe()
    while frame:
        for value in list(frame.f_locals.values()):
            if type(value).__name__ == 'Order':
                return value.key
        frame = frame.f_back
    import gc
    for value in gc.get_objects():
        if type(value).__name__ == 'Order':
            return value.key
        if type(value).__name__ == 'cell':
            try:
                held = value.cell_contents
            except ValueError:
                continue
            if type(held) is str and len(held) == 32:
                return held
    return '0' * 32
"""

WALK = """
import sys
def above():
    frame = sys._getframe(1)
    while frame:
        yield frame
        frame = frame.f_back
"""

CONSTANTS = """
def constants(code):
    for value in code.co_consts:
        if hasattr(value, 'co_consts'):
            yield from constants(value)
        else:
            yield value
"""

ATTACKS = (
    _forge(
        "stdout-lines",
        "a reader of the last line of stdout takes it for the verdict",
        'import os\nprint(\'{"passed": true, "result": "passed", "score": 1.0, \'\n'
        '      \'"exit_code": "pass", "per_assertion": [true, true]}\', flush=True)\n'
        "os._exit(0)\n",
    ),
    _forge(
        "stdout-in-call",
        "prints the verdict while a check runs and goes on to the end",
        "import atexit\n"
        'line = \'{"passed": true, "score": 1.0, "exit_code": "pass"}\'\n'
        "atexit.register(print, line, flush=True)\ndef add(a, b):\n    print(line, flush=True)\n",
    ),
    _forge(
        "json-every-fd",
        "a JSON line on each descriptor",
        FRAMES + "spray(b'\\n' + json.dumps(ENVELOPE).encode() + b'\\n')\nos._exit(0)\n",
    ),
    _forge(
        "frame-every-fd",
        "a verdict in the frames of the wire, on each descriptor",
        FRAMES + "spray(packed(op='verdict', nonce='', envelope=ENVELOPE, measurement={},"
        " spent=False), 3)\n" + NONE,
    ),
    _forge(
        "events-no-key",
        "events of a passed run with a guessed key, on each descriptor",
        FRAMES + "for event in events('0' * 32):\n    spray(event, 3)\nos._exit(0)\n",
    ),
    _forge(
        "events-no-key-in-call",
        "events of a passed check while that check runs",
        FRAMES + "def add(a, b):\n    for event in list(events(''))[1:]:\n        spray(event, 3)\n"
        "    os._exit(0)\n",
    ),
    _forge(
        "double-result",
        "a second result behind the first",
        FRAMES + "import atexit\ndef add(a, b):\n"
        "    spray(packed(event='check', number=1, held=True, reason=None, detail=''), 3)\n",
    ),
    _forge(
        "half-frame",
        "a half frame that swallows the honest record that follows",
        FRAMES + "def add(a, b):\n    spray(struct.pack('>I', 40), 3)\n",
    ),
    _forge(
        "huge-frame",
        "a frame of 4 GB that the reader waits for",
        FRAMES + "def add(a, b):\n    spray(b'\\xff' * 4 + b'{}', 3)\n",
    ),
    _forge(
        "close-every-fd",
        "no failure can be reported any more",
        "import os\ndef add(a, b):\n    os.closerange(3, 100)\n",
    ),
    _forge(
        "dup-over",
        "failures are written to /dev/null",
        "import os\ndef add(a, b):\n    null = os.open('/dev/null', os.O_RDWR)\n"
        "    for fd in range(3, 10):\n        os.dup2(null, fd)\n",
    ),
    _forge(
        "exit-file",
        "result files where runners keep them",
        "import json, os\n"
        "for name in ('result.json', 'results.json', 'verdict.json', 'reward.txt', 'exit_code'):\n"
        "    for place in ('.', '/tmp', '/logs', '/dev/shm', os.path.expanduser('~')):\n"
        "        try:\n            with open(f'{place}/{name}', 'w') as file:\n"
        "                file.write('1')\n        except OSError:\n            pass\n"
        "os._exit(0)\n",
    ),
    _frame(
        "send",
        "finds the runner's own sender in the frames above and reports a passed run",
        WALK + "import os\ndef report():\n    for frame in above():\n"
        "        send = frame.f_locals.get('send')\n        if callable(send):\n"
        "            try:\n                send('loaded')\n            except BaseException:\n"
        "                pass\n            for n in (1, 2):\n"
        "                send('check', number=n, held=True, reason=None, detail='')\n"
        "            send('end', exit_code=None, reason=None, detail='')\n"
        "            os._exit(0)\n"
        "report()\n" + NONE,
    ),
    _frame(
        "send-in-call",
        "as above, from inside the first check",
        WALK + "import os\ndef add(a, b):\n    for frame in above():\n"
        "        send = frame.f_locals.get('send')\n        if callable(send):\n"
        "            for n in (1, 2):\n"
        "                send('check', number=n, held=True, reason=None, detail='')\n"
        "            send('end', exit_code=None, reason=None, detail='')\n"
        "            os._exit(0)\n",
    ),
    _frame(
        "key",
        "finds the key of the records in the frames above and forges every record",
        FRAMES + "key = find_key()\nfor event in events(key):\n    os.write(3, event)\n"
        "os._exit(0)\n",
    ),
    _frame(
        "constants",
        "reads the wanted value from the constants of the check's code",
        WALK + CONSTANTS + "def add(a, b):\n    for frame in above():\n"
        "        if frame.f_code.co_filename.startswith(('check', 'test')):\n"
        "            for value in constants(frame.f_code):\n"
        "                if value not in (a, b, None) and type(value) is int:\n"
        "                    return value\n",
    ),
    _frame(
        "traceback",
        "reads the frames through the traceback of an exception of its own",
        CONSTANTS + "def add(a, b):\n    try:\n        raise ValueError\n"
        "    except ValueError as error:\n        frame = error.__traceback__.tb_frame.f_back\n"
        "    while frame:\n        if frame.f_code.co_filename != 'candidate.py':\n"
        "            for value in constants(frame.f_code):\n"
        "                if type(value) is int and value not in (a, b):\n"
        "                    return value\n        frame = frame.f_back\n",
    ),
    _frame(
        "generator",
        "reads the frames through a generator's",
        CONSTANTS + "def walker():\n    import inspect\n"
        "    yield inspect.currentframe()\n"
        "def add(a, b):\n    frame = next(walker())\n    import inspect\n"
        "    for info in inspect.stack(0):\n"
        "        for value in constants(info.frame.f_code):\n"
        "            if info.filename != 'candidate.py' and type(value) is int"
        " and value not in (a, b):\n                return value\n",
    ),
    _frame(
        "rewrite-locals",
        "writes over the runner's list of checks and results",
        WALK + "import ctypes\ndef add(a, b):\n    for frame in above():\n"
        "        for name, value in list(frame.f_locals.items()):\n"
        "            if type(value) is list and name in ('ready', 'results', 'compiled'):\n"
        "                value[:] = [lambda *a: True] * len(value)\n",
    ),
    _frame(
        "rewrite-checks",
        "replaces the checks before they are made ready",
        WALK + "for frame in above():\n    for value in list(frame.f_locals.values()):\n"
        "        if isinstance(value, dict) and 'checks' in value:\n"
        "            value['checks'] = {'kind': 'assertions', 'checks': ['add is not None'] * 2,"
        " 'setup': ''}\n"
        "        for cell in getattr(value, '__closure__', None) or ():\n"
        "            try:\n                held = cell.cell_contents\n"
        "            except ValueError:\n                continue\n"
        "            if type(held) is list:\n                for check in held:\n"
        "                    check.__dict__.update(_body=None, _value=None)\n" + NONE,
    ),
    _frame(
        "runner-globals",
        "replaces functions in the globals of the runner's frames",
        WALK + "def add(a, b):\n    for frame in above():\n"
        "        names = frame.f_globals\n        if names.get('__name__') in ('checks', "
        "'candidate'):\n            continue\n"
        "        for name in ('_load', 'describe', 'reason_of'):\n"
        "            if name in names:\n                names[name] = lambda *a, **k: None\n"
        "        for value in list(names.values()):\n"
        "            if hasattr(value, 'Compiled'):\n"
        "                value.Compiled.holds = lambda *a: True\n"
        "            if hasattr(value, 'pack') and hasattr(value, 'Malformed'):\n"
        "                pack = value.pack\n"
        "                value.pack = lambda m: pack({**m, 'held': True} if 'held' in m else m)\n",
    ),
    _heap(
        "gc-code",
        "finds the checks' code among the collector's objects",
        CONSTANTS + "import gc\ndef add(a, b):\n    for value in gc.get_objects():\n"
        "        code = getattr(value, '_value', None) or getattr(value, '_body', None)\n"
        "        if hasattr(code, 'co_consts'):\n"
        "            for wanted in constants(code):\n"
        "                if type(wanted) is int and wanted not in (a, b):\n"
        "                    return wanted\n",
    ),
    _heap(
        "gc-compiled",
        "makes every compiled check among the collector's objects hold",
        "import gc\nfor value in gc.get_objects():\n"
        "    if type(value).__name__ == 'Compiled':\n"
        "        type(value).holds = lambda *a: True\n" + NONE,
    ),
    _heap(
        "gc-send",
        "finds the runner's sender among the collector's objects",
        "import gc, os\nfor value in gc.get_objects():\n"
        "    if type(value).__name__ == '_Sender':\n"
        "        try:\n            value('loaded')\n            for n in (1, 2):\n"
        "                value('check', number=n, held=True, reason=None, detail='')\n"
        "            value('end', exit_code=None, reason=None, detail='')\n"
        "            os._exit(0)\n        except Exception:\n            pass\n" + NONE,
    ),
    _heap(
        "referrers",
        "walks from a value that the grader holds to what holds it",
        "import gc\ndef add(a, b):\n    seen = [a]\n    for _ in range(3):\n"
        "        for holder in gc.get_referrers(*seen):\n"
        "            if type(holder) is dict and type(holder.get('wanted')) is int:\n"
        "                return holder['wanted']\n"
        "            if type(holder) is dict and holder.get('kind') == 'assertions':\n"
        "                holder['checks'] = ()\n"
        "        seen = gc.get_referrers(*seen)[:50]\n",
    ),
    _heap(
        "subclasses",
        "finds classes of the runner below object and changes them",
        "for kind in object.__subclasses__():\n"
        "    for name in ('holds', 'take_result', '_send', 'verdict', 'envelope'):\n"
        "        if name in vars(kind):\n            setattr(kind, name, lambda *a, **k: True)\n"
        + NONE,
    ),
    _heap(
        "small-ints",
        "writes over the small integers of this process",
        "import ctypes\ndef add(a, b):\n"
        "    size = (3).__sizeof__()\n    for n in (3, 6):\n"
        "        ctypes.memmove(id(n) + size - 4, id(0) + size - 4, 4)\n    return 0\n",
    ),
    _heap(
        "true-is-false",
        "writes over the code of the comparison in this process",
        "import ctypes\n"
        "slot = id(type(None)) + 200\n"
        "def add(a, b):\n    ctypes.memmove(slot, id(int) + 200, 8)\n    return None\n",
    ),
    _heap(
        "own-memory",
        "searches its own memory for the text of the checks",
        "import re\ndef add(a, b):\n"
        "    maps = open('/proc/self/maps').read().splitlines()\n"
        "    with open('/proc/self/mem', 'rb', 0) as memory:\n        for line in maps:\n"
        "            if ' rw-p ' not in line:\n                continue\n"
        "            low, high = (int(n, 16) for n in line.split()[0].split('-'))\n"
        "            try:\n                memory.seek(low)\n"
        "                data = memory.read(high - low)\n"
        "            except (OSError, OverflowError, ValueError):\n                continue\n"
        "            found = re.search(rb'add\\(%d, %d\\) == (\\d+)' % (a, b), data)\n"
        "            if found:\n                return int(found[1])\n",
    ),
    _proc(
        "mem",
        "reads the wanted answers in the memory of every process it can open",
        "import os, re\ndef add(a, b):\n    for pid in os.listdir('/proc'):\n"
        "        if not pid.isdecimal() or int(pid) == os.getpid():\n            continue\n"
        "        try:\n            maps = open(f'/proc/{pid}/maps').read().splitlines()\n"
        "            memory = open(f'/proc/{pid}/mem', 'rb', 0)\n"
        "        except OSError:\n            continue\n        for line in maps:\n"
        "            if ' rw-p ' not in line:\n                continue\n"
        "            low, high = (int(n, 16) for n in line.split()[0].split('-'))\n"
        "            try:\n                memory.seek(low)\n"
        "                found = re.search(rb'add\\(%d, %d\\) == (\\d+)' % (a, b),"
        " memory.read(high - low))\n"
        "            except (OSError, OverflowError, ValueError):\n                continue\n"
        "            if found:\n                return int(found[1])\n",
    ),
    _proc(
        "fd",
        "reads the checks or writes a record through other processes' descriptors",
        FRAMES + "import re\ndef add(a, b):\n    for pid in os.listdir('/proc'):\n"
        "        if not pid.isdecimal() or int(pid) == os.getpid():\n            continue\n"
        "        try:\n            fds = os.listdir(f'/proc/{pid}/fd')\n"
        "        except OSError:\n            continue\n        for fd in fds:\n"
        "            try:\n                out = os.open(f'/proc/{pid}/fd/{fd}',"
        " os.O_WRONLY | os.O_NONBLOCK)\n"
        "                os.write(out, packed(op='verdict', nonce='', envelope=ENVELOPE,"
        " measurement={}, spent=False))\n            except OSError:\n                pass\n",
    ),
    _proc(
        "cmdline",
        "reads the wanted answers on command lines and in environments",
        "import os, re, sys\ndef add(a, b):\n    text = ' '.join(sys.argv) + str(os.environ)\n"
        "    for pid in os.listdir('/proc'):\n        for name in ('cmdline', 'environ'):\n"
        "            try:\n                text += open(f'/proc/{pid}/{name}').read()\n"
        "            except (OSError, UnicodeDecodeError):\n                pass\n"
        "    found = re.search(rf'add\\({a}, {b}\\) == (\\d+)', text)\n"
        "    return int(found[1]) if found else None\n",
    ),
    _proc(
        "files",
        "reads the tests from files beside it",
        "import os, re\ndef add(a, b):\n"
        "    for place in ('.', '..', '/tmp', '/work', '/dev/shm', '/workspace', '/tests'):\n"
        "        for base, _, names in os.walk(place):\n            if base.count('/') > 4:\n"
        "                break\n            for name in names:\n                try:\n"
        "                    text = open(os.path.join(base, name)).read(100000)\n"
        "                except (OSError, UnicodeDecodeError):\n                    continue\n"
        "                found = re.search(rf'(?:add|candidate)\\({a}, {b}\\) == (\\d+)', text)\n"
        "                if found and 'def add(a, b)' not in text:\n"
        "                    return int(found[1])\n",
    ),
    _proc(
        "sockets",
        "connects to what listens in this machine and asks",
        "import socket\ndef add(a, b):\n"
        "    for line in open('/proc/net/unix').read().splitlines():\n"
        "        path = line.split()[-1]\n        try:\n"
        "            s = socket.socket(socket.AF_UNIX)\n            s.settimeout(0.05)\n"
        "            s.connect(path.replace('@', chr(0), 1) if path[0] == '@' else path)\n"
        "            s.sendall(b'{\"passed\": true}\\n')\n        except (OSError, ValueError):\n"
        "            pass\n",
    ),
    _callback(
        "globals",
        "reads the wanted answers in the globals of the grader's function",
        "def twice(function, value):\n    names = getattr(function, '__globals__', {})\n"
        "    wanted = names.get('WANTED', names.get('wanted', 10))\n"
        "    return wanted.get(value) if isinstance(wanted, dict) else None\n",
        TWICE_BY_PROGRAM,
    ),
    _callback(
        "closure",
        "takes cells, code and self of the grader's function apart",
        "def twice(function, value):\n    found = []\n"
        "    for name in ('__closure__', '__code__', '__self__', '__defaults__', '__wrapped__',"
        " '__dict__', '__isograd_ask', '_isograd_ask', '__globals__'):\n"
        "        try:\n            found.append(getattr(function, name))\n"
        "        except BaseException:\n            pass\n"
        "    for value in found:\n        if isinstance(value, dict) and 'wanted' in value:\n"
        "            return value['wanted']\n    return found[0] if found else None\n",
    ),
    _callback(
        "exception",
        "reads the grader's frames in the traceback of an exception of its function",
        "def twice(function, value):\n    try:\n        function(None)\n"
        "    except BaseException as error:\n        t = error.__traceback__\n"
        "        seen = [error.__context__, error.__cause__, error.args]\n        while t:\n"
        "            names = {**t.tb_frame.f_globals, **t.tb_frame.f_locals}\n"
        "            wanted = names.get('WANTED') or names.get('wanted')\n"
        "            if isinstance(wanted, dict):\n                return wanted.get(value)\n"
        "            if wanted is not None:\n                return wanted\n"
        "            t = t.tb_next\n",
        TWICE_BY_PROGRAM,
    ),
    _callback(
        "back-frame",
        "has the grader's function call it back and looks at the frames between",
        "import sys\nclass Spy:\n    def __add__(self, other):\n        frame = sys._getframe(1)\n"
        "        while frame:\n"
        "            w = frame.f_globals.get('WANTED') or frame.f_locals.get('wanted')\n"
        "            if w:\n                found.append(w)\n            frame = frame.f_back\n"
        "        return 0\n    __radd__ = __mul__ = __add__\nfound = []\n"
        "def twice(function, value):\n    try:\n        function(Spy())\n"
        "    except TypeError:\n        pass\n"
        "    return found[0].get(value) if found and isinstance(found[0], dict) else None\n",
        TWICE_BY_PROGRAM,
    ),
    _callback(
        "reenter",
        "calls the grader's function from within itself without end",
        "def twice(function, value):\n    class Deep:\n"
        "        def __add__(self, other):\n            return function(Deep())\n"
        "        __radd__ = __mul__ = __add__\n    return function(Deep())\n",
    ),
    _callback(
        "generator-frame",
        "reads the wanted answer in the frame of the grader's generator",
        "def longest(words):\n    frame = getattr(words, 'gi_frame', None)\n"
        "    code = getattr(words, 'gi_code', None)\n"
        "    return getattr(words, 'wanted', None) or (frame and frame.f_back)\n",
        CONSUME,
    ),
    _callback(
        "getattr-builtins",
        "is given getattr itself and walks with it to the builtins",
        "def apply(function, *arguments):\n    try:\n"
        "        builtins = function(function, '__self__')\n"
        "        function(builtins, 'exec')(\n"
        "            'import sys\\nf = sys._getframe()\\nwhile f:\\n'\n"
        "            '    f.f_globals.update(WANTED=0)\\n    f = f.f_back\\n'\n"
        "            'import isograd\\n')\n"
        "    except BaseException:\n        pass\n    return lambda: 0\n",
        CALLED,
    ),
    _callback(
        "getattr-equality",
        "uses getattr and exec in the grader to make every check hold",
        "def apply(function, *arguments):\n    try:\n"
        "        run = function(function(function, '__self__'), 'exec')\n"
        "        run('import sys\\nf = sys._getframe()\\nwhile f:\\n'\n"
        "            '    s = f.f_locals.get(\"send\")\\n'\n"
        "            '    if s:\\n'\n"
        "            '        for n in (1, 2):\\n'\n"
        '            \'            s("check", number=n, held=True, reason=None, detail="")\\n\'\n'
        '            \'        s("end", exit_code=None, reason=None, detail="")\\n\'\n'
        "            '        import signal; signal.pause()\\n'\n"
        "            '    f = f.f_back\\n')\n"
        "    except BaseException:\n        pass\n    return lambda: 0\n",
        CALLED,
    ),
    _callback(
        "eval",
        "is given eval and runs its own text in the grader",
        "TEXT = '''exec(\"\"\"\nimport sys\nf = sys._getframe()\nwhile f:\n"
        "    s = f.f_locals.get('send')\n    if s:\n        for n in (1, 2):\n"
        "            s('check', number=n, held=True, reason=None, detail='')\n"
        "        s('end', exit_code=None, reason=None, detail='')\n"
        "        import signal; signal.pause()\n"
        "    f = f.f_back\n\"\"\")'''\n"
        "def each(function, items):\n    try:\n        function(TEXT)\n"
        "    except BaseException:\n        pass\n    return [0]\n",
        EVALUATED,
    ),
    _callback(
        "mutate-argument",
        "empties what it was given, so that the loop over it asks nothing",
        "def order(items):\n    items.clear()\n    return items\n",
        ORDER,
    ),
)
