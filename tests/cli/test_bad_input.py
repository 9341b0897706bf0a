"""Bad input and refusals: exit 2, one sentence that says what to do, nothing on stdout, nothing changed."""

from typing import Any

import pytest

USAGE = {
    "restart": "Missing argument 'VM...'; see `forewarn restart --help`",
    "restart web --notice soon": (
        "Invalid value for '--notice': 'soon' is not a duration: write it like 15m, 7d, 1h30m or 90 (seconds); "
        "see `forewarn restart --help`"
    ),
    "degrade h1 --in never": (
        "Invalid value for '--in': 'never' is not a duration: write it like 15m, 7d, 1h30m or 90 (seconds); "
        "see `forewarn degrade --help`"
    ),
    "clock advance x": (
        "Invalid value for 'DURATION': 'x' is not a duration: write it like 15m, 7d, 1h30m or 90 (seconds); "
        "see `forewarn clock advance --help`"
    ),
    "frobnicate": "No such command 'frobnicate'; see `forewarn --help`",
    "events --limit 0": "Invalid value for '--limit': 0 is not in the range x>=1; see `forewarn events --help`",
    "rollout start": "a rollout is over hosts or over a scope: give one of --host, --all-hosts and --scope",
    "rollout start --scope db --all-hosts": (
        "a rollout is over hosts or over a scope: give one of --host, --all-hosts and --scope"
    ),
    "rollout show --watch": "no rollout is named to watch: see `forewarn rollout show`, then name one",
}


@pytest.mark.parametrize("typed", USAGE)
def test_what_cannot_be_understood_is_told_without_asking_a_service(command: Any, typed: str) -> None:
    assert command.refused(*typed.split()) == USAGE[typed]


UNKNOWN = [
    "restart nosuch", "redeploy nosuch", "evict nosuch", "delete nosuch", "power nosuch off",
    "perform-maintenance nosuch", "fleet show nosuch", "fleet remove nosuch", "fleet remove-host nosuch",
    "fleet add-host h1 --location westeurope", "fleet add web --location westeurope",
    "rollout start --host nosuch", "rollout start --scope nosuch", "rollout show nosuch", "rollout pause nosuch",
    "rollout resume nosuch", "rollout abort nosuch", "degrade nosuch", "fail nosuch", "repair nosuch",
    "approve nosuch", "withdraw nosuch", "events --vm nosuch", "events --scope nosuch", "history --event nosuch",
    "explain nosuch", "history prune --older-than 1h", "clock speed 1000000", "perform-maintenance web",
]  # fmt: skip


@pytest.mark.parametrize("typed", UNKNOWN)
def test_what_the_service_refuses_is_told_in_its_words(lab: Any, typed: str) -> None:
    """Spec §6.4, §8.4 among others; the message alone, for people and for programs."""
    before = lab.api.get("history")["seq"]
    sentence = lab.refused(*typed.split())
    assert sentence
    assert "\n" not in sentence
    assert lab.refused(*typed.split(), "--json") == sentence
    assert lab.api.get("history")["seq"] == before


def test_less_notice_than_the_minimum_has_to_be_named(lab: Any) -> None:
    """Spec §6.3."""
    assert "short" in lab.refused("restart", "web", "--notice", "1m")
    (event,) = lab.json("restart", "web", "--notice", "1m", "--short-notice")["events"]
    assert event["not_before"] - event["published_at"] == pytest.approx(60, abs=1)
