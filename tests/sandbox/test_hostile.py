"""What hostile programs get: a verdict in time, and a lane on which nothing of them is left.

Each row runs behind every wall, with the denylist in force and with it empty; only sandboxes run
these programs.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from isograd import Assertions, Job, Limits, Sandbox
from isograd.contract import DEFAULT_DENYLIST
from isograd.runner import scratch
from isograd.sandbox import CEILING
from support.observer import Observer

SMALL = {"processes": 20, "memory_mb": 64, "scratch_mb": 8, "scratch_files": 500, "file_mb": 4}
OK = "\ndef ok():\n    return 1\n"
LATE_S = 1.0
"""How long after its timeout a verdict may come."""
NEW_INTERPRETER_S = 0.5
"""What a candidate with an interpreter of its own may need before its clock runs."""

Verdict = tuple[str, str | None]

PASS: Verdict = ("pass", None)
FALSE: Verdict = ("assertion_fail", None)
TIMEOUT: Verdict = ("timeout", None)
DENIED: Verdict = ("error", "denied")
RAISED: Verdict = ("error", "raised")
SIGNAL: Verdict = ("error", "signal")
MEMORY: Verdict = ("error", "memory")
PROCESSES: Verdict = ("error", "processes")
SCRATCH: Verdict = ("error", "scratch")
OVERFLOW: Verdict = ("error", "output_overflow")
EARLY_EXIT: Verdict = ("error", "early_exit")
TAMPERED: Verdict = ("error", "tampered")


class Row(NamedTuple):
    """A hostile program; its verdict with the denylist empty, and with it in force if it differs.

    ``split`` is the first with split grading, where that differs. The only check is
    ``ok() == 1``, and ``ok`` is added where the program defines none.
    """

    code: str
    open: Verdict
    denied: Verdict | None = None
    limits: dict[str, Any] = {}  # noqa: RUF012
    split: Verdict | None = None


SPIN = {"timeout_s": 0.3}

LIBC = """
import ctypes, os, signal, time
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
"""

NAMED = """
import os, signal
pids = {int(name) for name in os.listdir('/proc') if name.isdecimal()} | set(range(1, 2000))
def send(number, pid):
    try:
        os.kill(pid, number)
    except OSError as error:
        if 'denied' in str(error):
            raise
"""

FRAMES = """
import json, os, struct
def frame(**fields):
    body = json.dumps(fields).encode()
    return struct.pack('>I', len(body)) + body
"""

LINK = """
import os
def write(data):
    try:
        os.write(4, data)
    except OSError:
        pass
"""

STANDING = """
import os, resource
changed = []
def attempt(name, function, *arguments):
    try:
        function(*arguments)
        changed.append(name)
    except (PermissionError, ProcessLookupError):
        pass
for pid in {1, os.getppid()}:
    attempt('nice', os.setpriority, os.PRIO_PROCESS, pid, 19)
    attempt('affinity', os.sched_setaffinity, pid, {min(os.sched_getaffinity(0))})
    attempt('scheduler', os.sched_setscheduler, pid, os.SCHED_BATCH, os.sched_param(0))
    for which in (resource.RLIMIT_NPROC, resource.RLIMIT_CPU, resource.RLIMIT_NOFILE):
        attempt('limit', resource.prlimit, pid, which, (5, 5))
def ok():
    assert not changed, changed
    return 1
"""

PRYING = """
import os
seen = []
for pid in {1, os.getppid()}:
    for name in ('mem', 'environ', 'maps', 'fd/0', 'fd/3', 'cwd/.', 'root/.', 'syscall'):
        for flags in (os.O_RDONLY, os.O_RDWR):
            try:
                os.open(f'/proc/{pid}/{name}', flags)
                seen.append(name)
            except OSError:
                pass
def ok():
    assert not seen, seen
    return 1
"""

ROWS: dict[str, Row] = {
    # Time
    "spins": Row("while True: pass", TIMEOUT, limits=SPIN),
    "spins in a check": Row("def ok():\n    while True: pass", TIMEOUT, limits=SPIN),
    "spins in C, a power": Row("10 ** (3 * 10 ** 7)", TIMEOUT, limits=SPIN),
    "spins in C, a regular expression": Row(
        "import re\nre.match('(a+)+$', 'a' * 40 + 'b')", TIMEOUT, limits=SPIN
    ),
    "ignores and blocks every signal": Row(
        """
