"""Commands for the standing order: visit every host within an interval."""

from __future__ import annotations

from collections.abc import Iterator

import click

from forewarn.base.duration import duration_text
from forewarn.cli.api_client import JsonObject
from forewarn.cli.formatting import count_noun, describe_time
from forewarn.cli.invocation import Invocation, duration, service_command
from forewarn.cli.output import Cell, bold

_MAX_ROWS = 20


@click.group("standing")
def standing_order() -> None:
    """Visit every host within an interval, again and again."""


@standing_order.command("set")
@click.option(
    "--within",
    "within_s",
    type=duration,
    required=True,
    metavar="DURATION",
    help="Visit each host at least once in each such period, such as 30d.",
)
@click.option(
    "--impact",
    type=click.Choice(["update", "migrate", "reboot"]),
    default="update",
    show_default=True,
    help="Choose what is done to each VM.",
)
@click.option(
    "--at-once", type=click.IntRange(1), default=1, show_default=True, metavar="N", help="Visit N hosts at once."
)
@click.option("--window", "windows", multiple=True, metavar="WINDOW", help="Start only in this window; repeatable.")
@click.option(
    "--blackout", "blackouts", multiple=True, metavar="DATES", help="Keep windows closed on these days; repeatable."
)
@click.option("--notice", "notice_s", type=duration, metavar="DURATION", help="Give this much notice.")
@service_command
def set_order(
    call: Invocation,
    within_s: float,
    impact: str,
    at_once: int,
    windows: tuple[str, ...],
    blackouts: tuple[str, ...],
    notice_s: float | None,
) -> None:
    """Visit every host within this time, the longest wait first.

    Each visit is a rollout over one host, within windows and budgets.
    """
    body: JsonObject = {"within_s": within_s, "impact": impact, "at_once": at_once, "notice_s": notice_s or 0}
    body |= {"windows": list(windows), "blackouts": list(blackouts)}
    _print_order(call, call.api.post("rollouts", "standing-order", body=body))


@standing_order.command("show")
@service_command
def show_order(call: Invocation) -> None:
    """Show the standing order, its progress, and which hosts are late."""
    _print_order(call, call.api.get("rollouts", "standing-order"))


@standing_order.command("remove")
@service_command
def remove_order(call: Invocation) -> None:
    """Remove the standing order; visits that are in progress go on."""
    view = call.api.delete("rollouts", "standing-order")
    if call.output.as_json:
        call.output.print_json(view)
    else:
        call.output.print_line("The standing order is removed.")


def _print_order(call: Invocation, view: JsonObject) -> None:
    if call.output.as_json:
        call.output.print_json(view)
        return
    if not view["is_set"]:
        call.output.print_line("There is no standing order. Give one: forewarn rollout standing set --within 30d")
        return
    windows = f", {view['windows']}" if view["windows"] else ""
    call.output.print_line(
        bold("Standing order"), f": {view['impact']} every host within {duration_text(view['within_s'])}{windows}."
    )
    late = f", {view['late']} late" if view["late"] else ""
    call.output.print_line(f"{view['visited']} of {count_noun(view['total'], 'host')} visited in time{late}.")
    if view["warning"]:
        call.output.print_line(bold("Warning"), f": {view['warning']}.")
    call.output.print_table(
        ("host", "state", "last visit", "due", "rollout", "problem"), _rows(call, view, call.api.now())
    )
    if len(view["hosts"]) > _MAX_ROWS:
        call.output.print_note(f"{count_noun(len(view['hosts']) - _MAX_ROWS, 'more host')}: --json shows them")


def _rows(call: Invocation, view: JsonObject, now: float) -> Iterator[list[Cell]]:
    for visit in view["hosts"][:_MAX_ROWS]:
        yield [
            bold(visit["host"]),
            visit["state"],
            "never" if visit["visited_at"] is None else describe_time(visit["visited_at"], now),
            describe_time(visit["due_at"], now),
            call.output.short_id(visit["rollout"]) if visit["rollout"] else "",
            visit["problem"],
        ]
