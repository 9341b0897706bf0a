"""Commands for rollouts: show, pause, resume, abort and hold them, with a progress bar on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import click
from rich.console import Group, RenderableType
from rich.text import Text

from forewarn.base.wording import scope_name_from_id
from forewarn.cli.api_client import JsonObject
from forewarn.cli.completion import rollout_ids
from forewarn.cli.follow import Snapshot, follow
from forewarn.cli.formatting import (
    count_noun,
    describe_time,
    event_headers,
    event_kind,
    event_row,
    join_names,
    waiting_reason,
)
from forewarn.cli.invocation import CommandFunction, Invocation, service_command
from forewarn.cli.output import Cell, bold, dim, join_text, state_text
from forewarn.cli.request_output import preview_options, show_preview
from forewarn.cli.standing_order import standing_order
from forewarn.errors import Rejected

CommandDecorator = Callable[[CommandFunction], CommandFunction]
rollout_argument = click.argument("rollout_id", metavar="ROLLOUT", shell_complete=rollout_ids)
_PAUSED_BUT_SCHEDULED = (
    "Scheduled events still start when approved or when their notice ends: withdraw them, or abort the rollout."
)


@click.group()
def rollout() -> None:
    """Roll maintenance out over hosts, scopes or VMs."""


rollout.add_command(standing_order)


@rollout.command("list")
@service_command
def list_rollouts(call: Invocation) -> None:
    """List open rollouts and recent ones."""
    _print_rollouts(call, call.api.get("rollouts"))


@rollout.command()
@click.argument("rollout_id", metavar="ROLLOUT", required=False, shell_complete=rollout_ids)
@click.option("--watch", is_flag=True, help="Wait until it is over.")
@service_command
def show(call: Invocation, rollout_id: str | None, watch: bool) -> int:
    """Show one rollout and its events, by id or unique id prefix."""
    if rollout_id is None:
        raise Rejected("no rollout is named: give the id of one, which `forewarn rollout list` shows")
    view = call.api.get("rollouts", rollout_id)
    if watch:
        return wait_for_rollout(call, view["id"])
    print_rollout(call, view)
    return 0


def _add_steering_command(verb: str, text: str, options: CommandDecorator = lambda function: function) -> None:
    @rollout.command(verb, help=text)
    @rollout_argument
    @options
    @service_command
    def change(call: Invocation, rollout_id: str, dry_run: bool = False) -> None:
        if dry_run:
            show_preview(call, call.api.post("rollouts", rollout_id, verb, "preview"))
            return
        view = call.api.post("rollouts", rollout_id, verb)
        if call.output.as_json:
            call.output.print_json(view)
        else:
            call.output.print_line(f"Rollout {call.output.short_id(view['id'])} is ", state_text(view["progress"]), ".")
            call.output.print_line(_progress_line(view))
            if view["progress"] == "paused" and view["tally"]["scheduled"]:
                call.output.print_line(_PAUSED_BUT_SCHEDULED)


_BAR_PARTS = (
    ("done", "green"),
    ("failed", "red"),
    ("withdrawn", "bright_black"),
    ("not_needed", "bright_black"),
    ("started", "cyan"),
    ("scheduled", "yellow"),
    ("waiting", "grey23"),
)


def _progress_line(view: JsonObject) -> Text:
    tally = view["tally"]
    line = join_text(bold(f"{tally['done']} of {tally['total']} done"))
    for name, style in _BAR_PARTS[1:]:
        if tally[name]:
            state = "never started" if name == "waiting" and view["closed"] else name.replace("_", " ")
            line.append_text(join_text(dim(" · "), Text(f"{tally[name]} {state}", style=style.replace("grey23", ""))))
    return line


_add_steering_command("pause", "Pause a rollout; events that are already scheduled go on.")
_add_steering_command("resume", "Resume a paused rollout.")
_add_steering_command("abort", "Abort a rollout, and withdraw its events that have not started.", preview_options)


@rollout.command()
@click.option("--reason", required=True, metavar="TEXT", help="Show this reason to all users.")
@service_command
def hold(call: Invocation, reason: str) -> None:
    """Hold all rollouts, until `lift-hold`.

    Rollouts publish nothing, and none of their events starts without an approval.
    """
    view = call.api.post("rollouts", "hold", body={"reason": reason})
    if call.output.as_json:
        call.output.print_json(view)
        return
    call.output.print_line("All rollouts are on hold. Started events go on; approvals still start events.")
    call.output.print_hints([("forewarn rollout lift-hold", "lift the hold")])


@rollout.command("lift-hold")
@service_command
def lift_hold(call: Invocation) -> None:
    """Lift the hold on all rollouts.

    Events whose notice has ended start.
    """
    view = call.api.post("rollouts", "hold", "lift")
    if call.output.as_json:
        call.output.print_json(view)
    else:
        call.output.print_line("The hold on all rollouts is lifted.")


def _print_hold(call: Invocation, view: JsonObject) -> None:
    if view["hold"]:
        call.output.print_note(f"all rollouts are on hold: {view['hold']}")


def wait_for_rollout(call: Invocation, rollout_id: str) -> int:
    """Follow a rollout until it is over, print the outcome, and return the exit code."""
    printed: list[str] = []

    def take_snapshot() -> Snapshot:
        view = call.api.get("rollouts", rollout_id)
        _print_progress(call, view, printed)
        return Snapshot(view=view, is_over=view["closed"], renderable=_rollout_panel(call, view))

    try:
        view = follow(call, take_snapshot, entries_of={"request": rollout_id}, quiet=True)
    except KeyboardInterrupt:
        call.output.print_note(f"the rollout continues: `forewarn rollout show {rollout_id}` shows its progress")
        raise
    return _print_conclusion(call, view)


def _print_progress(call: Invocation, view: JsonObject, printed: list[str]) -> None:
    line = _progress_line(view).plain
    if not call.output.as_json and not call.output.is_terminal and printed[-1:] != [line]:
        printed.append(line)
        call.output.print_line(line)


def _print_conclusion(call: Invocation, view: JsonObject) -> int:
    print_rollout(call, view)
    if view["progress"] == "completed" and not view["tally"]["failed"]:
        return 0
    why = f": {view['reason']}" if view["reason"] else ""
    call.output.print_error(f"rollout {view['id']} {rollout_state(view).plain}{why}")
    return 1


_BAR_WIDTH = 40
_NO_ROLLOUTS = "There are no rollouts. Start one: forewarn rollout start --all-hosts --impact update"


def bar_cells(counts: list[int], width: int) -> list[int]:
    """Return how many cells of a bar each count gets, in order and in proportion; `width` in all."""
    total = sum(counts)
    if total == 0:
        return [0] * len(counts)
    ends = [round(sum(counts[: index + 1]) * width / total) for index in range(len(counts))]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def progress_bar(tally: JsonObject, width: int = _BAR_WIDTH) -> Text:
    """Return a bar of `width` characters with one colour for each state of a rollout's VMs."""
    text = Text()
    for cells, (_, style) in zip(
        bar_cells([int(tally[name]) for name, _ in _BAR_PARTS], width), _BAR_PARTS, strict=True
    ):
        text.append("━" * cells, style=style)
    return text


