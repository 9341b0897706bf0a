"""The statistics of samples."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.half_rate import pause_ms
from bench.real_vms import in_turn, overhead
from bench.sample_statistics import median, percentile, ratio, spread

samples = st.lists(st.floats(min_value=0.001, max_value=1e6), min_size=1, max_size=200)


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.5, 50), (0.99, 99), (1.0, 100), (0.001, 1)],
    ids=["half", "ninety-nine of a hundred", "all", "a grain"],
)
def test_a_percentile_is_one_of_the_values(share: float, expected: float) -> None:
    assert percentile([float(n) for n in range(100, 0, -1)], share) == expected


@given(samples, st.floats(min_value=0.01, max_value=1))
def test_the_percentile_is_the_smallest_value_with_the_share_below(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9
    assert sum(value < found for value in values) < share * len(values) + 1e-9


@pytest.mark.parametrize(("values", "share"), [([], 0.5), ([1.0], 0), ([1.0], 1.1)])
def test_an_invalid_percentile_is_refused(values: list[float], share: float) -> None:
    with pytest.raises(ValueError, match="no percentile"):
        percentile(values, share)


def test_an_overhead_compares_the_same_percentile_of_both_sides() -> None:
    ours, bare = [30.0, 10.0, 20.0, 90.0], [5.0, 40.0, 1.0, 4.0]
    assert (overhead(ours, bare, 0.5), overhead(ours, bare, 0.99)) == (20 - 4, 90 - 40)


def test_sides_that_are_measured_in_turn_are_each_first_every_other_time() -> None:
    calls: list[str] = []

    def side(name: str, took_s: float) -> float:
        calls.append(name)
        return took_s

    for number in range(2):
        found = in_turn(number, lambda: side("ours", 1.0), lambda: side("bare", 2.0), lambda: side("sync", 3.0))
        assert found == (1.0, 2.0, 3.0)
    assert calls == ["ours", "sync", "bare", "bare", "sync", "ours"]


@given(samples)
def test_the_ratio_of_equal_samples_is_1(values: list[float]) -> None:
    assert ratio(values, values) == pytest.approx(1)


def test_one_outlier_in_five_runs_does_not_change_the_ratio() -> None:
    assert ratio([10, 10, 10, 10, 99], [20, 20, 1, 20, 20]) == 0.5
    assert median([3, 1, 2]) == 2


def test_the_spread_is_relative_to_the_median() -> None:
    assert spread([10, 10, 10]) == 0
    assert spread([9, 10, 12]) == pytest.approx(0.3)


def test_the_pause_gives_the_requested_rate() -> None:
    assert pause_ms(16_000) == 32
    assert pause_ms(10_000_000) == 1
