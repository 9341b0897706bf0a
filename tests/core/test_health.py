"""Health checks of rollouts (spec §13.4, §13.5): conditions, limits, and what measurements decide."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from forewarn.core.health import (
    CheckKind,
    CheckOutcome,
    CheckResult,
    HealthCheck,
    HealthDecision,
    Measurement,
    OwnFigure,
    health_verdict,
    judge_values,
    make_check,
    measurement_of,
    next_measurement_at,
    parse_condition,
    require_distinct_checks,
)

OUTCOMES = {"g": CheckOutcome.GOOD, "b": CheckOutcome.BAD, "u": CheckOutcome.UNCLEAR, "e": CheckOutcome.ERROR}
SHOP = HealthCheck(name="shop", kind=CheckKind.HTTP, url="https://shop.example/health", interval_s=60, timeout_s=10)
PROMETHEUS = HealthCheck(
    name="errors", kind=CheckKind.PROMETHEUS, url="http://prometheus:9090", query="rate(errors[5m])", condition="< 1"
)
FIGURE = HealthCheck(name="failed", kind=CheckKind.FIGURE, figure=OwnFigure.FAILED_ACTS)


def measured(outcomes: str, check: HealthCheck = SHOP) -> list[Measurement]:
    """Return measurements with these outcomes, a minute apart from time 0 on."""
    return [
        Measurement(request_id="r", check=check.name, at=60.0 * n, outcome=OUTCOMES[letter], text=f"seen {n}")
        for n, letter in enumerate(outcomes)
    ]


def decision(outcomes: str, *, check: HealthCheck = SHOP, good_since: float | None = None) -> HealthDecision:
    """Return the decision right after the last of these measurements."""
    measurements = measured(outcomes, check)
    return health_verdict([check], measurements, 60.0 * (len(outcomes) - 1), good_since=good_since).decision


def test_a_rollout_without_checks_goes_on() -> None:
    assert health_verdict([], [], 0.0, good_since=0.0).decision is HealthDecision.GO_ON


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ("", HealthDecision.MEASURE),
        ("g", HealthDecision.GO_ON),
        ("b", HealthDecision.PAUSE),
        ("gb", HealthDecision.PAUSE),
        ("bg", HealthDecision.PAUSE),
        ("u", HealthDecision.WAIT),
        ("ug", HealthDecision.GO_ON),
        ("e", HealthDecision.GO_ON),
        ("ee", HealthDecision.GO_ON),
        ("eee", HealthDecision.WAIT),
        ("eeeg", HealthDecision.GO_ON),
        ("eegee", HealthDecision.GO_ON),
        ("eeeb", HealthDecision.PAUSE),
    ],
)
def test_the_default_limits_decide_within_a_wave(outcomes: str, expected: HealthDecision) -> None:
    """Spec §13.4, §13.5: one bad one pauses, one unclear one holds, as does the third error in a row."""
    assert decision(outcomes) is expected


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [("g", HealthDecision.GO_ON), ("u", HealthDecision.WAIT), ("e", HealthDecision.WAIT), ("b", HealthDecision.PAUSE)],
)
def test_a_wave_begins_only_after_a_good_measurement(outcomes: str, expected: HealthDecision) -> None:
    assert decision(outcomes, good_since=0.0) is expected


def test_a_measurement_from_before_the_end_of_the_wave_does_not_open_the_next_one() -> None:
    assert decision("g", good_since=1.0) is HealthDecision.MEASURE
    assert decision("gg", good_since=1.0) is HealthDecision.GO_ON


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [("bgbg", HealthDecision.GO_ON), ("bgbgb", HealthDecision.PAUSE), ("bgbub", HealthDecision.PAUSE)],
)
def test_a_flapping_check_pauses_because_bad_measurements_count_in_all(outcomes: str, expected: HealthDecision) -> None:
    """Spec §13.4: it would never be bad three times in a row."""
    assert decision(outcomes, check=replace(SHOP, bad_limit=3)) is expected


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ("uu", HealthDecision.GO_ON),
        ("uuu", HealthDecision.WAIT),
        ("ugugu", HealthDecision.GO_ON),
        ("ueueu", HealthDecision.WAIT),
    ],
)
def test_unclear_measurements_count_in_a_row_and_errors_do_not_interrupt_them(
    outcomes: str, expected: HealthDecision
) -> None:
    assert decision(outcomes, check=replace(SHOP, unclear_limit=3)) is expected


def test_a_bad_measurement_below_its_limit_does_not_open_a_wave() -> None:
    verdict = health_verdict([replace(SHOP, bad_limit=2)], measured("b"), 0.0, good_since=0.0)
    assert verdict == (HealthDecision.WAIT, "check 'shop' is bad: seen 0")


def test_an_old_measurement_counts_as_missing() -> None:
    """Spec §13.4: missing data counts as unclear, never as good."""
    verdict = health_verdict([SHOP], measured("g"), 131.0)
    assert verdict == (HealthDecision.WAIT, "check 'shop' is unclear: its last measurement is 2 min 11 s old")
    assert health_verdict([SHOP], measured("g"), 130.0).decision is HealthDecision.GO_ON


def test_the_worst_check_decides_and_all_of_that_kind_are_named() -> None:
    other = replace(SHOP, name="cart")
    measurements = [*measured("g"), *measured("u", other), *measured("u", PROMETHEUS)]
    verdict = health_verdict([SHOP, other, PROMETHEUS], measurements, 0.0)
    assert verdict == (HealthDecision.WAIT, "check 'cart' is unclear: seen 0; check 'errors' is unclear: seen 0")


@given(st.text("gbue", max_size=12), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.booleans())
def test_no_rollout_goes_on_without_a_good_or_tolerated_measurement(
    outcomes: str, bad: int, unclear: int, error: int, is_gate: bool
) -> None:
    check = replace(SHOP, bad_limit=bad, unclear_limit=unclear, error_limit=error)
    result = decision(outcomes, check=check, good_since=0.0 if is_gate else None)
    assert (result is HealthDecision.PAUSE) == (outcomes.count("b") >= bad)
    if result is HealthDecision.GO_ON:
        assert outcomes
        if is_gate:
            assert outcomes.endswith("g")
        assert not outcomes.endswith("e" * error) or not error
        assert not outcomes.endswith("u" * unclear)


@pytest.mark.parametrize(
    ("condition", "values", "expected"),
    [
        ("< 1", [0.5], CheckResult(CheckOutcome.GOOD, "0.5", 0.5)),
        ("<1", [1.0], CheckResult(CheckOutcome.BAD, "1 is not <1", 1.0)),
        (">= 99.5", [99.5], CheckResult(CheckOutcome.GOOD, "99.5", 99.5)),
        ("== 0", [0.0, 2.0], CheckResult(CheckOutcome.BAD, "2 is not == 0", 2.0)),
        ("!= 0", [1.0, 2.0, 3.0], CheckResult(CheckOutcome.GOOD, "1, and 2 more", 1.0)),
        ("< 1", [], CheckResult(CheckOutcome.UNCLEAR, "there is no data")),
        ("< 1", [math.nan], CheckResult(CheckOutcome.UNCLEAR, "a value is not a number")),
        ("< 1", [math.nan, 2.0], CheckResult(CheckOutcome.BAD, "2 is not < 1", 2.0)),
        ("<= 1e3", [math.inf], CheckResult(CheckOutcome.BAD, "inf is not <= 1e3", math.inf)),
    ],
)
def test_every_value_must_meet_the_condition(condition: str, values: list[float], expected: CheckResult) -> None:
    assert judge_values(condition, [("", value) for value in values]) == expected


@pytest.mark.parametrize("text", ["", "1", "< ", "<< 1", "< nan", "about 3", "< 1 or so"])
def test_a_text_that_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a condition: give one of"):
        parse_condition(text)


@pytest.mark.parametrize(
    ("check", "changed", "problem"),
    [
        (SHOP, {"name": " "}, "needs a name of at most 60 printable characters"),
        (SHOP, {"url": ""}, "check 'shop' asks an HTTP server and has no 'url': give one"),
        (SHOP, {"url": "ftp://shop"}, "give one that starts with http:// or https://"),
        (SHOP, {"query": "up"}, "asks an HTTP server, which has no 'query': leave it out"),
        (SHOP, {"status": 99}, "give one from 100 to 599"),
        (SHOP, {"interval_s": 0.5}, "give one from 1 s to "),
        (FIGURE, {"interval_s": 5}, "give one from 10 s to "),
        (SHOP, {"timeout_s": 301}, "give one of at most 5 min"),
        (SHOP, {"bad_limit": 0}, "has bad_limit 0: give a number from 1 to 1000"),
        (PROMETHEUS, {"query": ""}, "asks Prometheus and has no 'query'"),
        (PROMETHEUS, {"condition": ""}, "asks Prometheus and has no 'condition'"),
        (PROMETHEUS, {"condition": "below 1"}, "check 'errors': 'below 1' is not a condition"),
    ],
)
def test_a_check_that_cannot_be_used_is_refused_in_one_sentence(
    check: HealthCheck, changed: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValueError) as raised:
        make_check(replace(check, **changed))
    assert problem in str(raised.value)


def test_a_figure_must_be_zero_unless_a_condition_says_otherwise() -> None:
    assert make_check(FIGURE).condition == "== 0"
    assert make_check(replace(FIGURE, condition="<= 2")).condition == "<= 2"


def test_two_checks_need_two_names() -> None:
    require_distinct_checks([SHOP, PROMETHEUS])
    with pytest.raises(ValueError, match="two checks have the name 'shop'"):
        require_distinct_checks([SHOP, replace(SHOP, name="Shop")])
    with pytest.raises(ValueError, match="at most 20 checks, and 21 are given"):
        require_distinct_checks([replace(SHOP, name=str(n)) for n in range(21)])


def test_a_check_is_due_at_once_and_then_after_its_interval() -> None:
    assert next_measurement_at(SHOP, []) == 0.0
    assert next_measurement_at(SHOP, measured("ggg")) == 180.0
    assert next_measurement_at(SHOP, measured("ggg", PROMETHEUS)) == 0.0


def test_a_stored_measurement_has_a_short_text_and_a_finite_value() -> None:
    found = CheckResult(CheckOutcome.BAD, "x" * 1000, math.inf)
    stored = measurement_of(SHOP, found, request_id="r", wave=1, at=5.0)
    assert (len(stored.text), stored.value, stored.wave, stored.at) == (300, None, 1, 5.0)
