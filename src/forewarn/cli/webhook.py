"""Commands for webhooks: add, list, remove and test the receivers of event notifications."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from forewarn.base.duration import format_duration
from forewarn.cli.api_client import JsonObject
from forewarn.cli.completion import webhook_ids
from forewarn.cli.credentials import read_secret_file
from forewarn.cli.invocation import Invocation, service_command
from forewarn.cli.output import Cell, bold, count_noun, describe_resource, describe_time, dim, join_text
from forewarn.errors import Rejected

_SCHEMAS = ("eventgrid", "cloudevents")
_NOTIFICATION_KINDS = ("Scheduled", "Started", "Completed", "Canceled")
_SHORT_ID_LENGTH = 8
id_argument = click.argument("webhook_id", metavar="WEBHOOK", shell_complete=webhook_ids)


@click.group()
def webhook() -> None:
    """Notify other programs of what happens to events and rollouts."""


@webhook.command("add")
@click.argument("url", metavar="URL")
@click.option(
    "--schema", type=click.Choice(_SCHEMAS), default="eventgrid", show_default=True, help="Send bodies in this schema."
)
@click.option("--over", "resource", metavar="RESOURCE", help="Notify only of VMs in this: a resource id, VM or set.")
@click.option("--over-group", metavar="GROUP", help="Notify only of VMs in this resource group.")
@click.option(
    "--status",
    "statuses",
    type=click.Choice(_NOTIFICATION_KINDS, case_sensitive=False),
    multiple=True,
    help="Notify only of this; repeatable.",
)
@click.option("--opted-in-only", is_flag=True, help="Notify only of VMs whose policy publishes events.")
@click.option(
    "--rollouts/--no-rollouts", default=None, help="Notify of rollouts too.  [default: only without a filter]"
)
@click.option(
    "--secret-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Sign with the secret in this file.  [default: a new one]",
)
@click.option("--validate", is_flag=True, help="Add it only if the receiver answers the schema's handshake.")
@click.option("--from-start", is_flag=True, help="Send the whole history first, not only what happens from now on.")
@service_command
def add_webhook(
    call: Invocation,
    url: str,
    schema: str,
    resource: str | None,
    over_group: str | None,
    statuses: tuple[str, ...],
    opted_in_only: bool,
    rollouts: bool | None,
    secret_file: Path | None,
    validate: bool,
    from_start: bool,
) -> None:
    """Notify URL of what happens to events and rollouts, from now on.

    Each delivery is signed.
    """
    body: JsonObject = {"url": url, "schema": schema, "resource": _resource_filter(resource, over_group)}
    body |= {"statuses": list(statuses)}
    body |= {"opted_in_only": opted_in_only, "rollouts": rollouts, "validate": validate, "from_start": from_start}
    if secret_file is not None:
        body["secret"] = read_secret_file(secret_file)
    _print_added(call, call.api.post("webhooks", body=body), is_made=secret_file is None)


def _resource_filter(resource: str | None, group: str | None) -> str:
    if resource is not None and group is not None:
        raise Rejected("--over and --over-group exclude each other: give only one of them")
    return resource or "/" if group is None else f"group:{group}"


def _print_added(call: Invocation, view: JsonObject, *, is_made: bool) -> None:
    if call.output.as_json:
        call.output.print_json(view)
        return
    short = view["id"][:_SHORT_ID_LENGTH]
    also = ", and of rollouts" if view["rollouts"] else ""
    call.output.print_line(bold(f"Webhook {short}"), f" is notified of events of {_resources_text(view)}{also}.")
    if is_made:
        call.output.print_line("Its secret, which is not shown again: ", bold(view["secret"]))
    call.output.print_hints(
        [(f"forewarn webhook test {short}", "send a test message"), ("forewarn webhook list", "show its deliveries")]
    )


@webhook.command("list")
@service_command
def list_webhooks(call: Invocation) -> None:
    """Show the webhooks, and the state of their deliveries."""
    view = call.api.get("webhooks")
    if call.output.as_json:
        call.output.print_json(view)
    elif view["webhooks"]:
        _print_webhooks(call, view["webhooks"])
    else:
        call.output.print_line("There are no webhooks. Add one with `forewarn webhook add URL`.")


def _print_webhooks(call: Invocation, webhooks: Sequence[JsonObject]) -> None:
    now, length = call.api.now(), _distinct_id_length(webhooks)
    headers = ("webhook", "receiver", "notified of", "pending", "deliveries", "added")
    call.output.print_table(headers, [_webhook_row(view, now, length) for view in webhooks])


def _distinct_id_length(webhooks: Sequence[JsonObject]) -> int:
    """The shortest length, from 8, at which the ids differ."""
    ids = [view["id"] for view in webhooks]
    return next((n for n in range(_SHORT_ID_LENGTH, 36) if len({id_[:n] for id_ in ids}) == len(ids)), 36)


def _webhook_row(view: JsonObject, now: float, length: int) -> list[Cell]:
    pending = f"{view['pending']}{'+' if view['pending_at_least'] else ''}"
    return [
        bold(view["id"][:length]),
        view["url"],
        join_text(_notifications_text(view), dim(f" ({view['schema']})")),
        pending,
        _delivery_state(view),
        describe_time(view["created_at"], now),
    ]


def _notifications_text(view: JsonObject) -> str:
    statuses = "all" if len(view["statuses"]) == len(_NOTIFICATION_KINDS) else ", ".join(view["statuses"])
    return f"{statuses} of {_resources_text(view)}" + (", and rollouts" if view["rollouts"] else "")


def _resources_text(view: JsonObject) -> str:
    vms = "VMs that opted in" if view["opted_in_only"] else "all VMs"
    return vms if view["resource"] == "/" else f"{vms} within {describe_resource(view['resource'])}"


def _delivery_state(view: JsonObject) -> str:
    if view["failures"]:
        tries = f"failed {view['failures']} time{'s' if view['failures'] > 1 else ''}"
        again = "now" if view["next_attempt_in_s"] is None else f"in {format_duration(view['next_attempt_in_s'])}"
        return f"{tries}: {view['error']}; next attempt {again}"
    return (
        "-"
        if view["last_delivery_ago_s"] is None
        else f"last delivered {format_duration(view['last_delivery_ago_s'])} ago"
    )


@webhook.command("remove")
@id_argument
@service_command
def remove_webhook(call: Invocation, webhook_id: str) -> None:
    """Remove a webhook; its pending messages are dropped."""
    view = call.api.delete("webhooks", webhook_id)
    if call.output.as_json:
        call.output.print_json(view)
    else:
        dropped = f"; {count_noun(view['pending'], 'pending message')} dropped" if view["pending"] else ""
        call.output.print_line(f"Webhook {view['id'][:_SHORT_ID_LENGTH]} ({view['url']}) is removed{dropped}.")


@webhook.command("test")
@id_argument
@service_command
def test_webhook(call: Invocation, webhook_id: str) -> int:
    """Send it one test message, and show the answer."""
    view = call.api.post("webhooks", webhook_id, "test")
    if call.output.as_json:
        call.output.print_json(view)
    elif view["ok"]:
        call.output.print_line(f"Webhook {view['id'][:_SHORT_ID_LENGTH]} accepted the test message: {view['text']}.")
    else:
        call.output.print_error(
            f"webhook {view['id'][:_SHORT_ID_LENGTH]} did not accept the test message: {view['text']}"
        )
    return 0 if view["ok"] else 1
