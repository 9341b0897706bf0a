"""Commands for rollouts, their health checks, and the standing order to visit every host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Group, RenderableType
from rich.text import Text

from forewarn.base.duration import duration_text
from forewarn.base.times import time_text
from forewarn.base.tomlfile import read_text_file
from forewarn.base.wording import scope_name_from_id
from forewarn.cli.api_client import JsonObject
from forewarn.cli.completion import host_names, rollout_ids, scope_ids
from forewarn.cli.follow import Snapshot, follow
from forewarn.cli.invocation import CommandFunction, Invocation, duration, require_server_extra, service_command
from forewarn.cli.output import (
    Cell,
    Instant,
    bold,
    count_noun,
    describe_time,
    dim,
    event_headers,
    event_kind,
    event_row,
    join_names,
    join_text,
    local_time,
    posix_seconds,
    state_text,
    waiting_reason,
    zone_name,
)
from forewarn.cli.request import short_notice_option, wait_option
from forewarn.cli.request_output import preview_options, show_preview
from forewarn.errors import Rejected

_Command = TypeVar("_Command", bound=Callable[..., Any])


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


_MAX_NAMES_LENGTH = 24  # of the VMs of a wave, in the table

_OPTIONS = (
    click.option(
        "--impact",
        type=click.Choice(["update", "migrate", "reboot"]),
        help="Choose what is done to each VM.  [default: update]",
    ),
    click.option(
        "--host",
        "hosts",
        multiple=True,
        metavar="HOST",
        shell_complete=host_names,
        help="Update this host; repeatable.",
    ),
    click.option("--all-hosts", is_flag=True, help="Update every host of the fleet."),
    click.option(
        "--scope", metavar="SCOPE", shell_complete=scope_ids, help="Update this scope: its id, or a VM or set in it."
    ),
    click.option("--tag", metavar="TAG", help="Update the VMs with this tag: NAME, or NAME=VALUE."),
    click.option("--location", metavar="LOCATION", help="Update the VMs in this location."),
    click.option("--everything", is_flag=True, help="Update all VMs, also those that are added later."),
    click.option("--max-failures", type=click.IntRange(1), metavar="N", help="Stop after N failures.  [default: 1]"),
    click.option("--keep-going", is_flag=True, help="Never stop because of failures."),
    click.option("--canary", metavar="N|tag=TAG", help="Begin with a wave of N VMs, or of the VMs with this tag."),
    click.option(
        "--shares",
        metavar="P,P,…",
        help="Continue with waves of these shares of all VMs, in percent, such as 10,50; then the rest.",
    ),
    click.option(
        "--settle", "settle_s", type=duration, metavar="DURATION", help="Wait this long after each wave, such as 10m."
    ),
    click.option(
        "--window",
        "windows",
        multiple=True,
        metavar="WINDOW",
        help="Start events without an approval only in this window, such as 'sat,sun 02:00 4h Europe/Berlin'; "
        "repeatable.",
    ),
    click.option(
        "--blackout",
        "blackouts",
        multiple=True,
        metavar="DATES",
        help="Keep windows closed on these days, such as 2026-12-24 or 2026-12-24..2026-12-26; repeatable.",
    ),
    click.option(
        "--deadline",
        metavar="TIME",
        help="Start outside of windows from this time on: such as 2026-12-31T22:00Z, or 30d from now.",
    ),
    click.option("--notice", "notice_s", type=duration, metavar="DURATION", help="Give this much notice, such as 20m."),
    short_notice_option,
)


def _rollout_options(command: _Command) -> _Command:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@rollout.command()
@click.argument("path", metavar="[FILE]", required=False, type=click.Path(dir_okay=False))
@_rollout_options
@click.option(
    "--file", "file", type=click.Path(dir_okay=False), metavar="FILE", help="Read the whole rollout from this file."
)
@preview_options
@wait_option
@service_command
def start(call: Invocation, wait: bool, dry_run: bool, path: str | None, file: str | None, **options: Any) -> int:
    """Start a rollout, described by options or by a file."""
    if path is not None and file is not None:
        raise Rejected(f"two rollout files are given, {path} and {file}: give only one of them")
    body = _body(call, path if file is None else file, options)
    if dry_run:
        _print_plan(call, call.api.post("rollouts", "plan", body=body))
        return 0
    view = call.api.post("rollouts", body=body)
    if wait:
        if not call.output.as_json and not call.output.is_terminal:
            call.output.print_line(rollout_title(call, view))  # in a pipe first, so that a reader has the id
        return wait_for_rollout(call, view["id"])
    print_rollout(call, view)
    return 0


@rollout.command("plan")
@click.argument("file", metavar="[FILE]", required=False, type=click.Path(dir_okay=False))
@_rollout_options
@service_command
def plan(call: Invocation, file: str | None, **options: Any) -> None:
    """Show the waves of a rollout, their VMs and times.

    The rollout is described by a file or by options, and is not started.
    """
    _print_plan(call, call.api.post("rollouts", "plan", body=_body(call, file, options)))


def _print_plan(call: Invocation, view: JsonObject) -> None:
    if call.output.as_json:
        call.output.print_json(view)
        return
    call.output.print_line(bold("Nothing was changed."), " This is the plan:")
    sentences = list(view["summary"])
    if view["windows"]:
        sentences.append(f"Events start without an approval only in windows: {view['windows']}.")
    for sentence in sentences:
        call.output.print_labelled(join_text("  "), sentence)
    call.output.print_line()
    now = posix_seconds(view["now"])
    columns = [("begins", "begins_at"), ("over", "over_at"), *([("settled", "settled_at")] if view["settle_s"] else [])]
    zone = zone_name(local_time(now))
    headers = ("wave", "name", "VMs", "times", *(f"{header} ({zone})" for header, _ in columns))
    call.output.print_table(headers, _wave_rows(view, now, [key for _, key in columns]))
    if any(wave["latest"] for wave in view["waves"]):
        call.output.print_line(dim("Earliest: each event is approved at once. Latest: nobody approves."))


def _wave_rows(view: JsonObject, now: float, keys: list[str]) -> Iterator[list[Cell]]:
    """Yield one row per wave if its earliest and latest times read the same or are not known, else two."""
    for wave in view["waves"]:
        rows = [
            (when, [_short_time(wave[when][key], now) for key in keys]) for when in ("earliest", "latest") if wave[when]
        ]
        if len(rows) == 2 and rows[0][1] == rows[1][1]:
            rows = [("both", rows[0][1])]
        head: list[Cell] = [str(wave["number"]), wave["name"], _wave_vms(wave)]
        for when, times in rows or [("", [""] * len(keys))]:
            yield [*head, when, *times]
            head = ["", "", ""]


def _wave_vms(wave: JsonObject) -> str:
    names = ", ".join(wave["vms"])
    if not wave["size"]:
        return "none"
    return f"{wave['size']}: {names}" if len(names) <= _MAX_NAMES_LENGTH else count_noun(wave["size"], "VM")


def _short_time(at: Instant | None, now: float) -> str:
    """Return `at once`, `20:04`, or on another day `Nov 21 01:10`, in local time; "" if it is not known."""
    if at is None:
        return ""
    if posix_seconds(at) < now + 1:
        return "at once"
    then, today = local_time(at), local_time(now)
    if then.date() == today.date():
        return f"{then:%H:%M}"
    return f"{then:%b %d %H:%M}" if then.year == today.year else f"{then:%Y-%m-%d %H:%M}"


def _body(call: Invocation, file: str | None, options: dict[str, Any]) -> dict[str, Any]:
    if options["notice_s"] == 0:
        raise Rejected("a notice of 0 s is no notice: omit --notice for the default, or give a length")
    given = {name: value for name, value in options.items() if value not in (None, False, ())}
    if file is not None:
        if given:
            name = next(iter(given)).removesuffix("_s").replace("_", "-")
            raise Rejected(f"a rollout file describes all of the rollout: give no other option ({name}) beside it")
        return {"file": read_rollout_text(file)}
    if "deadline" in given:
        given["deadline"] = _deadline(call, given["deadline"])
    given |= _failure_limit(given.pop("max_failures", None), given.pop("keep_going", False))
    if "shares" in given:
        given["shares"] = _parse_shares(given["shares"])
    targets = [name for name in ("hosts", "all_hosts", "scope", "tag", "location", "everything") if name in given]
    if len(targets) != 1:
        raise Rejected(
            "a rollout has one target: give one of --host, --all-hosts, --scope, --tag, --location and --everything"
        )
    return given


def _deadline(call: Invocation, text: str) -> str:
    with require_server_extra("rollout start --deadline"):
        from forewarn.core.rollout_file import parse_deadline
    return time_text(parse_deadline(text, call.api.now()))


def read_rollout_text(file: str) -> str:
    """Return the text of a rollout file by its path, unparsed."""
    text = read_text_file(Path(file), "rollout file", "give another")
    if not text.strip():
        raise Rejected(f"{file} is empty: describe the rollout there, beginning with [rollout]")
    return text


def _parse_shares(text: str) -> list[float]:
    try:
        return [float(part.strip().removesuffix("%")) for part in text.split(",")]
    except ValueError:
        raise Rejected(f"{text!r} are not shares: give percentages such as 10,50") from None


def _failure_limit(max_failures: int | None, keep_going: bool) -> dict[str, int]:
    if keep_going and max_failures is not None:
        raise Rejected("--max-failures and --keep-going exclude each other: give only one of them")
    if keep_going:
        return {"max_failures": 0}
    return {} if max_failures is None else {"max_failures": max_failures}


@rollout.command("checks")
@rollout_argument
@click.option("--limit", type=click.IntRange(1, 500), default=20, metavar="N", help="Show at most N measurements.")
@service_command
def checks(call: Invocation, rollout_id: str, limit: int) -> None:
    """Show the health checks of a rollout and what they found."""
    view = call.api.get("rollouts", rollout_id, "checks")
    if call.output.as_json:
        call.output.print_json(view)
        return
    if not view["checks"]:
        call.output.print_line("This rollout has no health checks.")
        return
    if view["progress"] == "paused" and view["reason"]:
        call.output.print_line(bold("It has paused itself: "), view["reason"], ".")
    if view["unclear"]:
        call.output.print_line(bold("It publishes nothing for now: "), view["unclear"], ".")
    now = call.api.now()
    call.output.print_table(
        ("check", "demands", "now", "seen"),
        [
            [check["name"], check["demand"], state_text(check["outcome"] or "not measured"), check["text"]]
            for check in view["checks"]
        ],
    )
    call.output.print_line()
    call.output.print_table(
        ("measured", "wave", "check", "outcome", "seen"),
        [
            [describe_time(m["at"], now), str(m["wave"]), m["check"], state_text(m["outcome"]), m["text"]]
            for m in view["measurements"][-limit:]
        ],
    )


@rollout.command("check")
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False))
@service_command
def check(call: Invocation, file: str) -> int:
    """Try each health check of a rollout file once.

    The rollout is not started.
    """
    view = call.api.post("rollouts", "check", body={"file": read_rollout_text(file)})
    if call.output.as_json:
        call.output.print_json(view)
    else:
        call.output.print_table(
            ("check", "demands", "now", "seen"),
            [[c["name"], c["demand"], state_text(c["outcome"]), c["text"]] for c in view["checks"]],
        )
    return 0 if all(c["outcome"] == "good" for c in view["checks"]) else 1