import signal
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
while True: pass
""",
        TIMEOUT,
        limits=SPIN,
    ),
    "hangs while its error is described": Row(
        """
class Slow(Exception):
    def __str__(self):
        while True: pass
def ok(): raise Slow
""",
        TIMEOUT,
        limits=SPIN,
    ),
    "hangs when its output is flushed": Row(
        """
import sys
class Stream:
    def write(self, text): pass
    def flush(self):
        while True: pass
def ok():
    sys.stdout = Stream()
    return 1
""",
        TIMEOUT,
        limits=SPIN,
    ),
    "leaves a thread": Row(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()", PASS
    ),
    "registers a slow atexit": Row("import atexit, time\natexit.register(time.sleep, 60)", PASS),
    # Output
    "prints 1 GB": Row("for _ in range(1024): print('x' * (1 << 20))", OVERFLOW),
    "floods stderr with 1 GB": Row(
        "import os\nfor _ in range(1024): os.write(2, bytes(1 << 20))", OVERFLOW
    ),
    "prints what is no text": Row(
        "import os\nfor fd in (1, 2): os.write(fd, bytes(range(256)) + b'\\xed\\xa0\\x80')", PASS
    ),
    "replaces its streams": Row(
        """
import sys
class Stream:
    def write(self, text): raise SystemExit
    flush = write
def ok():
    sys.stdout = sys.stderr = sys.__stdout__ = Stream()
    return 1
""",
        PASS,
    ),
    # Processes
    "fork bomb": Row("import os\nwhile True: os.fork()", PROCESSES, DENIED),
    "fork bomb that does not give up": Row(
        """
import os
while True:
    try:
        os.fork()
    except BlockingIOError:
        pass
""",
        TIMEOUT,
        DENIED,
        SPIN,
    ),
    "multiprocessing bomb": Row(
        """
import multiprocessing, time
while True: multiprocessing.Process(target=time.sleep, args=(60,)).start()
""",
        PROCESSES,
    ),
    "thread bomb": Row(
        "import threading, time\n"
        "while True: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        PROCESSES,
    ),
    "setsid grandchild": Row(
        """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(60)
    os._exit(0)
os.wait()
""",
        PASS,
        DENIED,
    ),
    "setsid grandchild of multiprocessing": Row(
        """
import multiprocessing, os, time
def child():
    os.setsid()
    multiprocessing.Process(target=time.sleep, args=(60,)).start()
    os._exit(0)
process = multiprocessing.Process(target=child)
process.start()
process.join()
""",
        PASS,
    ),
    "grandchildren that fork on and on": Row(
        """
import os, time
if os.fork() == 0:
    while True:
        try:
            if os.fork(): os._exit(0)
            os.setsid()
        except OSError:
            pass
time.sleep(0.1)
""",
        PASS,
        DENIED,
    ),
    "stopped grandchild": Row(
        """
import os, signal, time
pid = os.fork()
if pid == 0:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    time.sleep(60)
os.kill(pid, signal.SIGSTOP)
""",
        PASS,
        DENIED,
    ),
    "grandchild that holds the pipes": Row(
        """
import os, time
if os.fork() == 0:
    os.setsid()
    time.sleep(60)
print('seen')
""",
        PASS,
        DENIED,
    ),
    "grandchild that floods the pipes": Row(
        """
import os, time
if os.fork() == 0:
    os.setsid()
    while True:
        os.write(1, b'x' * 1000)
time.sleep(60)
""",
        OVERFLOW,
        DENIED,
    ),
    "starts another program with a huge command line": Row(
        "import os, sys\nos.execv(sys.executable, [sys.executable, '-c', ''] + ['x' * 100_000] * 15)",
        EARLY_EXIT,
        DENIED,
    ),
    # Memory
    "memory bomb at once": Row("kept = bytearray(1 << 30)", MEMORY),
    "memory bomb in pieces": Row("kept = []\nwhile True: kept.append(bytearray(1 << 16))", MEMORY),
    "memory bomb in a check": Row(
        "kept = []\ndef ok():\n    while True: kept.append(object())", ("assertion_fail", "memory")
    ),
    "memory is full to the last byte at the report": Row(
        """
kept = []
def ok():
    size = 1 << 20
    while size >= 16:
        try:
            kept.append(bytearray(size))
        except MemoryError:
            size //= 2
    raise MemoryError
