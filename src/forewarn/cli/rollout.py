"""Rollouts: platform maintenance over hosts or a scope, update domain by update domain."""

from __future__ import annotations

from typing import Any

import click

from forewarn.cli.connection import View
from forewarn.cli.duration import duration
from forewarn.cli.following import Look, follow
from forewarn.cli.invocation import Invocation, served
from forewarn.cli.preview import dry_run_option, show_preview
from forewarn.cli.request import short_notice_option
from forewarn.cli.rolloutview import panel, progress_line, show_rollout, show_rollouts, state
from forewarn.cli.screen import word
from forewarn.cli.suggestion import host_names, rollout_ids, scope_ids
from forewarn.errors import Rejected

rollout_argument = click.argument("rollout_id", metavar="ROLLOUT", shell_complete=rollout_ids)
_STILL_DUE = (
    "What is scheduled still starts when approved or due: withdraw its events, or abort the rollout, to stop that."
)
_NO_HOSTS = "the fleet has no hosts: add some with `forewarn fleet add-host`, or give --scope"


@click.group()
def rollout() -> None:
    """Roll maintenance out over hosts or a scope."""


@rollout.command()
@click.option(
    "--impact",
    type=click.Choice(["update", "migrate", "reboot"]),
    default="update",
    show_default=True,
    help="What is done to each VM.",
)
@click.option("--host", "hosts", multiple=True, metavar="HOST", shell_complete=host_names, help="Repeat for more.")
@click.option("--all-hosts", is_flag=True, help="Every host of the fleet.")
@click.option("--scope", metavar="SCOPE", shell_complete=scope_ids, help="A scope, by its id or a VM or set in it.")
@click.option(
    "--max-failures",
    type=click.IntRange(1),
    metavar="N",
    help="Stop at the Nth VM that fails.  [default: 1]",
)
@click.option("--keep-going", is_flag=True, help="Never stop, however many VMs fail.")
@click.option("--notice", "notice_s", type=duration, metavar="DURATION", help="Notice to give, such as 20m.")
@short_notice_option
@dry_run_option
@click.option("--wait/--no-wait", default=True, show_default=True, help="Stay until it is over.")
@served
def start(
    call: Invocation,
    hosts: tuple[str, ...],
    all_hosts: bool,
    scope: str | None,
    wait: bool,
    dry_run: bool,
    **options: Any,
) -> int:
    """Start a rollout."""
    body = {name: value for name, value in options.items() if value is not None and value is not False}
    body |= _tolerance(body.pop("max_failures", None), body.pop("keep_going", False))
    body |= _over(call, hosts, all_hosts, scope)
    if dry_run:
        show_preview(call, call.api.post("rollouts", "preview", body=body))
        return 0
    view = call.api.post("rollouts", body=body)
    if wait:
        return _wait(call, view["id"])
    show_rollout(call, view)
    return 0


def _tolerance(max_failures: int | None, keep_going: bool) -> dict[str, int]:
    if keep_going and max_failures is not None:
        raise Rejected("--max-failures and --keep-going exclude each other: say when it stops, or that it never does")
    if keep_going:
        return {"max_failures": 0}
    return {} if max_failures is None else {"max_failures": max_failures}


def _over(call: Invocation, hosts: tuple[str, ...], all_hosts: bool, scope: str | None) -> dict[str, object]:
    if (bool(hosts), all_hosts, scope is not None).count(True) != 1:
        raise Rejected("a rollout is over hosts or over a scope: give one of --host, --all-hosts and --scope")
    if scope is not None:
        return {"scope": scope}
    if hosts:
        return {"hosts": list(hosts)}
    every = [host["name"] for host in call.api.get("fleet")["hosts"]]
    if not every:
        raise Rejected(_NO_HOSTS)
    return {"hosts": every}


@rollout.command()
@click.argument("rollout_id", metavar="[ROLLOUT]", required=False, shell_complete=rollout_ids)
@click.option("--watch", is_flag=True, help="Stay until it is over.")
@served
def show(call: Invocation, rollout_id: str | None, watch: bool) -> int:
    """Show all rollouts, or one; any unique beginning of an id will do."""
    if rollout_id is None:
        if watch:
            raise Rejected("no rollout is named to watch: see `forewarn rollout show`, then name one")
        show_rollouts(call, call.api.get("rollouts"))
        return 0
    view = call.api.get("rollouts", rollout_id)
    if watch:
        return _wait(call, view["id"])
    show_rollout(call, view)
    return 0


def _command(verb: str, text: str) -> None:
    @rollout.command(verb, help=text)
    @rollout_argument
    @served
    def change(call: Invocation, rollout_id: str) -> None:
        view = call.api.post("rollouts", rollout_id, verb)
        if call.screen.as_json:
            call.screen.document(view)
        else:
            call.screen.say(f"Rollout {call.screen.short(view['id'])} is ", word(view["progress"]), ".")
            call.screen.say(progress_line(view))
            if view["progress"] == "paused" and view["tally"]["scheduled"]:
                call.screen.say(_STILL_DUE)


_command("pause", "Publish nothing more for now; what is pending goes on.")
_command("resume", "Go on with a paused rollout.")
_command("abort", "End a rollout: what has not started is withdrawn.")


def _wait(call: Invocation, rollout_id: str) -> int:
    """Until nothing of it is left; interrupting the waiting does not interrupt the rollout."""
    told: list[str] = []

    def look() -> Look:
        view = call.api.get("rollouts", rollout_id)
        _tell_progress(call, view, told)
        return Look(view=view, over=view["closed"], shows=panel(call, view))

    try:
        view = follow(call, look, about={"request": rollout_id}, quiet=True)
    except KeyboardInterrupt:
        call.screen.note(f"the rollout goes on: `forewarn rollout show {rollout_id}` shows how far it is")
        raise
    return _conclude(call, view)


def _tell_progress(call: Invocation, view: View, told: list[str]) -> None:
    """In a pipe, one line per change takes the place of the bar."""
    line = progress_line(view).plain
    if not call.screen.as_json and not call.screen.is_terminal and told[-1:] != [line]:
        told.append(line)
        call.screen.say(line)


def _conclude(call: Invocation, view: View) -> int:
    show_rollout(call, view)
    if view["progress"] == "completed" and not view["tally"]["failed"]:
        return 0
    why = f": {view['why']}" if view["why"] else ""
    call.screen.complain(f"rollout {view['id']} {state(view).plain}{why}")
    return 1
