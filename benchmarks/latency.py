"""How long until the first verdict: in the library, and by the command as a whole?

Commands are compared with an interpreter that imports pydantic and ends: what any program with
models pays.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from isograd import Assertions, Job, Sandbox
from isograd.errors import SandboxUnavailable
from measure import WALLS, command, in_turn, machine, table

CODE = "def add(a, b):\n    return a + b\n"
JOB = Job(code=CODE, checks=Assertions(["add(1, 2) == 3"]))


def first_verdict(make: Callable[[], Sandbox]) -> Callable[[], int]:
    def side() -> int:
        with make() as sandbox:
            assert sandbox.run(JOB).exit_code == "pass"
        return 1

    return side


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    words = parser.parse_args()
    print(machine())
    here = []
    for wall in WALLS:
        try:
            first_verdict(WALLS[wall])()
            here.append(wall)
        except SandboxUnavailable as error:
            print(f"without {wall}: {error}")
    library = {wall: first_verdict(WALLS[wall]) for wall in here}
    table("a sandbox, its first verdict, its end", in_turn(library, words.rounds), here[0])
    with tempfile.TemporaryDirectory() as place:
        file = Path(place, "add.py")
        file.write_text(CODE, "utf-8")
        isograd = Path(sys.executable).with_name("isograd")
        exec_ = [str(isograd), "exec", str(file), "--check", "add(1, 2) == 3"]
        commands = {
            'python -c "import pydantic"': command(sys.executable, "-c", "import pydantic"),
            "isograd --help": command(str(isograd), "--help"),
        }
        for wall in here:
            allow = ["--allow-code-exec"] if wall == "subprocess" else []
            commands[f"isograd exec, {wall}"] = command(*exec_, "--sandbox", wall, *allow)
        title = "the whole command"
        table(title, in_turn(commands, words.rounds), 'python -c "import pydantic"')
    if "docker" in here:
        warm: list[float] = []
        for _ in range(words.rounds):
            with WALLS["docker"]() as sandbox:
                begun = time.perf_counter()
                sandbox.warm_up()
                warm.append(time.perf_counter() - begun)
        print(
            f"\na container's warm-up: {statistics.median(warm):.2f} s, at most {max(warm):.2f} s"
        )


if __name__ == "__main__":
    main()