def _rollout_panel(call: Invocation, view: JsonObject) -> RenderableType:
    now = call.api.now()
    lines: list[Text] = [rollout_title(call, view), join_text(progress_bar(view["tally"]), "  ", _progress_line(view))]
    lines += [join_text("  ", line) for line in _live_event_lines(view, now)]
    return Group(*lines)


def _live_event_lines(view: JsonObject, now: float) -> Iterator[Text]:
    live = [event for event in view.get("events", ()) if event["status"] != "over"]
    for event in live[:4]:
        head = join_text(
            state_text(event["status"]), f"  update domain {event['update_domain']}: ", join_names(event["vms"], 3)
        )
        yield join_text(head, dim(f"  {_activity(event, now)}"))
    if len(live) > 4:
        yield dim(f"and {count_noun(len(live) - 4, 'more event')}")


def _activity(event: JsonObject, now: float) -> str:
    doing = waiting_reason(event, now) or event_kind(event)
    return f"waits for {doing}" if event["status"] == "scheduled" else doing


def rollout_title(call: Invocation, view: JsonObject) -> Text:
    """Return the heading of a rollout: its id (short on a terminal), impact, targets and state."""
    title = f"Rollout {call.output.short_id(view['id'])}: {view['impact']} over {_targets_text(view)}"
    return join_text(bold(title), "  ", rollout_state(view))