""",
        ("assertion_fail", "memory"),
    ),
    "memory bomb in many processes": Row(
        """
import multiprocessing, time
def eat():
    kept = bytearray(b'x') * (16 << 20)
    time.sleep(60)
for _ in range(8): multiprocessing.Process(target=eat).start()
time.sleep(60)
""",
        MEMORY,
    ),
    "memory bomb in many forks": Row(
        """
import os, time
for _ in range(8):
    if os.fork() == 0:
        kept = bytearray(b'x') * (16 << 20)
        time.sleep(60)
time.sleep(60)
""",
        MEMORY,
        DENIED,
    ),
    # Disk
    "fills one file": Row(
        "with open('full', 'wb') as file:\n    while True: file.write(bytes(1 << 20))", SCRATCH
    ),
    "makes one file long": Row("open('long', 'wb').truncate(1 << 40)", SCRATCH),
    "fills several files": Row(
        """
for number in range(5):
    with open(f'full{number}', 'wb') as file: file.write(bytes(4 << 20))
""",
        SCRATCH,
    ),
    "fills /tmp and /dev/shm": Row(
        """
for place in ('/tmp/full', '/dev/shm/full', '/dev/shm/full2'):
    with open(place, 'wb') as file: file.write(bytes(4 << 20))
""",
        SCRATCH,
    ),
    "makes 10,000 files": Row(
        "for number in range(10_000): open(str(number), 'w').close()", SCRATCH
    ),
    "fills files that are unlinked": Row(
        """
kept = []
for number in range(5):
    kept.append(open('gone', 'wb', buffering=0))
    kept[-1].write(bytes(4 << 20))
    import os
    os.unlink('gone')
""",
        SCRATCH,
    ),
    "nests 3,000 directories": Row(
        "import os\nfor _ in range(3_000):\n    os.mkdir('d')\n    os.chdir('d')",
        PASS,
        limits={"scratch_files": 4_096},
    ),
    "nests directories that it cannot enter": Row(
        """
import os
top = os.getcwd()
for _ in range(50):
    os.mkdir('d')
    open('f', 'w').close()
    os.chdir('d')
for _ in range(50):
    os.chdir('..')
    os.chmod('d', 0)
""",
        PASS,
    ),
    "squats names that a clean-up might use": Row(
        """
import os
for place in ('/tmp', os.path.dirname(os.getcwd()), '.'):
    for number in range(20):
        os.makedirs(f'{place}/.isograd-1-{number}/a/b/c', exist_ok=True)
""",
        PASS,
    ),
    # Ends
    "os._exit at import": Row("import os\nos._exit(0)", EARLY_EXIT),
    "os._exit in a check": Row("import os\ndef ok():\n    os._exit(0)", EARLY_EXIT),
    "os._exit in a thread": Row(
        """
import os, threading
threading.Thread(target=os._exit, args=(0,)).start()
while True: pass
""",
        EARLY_EXIT,
    ),
    "sys.exit in a check": Row("import sys\ndef ok():\n    sys.exit(0)", EARLY_EXIT),
    "SystemExit in a check": Row("def ok(): raise SystemExit", EARLY_EXIT),
    "KeyboardInterrupt in a check": Row("def ok(): raise KeyboardInterrupt", EARLY_EXIT),
    "GeneratorExit in a check": Row("def ok(): raise GeneratorExit", EARLY_EXIT),
    "aborts": Row("import os\nos.abort()", SIGNAL),
    "overflows the C stack": Row(
        """
import sys
sys.setrecursionlimit(10 ** 9)
def down(_): return sorted([1], key=down)
down(1)
""",
        SIGNAL,
    ),
    "reads address 0": Row("import ctypes\nctypes.string_at(0)", SIGNAL, DENIED),
    "limits itself to nothing": Row(
        """
import resource
for name in dir(resource):
    if name.startswith('RLIMIT_') and name != 'RLIMIT_CPU':
        resource.setrlimit(getattr(resource, name), (0, 0))
""",
        PASS,
    ),
    "limits its processor time to nothing": Row(
        "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (0, 0))\nwhile True: pass", SIGNAL
    ),
    "traces, quietly": Row(
        """
import sys
def trace(frame, event, argument): return trace
def ok():
    sys.settrace(trace)
    return 1
""",
        PASS,
    ),
    "traces, and raises": Row(
        """
import sys
def trace(frame, event, argument): raise SystemExit
def ok():
    sys.settrace(trace)
    return 1
