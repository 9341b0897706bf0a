"""Shortened lists: the first few, and how many more."""

from __future__ import annotations

import pytest

from forewarn.base.wording import did_you_mean, first_clauses, first_names


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ("", ""),
        ("a", "a"),
        ("abc", "a, b, c"),
        ("abcd", "a, b, c, d"),
        ("abcde", "a, b, c and 2 more"),
    ],
)
def test_more_names_than_fit_are_counted_but_never_a_single_one(names: str, text: str) -> None:
    assert first_names(list(names)) == text


def test_names_that_are_not_given_are_counted_too() -> None:
    assert first_names(["a", "b"], 2, total=9) == "a, b and 7 more"
    assert first_names(["a", "b"], 2, total=2) == "a, b"


def test_clauses_are_separated_by_semicolons() -> None:
    assert first_clauses(["a", "b", "c"], 1) == "a; and 2 more"
    assert first_clauses(["a", "b"], 1) == "a; b"


@pytest.mark.parametrize(
    ("name", "meant"),
    [("hv-9", ""), ("hv-33", ""), ("vh-9", ""), ("vh-3", "hv-3"), ("HV3", "hv-3"), ("hv_3", "hv-3"), ("hv", "hv-3")],
)
def test_a_wrong_digit_is_no_typo(name: str, meant: str) -> None:
    assert did_you_mean(name, ["hv-3", "database"]) == (f": did you mean {meant!r}?" if meant else "")


def test_a_number_that_was_left_out_is_not_guessed() -> None:
    hosts = ["hv-1", "hv-2", "hv-12", "database-1"]
    assert did_you_mean("hv", hosts) == ""
    assert did_you_mean("hv-", hosts) == ""
    assert did_you_mean("vh-12", hosts) == ": did you mean 'hv-12'?"
    assert did_you_mean("database", hosts) == ": did you mean 'database-1'?"
