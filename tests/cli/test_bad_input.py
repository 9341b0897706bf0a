"""Bad input and refusals: exit 2, one sentence with a remedy, nothing on stdout, nothing changed."""

import json
import os
import subprocess
import sys
from typing import Any

import click
import pytest

from forewarn.base.times import parse_time
from forewarn.cli.root_command import _COMMANDS_BY_GUESS, forewarn

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
    "clock speed nan": (
        "Invalid value for 'FACTOR': 'nan' is not a factor: write a number such as 60, 1 for real time, or 0 to stop; "
        "see `forewarn clock speed --help`"
    ),
    "clock speed -1": (
        "Invalid value for 'FACTOR': '-1' is not a factor: write a number such as 60, 1 for real time, or 0 to stop; "
        "see `forewarn clock speed --help`"
    ),
    "restart web --notice 0": (
        "a notice of 0 s is no notice: omit --notice for the default, or add --short-notice to rehearse without notice"
    ),
    "vm run web python3 -c 1": (
        "No such option '-c': options of the program come after `--`; see `forewarn vm run --help`"
    ),
    "vm run web --isolatd -- true": (
        "No such option '--isolatd'. Did you mean '--isolated'? See `forewarn vm run --help`"
    ),
    "restart web --short-notice": "--short-notice needs a length: give it with --notice",
    "power web": ("give VMs, then one of off, start, deallocate, reapply, reimage: forewarn power web start"),
    "power start web": ("give VMs, then one of off, start, deallocate, reapply, reimage: forewarn power web start"),
    "power off web": "give VMs, then one of off, start, deallocate, reapply, reimage: forewarn power web off",
    "resart web": "No such command 'resart'. Did you mean 'restart'? See `forewarn --help`",
    "reboot web": "No such command 'reboot'. Did you mean `forewarn restart VM`? See `forewarn --help`",
    "drain h1": (
        "No such command 'drain'. Did you mean `forewarn rollout start --impact migrate --host HOST`? "
        "See `forewarn --help`"
    ),
    "clock advance -5m": (
        "-5m is negative, and numbers and durations here never are (a clock only moves forward): "
        "leave out the minus sign"
    ),
    "restart web --notice=-5m": (
        "Invalid value for '--notice': '-5m' is negative: give a duration such as 15m, 7d, 1h30m or 90 (seconds); "
        "see `forewarn restart --help`"
    ),
    "frobnicate": "No such command 'frobnicate'; see `forewarn --help`",
    "events --limit 0": "Invalid value for '--limit': 0 is not in the range x>=1; see `forewarn events --help`",
    **dict.fromkeys(
        ("rollout start", "rollout plan", "rollout start --scope db --all-hosts"),
        "a rollout has one target: give one of --host, --all-hosts, --scope, --tag, --location and --everything",
    ),
    "rollout show --watch": "no rollout is named: give the id of one, which `forewarn rollout list` shows",
    "rollout start a.toml --file b.toml": "two rollout files are given, a.toml and b.toml: give only one of them",
}


@pytest.mark.parametrize("typed", USAGE)
def test_bad_arguments_are_refused_without_a_service(command: Any, typed: str) -> None:
    assert command.refused(*typed.split()) == USAGE[typed]


EMPTY = ["restart", "power", "withdraw", "approve", "explain", "fleet add", "fleet show", "rollout pause", "repair"]


@pytest.mark.parametrize("typed", EMPTY)
def test_an_empty_name_is_refused_as_empty(command: Any, typed: str) -> None:
    """Such as an unset variable in a script; the message does not mention the API."""
    assert "the name is empty: give one" in command.refused(*typed.split(), "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_output_to_a_full_disk_fails_without_a_traceback(lab: Any) -> None:
    arguments = [sys.executable, "-m", "forewarn.cli", "--data", str(lab.data), "fleet", "show"]
    with open("/dev/full", "w") as full:
        result = subprocess.run(arguments, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr == "the answer could not be written, the disk is full: free some space and try again\n"


UNKNOWN = [
    "restart nosuch", "redeploy nosuch", "evict nosuch", "delete nosuch", "power nosuch off",
    "perform-maintenance nosuch", "fleet show nosuch", "fleet remove nosuch", "fleet remove-host nosuch",
    "fleet add-host h1 --location westeurope", "fleet add web --location westeurope",
    "rollout start --host nosuch", "rollout start --scope nosuch", "rollout show nosuch", "rollout pause nosuch",
    "rollout resume nosuch", "rollout abort nosuch", "degrade nosuch", "fail nosuch", "repair nosuch",
    "confirm-down nosuch", "confirm-down h1",
    "approve nosuch", "withdraw nosuch", "events --vm nosuch", "events --scope nosuch", "history --event nosuch",
    "explain nosuch", "history prune --older-than 1h", "clock speed 1000000", "perform-maintenance web",
]  # fmt: skip


@pytest.mark.parametrize("typed", UNKNOWN)
def test_a_refusal_of_the_service_is_printed_unchanged(lab: Any, typed: str) -> None:
    """Spec §6.4, §8.4 among others; text and JSON have the same message."""
    before = lab.api.get("history")["seq"]
    sentence = lab.refused(*typed.split())
    assert sentence
    assert "\n" not in sentence
    assert json.loads(lab.refused(*typed.split(), "--json"))["error"]["message"] == sentence
    assert lab.api.get("history")["seq"] == before


def test_a_notice_below_the_minimum_needs_short_notice(lab: Any) -> None:
    """Spec §6.3."""
    assert "short" in lab.refused("restart", "web", "--notice", "1m")
    (event,) = lab.json("restart", "web", "--notice", "1m", "--short-notice")["events"]
    assert parse_time(event["not_before"]) - parse_time(event["published_at"]) == pytest.approx(60, abs=1)


def test_every_guessed_word_leads_to_a_command_that_exists() -> None:
    for guess, meant in _COMMANDS_BY_GUESS.items():
        context = click.Context(forewarn)
        assert forewarn.get_command(context, guess) is None
        command: click.Command | None = forewarn
        for word in meant.split():
            if isinstance(command, click.Group) and word.strip("-").islower():
                command = command.get_command(context, word)
        assert command is not None, meant
