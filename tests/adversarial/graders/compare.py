"""Runs the corpus through each of the comparison graders, inside a container, and prints JSON.

``compare.py GRADER.py…`` as root in a container without a network: see ``test_comparison``.
"""

import json
import sys
from pathlib import Path

from isograd.redteam import CORPUS, run_against_command

here = Path(__file__).parent
found = {}
for name in sys.argv[1:]:
    command = [sys.executable, str(here / "confined.py"), sys.executable, str(here / name)]
    outcomes = run_against_command(command, CORPUS, jobs=8)
    found[name.removesuffix(".py")] = [one.attack.id for one in outcomes if one.won]
print(json.dumps(found))
