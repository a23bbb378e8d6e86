"""The bare grader: candidate and tests in one program; exit status 0 is a pass."""

import json
import subprocess
import sys

candidate, tests = sys.argv[1:]
with open(tests, encoding="utf-8") as file:
    given = json.load(file)
with open(candidate, encoding="utf-8") as file:
    program = file.read() + "\n" + given["setup"] + "\n"
if given["program"]:
    program += f"{given['program']}\ncheck({given['entry_point']})\n"
for check in given["checks"]:
    program += (check if "assert" in check or "\n" in check else f"assert {check}") + "\n"
try:
    sys.exit(
        subprocess.run(
            [sys.executable, "-c", program], stdin=subprocess.DEVNULL, timeout=3, check=False
        ).returncode
        != 0
    )
except subprocess.TimeoutExpired:
    sys.exit(1)
