"""The agent inside a VM: run it, check its file, ask it how things stand, and what it did. Needs the [agent] extra."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from forewarn.agent.config import Config
from forewarn.agent.config import load as load_config
from forewarn.agent.rehearsal import rehearse
from forewarn.agent.table import BadConfig
from forewarn.cli.agentlook import state_of, stories_of
from forewarn.cli.agentview import plan_view, rehearsal_view, show_plan, show_rehearsals, show_state, show_story
from forewarn.cli.connection import Faulty
from forewarn.cli.invocation import Function, Invocation, shown
from forewarn.client import Client

DEFAULT = "/etc/forewarn/agent.toml"
ENV = "FOREWARN_AGENT_CONFIG"


def _config_option(function: Function) -> Function:
    return click.option(
        "--config",
        "file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        envvar=ENV,
        default=DEFAULT,
        help=f"The agent's file.  [env: {ENV}; default: {DEFAULT}]",
    )(function)


@click.group()
def agent() -> None:
    """For use inside a VM: reacts to what is announced to it."""


@agent.command()
@_config_option
@click.option("--endpoint", metavar="URL", help="Where to ask, whatever the file says.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, do and keep nothing.")
@click.option("--once", is_flag=True, help="Look once, do what is due, and end.")
@shown
def run(call: Invocation, file: Path, endpoint: str | None, dry_run: bool, once: bool) -> None:
    """Run the agent, until it is told to stop.

    It hears of maintenance, takes the steps that its file says, approves, and undoes them when the event is gone.
    """
    config = load(file)
    if dry_run:
        _rehearse(call, config, endpoint, once)
    else:
        _become_agent(file, endpoint, once)


def _become_agent(file: Path, endpoint: str | None, once: bool) -> None:
    """The agent gets a process without the command's libraries: it stays for months, and they are half its memory."""
    words = ["-P", "-m", "forewarn.agent", "--config", str(file)]
    words += ["--endpoint", endpoint] if endpoint else []
    words += ["--once"] if once else []
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *words])


def _rehearse(call: Invocation, config: Config, endpoint: str | None, once: bool) -> None:
    client = Client(endpoint or config.endpoint)
    vm = config.vm or client.name()
    for received in [client.events()] if once else client.documents():
        now = client.date or 0.0
        shown_now = [rehearse(event, config.rules, vm, now) for event in received.events]
        if call.screen.as_json:
            call.screen.document({"vm": vm, "now": now, "events": [rehearsal_view(each) for each in shown_now]})
        else:
            show_rehearsals(call, vm, shown_now)


@agent.command()
@click.argument("named", type=click.Path(path_type=Path), metavar="[FILE]", required=False)
@_config_option
@shown
def check(call: Invocation, named: Path | None, file: Path) -> None:
    """Check the agent's file, and show when its steps would begin.

    For each rule: what becomes of its steps with a notice of 15 minutes, 30 seconds and 7 days.
    """
    file = named or file
    config = load(file)
    if call.screen.as_json:
        call.screen.document(plan_view(str(file), config))
    else:
        show_plan(call, str(file), config)


@agent.command()
@_config_option
@click.option("--at", metavar="ADDRESS:PORT", help="Where the agent listens, if its file cannot be read.")
@shown
def status(call: Invocation, file: Path, at: str | None) -> None:
    """Show how things stand.

    The agent is asked, or its journal is read when none is running.
    """
    state = state_of(None if at else load(file), at)
    if call.screen.as_json:
        call.screen.document(state)
    else:
        show_state(call, state)


@agent.command()
@click.argument("event", metavar="EVENT")
@_config_option
@shown
def explain(call: Invocation, event: str, file: Path) -> None:
    """Tell what was done for an event, when and why.

    It stands in the agent's journal. EVENT is an event's id, or the first four or more characters of it.
    """
    stories = stories_of(load(file), event)
    if call.screen.as_json:
        call.screen.document({"stories": stories})
    else:
        for story in stories:
            show_story(call, story)


def load(file: Path) -> Config:
    """The agent's file; whatever is wrong with it is told line by line."""
    try:
        return load_config(file)
    except BadConfig as error:
        problems: list[dict[str, Any]] = [
            {"line": each.line, "what": each.what, "remedy": each.remedy} for each in error.problems
        ]
        faulty = Faulty(str(error), problems)
        faulty.source = str(file)
        raise faulty from error
