"""Runs a grader as a uid of its own and ends what it leaves: for use inside a container only.

``confined.py COMMAND… CANDIDATE.py TESTS.json`` as root; the exit status is the grader's.
"""

import os
import resource
import shutil
import signal
import sys
import tempfile
import time

MIB = 1 << 20
SECONDS = 8

*command, candidate, tests = sys.argv[1:]
uid = 20_000 + os.getpid() % 20_000
place = tempfile.mkdtemp()
copies = [shutil.copy(path, place) for path in (candidate, tests)]
for path in (place, *copies):
    os.chmod(path, 0o755)
os.chown(place, uid, uid)


def become(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


pid = os.fork()
if pid == 0:
    for which, limit in (
        (resource.RLIMIT_NPROC, 64),
        (resource.RLIMIT_AS, 1024 * MIB),
        (resource.RLIMIT_FSIZE, 16 * MIB),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(which, (limit, limit))
    os.chdir(place)
    become(uid)
    os.execv(command[0], [*command, *copies])
end = time.monotonic() + SECONDS
status = None
while status is None and time.monotonic() < end:
    done, code = os.waitpid(pid, os.WNOHANG)
    status = os.waitstatus_to_exitcode(code) if done else None
    time.sleep(0.01)
sweeper = os.fork()
if sweeper == 0:
    become(uid)
    os.kill(-1, signal.SIGKILL)
    os._exit(0)
os.waitpid(sweeper, 0)
shutil.rmtree(place, ignore_errors=True)
sys.exit(1 if status != 0 else 0)
