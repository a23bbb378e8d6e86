"""Runs the corpus and its references through each comparison grader and prints JSON.

``compare.py GRADER.py…`` as root in a container with no network and limits on memory and
processes, which holds isograd and what the graders import. For each grader: ``won``, the attacks
that pass, ``timed_out``, and ``right``, how many of the ``tasks`` pass with their reference.
"""

import dataclasses
import json
import sys
from pathlib import Path

from isograd.redteam import CORPUS, run_against_command

here = Path(__file__).parent
tasks = list({id(attack.tests): attack for attack in CORPUS}.values())
honest = [dataclasses.replace(task, code=task.reference, before=()) for task in tasks]
found = {}
for name in sys.argv[1:]:
    command = [sys.executable, str(here / "confined.py"), sys.executable, str(here / name)]
    right = run_against_command(command, honest, jobs=2)
    outcomes = run_against_command(command, CORPUS, jobs=4)
    found[name.removesuffix(".py")] = {
        "won": [one.attack.id for one in outcomes if one.won],
        "timed_out": [one.attack.id for one in outcomes if one.fault],
        "right": sum(one.won for one in right),
        "tasks": len(tasks),
    }
    print(json.dumps(found), flush=True)
