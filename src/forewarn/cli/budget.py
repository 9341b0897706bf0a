"""Commands for budgets: limit how many VMs may be out of service at once while rollouts run."""

from __future__ import annotations

from collections.abc import Iterator

import click

from forewarn.cli.api_client import JsonObject
from forewarn.cli.invocation import Invocation, require_server_extra, service_command
from forewarn.cli.output import Cell, bold, count_noun, join_names

_MAX_ROWS = 20  # groups of one budget in a table


@click.group()
def budget() -> None:
    """Limit how many VMs may be out of service at once."""


@budget.command("set")
@click.argument("name", metavar="NAME")
@click.option("--at-most", required=True, metavar="LIMIT", help="Allow this many VMs, such as 2, or a share: 10%.")
@click.option(
    "--per",
    default="everything",
    show_default=True,
    metavar="GROUP",
    help="Count per everything, location, fault-domain, scope or tag:NAME.",
)
@click.option("--location", default="", metavar="LOCATION", help="Count only VMs of this location.")
@click.option("--tag", default="", metavar="NAME=VALUE", help="Count only VMs with this tag.")
@service_command
def set_budget(call: Invocation, name: str, at_most: str, per: str, location: str, tag: str) -> None:
    """Set a budget, in place of one of the same name.

    Rollouts publish no more events than the budget allows. A share is rounded down, but is at least one VM.
    """
    with require_server_extra("budget set"):
        from forewarn.core.budgets import parse_limit

    max_vms, max_percent = parse_limit(at_most)
    body: JsonObject = {"name": name, "max_vms": max_vms, "max_percent": max_percent}
    body |= {"per": per, "location": location, "tag": tag}
    view = call.api.post("budgets", body=body)
    if call.output.as_json:
        call.output.print_json(view)
        return
    call.output.print_line(bold(f"Budget {view['name']}"), f": at most {view['text']}.")
    _print_groups(call, [view])


@budget.command("list")
@service_command
def list_budgets(call: Invocation) -> None:
    """Show the budgets, and how much of each is used."""
    view = call.api.get("budgets")
    if call.output.as_json:
        call.output.print_json(view)
    elif view["budgets"]:
        _print_groups(call, view["budgets"])
    else:
        call.output.print_line("There are no budgets. Set one: forewarn budget set NAME --at-most 10%")


@budget.command("remove")
@click.argument("name", metavar="NAME")
@service_command
def remove_budget(call: Invocation, name: str) -> None:
    """Remove a budget; rollouts that waited for it go on."""
    view = call.api.delete("budgets", name)
    if call.output.as_json:
        call.output.print_json(view)
    else:
        call.output.print_line(f"Budget {view['name']} is removed.")


def _print_groups(call: Invocation, budgets: list[JsonObject]) -> None:
    call.output.print_table(("budget", "at most", "group", "out", "VMs out now"), _rows(budgets))
    hidden = sum(max(0, len(view["groups"]) - _MAX_ROWS) for view in budgets)
    if hidden:
        call.output.print_note(f"{count_noun(hidden, 'more group')} with fewer VMs out: --json shows them")


def _rows(budgets: list[JsonObject]) -> Iterator[list[Cell]]:
    for view in budgets:
        for group in view["groups"][:_MAX_ROWS] or [None]:
            if group is None:
                yield [bold(view["name"]), view["text"], "", "", "no VM is counted"]
                continue
            reserved = f", {group['reserved']} reserved" if group["reserved"] else ""
            used = f"{group['out_of_service']} of {group['limit']}{reserved} ({count_noun(group['vms'], 'VM')})"
            yield [bold(view["name"]), view["text"], group["title"], used, join_names(group["out_of_service_vms"], 3)]
