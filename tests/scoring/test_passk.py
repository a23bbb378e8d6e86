"""pass@k and its interval."""

from __future__ import annotations

from fractions import Fraction
from math import comb
from typing import Any

import pytest

from isograd.scoring.passk import (
    bootstrap_interval,
    pass_at_k,
    pass_at_k_estimator,
    undefined_ks,
)


def exact(n: int, c: int, k: int) -> Fraction:
    return 1 - Fraction(comb(n - c, k), comb(n, k))


@pytest.mark.parametrize("n", [1, 2, 5, 12])
def test_matches_the_formula(n: int) -> None:
    """Every small case is the correctly rounded value of the formula."""
    for c in range(n + 1):
        for k in range(1, n + 1):
            assert pass_at_k(n, c, k) == float(exact(n, c, k))


@pytest.mark.parametrize(
    ("n", "c", "k"),
    [
        (1000, 7, 100),
        (1001, 7, 100),
        (2000, 100, 3),
        (10_000, 2, 2),
        (10_000, 1, 100),
        (10_000, 100, 1),
        (10_000, 5_000, 4_999),
        (20_000, 3, 10_000),
    ],
)
def test_large_counts_keep_their_digits(n: int, c: int, k: int) -> None:
    """Large counts neither overflow nor lose digits."""
    assert pass_at_k(n, c, k) == pytest.approx(float(exact(n, c, k)), rel=1e-12, abs=0)


def test_a_million_samples() -> None:
    """A count whose binomials have a million bits is no trouble."""
    assert pass_at_k(1_000_000, 1, 500_000) == 0.5
    assert pass_at_k(1_000_000, 2, 500_000) == pytest.approx(0.75, abs=1e-5)


@pytest.mark.parametrize(
    ("n", "c", "k", "value"),
    [(10_000, 1, 100, 0.01), (200, 1, 1, 0.005), (10, 10, 1, 1.0), (10, 6, 5, 1.0), (5, 0, 5, 0.0)],
)
def test_known_values(n: int, c: int, k: int, value: float) -> None:
    """Values that can be worked out by hand come out exactly."""
    assert pass_at_k(n, c, k) == value


@pytest.mark.parametrize(("n", "k"), [(4, 2), (200, 100), (10_000, 100), (10_000, 9_000)])
def test_one_only_where_certain(n: int, k: int) -> None:
    """With c = n - k one choice of k samples has no right one, so the value stays below 1."""
    assert 0.8 < pass_at_k(n, n - k, k) < 1
    assert pass_at_k(n, n - k + 1, k) == 1


@pytest.mark.parametrize(
    ("n", "c", "k"),
    [
        (99, 0, 100),
        (99, 99, 100),
        (0, 0, 1),
        (5, 6, 1),
        (5, -1, 1),
        (-1, 0, 1),
        (5, 1, 0),
        (5, 1, -1),
        (5, True, 1),
        (5, 1, True),
        (5.0, 1, 1),
        (5, 1, "1"),
        (5, None, 1),
    ],
)
def test_invalid_counts_are_refused(n: Any, c: Any, k: Any) -> None:
    """Counts for which no estimate exists raise ValueError and never give a number."""
    with pytest.raises(ValueError, match=r"undefined|must be"):
        pass_at_k(n, c, k)


def test_mean_over_tasks_not_pooled() -> None:
    """The estimate is made for each task, then averaged."""
    one_each = [[True], [False], [False], [False]]
    assert pass_at_k_estimator(one_each, [1, 10]) == {1: 0.25}
    uneven = [[True, True, False, False], [False] * 8]
    assert pass_at_k_estimator(uneven, [1, 2]) == {1: 0.25, 2: pytest.approx(5 / 12)}


def test_undefined_k_is_left_out_with_a_reason() -> None:
    """A k larger than some task's n is left out, and the reason names it."""
    samples = [[False] * 99, [True] * 100]
    assert pass_at_k_estimator(samples, [100, 1]) == {1: 0.5}
    assert undefined_ks(samples, [100, 1]) == {
        100: "pass@100 is undefined: 1 of 2 tasks have fewer than 100 samples "
        "(the task at index 0 has 99)"
    }


def test_no_tasks_have_no_estimate() -> None:
    """Without tasks every k is left out, with a reason."""
    assert pass_at_k_estimator([], [1, 2]) == {}
    assert undefined_ks([], [1, 2]) == {
        1: "pass@1 is undefined: there are no tasks",
        2: "pass@2 is undefined: there are no tasks",
    }


@pytest.mark.parametrize("verdict", [None, 0.5, "pass", 2])
def test_a_missing_verdict_is_not_a_failure(verdict: Any) -> None:
    """A sample that is neither True nor False is refused, not counted as wrong."""
    with pytest.raises(ValueError, match="task 1"):
        pass_at_k_estimator([[True], [verdict]], [1])


@pytest.mark.parametrize("k", [0, -1, True, 1.0])
def test_estimator_refuses_bad_ks(k: Any) -> None:
    """A k that is no positive integer is an error, not an undefined one."""
    with pytest.raises(ValueError, match="k must be"):
        pass_at_k_estimator([[True]], [k])
    with pytest.raises(ValueError, match="k must be"):
        undefined_ks([[True]], [k])


def test_interval_surrounds_the_estimate_and_repeats() -> None:
    """The interval holds the estimate, is inside 0 … 1 and is the same for the same seed."""
    samples = [[task % 3 == 0, task % 2 == 0] for task in range(60)]
    low, high = bootstrap_interval(samples, 1)
    assert 0 <= low < pass_at_k_estimator(samples, [1])[1] < high <= 1
    assert bootstrap_interval(samples, 1) == (low, high)
    assert bootstrap_interval(samples, 1, seed=1) != (low, high)


def test_interval_narrows_with_less_confidence_and_more_tasks() -> None:
    """Width behaves as a confidence interval's: 1/sqrt(tasks), and less for less confidence."""

    def width(tasks: int, confidence: float) -> float:
        low, high = bootstrap_interval([[True], [False]] * tasks, 1, confidence=confidence)
        return high - low

    assert width(50, 0.5) < width(50, 0.95)
    assert width(200, 0.95) == pytest.approx(width(50, 0.95) / 2, rel=0.2)
    assert width(50, 0.95) == pytest.approx(2 * 1.96 * 0.5 / 10, rel=0.2)


def test_interval_of_certain_results_has_no_width() -> None:
    """Tasks that are all right give exactly 1, and all wrong exactly 0."""
    assert bootstrap_interval([[True]] * 9, 1) == (1.0, 1.0)
    assert bootstrap_interval([[False]] * 9, 1) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("samples", "k", "settings"),
    [
        ([], 1, {}),
        ([[True]], 2, {}),
        ([[True]], 0, {}),
        ([[True]], 1, {"resamples": 0}),
        ([[True]], 1, {"confidence": 1.0}),
        ([[True]], 1, {"confidence": 0.0}),
    ],
)
def test_interval_refuses(samples: list[list[bool]], k: int, settings: dict[str, Any]) -> None:
    """An interval of an undefined pass@k, or with settings out of range, is an error."""
    with pytest.raises(ValueError, match=r"undefined|must"):
        bootstrap_interval(samples, k, **settings)
