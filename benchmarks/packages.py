"""What do candidates cost that import numpy and pandas, loaded before them and not?

Beside ours, a fresh interpreter for each candidate, which is what loading them costs today.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from functools import partial

from isograd import Assertions, Job, Limits
from measure import Side, command, grade_all, in_turn, machine, pool_of, table

SMALL = """
import numpy as np
import pandas as pd
def mean(values):
    return float(pd.Series(np.array(values)).mean())
"""
LARGE = """
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.linear_model import LinearRegression
def mean(values):
    return float(pd.Series(np.array(values)).mean())
"""
SETS = {
    "numpy and pandas": (SMALL, ("numpy", "pandas"), ("numpy", "pandas")),
    "numpy, pandas, matplotlib, scikit-learn": (
        LARGE,
        ("numpy", "pandas", "matplotlib", "scikit-learn"),
        ("numpy", "pandas", "matplotlib.pyplot", "sklearn.linear_model"),
    ),
}
CHECK = "mean([1, 2, 3]) == 2.0"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    words = parser.parse_args()
    print(machine())
    for name, (code, packages, modules) in SETS.items():
        if lacks := [m for m in modules if importlib.util.find_spec(m.partition(".")[0]) is None]:
            print(f"without {name}: {', '.join(lacks)} not installed")
            continue
        limits = Limits(timeout_s=30, memory_mb=2_048)
        pools = []
        alone = [sys.executable, "-I", "-c", f"{code}\nassert {CHECK}\n"]
        sides: dict[str, Side] = {"python -I, one each": command(*alone, times=3)}
        for grading in ("shared", "split"):
            job = Job(code=code, checks=Assertions([CHECK]), limits=limits, grading=grading)
            for how, preload, times in (("", (), 3), (", preloaded", modules, 50)):
                pool = pool_of("subprocess", 1, [job], packages=packages, preload=preload)
                if pool is not None:
                    pools.append(pool)
                    work = [job] * times
                    sides[f"subprocess, {grading}{how}"] = partial(grade_all, pool, work)
        table(f"{name}, a candidate", in_turn(sides, words.rounds), "python -I, one each")
        for pool in pools:
            pool.close()


if __name__ == "__main__":
    main()
