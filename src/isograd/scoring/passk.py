"""pass@k: the chance that at least one of k samples of a task is right.

The unbiased estimator of Chen et al. 2021, "Evaluating Large Language Models Trained on
Code" (https://arxiv.org/abs/2107.03374), equation 1: with n samples of a task of which c are
right, it is ``1 - C(n - c, k) / C(n, k)``, and the score of a benchmark is its mean over the
tasks. It exists only for k <= n. Where it does not exist nothing here makes up a value.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from operator import index
from statistics import fmean

_EXACT_UP_TO = 1000
_BELOW_ONE = math.nextafter(1.0, 0.0)


def pass_at_k(n: int, c: int, k: int) -> float:
    """The estimate for one task with ``n`` samples, ``c`` of them right.

    It is 1.0 exactly when every choice of k samples holds a right one (``n - c < k``) and 0.0
    exactly when none is right; any other value lies strictly between. Correctly rounded up
    to n = 1000, and to about 1e-14 (relative) for any n.

    Raises:
        ValueError: ``k > n`` (there is no unbiased estimate), ``k < 1``, ``c < 0``, ``c > n``
            or a count that is not an integer; True and False are not counts.
    """
    n, c, k = _count("n", n), _count("c", c), _count("k", k)
    if not 0 <= c <= n:
        raise ValueError(f"c must be between 0 and n={n}, not {c}")
    _check_k(k)
    if k > n:
        raise ValueError(f"pass@{k} is undefined for n={n}: it needs at least {k} samples")
    if c == 0:
        return 0.0
    if n - c < k:
        return 1.0
    if n <= _EXACT_UP_TO:
        every = math.comb(n, k)
        return min((every - math.comb(n - c, k)) / every, _BELOW_ONE)
    # C(n-c, k) / C(n, k) is the product of 1 - b/i over the a largest i <= n, whichever of c
    # and k is a. A sum of logarithms keeps all digits of a result near 0.
    a, b = min(c, k), max(c, k)
    if a == 1:
        return b / n
    logs = (math.log1p(-b / i) for i in range(n - a + 1, n + 1))
    return min(-math.expm1(math.fsum(logs)), _BELOW_ONE)


def pass_at_k_estimator(samples: Sequence[Sequence[bool]], ks: Iterable[int]) -> dict[int, float]:
    """pass@k of a benchmark for each k: the mean over its tasks of ``pass_at_k``.

    ``samples`` has one list for each task: whether each of its samples is right. A k that is
    undefined for any task is left out, as is every k where there are no tasks, so the result
    can be empty; ``undefined_ks`` says why.

    Raises:
        ValueError: a k is not an integer of at least 1, or a sample is not True or False. A
            missing verdict is neither: leave that sample out.
    """
    counts = _counts(samples)
    _, defined = _split(counts, ks)
    return {k: fmean(pass_at_k(n, c, k) for n, c in counts) for k in defined}


def undefined_ks(samples: Sequence[Sequence[bool]], ks: Iterable[int]) -> dict[int, str]:
    """Why ``pass_at_k_estimator`` leaves out each k that it leaves out. Raises as it does."""
    reasons, _ = _split(_counts(samples), ks)
    return reasons


def bootstrap_interval(
    samples: Sequence[Sequence[bool]],
    k: int,
    *,
    resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> tuple[float, float]:
    """A percentile bootstrap interval of a benchmark's pass@k.

    Tasks are drawn with replacement, not samples: the question is how the score would move
    with other tasks of the same sort. The same ``seed`` gives the same interval. A single
    task gives an interval of no width, which says nothing.

    Raises:
        ValueError: pass@k is undefined for these samples, or an argument is out of range.
    """
    if _count("resamples", resamples) < 1:
        raise ValueError(f"resamples must be at least 1, not {resamples}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, not {confidence}")
    counts = _counts(samples)
    reasons, _ = _split(counts, [k])
    if reasons:
        raise ValueError(reasons[k])
    values = [pass_at_k(n, c, k) for n, c in counts]
    draw = random.Random(seed)
    means = sorted(fmean(draw.choices(values, k=len(values))) for _ in range(resamples))
    tail = (1 - confidence) / 2
    return _quantile(means, tail), _quantile(means, 1 - tail)


def _split(counts: list[tuple[int, int]], ks: Iterable[int]) -> tuple[dict[int, str], list[int]]:
    """The undefined ks with the reason, and the defined ones, each once, in their order."""
    reasons: dict[int, str] = {}
    defined: list[int] = []
    for k in dict.fromkeys(_check_k(_count("k", k)) for k in ks):
        short = [(task, n) for task, (n, _) in enumerate(counts) if n < k]
        if not counts:
            reasons[k] = f"pass@{k} is undefined: there are no tasks"
        elif short:
            task, n = min(short, key=lambda item: item[1])
            reasons[k] = (
                f"pass@{k} is undefined: {len(short)} of {len(counts)} tasks have fewer than "
                f"{k} samples (the task at index {task} has {n})"
            )
        else:
            defined.append(k)
    return reasons, defined


def _counts(samples: Sequence[Sequence[bool]]) -> list[tuple[int, int]]:
    """(n, c) of each task."""
    for task, verdicts in enumerate(samples):
        for verdict in verdicts:
            if verdict not in (True, False):
                raise ValueError(f"task {task}: a sample is {verdict!r}, not True or False")
    return [(len(verdicts), sum(map(bool, verdicts))) for verdicts in samples]


def _count(name: str, value: int) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        return index(value)
    except TypeError:
        raise ValueError(f"{name} must be an integer, not {value!r}") from None


def _check_k(k: int) -> int:
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    return k


def _quantile(ordered: list[float], q: float) -> float:
    """Linear interpolation between the two nearest ranks."""
    place = q * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