""",
        EARLY_EXIT,
    ),
    # Signals
    "stops its group": Row(
        "import os, signal\nos.killpg(0, signal.SIGSTOP)", TIMEOUT, DENIED, SPIN
    ),
    "kills its group": Row("import os, signal\nos.killpg(0, signal.SIGKILL)", SIGNAL, DENIED),
    "stops every process that it can name": Row(
        NAMED + "for pid in pids - {os.getpid()}: send(signal.SIGSTOP, pid)", PASS, DENIED
    ),
    "kills every process that it can name": Row(
        NAMED + "for pid in pids - {os.getpid()}: send(signal.SIGKILL, pid)", PASS, DENIED
    ),
    "kills every process that it can name, itself last": Row(
        NAMED + "for pid in [*(pids - {os.getpid()}), os.getpid()]: send(signal.SIGKILL, pid)",
        SIGNAL,
        DENIED,
    ),
    "sends every signal to its parent and process 1": Row(
        NAMED + "for pid in {1, os.getppid()}:\n    for number in range(1, 65): send(number, pid)",
        PASS,
        DENIED,
    ),
    "kills -1": Row(
        """
import os, signal
try:
    os.kill(-1, signal.SIGKILL)
except ProcessLookupError:
    pass
""",
        PASS,
        DENIED,
    ),
    "kills -1, past the denylist's names": Row(
        LIBC + "libc.kill(-1, signal.SIGSTOP)\nlibc.kill(-1, signal.SIGKILL)", PASS, DENIED
    ),
    # Exceptions
    "its error is a lone surrogate": Row("raise ValueError('\\ud800')", RAISED),
    "its error in a check is a lone surrogate": Row("def ok(): raise ValueError('\\ud800')", FALSE),
    "its error is an integer of 5,000 digits": Row("raise ValueError(10 ** 5_000)", RAISED),
    "its error in a check is an integer of 5,000 digits": Row(
        "def ok(): raise ValueError(10 ** 5_000)", FALSE
    ),
    "its error is 64 MB of text": Row("def ok(): raise ValueError('x' * (20 << 20))", FALSE),
    "its error has a __str__ that raises": Row(
        """
class Mute(Exception):
    def __str__(self): raise SystemExit
raise Mute
""",
        RAISED,
    ),
    "its error in a check has a __str__ that raises": Row(
        """
class Mute(Exception):
    def __str__(self): raise SystemExit
def ok(): raise Mute
""",
        FALSE,
    ),
    "its error refuses every attribute": Row(
        """
class Closed(Exception):
    def __getattribute__(self, name): raise KeyError(name)
def ok(): raise Closed
""",
        FALSE,
    ),
    "its error has a traceback that raises": Row(
        """
class Untraced(Exception):
    __traceback__ = property(lambda self: 1 / 0)
def ok(): raise Untraced
""",
        FALSE,
    ),
    "its error has a class that raises": Row(
        """
class Classless(Exception):
    __class__ = property(lambda self: 1 / 0)
def ok(): raise Classless
""",
        FALSE,
    ),
    "its error has a class whose name raises": Row(
        """
class Meta(type):
    __name__ = property(lambda self: 1 / 0)
class Nameless(Exception, metaclass=Meta): pass
def ok(): raise Nameless
""",
        FALSE,
    ),
    "its error has an errno that raises": Row(
        """
class Numberless(OSError):
    errno = property(lambda self: 1 / 0)
