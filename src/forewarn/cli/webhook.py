"""Webhooks: who outside is told what happens to events."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from forewarn.cli.connection import View
from forewarn.cli.duration import span
from forewarn.cli.group import group_id
from forewarn.cli.instant import when
from forewarn.cli.invocation import Invocation, served
from forewarn.cli.private import read_secret
from forewarn.cli.screen import Cell, faint, joined, strong
from forewarn.cli.suggestion import webhook_ids
from forewarn.cli.wording import over
from forewarn.errors import Rejected

_SCHEMAS = ("eventgrid", "cloudevents")
_HAPPENINGS = ("Scheduled", "Started", "Completed", "Canceled")
_SHORT = 8
id_argument = click.argument("webhook_id", metavar="WEBHOOK", shell_complete=webhook_ids)


@click.group()
def webhook() -> None:
    """Tell programs outside what happens to events."""


@webhook.command("add")
@click.argument("url", metavar="URL")
@click.option("--schema", type=click.Choice(_SCHEMAS), default="eventgrid", show_default=True, help="Form of the body.")
@click.option("--over", "resource", metavar="RESOURCE", help="Only VMs within this: a resource id, a VM or a set.")
@click.option("--over-group", metavar="GROUP", help="Only VMs of this resource group.")
@click.option(
    "--happening",
    "happenings",
    type=click.Choice(_HAPPENINGS, case_sensitive=False),
    multiple=True,
    help="Only this; repeat for more.",
)
@click.option("--opted-in-only", is_flag=True, help="Only VMs whose policy publishes outside.")
@click.option(
    "--secret-file", type=click.Path(path_type=Path), metavar="FILE", help="Sign with this; else one is made."
)
@click.option("--validate", is_flag=True, help="Add it only if the receiver agrees, by the handshake of its schema.")
@click.option("--from-start", is_flag=True, help="Tell the history from its beginning, not from now on.")
@served
def add_webhook(
    call: Invocation,
    url: str,
    schema: str,
    resource: str | None,
    over_group: str | None,
    happenings: tuple[str, ...],
    opted_in_only: bool,
    secret_file: Path | None,
    validate: bool,
    from_start: bool,
) -> None:
    """Tell URL what happens to events, from now on.

    Each delivery is signed.
    """
    body: View = {"url": url, "schema": schema, "over": _within(call, resource, over_group)}
    body |= {"happenings": list(happenings)}
    body |= {"opted_in_only": opted_in_only, "validate": validate, "from_start": from_start}
    if secret_file is not None:
        body["secret"] = read_secret(secret_file)
    _show_added(call, call.api.post("webhooks", body=body), is_made=secret_file is None)


def _within(call: Invocation, resource: str | None, group: str | None) -> str:
    if resource is not None and group is not None:
        raise Rejected("say over what once: give --over RESOURCE or --over-group GROUP")
    return resource or "/" if group is None else group_id(call, group)


def _show_added(call: Invocation, view: View, *, is_made: bool) -> None:
    if call.screen.as_json:
        call.screen.document(view)
        return
    short = view["id"][:_SHORT]
    call.screen.say(strong(f"Webhook {short}"), f" is told what happens to {_over(view)}.")
    if is_made:
        call.screen.say("Its secret, which is not shown again: ", strong(view["secret"]))
    call.screen.hints(
        [(f"forewarn webhook test {short}", "send a test message"), ("forewarn webhook list", "how telling it goes")]
    )


@webhook.command("list")
@served
def list_webhooks(call: Invocation) -> None:
    """Show who is told, and how that goes."""
    view = call.api.get("webhooks")
    if call.screen.as_json:
        call.screen.document(view)
    elif view["webhooks"]:
        _show_all(call, view["webhooks"])
    else:
        call.screen.say("There is no webhook. `forewarn webhook add URL` adds one.")


def _show_all(call: Invocation, webhooks: Sequence[View]) -> None:
    now, length = call.api.now(), _distinct(webhooks)
    headers = ("webhook", "receiver", "is told", "pending", "how it goes", "added")
    call.screen.table(headers, [_row(view, now, length) for view in webhooks])


def _distinct(webhooks: Sequence[View]) -> int:
    """How much of the ids tells them apart."""
    ids = [view["id"] for view in webhooks]
    return next((n for n in range(_SHORT, 36) if len({id_[:n] for id_ in ids}) == len(ids)), 36)


def _row(view: View, now: float, length: int) -> list[Cell]:
    pending = f"{view['pending']}{'+' if view['pending_at_least'] else ''}"
    return [
        strong(view["id"][:length]),
        view["url"],
        joined(_told(view), faint(f" ({view['schema']})")),
        pending,
        _course(view),
        when(view["at"], now),
    ]


def _told(view: View) -> str:
    happenings = "all" if len(view["happenings"]) == len(_HAPPENINGS) else ", ".join(view["happenings"])
    return f"{happenings} of {_over(view)}"


def _over(view: View) -> str:
    vms = "VMs that opted in" if view["opted_in_only"] else "all VMs"
    return vms if view["over"] == "/" else f"{vms} within {over(view['over'])}"


def _course(view: View) -> str:
    if view["failures"]:
        tries = f"failed {view['failures']} time{'s' if view['failures'] > 1 else ''}"
        again = "now" if view["next_try_in_s"] is None else f"in {span(view['next_try_in_s'])}"
        return f"{tries}: {view['error']}; next try {again}"
    return "-" if view["told_ago_s"] is None else f"told {span(view['told_ago_s'])} ago"


@webhook.command("remove")
@id_argument
@served
def remove_webhook(call: Invocation, webhook_id: str) -> None:
    """Tell it nothing more; what is pending for it is dropped."""
    view = call.api.delete("webhooks", webhook_id)
    if call.screen.as_json:
        call.screen.document(view)
    else:
        dropped = f"; {view['pending']} pending for it are dropped" if view["pending"] else ""
        call.screen.say(f"Webhook {view['id'][:_SHORT]} ({view['url']}) is removed{dropped}.")


@webhook.command("test")
@id_argument
@served
def test_webhook(call: Invocation, webhook_id: str) -> int:
    """Send it one test message, and show the answer."""
    view = call.api.post("webhooks", webhook_id, "test")
    if call.screen.as_json:
        call.screen.document(view)
    elif view["ok"]:
        call.screen.say(f"Webhook {view['id'][:_SHORT]} took the test message: {view['text']}.")
    else:
        call.screen.complain(f"webhook {view['id'][:_SHORT]} did not take the test message: {view['text']}")
    return 0 if view["ok"] else 1
