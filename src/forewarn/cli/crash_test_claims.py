"""The questions of `forewarn crash-test claims --ask`, whose answers make a claims file."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from forewarn.base.tomlfile import BadValue
from forewarn.crash_test.claims import (
    DEFAULT_CLAIMS,
    Approves,
    HandlerClaims,
    HandlerProfile,
    claims_text,
    read_poll_interval,
)
from forewarn.errors import Rejected


def ask_for_claims(profile: HandlerProfile) -> str:
    """Ask on the terminal what the handler does, and return the text of its claims file (TOML)."""
    if not sys.stdin.isatty():
        raise Rejected("--ask needs a terminal: leave it out, and edit the claims file that the command prints")
    default = DEFAULT_CLAIMS[profile]
    click.echo(f"What does the handler do? Enter accepts the default of profile {profile}, in brackets.", err=True)
    claims = HandlerClaims(
        approves=_ask_what_it_approves(default.approves),
        prepares=_confirm("Does it do something before an event starts?", default.prepares),
        recovers=_confirm("Does it restore the application after an event?", default.recovers),
        survives_restart=_confirm("Does it continue correctly after kill -9 or a reboot?", default.survives_restart),
        one_shot=_confirm("Does it exit after an event or one poll, to be started again?", default.one_shot),
        polls_every_s=_ask_poll_interval(default.polls_every_s),
    )
    return claims_text(claims, f"It is for profile {profile}.")


def write_new_file(path: Path, text: str) -> None:
    """Write `text` to a new UTF-8 file; never replaces one."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise Rejected(f"the file {str(path)!r} exists already: give another name, or remove it") from error
    except OSError as error:
        raise Rejected(f"the file {str(path)!r} cannot be written ({error.strerror}): check its path") from error


def _ask_what_it_approves(default: Approves) -> Approves:
    text = "Whose events does it approve: none, its own, or those of all VMs of its scope?"
    choice = click.Choice([item.value for item in Approves])
    return Approves(click.prompt(text, type=choice, default=default.value, show_choices=True, err=True))


def _confirm(question: str, default: bool) -> bool:
    return click.confirm(question, default=default, err=True)


def _ask_poll_interval(default_s: float) -> float:
    """Ask until the answer is a duration that a claims file may have."""

    def read(text: str) -> float:
        try:
            return read_poll_interval({"the answer": text}, "the answer")
        except BadValue as bad:
            raise click.UsageError(f"{bad.what}: write one such as 5s") from bad

    text = "What is the longest time between two polls, when nothing happens?"
    interval: float = click.prompt(text, default=f"{default_s:g}s", value_proc=read, err=True)
    return interval