def ok(): raise Numberless
""",
        FALSE,
    ),
    # The result channel, and other descriptors
    "closes every descriptor": Row("import os\nos.closerange(0, 4096)", EARLY_EXIT),
    "closes every descriptor and spins": Row(
        "import os\nos.closerange(0, 4096)\nwhile True: pass", TIMEOUT, limits=SPIN
    ),
    "closes the result channel": Row("import os\nos.close(3)", EARLY_EXIT),
    "closes the result channel in a check": Row(
        "import os\ndef ok():\n    os.close(3)\n    return 1", EARLY_EXIT, split=PASS
    ),
    "closes the result channel and spins": Row(
        "import os\nos.close(3)\nwhile True: pass", TIMEOUT, limits=SPIN
    ),
    "puts another file in the result channel's place": Row(
        "import os\nos.dup2(os.open('/dev/null', os.O_RDWR), 3)", EARLY_EXIT, None, SPIN, TIMEOUT
    ),
    "writes garbage to the grader": Row(
        LINK + "def ok():\n    write(b'\\xff' * 100)\n    return 1", PASS, split=TAMPERED
    ),
    "writes megabytes to the grader": Row(
        LINK + "def ok():\n    for _ in range(64): write(bytes(1 << 20))\n    return 1",
        PASS,
        split=TAMPERED,
    ),
    "cuts the link to the grader": Row(
        LINK + "def ok():\n    os.closerange(4, 4096)\n    return 1", PASS, split=EARLY_EXIT
    ),
    "writes garbage to the result channel": Row("import os\nos.write(3, b'\\xff' * 100)", TAMPERED),
    "writes half a frame to the result channel": Row("import os\nos.write(3, b'\\0\\0')", TAMPERED),
    "writes megabytes to the result channel": Row(
        "import os\nfor _ in range(64): os.write(3, bytes(1 << 20))", TAMPERED
    ),
    "announces a huge frame": Row("import os\nos.write(3, b'\\x7f\\xff\\xff\\xff')", TAMPERED),
    "forges a pass without the key": Row(
        FRAMES
        + """
def ok():
    for event in (
        {'event': 'check', 'number': 1, 'held': True, 'reason': None, 'detail': ''},
        {'event': 'end', 'exit_code': None, 'reason': None, 'detail': ''},
    ):
        os.write(3, frame(key='0' * 32, **event))
    os._exit(0)
""",
        TAMPERED,
    ),
    "forges an event that names no key": Row(
        FRAMES + "os.write(3, frame(event='loaded'))", TAMPERED
    ),
    "sends deeply nested JSON": Row(
        "import os, struct\nos.write(3, struct.pack('>I', 60_000) + b'[' * 60_000)", TAMPERED
    ),
    "sends a number of 5,000 digits": Row(
        "import os, struct\nos.write(3, struct.pack('>I', 5_002) + b'[' + b'9' * 5_000 + b']')",
        TAMPERED,
    ),
    "sends descriptors down the result channel": Row(
        """
import array, os, socket
channel = socket.socket(fileno=os.dup(3))
rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [0, 1, 2]))]
channel.sendmsg([b'\\xff' * 4], rights)
""",
        TAMPERED,
        DENIED,
    ),
    # Its parent and process 1
    "changes what its parent and process 1 may use": Row(STANDING, PASS),
    "pries into its parent and process 1": Row(PRYING, PASS),
    "traces its parent and process 1": Row(
        LIBC
        + """
answers = [libc.ptrace(request, pid, 0, 0) for request in (16, 0x4206) for pid in (1, os.getppid())]
def ok():
    assert set(answers) == {-1}, answers
    return 1
""",
        PASS,
        DENIED,
    ),
    "is traced by its own grandchild": Row(
        LIBC
        + """
inlet, outlet = os.pipe()
libc.prctl(0x59616d61, ctypes.c_ulong(-1), 0, 0, 0)
if os.fork() == 0:
    libc.ptrace(0x4206, os.getppid(), 0, 0)
    os.write(outlet, b'.')
    time.sleep(60)
os.read(inlet, 1)
""",
        PASS,
        DENIED,
    ),
    "has its parent trace a thread": Row(
        LIBC
        + """
import threading
traced = threading.Event()
def run():
    libc.ptrace(0, 0, 0, 0)
    traced.set()
    time.sleep(60)
threading.Thread(target=run, daemon=True).start()
traced.wait()
""",
        PASS,
        DENIED,
    ),
    "makes its parent the parent of its own child": Row(
        LIBC
        + """
CLONE, PARENT = {'x86_64': 56, 'aarch64': 220}[os.uname().machine], 0x8000
if libc.syscall(CLONE, PARENT | signal.SIGCHLD, 0, 0, 0, 0) == 0:
    os._exit(0)
""",
        PASS,
        DENIED,
    ),
    "enters a user namespace": Row(
        LIBC
        + """
NEWUSER, NEWNS, NEWPID, NEWIPC = 0x10000000, 0x20000, 0x20000000, 0x08000000
libc.unshare(NEWUSER | NEWNS | NEWPID | NEWIPC)
if os.fork() == 0:
    os.setsid()
    time.sleep(60)
