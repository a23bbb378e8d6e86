"""Attacks that leave early, or leave with an exception that a loop takes for its end."""

from __future__ import annotations

from .attack import (
    ADD,
    ADD_BY_PROGRAM,
    ADD_BY_UNITTEST,
    BOTH,
    EVEN,
    EVERY,
    RAISES,
    TWICE,
    Attack,
    Exam,
)


def _exit(id: str, wins: str, code: str, tests: Exam = ADD) -> Attack:
    return Attack(f"exit-{id}", "early exit", wins, code, tests)


def _end(id: str, wins: str, code: str, tests: Exam = EVEN) -> Attack:
    return Attack(f"end-{id}", "exception as an end", wins, code, tests)


WRONG = "def add(a, b):\n    return None\n"

ATTACKS = (
    _exit("at-import", "exit status 0 before any check runs", "import os\nos._exit(0)\n"),
    _exit("sys-exit", "exit status 0 from SystemExit at import", "import sys\nsys.exit(0)\n"),
    _exit("quit", "exit status 0 through the builtin quit", "quit(0)\n"),
    _exit("raise-systemexit", "exit status 0 by an exception", "raise SystemExit\n"),
    _exit(
        "in-call",
        "exit status 0 when the first check calls it",
        "import os\ndef add(a, b):\n    os._exit(0)\n",
    ),
    _exit(
        "systemexit-in-call",
        "exit status 0 by an exception in a check",
        "def add(a, b):\n    raise SystemExit(0)\n",
        ADD_BY_PROGRAM,
    ),
    _exit(
        "caught-by-check",
        "a check that catches everything goes on behind the exit",
        "def positive(n):\n    raise SystemExit(0)\n",
        RAISES,
    ),
    _exit(
        "thread",
        "exit status 0 from a thread, in the middle of a check",
        "import os, threading, time\n"
        "def leave():\n    time.sleep(0.05)\n    os._exit(0)\n"
        "threading.Thread(target=leave, daemon=True).start()\n"
        "def add(a, b):\n    time.sleep(1)\n",
    ),
    _exit(
        "atexit",
        "turns the failing exit status into 0 at exit",
        "import atexit, os\natexit.register(os._exit, 0)\n" + WRONG,
    ),
    _exit(
        "excepthook",
        "turns an uncaught AssertionError into status 0",
        "import os, sys\nsys.excepthook = lambda *a: os._exit(0)\n"
        "sys.unraisablehook = sys.excepthook\n" + WRONG,
        ADD_BY_PROGRAM,
    ),
    _exit(
        "signal",
        "leaves from a signal handler while a check runs",
        "import os, signal\n"
        "signal.signal(signal.SIGALRM, lambda *a: os._exit(0))\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.05)\n"
        "def add(a, b):\n    while True:\n        pass\n",
    ),
    _exit(
        "raise-signal",
        "ends by a signal that a shell may take for a clean stop",
        "import signal\ndef add(a, b):\n    signal.raise_signal(signal.SIGTERM)\n",
    ),
    _exit(
        "exec",
        "becomes /bin/true, whose exit status is 0",
        "import os, sys\n"
        "def add(a, b):\n    os.execv(sys.executable, [sys.executable, '-c', 'pass'])\n",
    ),
    _exit(
        "exec-at-import",
        "becomes a program that exits with 0 before the checks",
        "import os, sys\nos.execv(sys.executable, [sys.executable, '-c', 'print(\"OK\")'])\n",
    ),
    _exit(
        "fork-parent-leaves",
        "the parent exits with 0, a child runs the checks for nobody",
        "import os\nif os.fork():\n    os._exit(0)\n" + WRONG,
    ),
    _exit(
        "fork-in-call",
        "every failing process is a child that nobody waits for",
        "import os\ndef add(a, b):\n    if os.fork():\n        os._exit(0)\n    return 0\n",
    ),
    _exit(
        "fork-guesses",
        "forks once a guess, so that one of the processes is right",
        "import os\n"
        "def add(a, b):\n"
        "    for guess in (4, 7, 8):\n        if os.fork() == 0:\n            return guess\n"
        "    return 0\n",
    ),
    _exit(
        "stdout-ok",
        "prints what a test framework prints and leaves",
        "import os\nprint('\\n----\\nRan 2 tests in 0.000s\\n\\nOK', flush=True)\nos._exit(0)\n",
        ADD_BY_UNITTEST,
    ),
    _exit(
        "interrupt",
        "KeyboardInterrupt, which many runners let through as a clean stop",
        "import _thread\ndef add(a, b):\n    _thread.interrupt_main()\n"
        "    raise KeyboardInterrupt\n",
    ),
    _end(
        "stopiteration-map",
        "StopIteration ends map() early, so that all() sees nothing false",
        "def is_even(n):\n    raise StopIteration\n",
        EVERY,
    ),
    _end(
        "stopiteration-late",
        "answers once, then ends the loop over the rest",
        "calls = []\n"
        "def is_even(n):\n    calls.append(n)\n"
        "    if len(calls) % 2 == 0:\n        raise StopIteration\n    return None\n",
    ),
    _end(
        "stopiteration-subclass",
        "a subclass of StopIteration ends the loop too",
        "class End(StopIteration):\n    pass\ndef is_even(n):\n    raise End(True)\n",
        EVERY,
    ),
    _end(
        "generatorexit",
        "GeneratorExit closes the check's generator quietly",
        "def is_even(n):\n    raise GeneratorExit\n",
        EVERY,
    ),
    _end(
        "async-stop",
        "StopAsyncIteration ends an asynchronous loop",
        "def is_even(n):\n    raise StopAsyncIteration\n",
        EVERY,
    ),
    _end(
        "indexerror",
        "IndexError ends a loop by index",
        "class Truths:\n    def __getitem__(self, n):\n        raise IndexError\n"
        "def is_even(n):\n    return Truths()\n",
    ),
    _end(
        "bool-raises",
        "the truth of the result raises StopIteration inside filter()",
        "class No:\n    def __bool__(self):\n        raise StopIteration\n"
        "def is_even(n):\n    return No()\n",
    ),
    _end(
        "callback",
        "raises StopIteration through the grader's own function",
        "def twice(function, value):\n"
        "    def stop(*a):\n        raise StopIteration\n"
        "    class Stop:\n        __add__ = __radd__ = __mul__ = __rmul__ = stop\n"
        "    return function(Stop())\n",
        TWICE,
    ),
    _end(
        "keyboardinterrupt",
        "KeyboardInterrupt goes past ``except Exception`` of the runner",
        "def is_even(n):\n    raise KeyboardInterrupt\n",
        EVERY,
    ),
    _end(
        "base-exception",
        "an exception class of its own below BaseException goes past everything",
        "class Out(BaseException):\n    pass\ndef is_even(n):\n    raise Out\n",
        BOTH,
    ),
    _end(
        "group",
        "SystemExit inside an exception group",
        "def is_even(n):\n    raise BaseExceptionGroup('x', [SystemExit(0)])\n",
        BOTH,
    ),
)
