"""Claims files say what a handler does; what they do not say is as in the profile."""

from __future__ import annotations

from pathlib import Path

import pytest

from forewarn.crash_test.claims import (
    DEFAULT_CLAIMS,
    Approves,
    HandlerClaims,
    HandlerProfile,
    claims_template,
    load_claims,
    parse_claims,
)
from forewarn.errors import Rejected


@pytest.mark.parametrize("profile", HandlerProfile)
def test_the_template_of_a_profile_has_its_defaults(profile: HandlerProfile) -> None:
    assert parse_claims(claims_template(profile), profile, source="x") == DEFAULT_CLAIMS[profile]


@pytest.mark.parametrize("profile", HandlerProfile)
def test_an_empty_file_claims_what_the_profile_does(profile: HandlerProfile) -> None:
    assert parse_claims("", profile, source="x") == DEFAULT_CLAIMS[profile]


def test_a_file_changes_what_it_names() -> None:
    text = """
    approves = "scope"
    prepares = false
    recovers = true
    survives-restart = true
    one-shot = true
    polls-every = "1m30s"
    """
    assert parse_claims(text, HandlerProfile.SPOT, source="x") == HandlerClaims(
        approves=Approves.SCOPE,
        prepares=False,
        recovers=True,
        survives_restart=True,
        one_shot=True,
        polls_every_s=90.0,
    )


def test_an_interval_may_be_a_number_of_seconds() -> None:
    assert parse_claims("polls-every = 2.5", HandlerProfile.SPOT, source="x").polls_every_s == 2.5


@pytest.mark.parametrize(
    ("text", "part"),
    [
        pytest.param("aproves = 'own'", "has no key 'aproves': did you mean 'approves'?", id="unknown key"),
        pytest.param("approves = 'all'", 'write one of "none", "own", "scope"', id="unknown value"),
        pytest.param("approves = true", 'write one of "none", "own", "scope"', id="wrong type of approves"),
        pytest.param("prepares = 'yes'", "write prepares = true", id="wrong type"),
        pytest.param("polls-every = 0", "is not a duration of 0.1 s or more, at most 1 h", id="never"),
        pytest.param("polls-every = -1", "is not a duration of 0.1 s or more, at most 1 h", id="negative"),
        pytest.param("polls-every = true", "is not a duration of 0.1 s or more, at most 1 h", id="not a duration"),
        pytest.param("polls-every = '2h'", "is not a duration of 0.1 s or more, at most 1 h", id="too long"),
        pytest.param("polls-every = 'often'", "is not a duration", id="a word"),
        pytest.param("approves =\n", "handler.toml:1: this is not TOML", id="not TOML"),
    ],
)
def test_a_wrong_claim_is_rejected_with_what_to_write_instead(text: str, part: str) -> None:
    with pytest.raises(Rejected) as error:
        parse_claims(text, HandlerProfile.SPOT, source="handler.toml")
    assert part in str(error.value)
    assert str(error.value).startswith("handler.toml")


def test_a_claims_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "handler.toml"
    path.write_text("recovers = true\n")
    assert load_claims(path, HandlerProfile.SPOT).recovers


def test_a_missing_claims_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="cannot be read"):
        load_claims(tmp_path / "none.toml", HandlerProfile.SPOT)


def test_a_claims_file_that_is_not_text_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "handler.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(Rejected, match="is not UTF-8 text: save it as UTF-8"):
        load_claims(path, HandlerProfile.SPOT)