def rollout_state(view: JsonObject) -> Text:
    """Return a rollout's state in its colour, such as `stopped`."""
    failed = view["tally"]["failed"]
    if view["progress"] != "completed" or not failed:
        return state_text(view["progress"])
    return Text(f"completed with {count_noun(failed, 'failed VM')}", style="red")


def _targets_text(view: JsonObject) -> str:
    if not view["hosts"]:
        return scope_name_from_id(view["scope"]) if view["scope"] else str(view["scope_title"])
    return join_names(view["hosts"]) if len(view["hosts"]) <= 3 else count_noun(len(view["hosts"]), "host")


def print_rollout(call: Invocation, view: JsonObject) -> None:
    """Print one rollout, given as the API's view of it; JSON with --json."""
    if call.output.as_json:
        call.output.print_json(view)
        return
    now = call.api.now()
    call.output.print_line(rollout_title(call, view))
    shown_bar = join_text(progress_bar(view["tally"]), "  ") if call.output.is_terminal else ""
    call.output.print_line(shown_bar, _progress_line(view))
    if len(view["waves"]) > 1 and not view["closed"]:
        index = view["wave"] - 1
        size = f", {count_noun(view['wave_vms'][index], 'VM')}" if view["wave_vms"] else ""
        wave = f"{view['wave']} of {len(view['waves'])}: {view['waves'][index]}{size}"
        call.output.print_labelled(join_text("wave  "), wave)
    if view["ends_at"] is not None:
        basis = "at the pace so far" if view["is_at_pace"] else "if nobody approves"
        call.output.print_labelled(join_text("ends  "), f"about {describe_time(view['ends_at'], now)}, {basis}")
    if view["windows"]:
        call.output.print_labelled(join_text("windows  "), view["windows"])
    if view["reason"]:
        call.output.print_labelled(join_text("why  "), view["reason"])
    for wait in view["waits_for"]:
        call.output.print_labelled(join_text("waits  "), wait)
    if view.get("events"):
        call.output.print_line()
        rows = [event_row(event, now, call.output.short_id(event["id"])) for event in view["events"]]
        call.output.print_table(event_headers(view["events"]), rows)
    if not view["closed"]:
        call.output.print_hints(_rollout_hints(call.output.short_id(view["id"]), paused=view["progress"] == "paused"))


def _rollout_hints(shown: str, *, paused: bool) -> list[tuple[str, str]]:
    if paused:
        resume = (f"forewarn rollout resume {shown}", "resume it")
        return [resume, (f"forewarn rollout abort {shown}", "abort it")]
    return [(f"forewarn rollout show {shown} --watch", "follow it"), (f"forewarn rollout pause {shown}", "pause it")]


def _print_rollouts(call: Invocation, page: JsonObject) -> None:
    if call.output.as_json:
        call.output.print_json(page)
    elif page["rollouts"]:
        now = call.api.now()
        _print_hold(call, next((view for view in page["rollouts"] if view["hold"]), page["rollouts"][0]))
        call.output.print_table(
            ("rollout", "impact", "progress", "over", "VMs", "requested", "ends about"), _rollout_rows(call, page, now)
        )
    else:
        call.output.print_line(_NO_ROLLOUTS)


def _rollout_rows(call: Invocation, page: JsonObject, now: float) -> Iterator[list[Cell]]:
    for view in page["rollouts"]:
        shown = bold(call.output.short_id(view["id"]))
        yield [
            shown,
            view["impact"],
            rollout_state(view),
            _targets_text(view),
            _progress_line(view),
            describe_time(view["requested_at"], now),
            describe_time(view["ends_at"], now),
        ]