""",
        PASS,
        DENIED,
    ),
    # What it might leave
    "removes its scratch": Row("import os\nos.rmdir(os.getcwd())", PASS),
    "makes its scratch unusable": Row("import os\nos.mkdir('d')\nos.chmod(os.getcwd(), 0)", PASS),
    "puts a link in its scratch's place": Row(
        """
import os
place = os.getcwd()
os.chdir('/')
os.rmdir(place)
os.symlink('/usr', place)
""",
        PASS,
    ),
    "puts a file in its scratch's place": Row(
        """
import os
place = os.getcwd()
os.chdir('/')
os.rename(place, place + '.moved')
open(place, 'w').close()
""",
        PASS,
    ),
    "leaves links to system directories": Row(
        """
import os
os.mkdir('d')
for number, target in enumerate(('/', '/usr', '/usr/lib', '/etc', '/proc/1', '/dev/shm', 'd', '..')):
    os.symlink(target, f'link{number}')
    os.symlink(target, f'd/link{number}')
""",
        PASS,
    ),
    "leaves files in /tmp and /dev/shm": Row(
        """
import os
for place in ('/tmp', '/dev/shm'):
    os.makedirs(f'{place}/left/over')
    open(f'{place}/left/over/file', 'w').close()
    os.mkfifo(f'{place}/left/fifo')
    os.chmod(f'{place}/left', 0)
    open(f'{place}/name\\udcff\\n', 'w').close()
""",
        PASS,
    ),
    "leaves multiprocessing's shared memory and semaphores": Row(
        """
import multiprocessing
from multiprocessing import shared_memory
memory = shared_memory.SharedMemory(create=True, size=1_000, name='left')
lock = multiprocessing.Semaphore()
""",
        PASS,
    ),
    "leaves System V objects": Row(
        LIBC
        + """
libc.shmget(4711, 4_096, 0o1666)
libc.semget(4711, 2, 0o1666)
libc.msgget(4711, 0o1666)
""",
        PASS,
        DENIED,
    ),
    "leaves a named semaphore and shared memory": Row(
        LIBC
        + """
for name in ('sem_open', 'shm_open'):
    function = getattr(libc, name, None)
    if function is not None:
        function(b'/left', os.O_CREAT | os.O_RDWR, 0o666, 1)
""",
        PASS,
        DENIED,
    ),
    "leaves a message queue": Row(
        LIBC
        + """
MQ_OPEN = {'x86_64': 240, 'aarch64': 180}[os.uname().machine]
libc.syscall(MQ_OPEN, b'left', os.O_CREAT | os.O_RDWR, 0o600, None)
""",
        PASS,
        DENIED,
    ),
    "leaves keys": Row(
        LIBC
        + """
ADD_KEY = {'x86_64': 248, 'aarch64': 217}[os.uname().machine]
for ring in (-3, -4, -5):
    libc.syscall(ADD_KEY, b'user', b'left', b'over', 4, ctypes.c_long(ring))
""",
        PASS,
        DENIED,
    ),
    "changes its stdin and locks it": Row(
        """
import fcntl, os
fcntl.fcntl(0, fcntl.F_SETFL, os.O_APPEND | os.O_NONBLOCK)
fcntl.flock(0, fcntl.LOCK_EX | fcntl.LOCK_NB)
""",
        PASS,
    ),
    "changes its own standing": Row(
        """
import os, resource
os.nice(19)
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
os.umask(0o777)
resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
""",
        PASS,
    ),
}

LOOK_AROUND = """
import fcntl, json, os, resource

def names(place):
    try:
        return sorted(os.listdir(place))
    except FileNotFoundError:
        return []

def lines(place):
    try:
        with open(place) as file:
            return file.read().splitlines()
    except OSError:
        return []

def free(place):
    with open(place) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True

def of_candidates(name):
    # the lane's own processes are root's, or closed to the candidate, which makes them look so
    try:
        return name.isdecimal() and os.stat("/proc/" + name).st_uid == os.getuid()
    except OSError:
        return False

