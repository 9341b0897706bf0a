"""Commands about the past: `history` shows, follows and prunes it, `explain` says why."""

from __future__ import annotations

import click

from forewarn.cli.api_client import JsonObject
from forewarn.cli.completion import event_ids, explainable_names, scope_ids, vm_names
from forewarn.cli.follow import WATCH_INTERVAL_S, print_entries, wait_for_entries
from forewarn.cli.invocation import Invocation, duration, service_command
from forewarn.cli.output import bold, clock_times, dim, join_text

_NO_HISTORY = "Nothing has happened yet. Begin with `forewarn fleet show`, then `forewarn restart VM`."


@click.group(invoke_without_command=True)
@click.option("--vm", metavar="VM", shell_complete=vm_names, help="Show only entries about this VM.")
@click.option("--event", metavar="EVENT", shell_complete=event_ids, help="Show only entries about this event.")
@click.option("--request", metavar="REQUEST", help="Show only entries about this request or rollout.")
@click.option("--scope", metavar="SCOPE", shell_complete=scope_ids, help="Show only entries about this scope.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    metavar="N",
    default=50,
    show_default=True,
    help="Show at most the last N entries.",
)
@click.option("--watch", is_flag=True, help="Keep running, and show new entries.")
@service_command
def history(
    call: Invocation,
    vm: str | None,
    event: str | None,
    request: str | None,
    scope: str | None,
    limit: int,
    watch: bool,
) -> None:
    """Show what has happened, oldest first."""
    if click.get_current_context().invoked_subcommand is not None:
        return
    given = {"vm": vm, "event": event, "request": request, "scope": scope}
    entries_of = {name: value for name, value in given.items() if value is not None}
    page = call.api.get("history", query={**entries_of, "limit": limit})
    if watch:
        _watch_history(call, page, entries_of)
    elif call.output.as_json:
        call.output.print_json(page)
    elif page["entries"]:
        _print_page(call, page)
    else:
        call.output.print_line("The history has no such entries." if entries_of else _NO_HISTORY)


def _watch_history(call: Invocation, page: JsonObject, entries_of: dict[str, str]) -> None:
    while True:
        _print_page(call, page)
        page = wait_for_entries(call, page["seq"], wait_s=WATCH_INTERVAL_S, entries_of=entries_of)


def _print_page(call: Invocation, page: JsonObject) -> None:
    if call.output.as_json:
        for entry in page["entries"]:
            call.output.print_json(entry)
    elif page["entries"]:
        print_entries(call, page["entries"], call.api.now())


@history.command()
@click.option(
    "--older-than",
    type=duration,
    required=True,
    metavar="DURATION",
    help="Delete entries older than this; at least 1d.",
)
@service_command
def prune(call: Invocation, older_than: float) -> None:
    """Delete old history entries.

    Events, requests and VMs that ended or were removed before then are deleted too, and the space is returned.
    """
    answer = call.api.post("history", "prune", body={"older_than_s": older_than}, timeout_s=600)
    if call.output.as_json:
        call.output.print_json(answer)
    elif answer["pruned"] == 1:
        call.output.print_line("1 entry is deleted.")
    else:
        call.output.print_line(f"{answer['pruned']} entries are deleted.")


@click.command()
@click.argument("thing", metavar="THING", shell_complete=explainable_names)
@service_command
def explain(call: Invocation, thing: str) -> None:
    """Explain what happened to something, why, and what it waits for.

    THING is a VM, an event, a host, a scope (its id, or the name of its set), a rollout or a request.
    """
    explanation = call.api.get("explain", thing)
    if call.output.as_json:
        call.output.print_json(explanation)
        return
    now = call.api.now()
    call.output.print_line(bold(explanation["title"]))
    times = clock_times((line["at"] for line in explanation["lines"] if line.get("at") is not None), now)
    width = max((len(time) for time in times), default=8)
    remaining_times = iter(times)
    for line in explanation["lines"]:
        _print_explanation_line(call, line, "" if line.get("at") is None else next(remaining_times), width)
    if explanation["now"]:
        call.output.print_line()
    for text in explanation["now"]:
        call.output.print_labelled(bold("now  "), text)


def _print_explanation_line(call: Invocation, line: JsonObject, at: str, width: int) -> None:
    call.output.print_labelled(join_text("  ", dim(f"{at:<{width}}"), "  "), line["text"])
    if line.get("detail"):
        call.output.print_labelled(join_text(" " * (width + 4)), dim(line["detail"]))
