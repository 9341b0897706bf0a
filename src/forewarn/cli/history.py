"""The history: who asked for what, what followed, and why."""

from __future__ import annotations

import click

from forewarn.cli.connection import View
from forewarn.cli.duration import duration
from forewarn.cli.following import WATCH_TICK_S, news, tell_entries
from forewarn.cli.invocation import Invocation, served
from forewarn.cli.suggestion import event_ids, scope_ids, vm_names

_NONE = "Nothing has happened yet. Begin with `forewarn fleet show`, then `forewarn restart VM`."


@click.group(invoke_without_command=True)
@click.option("--vm", metavar="VM", shell_complete=vm_names, help="Only about this VM.")
@click.option("--event", metavar="EVENT", shell_complete=event_ids, help="Only about this event.")
@click.option("--request", metavar="REQUEST", help="Only about this request or rollout.")
@click.option("--scope", metavar="SCOPE", shell_complete=scope_ids, help="Only about this scope.")
@click.option("--limit", type=click.IntRange(1), metavar="N", default=50, show_default=True, help="The latest so many.")
@click.option("--watch", is_flag=True, help="Stay, and show what happens.")
@served
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
    about = {name: value for name, value in given.items() if value is not None}
    page = call.api.get("history", query={**about, "limit": limit})
    if watch:
        _watch(call, page, about)
    elif call.screen.as_json:
        call.screen.document(page)
    elif page["entries"]:
        _show(call, page)
    else:
        call.screen.say("Nothing in the history is about that." if about else _NONE)


def _watch(call: Invocation, page: View, about: dict[str, str]) -> None:
    while True:
        _show(call, page)
        page = news(call, page["seq"], wait_s=WATCH_TICK_S, about=about)


def _show(call: Invocation, page: View) -> None:
    if call.screen.as_json:
        for entry in page["entries"]:
            call.screen.document(entry)
    elif page["entries"]:
        tell_entries(call, page["entries"], call.api.now())


@history.command()
@click.option("--older-than", type=duration, required=True, metavar="DURATION", help="At least 1d.")
@served
def prune(call: Invocation, older_than: float) -> None:
    """Forget entries older than that."""
    answer = call.api.post("history", "prune", body={"older_than_s": older_than}, patience_s=600)
    if call.screen.as_json:
        call.screen.document(answer)
    elif answer["pruned"] == 1:
        call.screen.say("1 entry is forgotten.")
    else:
        call.screen.say(f"{answer['pruned']} entries are forgotten.")
