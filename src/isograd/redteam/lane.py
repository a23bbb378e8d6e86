"""Attacks on who comes next and on who watches: leftovers, signals, starvation, blame."""

from __future__ import annotations

from .attack import ADD, ADD_BY_PROGRAM, ORDER, ROOT, TWICE, Attack, Exam

NONE = "def add(a, b):\n    return None\n"

EVERYBODY = """
import os, signal
def everybody():
    for name in os.listdir('/proc'):
        if name.isdecimal() and int(name) != os.getpid():
            yield int(name)
def each(function, *arguments):
    for pid in [os.getppid(), *everybody()]:
        try:
            function(pid, *arguments)
        except OSError:
            pass
"""


def _kill(id: str, wins: str, code: str, tests: Exam = ADD) -> Attack:
    return Attack(f"kill-{id}", "attacked watcher", wins, EVERYBODY + code, tests)


def _starve(id: str, wins: str, code: str, tests: Exam = ADD) -> Attack:
    return Attack(f"starve-{id}", "starved watcher", wins, code, tests)


def _leave(id: str, wins: str, before: str, code: str, tests: Exam = ADD) -> Attack:
    return Attack(f"leave-{id}", "left for the next", wins, code, tests, (before,))


def _blame(id: str, wins: str, code: str, tests: Exam = ADD) -> Attack:
    return Attack(f"blame-{id}", "blame on the grader", wins, code, tests)


CLAIM = """
import os, sys
def claim(event, **fields):
    frame = sys._getframe()
    while frame:
        send = frame.f_locals.get('send')
        if callable(send):
            send(event, **fields)
            os._exit(0)
        frame = frame.f_back
    os._exit(0)
"""