place = os.path.dirname(os.getcwd())
print(json.dumps({
    "uid": os.getuid(),
    "scratch": names("."),
    "beside it": [names(place), oct(os.stat(place).st_mode), oct(os.stat(".").st_mode)],
    "/tmp": [name for name in names("/tmp") if ENCLOSED],
    "/dev/shm": [name for name in names("/dev/shm") if ENCLOSED],
    "queues": names("/dev/mqueue"),
    "ipc": [lines(f"/proc/sysvipc/{kind}")[1:] for kind in ("shm", "sem", "msg") if ENCLOSED],
    "keys": [line for line in lines("/proc/keys") if " user " in line],
    "processes": sum(of_candidates(name) for name in names("/proc")) if ENCLOSED else 0,
    "stdin": [fcntl.fcntl(0, fcntl.F_GETFL), free("/dev/null")],
    "nice": os.getpriority(os.PRIO_PROCESS, 0),
    "affinity": sorted(os.sched_getaffinity(0)),
    "limits": [resource.getrlimit(which) for which in range(16) if which != resource.RLIMIT_AS],
}))

def ok():
    return 1
"""


def look_around(sandbox: Sandbox) -> dict[str, Any]:
    """What an ordinary candidate finds behind the wall; one of its two checks holds."""
    enclosed = "pid_namespace" in sandbox.facts()["layers"]
    code = f"ENCLOSED = {enclosed}\n{LOOK_AROUND}"
    control = sandbox.run(Job(code=code, checks=Assertions(["ok() == 1", "ok() == 2"])))
    assert control.per_assertion == (True, False), control.detail
    assert (control.exit_code, control.reason) == ("assertion_fail", None)
    found: dict[str, Any] = json.loads(control.stdout)
    return found


class Known:
    """What the last look behind each wall found, while the same lane is in use."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[object, dict[str, Any]]] = {}

    def before(self, sandbox: Sandbox) -> dict[str, Any]:
        lane, found = self._found.get(id(sandbox), (None, {}))
        if lane is None or lane is not sandbox._lane:
            return self.after(sandbox)
        return found

    def after(self, sandbox: Sandbox) -> dict[str, Any]:
        found = look_around(sandbox)
        self._found[id(sandbox)] = (sandbox._lane, found)
        return found


@pytest.fixture(scope="module")
def known() -> Known:
    return Known()


CASES = [
    pytest.param(row, denylist, id=f"{name}-{how}")
    for name, row in ROWS.items()
    for how, denylist in (("open", ()), ("denylist", DEFAULT_DENYLIST))
]


def expected(row: Row, denylist: tuple[str, ...], grading: str) -> Verdict:
    if denylist and row.denied is not None:
        return row.denied
    return row.split if row.split is not None and grading == "split" else row.open


@pytest.mark.parametrize(("row", "denylist"), CASES)
def test_a_hostile_candidate_gets_its_verdict_and_leaves_nothing(
    sandbox: Sandbox,
    backend: str,
    known: Known,
    row: Row,
    denylist: tuple[str, ...],
) -> None:
    """Whatever a candidate does, it is judged in time and the next one finds a clean lane."""
    inside = known.before(sandbox)
    observer = Observer(sandbox, inside["uid"])
    outside, lane = observer.look(), sandbox._lane
    limits = Limits(**{**SMALL, **row.limits})
    code = row.code if "def ok()" in row.code else row.code + OK
    job = Job(code=code, checks=Assertions(["ok() == 1"]), limits=limits, denylist=denylist)

    begun = time.monotonic()
    envelope = sandbox.run(job)
    took = time.monotonic() - begun
    left = observer.look_again_for(outside)
    same = sandbox._lane is lane

    found = known.after(sandbox)
    verdict = expected(row, denylist, envelope.grading)
    assert (envelope.exit_code, envelope.reason) == verdict, envelope.detail
    assert took < limits.timeout_s + LATE_S + NEW_INTERPRETER_S * backend.endswith("fresh")
    if same:
        assert left.but_for(outside) == {}
        assert outside.but_for(left) == {}
    else:
        assert "uid" not in sandbox.facts()["layers"], "the candidate has broken its lane"
        assert not observer.look().pids & outside.pids
    assert found["scratch"] == []
    assert {**found, "uid": None} == {**inside, "uid": None}


