"""Prints what a maintenance request leads to: its preview, its events, and the wait for its end."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click
from rich.console import RenderableType
from rich.text import Text

from forewarn.base.wording import scope_name_from_id
from forewarn.cli.api_client import JsonObject
from forewarn.cli.follow import Snapshot, follow
from forewarn.cli.invocation import CommandFunction, Invocation, yes_option
from forewarn.cli.output import (
    EVENT_HEADERS,
    Cell,
    action_noun,
    bold,
    count_noun,
    describe_time,
    dim,
    event_kind,
    event_row,
    failure_reasons,
    join_names,
    join_text,
    posix_seconds,
    status_text,
    waiting_reason,
)

_MAX_EVENTS_SHOWN = 40  # in text; --json shows all

_dry_run_option = click.option("--dry-run", is_flag=True, help="Show what would happen, and change nothing.")


def preview_options(function: CommandFunction) -> CommandFunction:
    """Add --dry-run, as `dry_run`, and --yes to a command whose change the API can preview."""
    return _dry_run_option(yes_option(function))


def confirm_preview(call: Invocation, preview: JsonObject) -> None:
    """Show the preview of a change on a production service, and ask whether to make it."""
    what = preview["confirm"][0].removesuffix(".")
    if call.output.is_terminal:
        _print_preview(call, preview, join_text(f"This would happen on the production service {call.api.location}:"))
    elif not call.output.as_json and sys.stdin.isatty():  # the answer goes to a file, the question to the terminal
        for sentence in preview["confirm"]:
            call.output.print_note(sentence)
    call.confirm("Do it?", what)


def show_preview(call: Invocation, view: JsonObject) -> None:
    """Print the API's preview of a request or rollout, the answer to --dry-run; JSON with --json."""
    if call.output.as_json:
        call.output.print_json(view)
        return
    _print_preview(call, view, join_text(bold("Nothing was changed."), " This would happen:"))


def _print_preview(call: Invocation, view: JsonObject, title: Text) -> None:
    call.output.print_line(title)
    for sentence in view["summary"]:
        call.output.print_labelled(join_text("  "), sentence)
    listed = [event for event in view["events"] if event["listed"]]
    if listed:
        call.output.print_line()
        call.output.print_table(
            ("batch", "kind", "VMs", "update domain", "published", "not before"),
            _preview_rows(listed, posix_seconds(view["now"])),
        )
    if len(listed) > _MAX_EVENTS_SHOWN:
        call.output.print_line(dim(f"and {len(listed) - _MAX_EVENTS_SHOWN} more events; --json shows all"))


def _preview_rows(events: list[JsonObject], now: float) -> Iterator[list[Cell]]:
    for event in events[:_MAX_EVENTS_SHOWN]:
        at = describe_time(event["published_at"], now) if posix_seconds(event["published_at"]) >= now + 1 else "at once"
        yield [
            str(event["batch"]),
            str(event["kind"]),
            join_names(event["vms"]),
            str(event["update_domain"]),
            at,
            describe_time(event["not_before"], now),
        ]


_MAX_EVENTS_IN_FULL = 3
_WAITING_LABELS = {"scheduled": "waits for", "started": "now", "over": "why"}
_IN_PROGRESS, _SUCCEEDED = "in progress", "succeeded"  # states of a request


def show_receipt(call: Invocation, answer: JsonObject) -> None:
    """Print the API's answer to a request: what was accepted, and its events; JSON with --json."""
    if call.output.as_json:
        call.output.print_json(answer)
        return
    request, events = answer["request"], answer["events"]
    title = f"{action_noun(request['operation']).capitalize()} of {join_names(request['targets'])}"
    if not events:
        call.output.print_line(bold(f"{title} is accepted"), f": its events follow; request {request['id']}.")
        call.output.print_hints([("forewarn events", "see them")])
        return
    listed = [event for event in events if event["listed"]]
    call.output.print_line(bold(title), " ", _headline(events, listed))
    show_events(call, answer)


def _headline(events: list[JsonObject], listed: list[JsonObject]) -> str:
    if not listed:
        return "is carried out at once, with no event."
    if len(listed) < len(events):
        return f"leads to {count_noun(len(listed), 'event')}; {len(events) - len(listed)} carried out at once."
    states = {event["status"] for event in listed}
    if states == {"scheduled"}:
        return "is scheduled."
    return "has started." if states == {"started"} else f"leads to {count_noun(len(listed), 'event')}."


def show_events(call: Invocation, answer: JsonObject) -> None:
    """Print up to three events of an answer in full, more as a table, then commands to try next."""
    now, events = call.api.now(), answer["events"]
    if not events:
        return
    if len(events) > _MAX_EVENTS_IN_FULL:
        call.output.print_line()
        call.output.print_table(EVENT_HEADERS, [event_row(e, now, call.output.short_id(e["id"])) for e in events])
    else:
        for event in events:
            call.output.print_line()
            call.output.print_facts(_event_facts(call, event, answer, now))
    _print_hints(call, events)


