"""The next better grader: a runner in the candidate's process prints JSON, the last line counts."""

import json
import subprocess
import sys

RUNNER = """
import json, sys
given = json.load(open(sys.argv[2]))
names = {'__name__': 'candidate'}
results = []
try:
    exec(compile(open(sys.argv[1]).read(), 'candidate.py', 'exec'), names)
    exec(given['setup'], names)
    checks = list(given['checks'])
    if given['program']:
        checks = [given['program'] + '\\ncheck(' + given['entry_point'] + ')\\n']
    for check in checks:
        try:
            try:
                code = compile(check, 'check', 'eval')
            except SyntaxError:
                exec(check, names)
                results.append(True)
            else:
                results.append(bool(eval(code, names)))
        except Exception:
            results.append(False)
except Exception as error:
    results = [False]
print(json.dumps({'passed': bool(results) and all(results), 'score': sum(results)}))
"""
try:
    output = subprocess.run(
        [sys.executable, "-c", RUNNER, *sys.argv[1:]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        timeout=3,
        check=False,
    ).stdout
except subprocess.TimeoutExpired:
    sys.exit(1)
passed = False
for line in output.splitlines():
    try:
        verdict = json.loads(line)
    except ValueError:
        continue
    if isinstance(verdict, dict):
        passed = verdict.get("passed") is True
sys.exit(not passed)