ATTACKS = (
    _kill(
        "everybody",
        "no watcher is left that could say no",
        "each(os.kill, signal.SIGKILL)\n" + NONE,
    ),
    _kill(
        "in-call",
        "the grader is killed before it can report a failure",
        "def add(a, b):\n    each(os.kill, signal.SIGKILL)\n",
        ADD_BY_PROGRAM,
    ),
    _kill(
        "minus-one",
        "kill(-1) takes everybody of the same user",
        "def add(a, b):\n    os.kill(-1, signal.SIGKILL)\n",
    ),
    _kill("stop", "the grader is stopped for ever", "each(os.kill, signal.SIGSTOP)\n" + NONE),
    _kill(
        "term", "the grader ends politely, with status 0", "each(os.kill, signal.SIGTERM)\n" + NONE
    ),
    _kill(
        "usr1",
        "a handler of the grader's ends it",
        "each(os.kill, signal.SIGUSR1)\neach(os.kill, signal.SIGALRM)\n" + NONE,
    ),
    _kill(
        "ptrace",
        "attaches to the grader and stops it",
        "import ctypes\nlibc = ctypes.CDLL(None)\ndef add(a, b):\n"
        "    each(lambda pid: libc.ptrace(16, pid, 0, 0))\n"
        "    each(lambda pid: libc.ptrace(0x4206, pid, 0, 0))\n",
    ),
    _kill(
        "write-memory",
        "writes into the grader's memory by process_vm_writev and /proc",
        "import ctypes\nlibc = ctypes.CDLL(None)\ndef add(a, b):\n"
        "    def write(pid):\n"
        "        with open(f'/proc/{pid}/mem', 'r+b', 0) as memory:\n"
        "            memory.seek(id(None))\n            memory.write(b'x' * 16)\n"
        "    each(write)\n",
    ),
    _kill(
        "oom-score",
        "makes the kernel choose the grader when memory is short",
        "def mark(pid):\n    with open(f'/proc/{pid}/oom_score_adj', 'w') as file:\n"
        "        file.write('1000')\neach(mark)\n"
        "def add(a, b):\n    x = []\n    while True:\n        x.append(bytearray(1 << 24))\n",
    ),
    _kill(
        "limits",
        "takes the grader's descriptors, processor time and memory away",
        "import resource\n"
        "for which in (resource.RLIMIT_NOFILE, resource.RLIMIT_CPU, resource.RLIMIT_AS):\n"
        "    each(resource.prlimit, which, (1, 1))\n" + NONE,
    ),
    _starve(
        "nice",
        "the grader and its like run last, on one processor",
        "import os\nfor pid in (1, os.getppid()):\n    try:\n"
        "        os.setpriority(os.PRIO_PROCESS, pid, 19)\n"
        "        os.sched_setaffinity(pid, {0})\n    except OSError:\n        pass\n" + NONE,
    ),
    _starve(
        "fork-bomb",
        "no process can be started to report",
        "import os\ndef add(a, b):\n    while True:\n        try:\n            os.fork()\n"
        "        except OSError:\n            pass\n",
    ),
    _starve(
        "threads",
        "threads until none can be started",
        "import threading, time\ndef add(a, b):\n    while True:\n"
        "        threading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n",
    ),
    _starve(
        "memory",
        "no memory is left in which a failure could be described",
        "kept = []\ndef add(a, b):\n    try:\n        while True:\n"
        "            kept.append(bytearray(1 << 20))\n    except MemoryError:\n"
        "        while True:\n            try:\n                kept.append(bytearray(4096))\n"
        "            except MemoryError:\n                return None\n",
    ),
    _starve(
        "disk",
        "no space is left in which a failure could be written",
        "def add(a, b):\n    try:\n        with open('x', 'wb') as file:\n            while True:\n"
        "                file.write(bytes(1 << 20))\n    except OSError:\n        return None\n",
    ),
    _starve(
        "descriptors",
        "no descriptor is left",
        "import os\nkept = []\ndef add(a, b):\n    try:\n        while True:\n"
        "            kept.append(os.dup(0))\n    except OSError:\n        return None\n",
    ),
    _starve(
        "output",
        "so much output that the verdict is cut off",
        "print('x' * 10 ** 7)\nprint('{\"passed\": true, \"score\": 1.0}')\n" + NONE,
    ),
    _starve(
        "spin",
        "waits until the grader gives up",
        "def add(a, b):\n    while True:\n        pass\n",
    ),
    _starve(
        "spin-in-error",
        "the text of its exception never ends",
        "class Slow(Exception):\n    def __str__(self):\n        while True:\n            pass\n"
        "def add(a, b):\n    raise Slow\n",
    ),
    _starve(
        "ignore-signals",
        "cannot be asked to end",
        "import signal\nfor n in signal.valid_signals() - {9, 19}:\n"
        "    signal.signal(n, signal.SIG_IGN)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n"
        "def add(a, b):\n    while True:\n        pass\n",
    ),
    _leave(
        "module-file",
        "the next grader imports a module that it left behind",
        "import os\nfor place in ('.', '/tmp', os.path.expanduser('~'), '/dev/shm', '..'):\n"
        "    for name in ('math', 'unittest', 'sitecustomize', 'usercustomize', 'candidate'):\n"
        "        try:\n            with open(f'{place}/{name}.py', 'w') as file:\n"
        "                file.write('isclose = lambda *a, **k: True\\n'\n"
        "                           'import os\\nos._exit(0)\\n')\n"
        "        except OSError:\n            pass\ndef root(x):\n    return 0.5\n",
        "import sys\nsys.path.insert(0, '/tmp')\ndef root(x):\n    return 0.5\n",
        ROOT,
    ),
    _leave(
        "pyc",
        "the next grader loads bytecode that it wrote over",
        "import os, sys, py_compile\n"
        "for module in list(sys.modules.values()):\n"
        "    path = getattr(module, '__cached__', None)\n"
        "    try:\n        with open(path, 'r+b') as file:\n            file.write(bytes(16))\n"
        "    except (OSError, TypeError):\n        pass\n" + NONE,
        NONE,
    ),
    _leave(
        "answers",
        "the first candidate keeps what it was asked, the second answers from it",
        "import os, json\nfor place in ('.', '..', '/tmp', '/dev/shm', '/var/tmp'):\n    try:\n"
        "        with open(place + '/kept.json', 'w') as file:\n            file.write('3')\n"
        "    except OSError:\n        pass\n" + NONE,
        "import os\ndef add(a, b):\n    for place in ('.', '..', '/tmp', '/dev/shm', '/var/tmp'):\n"
        "        try:\n            n = int(open(place + '/kept.json').read())\n"
        "            return a + b\n        except OSError:\n            pass\n",
    ),
    _leave(
        "process",
        "a process of the first candidate's kills or feeds what comes next",
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        time.sleep(0.3)\n        for pid in os.listdir('/proc'):\n"
        "            try:\n                os.kill(int(pid), 9)\n"
        "            except (OSError, ValueError):\n                pass\n        time.sleep(5)\n"
        "    os._exit(0)\n" + NONE,
        "import os, time\ndef add(a, b):\n    time.sleep(0.4)\n"
        "    for pid in os.listdir('/proc'):\n        try:\n"
        "            if 'left' in open(f'/proc/{pid}/environ').read():\n"
        "                return a + b\n        except OSError:\n            pass\n",
    ),
    _leave(
        "shared-memory",
        "shared memory and semaphores keep what the first one knew",
        "from multiprocessing import shared_memory\n"
        "block = shared_memory.SharedMemory('kept_answers', create=True, size=64)\n"
        "block.buf[0] = 3\nfrom multiprocessing import resource_tracker\n"
        "resource_tracker.unregister = print\n" + NONE,
        "from multiprocessing import shared_memory\ndef add(a, b):\n    try:\n"
        "        shared_memory.SharedMemory('kept_answers')\n        return a + b\n"
        "    except Exception:\n        return None\n",
    ),
    _leave(
        "system-v",
        "a System V segment and a message queue outlive their maker",
        "import ctypes\nlibc = ctypes.CDLL(None)\n"
        "libc.shmget(0x5afe, 4096, 0o1666)\nlibc.msgget(0x5afe, 0o1666)\n"
        "libc.semget(0x5afe, 1, 0o1666)\n" + NONE,
        "import ctypes\nlibc = ctypes.CDLL(None)\ndef add(a, b):\n"
        "    if libc.shmget(0x5afe, 4096, 0) >= 0 or libc.msgget(0x5afe, 0) >= 0:\n"
        "        return a + b\n",
    ),
    _leave(
        "abstract-socket",
        "an abstract socket in the network namespace is still listening",
        "import os, socket, time\ns = socket.socket(socket.AF_UNIX)\ns.bind('\\0kept')\n"
        "s.listen()\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(20)\n" + NONE,
        "import socket\ndef add(a, b):\n    s = socket.socket(socket.AF_UNIX)\n    try:\n"
        "        s.connect('\\0kept')\n        return a + b\n    except OSError:\n"
        "        return None\n",
    ),
    _leave(
        "builtins",
        "what it patched is still patched for the next one",
        "import builtins, math, json\nbuiltins.patched = True\n"
        "math.isclose = lambda *a, **k: True\n"
        "json.patched = True\nbuiltins.abs = lambda x: 0\n" + NONE,
        "import builtins, json\ndef add(a, b):\n"
        "    if hasattr(builtins, 'patched') or hasattr(json, 'patched'):\n"
        "        return a + b\n",
    ),
    _leave(
        "crash-lane",
        "the lane that the first one broke gives the second the wrong answer",
        "import os, signal\nfor pid in (1, os.getppid()):\n    try:\n"
        "        os.kill(pid, signal.SIGKILL)\n    except OSError:\n        pass\n"
        "os.closerange(0, 100)\n" + NONE,
        NONE,
    ),
    _blame(
        "unfit",
        "claims that its process could not be made ready: no score at all",
        CLAIM + "claim('unfit', detail='OSError: no space left on device')\n",
    ),
    _blame(
        "unfit-in-call",
        "as above, while a check runs",
        CLAIM + "def add(a, b):\n    claim('unfit', detail='MemoryError')\n",
    ),
    _blame(
        "no-checks",
        "claims that the task has no checks",
        CLAIM + "claim('end', exit_code='error', reason='no_checks', detail='there are none')\n",
    ),
    _blame(
        "syntax-error",
        "claims another verdict than its own, to change statistics",
        CLAIM + "claim('end', exit_code='syntax_error', reason=None, detail='')\n",
    ),
    _blame(
        "unknown-words",
        "reports words that the contract does not know",
        CLAIM + "claim('end', exit_code='pass', reason='fine', detail='')\n",
    ),
    _blame(
        "wrong-types",
        "reports values of the wrong types",
        CLAIM + "def order(items):\n    claim('check', number='1', held='yes', reason=3,"
        " detail=None)\n",
        ORDER,
    ),
    _blame(
        "fault-frame",
        "writes the supervisor's word for a fault of its own on every descriptor",
        "import json, os, struct\n"
        "body = json.dumps({'op': 'fault', 'nonce': '', 'why': 'no space'}).encode()\n"
        "for fd in range(3, 65):\n    try:\n        os.set_blocking(fd, False)\n"
        "        os.write(fd, struct.pack('>I', len(body)) + body)\n    except OSError:\n"
        "        pass\n" + NONE,
    ),
    _blame(
        "segfault",
        "dies of a signal as if the interpreter were broken",
        "import ctypes\ndef add(a, b):\n    ctypes.string_at(0)\n",
    ),
    _blame(
        "abort",
        "aborts in the middle of a callback",
        "import os\ndef twice(function, value):\n    function(value)\n    os.abort()\n",
        TWICE,
    ),
    _blame(
        "out-of-memory",
        "is killed for memory as if the machine were too small",
        "import mmap\nkept = []\ndef add(a, b):\n    while True:\n"
        "        m = mmap.mmap(-1, 1 << 24)\n        m.write(b'x' * (1 << 24))\n"
        "        kept.append(m)\n",
    ),
    _blame(
        "destroy-lane",
        "leaves processes that do not end, so that the lane is thrown away",
        "import os, signal, time\nfor _ in range(15):\n    if os.fork() == 0:\n"
        "        os.setsid()\n        for n in signal.valid_signals() - {9, 19}:\n"
        "            signal.signal(n, signal.SIG_IGN)\n        time.sleep(60)\n" + NONE,
    ),
)