def _event_facts(call: Invocation, event: JsonObject, answer: JsonObject, now: float) -> Iterator[tuple[str, Cell]]:
    if not event["listed"]:
        yield "VMs", join_names(event["vms"])
        yield "done", join_text(event["verb"], ", ", status_text(event))
        yield "why at once", event["note"] or "this never has an event"
        return
    yield "event", join_text(bold(call.output.short_id(event["id"])), "  ", event_kind(event), "  ", status_text(event))
    yield "VMs", join_names(event["vms"])
    if event["status"] == "scheduled":
        yield "not before", describe_time(event["not_before"], now)
    for old in answer.get("replaced_events", ()):
        if old["id"] in event["replaces"]:
            pending = old["cause"].removeprefix("user ")
            yield "replaces", f"the pending {pending}, event {call.output.short_id(old['id'])}"
    yield ("recipients" if _is_undelivered(event) else "delivered to"), _recipients(event, answer["scopes"])
    if event["note"]:
        yield "note", event["note"]
    if waiting := waiting_reason(event, now):
        yield _WAITING_LABELS[event["status"]], waiting


def _is_undelivered(event: JsonObject) -> bool:
    """Whether no VM has received it yet, and one still may."""
    return event["delivered_at"] is None and event["status"] != "over"


def _recipients(event: JsonObject, scopes: list[JsonObject]) -> str:
    if event["delivered_at"] is None and event["status"] == "over":
        return "no VM"
    scope = next((scope for scope in scopes if scope["id"] == event["scope"]), None)
    if scope is None:
        return "-"
    name = scope_name_from_id(scope["id"])
    if not scope["enabled"]:
        return f"no VM: no client in {name} has polled yet"
    return f"{join_names(scope['vms'])} ({name})" if len(scope["vms"]) > 1 else join_names(scope["vms"])


def _print_hints(call: Invocation, events: list[JsonObject]) -> None:
    pending = [event for event in events if event["status"] == "scheduled"]
    first = (pending or events)[0]
    shown = call.output.short_id(first["id"])
    hints = [(f"forewarn explain {shown}", "what has happened, and why")]
    if pending and _awaits_approval(first):
        hints.append((f"forewarn approve {shown}", "let it start now"))
    call.output.print_hints(hints)


def wait_for_request(call: Invocation, answer: JsonObject) -> int:
    """Follow a request until it is over, and print the outcome; returns 0 if it succeeded, else 1."""
    request_id = answer["request"]["id"]

    def take_snapshot() -> Snapshot:
        view = call.api.get("requests", request_id)
        return Snapshot(
            view=view, is_over=view["state"] != _IN_PROGRESS, renderable=_progress_line(call, view["events"])
        )

    try:
        view = follow(call, take_snapshot, entries_of={"request": request_id})
    except KeyboardInterrupt:
        call.output.print_note(f"the request continues: `forewarn history --request {request_id}` shows its progress")
        raise
    return _print_outcome(call, view)


def _print_outcome(call: Invocation, view: JsonObject) -> int:
    succeeded = view["state"] == _SUCCEEDED
    if call.output.as_json:
        call.output.print_json(view)
    elif succeeded:
        call.output.print_line(Text("Succeeded.", style="green"))
    if succeeded:
        return 0
    reasons = [*view["skipped"], *failure_reasons(view["events"])]
    call.output.print_error(f"the request {_STATE_CLAUSES[view['state']]}: {'; '.join(reasons) or 'see its history'}")
    return 1


_STATE_CLAUSES = {"failed": "failed", "canceled": "was canceled"}


def _progress_line(call: Invocation, events: list[JsonObject]) -> RenderableType:
    now = call.api.now()
    live = [event for event in events if event["status"] != "over"]
    if not live:
        return Text("waiting for its events", style="bright_black")
    first = live[0]
    more = f"  and {count_noun(len(live) - 1, 'more event')}" if len(live) > 1 else ""
    scheduled = first["status"] == "scheduled"
    doing = dim("waits for ") if scheduled else Text()
    line = join_text(
        bold(call.output.short_id(first["id"])),
        "  ",
        status_text(first),
        "  ",
        doing,
        waiting_reason(first, now),
        dim(more),
    )
    approve = f"   forewarn approve {call.output.short_id(first['id'])}"
    return join_text(line, dim(approve)) if scheduled and _awaits_approval(first) else line


def _awaits_approval(event: JsonObject) -> bool:
    """Whether an approval would have an effect: a recommendation has no impact, so nothing starts it."""
    return not event["approved_at"] and event["kind"] != "SpotRebalanceRecommendation"