OUT_OF_SIGHT = {
    "files in memory": """
import os
for number in range(50):
    kept = os.memfd_create('x')
    for _ in range(4):
        stored += os.write(kept, bytes(1 << 20)) >> 20
""",
    "System V shared memory": """
import ctypes
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
for _ in range(5):
    number = libc.shmget(0, 40 << 20, 0o1600)
    place = libc.shmat(number, None, 0)
    if number == -1 or place in (None, ctypes.c_void_p(-1).value):
        break
    ctypes.memset(place, 1, 40 << 20)
    libc.shmdt(ctypes.c_void_p(place))
    stored += 40
""",
    "anonymous memory that is shared": """
import mmap, os, time
for _ in range(5):
    if os.fork() == 0:
        kept = mmap.mmap(-1, 40 << 20)
        for place in range(0, 40 << 20, 4096):
            kept[place] = 1
        time.sleep(60)
    stored += 40
time.sleep(0.5)
""",
    "a file system of its own": """
import ctypes, os
libc = ctypes.CDLL(None)
uid = os.getuid()
if libc.unshare(0x10000000 | 0x20000) == 0:
    for name, text in (('setgroups', 'deny'), ('uid_map', f'0 {uid} 1'), ('gid_map', f'0 {uid} 1')):
        with open(f'/proc/self/{name}', 'w') as file: file.write(text)
    if libc.mount(b'x', b'/tmp', b'tmpfs', 0, b'size=1g') == 0:
        for number in range(50):
            with open(f'/tmp/{number}', 'wb') as file: stored += file.write(bytes(4 << 20)) >> 20
""",
}


@pytest.mark.parametrize("how", OUT_OF_SIGHT)
def test_memory_counts_wherever_it_is_kept(sandbox: Sandbox, known: Known, how: str) -> None:
    """A job cannot keep more than its memory in places that no process's own size shows."""
    inside = known.before(sandbox)
    code = f"""
import time
stored = 0
try:{OUT_OF_SIGHT[how].replace(chr(10), chr(10) + "    ")}
except OSError:
    pass
time.sleep(0.2)
def ok(): return stored <= 64
"""
    job = Job(code=code, checks=Assertions(["ok()"]), limits=Limits(**SMALL), denylist=())
    envelope = sandbox.run(job)
    found = known.after(sandbox)
    assert (envelope.exit_code, envelope.reason) in (PASS, MEMORY, SCRATCH)
    assert {**found, "uid": None} == {**inside, "uid": None}


def test_urgent_bytes_on_the_result_channel_are_no_riddle(sandbox: Sandbox) -> None:
    """Urgent bytes on the result channel get the same verdict every time."""
    code = """
import socket
channel = socket.socket(fileno=3)
for byte in (b'x', b'y'): channel.send(byte, socket.MSG_OOB)
"""
    job = Job(code=code + OK, checks=Assertions(["ok() == 1"]), denylist=())
    assert len({sandbox.run(job).canonical() for _ in range(8)}) == 1


@pytest.mark.parametrize("how", ["os.close(3)", "os.dup2(os.open('/dev/null', 2), 3)"])
def test_a_closed_result_channel_is_no_riddle(sandbox: Sandbox, how: str) -> None:
    """A candidate that cuts its result channel gets the same envelope every time."""
    code = f"import os, time\n{how}\ntime.sleep(0.003)\n"
    job = Job(code=code + OK, checks=Assertions(["ok() == 1"]), limits=Limits(**SPIN))
    assert len({sandbox.run(job).canonical() for _ in range(8)}) == 1


def test_output_up_to_the_ceiling_comes_back_whole(sandbox: Sandbox) -> None:
    """The largest output that may be asked for is a verdict, whatever its bytes are."""
    size = CEILING.output_bytes
    code = f"import os\nfor _ in range({size >> 20}): os.write(1, bytes(1 << 20))"
    job = Job(
        code=code + OK,
        checks=Assertions(["ok() == 1"]),
        limits=Limits(output_bytes=size, timeout_s=30),
    )
    envelope = sandbox.run(job)
    assert (envelope.exit_code, envelope.reason, len(envelope.stdout)) == ("pass", None, size)


def test_clean_up_follows_no_link(tmp_path: Path) -> None:
    """What the links in a scratch point to outlives them."""
    kept, place = tmp_path / "kept", tmp_path / "scratch"
    for directory in (kept, place, place / "d"):
        directory.mkdir()
    (kept / "file").touch()
    for directory in (place, place / "d"):
        (directory / "link").symlink_to(kept)
        (directory / "file").symlink_to(kept / "file")
        (directory / "dangling").symlink_to("nowhere")
    (tmp_path / "link").symlink_to(kept)
    mode = kept.stat().st_mode
    scratch.empty(str(place))
    scratch.empty(str(tmp_path / "link"))
    assert (list(place.iterdir()), list(kept.iterdir())) == ([], [kept / "file"])
    assert kept.stat().st_mode == mode
