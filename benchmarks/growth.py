"""How does a candidate's cost grow with its checks and with its code?"""

from __future__ import annotations

import argparse
from functools import partial

from isograd import Assertions, Job, Limits
from measure import Side, grade_all, in_turn, machine, pool_of, table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sandbox", default="subprocess")
    words = parser.parse_args()
    print(machine())
    code = "def add(a, b):\n    return a + b\n"
    limits = Limits(timeout_s=30, memory_mb=2_048)
    for grading in ("shared", "split"):
        base = Job(code=code, checks=Assertions(["add(0, 1) == 1"]), limits=limits, grading=grading)
        pool = pool_of(words.sandbox, 1, [base])
        if pool is None:
            return
        sides: dict[str, Side] = {}
        for checks in (1, 10, 100):
            texts = [f"add({n}, 1) == {n + 1}" for n in range(checks)]
            work = [base.model_copy(update={"checks": Assertions(texts)})] * 50
            sides[f"{checks} checks"] = partial(grade_all, pool, work)
        for size in (1_000, 10_000, 100_000, 1_000_000, 5_000_000):
            lines = "".join(f"unused_{n} = {n}\n" for n in range(size // 20))
            work = [base.model_copy(update={"code": code + lines})] * (50 if size < 1e6 else 3)
            sides[f"{size:,} bytes of code"] = partial(grade_all, pool, work)
        table(f"{words.sandbox}, {grading}, a candidate", in_turn(sides, words.rounds), "1 checks")
        pool.close()


if __name__ == "__main__":
    main()
