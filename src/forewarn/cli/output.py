"""Prints answers: tables and colours on a terminal, plain text in a pipe, JSON with --json.

Control characters in text from elsewhere never reach the terminal.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import click
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from forewarn.base.duration import format_duration
from forewarn.base.times import parse_time
from forewarn.base.wording import first_names
from forewarn.cli.api_client import JsonObject

Cell = str | Text  # a table cell or value: plain text, or text with a style
_SHORT_ID_LENGTH = 8
_UNBREAKABLE_PIECE = re.compile(r"\([^)]*\)|(?:[-\d]{10} )?\d\d:\d\d:\d\d \S+|\S+")
_COLUMN_GAP = 2  # blanks between the columns of a table

STATE_STYLES = {  # state in lower case → style of rich
    **dict.fromkeys(
        ("scheduled", "paused", "waiting", "degraded", "published", "requested", "unclear", "error"), "yellow"
    ),
    **dict.fromkeys(("started", "running", "approved", "released"), "cyan"),
    **dict.fromkeys(("finished", "succeeded", "completed", "healthy", "performed", "good"), "green"),
    **dict.fromkeys(("failed", "stopped", "aborted", "gone", "bad"), "red"),
    **dict.fromkeys(("over", "withdrawn", "not needed", "skipped"), "bright_black"),
}


def without_control_characters(text: object) -> str:
    """Return `str(text)` with U+FFFD in place of each unprintable character except line feeds."""
    return "".join(char if char.isprintable() or char == "\n" else "\ufffd" for char in str(text))


def state_text(text: object) -> Text:
    """Return a state such as `scheduled`, spelled as given, in its colour from STATE_STYLES."""
    return Text(without_control_characters(text), style=STATE_STYLES.get(str(text).lower(), ""))


def dim(text: object) -> Text:
    """Return the text in grey, for what matters less; control characters are replaced."""
    return Text(without_control_characters(text), style="bright_black")


def bold(text: object) -> Text:
    """Return the text in bold; control characters are replaced."""
    return Text(without_control_characters(text), style="bold")


def join_text(*parts: object) -> Text:
    """Return the pieces joined into one Text, without a separator; each Text keeps its own style."""
    line = Text()
    for part in parts:
        line.append_text(part if isinstance(part, Text) else Text(without_control_characters(part)))
    return line


class Output:
    """Prints the answers of one command to stdout, and errors to stderr."""

    def __init__(self, *, as_json: bool = False, program: str = "forewarn") -> None:
        self.as_json = as_json
        self._command_prefix = program  # takes the place of `forewarn` in hints
        self.stdout = Console(markup=False, highlight=False, emoji=False)
        self.stderr = Console(stderr=True, markup=False, highlight=False, emoji=False)

    @property
    def is_terminal(self) -> bool:
        """Whether a person reads the answer: stdout is a terminal, and --json was not given."""
        return self.stdout.is_terminal and not self.as_json

    def short_id(self, long_id: object) -> str:
        """Return the first 8 characters of an id on a terminal; the whole id in a pipe and with --json."""
        return str(long_id)[:_SHORT_ID_LENGTH] if self.is_terminal else str(long_id)

    def print_json(self, view: Any) -> None:
        """Print a value to stdout as JSON on one line, so that watching commands can print one per line."""
        click.echo(json.dumps(view, ensure_ascii=False, separators=(",", ":")))

    def print_line(self, *parts: object) -> None:
        """Print pieces, each in its own style, as one line of text to stdout; without pieces an empty line."""
        self.stdout.print(join_text(*parts), soft_wrap=not self.is_terminal)

    def print_error(self, message: object, *, code: str = "Failed", problems: Sequence[Any] = ()) -> None:
        """Print an error to stderr: the message in red, or with --json the document `{"error": {…}}`."""
        if self.as_json:
            error = {"code": code, "message": str(message), **({"problems": list(problems)} if problems else {})}
            click.echo(json.dumps({"error": error}, ensure_ascii=False, separators=(",", ":")), err=True)
        else:
            self.print_note(message)

    def print_note(self, message: object) -> None:
        """Print a remark for people to stderr, in red, as text also with --json."""
        self.stderr.print(Text(without_control_characters(message), style="red"), soft_wrap=True)

    def print_table(self, headers: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
        """Print a table to stdout as text, with the headers in capitals; without rows, only the headers."""
        cells = [
            [cell if isinstance(cell, Text) else Text(without_control_characters(cell)) for cell in row] for row in rows
        ]
        if self.is_terminal:
            self.stdout.print(build_table(headers, cells, self.stdout.width))
        else:
            for line in _align_columns([[Text(header.upper()) for header in headers], *cells]):
                click.echo(line)

    def print_facts(self, pairs: Iterable[tuple[str, Cell]]) -> None:
        """Print names, in grey, and values to stdout, one indented pair per line, the values in one column."""
        listed = list(pairs)
        width = max((len(name) for name, _ in listed), default=0)
        for name, value in listed:
            self.print_labelled(join_text("  ", dim(f"{name:<{width}}"), "  "), value)

    def print_labelled(self, label: Text, value: Cell) -> None:
        """Print a text beside its label to stdout, with nothing in between."""
        if not self.is_terminal:
            self.print_line(label, value)
            return
        if " " not in str(value):
            self.stdout.print(join_text(label, value), soft_wrap=True)  # an address: unbroken, to be copied
            return
        grid = Table.grid()
        grid.add_column(width=label.cell_len)
        grid.add_column(overflow="fold")
        grid.add_row(label, join_text(value))
        self.stdout.print(grid)

    def print_hints(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Print an empty line, then commands to try next, to stdout: pairs of a command and what it does."""
        listed = [(self._with_command_prefix(command), use) for command, use in pairs]
        width = max((len(command) for command, _ in listed), default=0)
        self.print_line()
        if width + max((len(use) for _, use in listed), default=0) + 4 > self.stdout.width:
            for command, use in listed:
                self.print_line("  ", dim(use))
                self.stdout.print(join_text("    ", bold(command)), soft_wrap=True)  # unbroken, to be copied
            return
        for command, use in listed:
            self.print_line("  ", bold(f"{command:<{width}}"), "  ", dim(use))

    def _with_command_prefix(self, command: str) -> str:
        return re.sub(r"(^|(?<=\$\())forewarn\b", lambda _: self._command_prefix, command)


def build_table(headers: Sequence[str], rows: Iterable[Sequence[Cell]], width: int) -> Table:
    """Return a table of rich, headers in capitals, for a terminal of this width in characters."""
    table = Table(box=None, pad_edge=False, padding=(0, _COLUMN_GAP, 0, 0), header_style="bright_black")
    listed = list(rows)
    columns = list(zip(headers, *([str(cell) for cell in row] for row in listed), strict=True))
    fixed: list[int | None] = [*column_widths(columns, width)] or [None] * len(headers)
    for header, columns_width in zip(headers, fixed, strict=True):
        table.add_column(header.upper(), overflow="fold", width=columns_width)
    for row in listed:
        table.add_row(*row)
    return table


def column_widths(columns: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return widths of table columns that break cells only between pieces; [] if the pieces do not fit."""
    least = [
        max(cell_len(piece) for text in column for piece in _UNBREAKABLE_PIECE.findall(text) or [""])
        for column in columns
    ]
    spare = width - sum(least) - _COLUMN_GAP * (len(least) - 1)
    if spare < 0:
        return []
    lacks = [max(map(cell_len, column)) - at_least for column, at_least in zip(columns, least, strict=True)]
    for index, lack in enumerate(lacks):
        if lack <= spare:
            least[index], spare, lacks[index] = least[index] + lack, spare - lack, 0
    neediest = lacks.index(max(lacks))
    least[neediest] += min(spare, lacks[neediest])
    return least


def _align_columns(rows: Sequence[Sequence[Text]]) -> list[str]:
    widths = [max(cell.cell_len for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.plain + " " * (width - cell.cell_len) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def discard_unwritable_output() -> None:
    """Flush stdout and stderr; redirect one that cannot be written, with what it buffers, to /dev/null."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


# Formats API answers as text: times, names, counts, events and history entries. Pure.

Instant = float | str  # POSIX seconds, or the text of a time in an answer


def posix_seconds(at: Instant) -> float:
    """Return a time in POSIX seconds."""
    return parse_time(at) if isinstance(at, str) else at


def local_time(at: Instant) -> datetime:
    """Return a time as a datetime in this machine's time zone."""
    return datetime.fromtimestamp(posix_seconds(at)).astimezone()


def zone_name(at: datetime) -> str:
    """Return the name of a time's zone: `CET`, or `UTC+03` for a zone without a name."""
    name = at.tzname() or "UTC"
    return f"UTC{name}" if name[0] in "+-" else name


def clock_time(at: Instant, now: Instant, *, dated: bool = False) -> str:
    """Return the local time of day, `12:00:05 CET`, or `2026-03-01 12:00:05 CET` if its date is not today's."""
    try:
        shown, today = local_time(at), local_time(now).date()
    except (ValueError, OverflowError, OSError):
        return "never"
    day = f"{shown:%Y-%m-%d} " if shown.date() != today or dated else ""
    return f"{day}{shown:%H:%M:%S} {zone_name(shown)}"


def clock_times(ats: Iterable[Instant], now: Instant) -> list[str]:
    """Return the local times of one column, `12:00:05 CET`, in the same order, all with or without a date."""
    listed = list(ats)
    plain = [clock_time(at, now) for at in listed]
    alike = len({text.count(" ") for text in plain if text != "never"}) <= 1
    return plain if alike else [clock_time(at, now, dated=True) for at in listed]


def relative_time(at: Instant, now: Instant, *, units: int = 2) -> str:
    """Return how far `at` is from `now`: `in 5m 3s`, `2h ago`, or `now` if less than 1 s."""
    left_s = posix_seconds(at) - posix_seconds(now)
    if abs(left_s) < 1:
        return "now"
    far = " ".join(format_duration(abs(left_s)).split()[:units])
    return f"in {far}" if left_s > 0 else f"{far} ago"


def describe_time(at: Instant | None, now: Instant, *, units: int = 2) -> str:
    """Return a time as `12:00:05 CET (in 5m)`: the local time, and how far it is; `-` for None."""
    return "-" if at is None else f"{clock_time(at, now)} ({relative_time(at, now, units=units)})"


MAX_NAMES_SHOWN = 5
_DEFAULT_SUBSCRIPTION = "00000000-0000-0000-0000-000000000001"  # of fleets that name none
_RESOURCE_TYPES = {
    "virtualMachines": "VM",
    "virtualMachineScaleSets": "scale set",
    "availabilitySets": "availability set",
    "cloudServices": "cloud service",
}
_ENTRIES_WITH_ACTOR = frozenset(
    {"requested", "approved", "withdrawn", "paused", "resumed", "stopped", "fleet", "host", "clock", "fault", "webhook"}
)


def join_names(listed: Sequence[str], most: int = MAX_NAMES_SHOWN) -> str:
    """Return the first `most` names, then how many more: `a, b, c and 97 more`; `-` for none."""
    return first_names(listed, most) or "-"


def count_noun(count: int, thing: str, things: str = "") -> str:
    """Return the count with its noun: `1 event`, `0 events`."""
    return f"{count} {thing}" if count == 1 else f"{count} {things or f'{thing}s'}"


def action_noun(verb: str) -> str:
    """Return the noun of a request's verb, for texts such as `eviction of web`."""
    return "eviction" if verb == "evict" else verb


def describe_resource(resource: str) -> str:
    """Return a resource id in words, such as `VM web-0 of resource group lab`; unknown forms unchanged."""
    if resource == "/":
        return "everything"
    parts = resource.strip("/").split("/")
    if len(parts) < 4 or parts[:3:2] != ["subscriptions", "resourceGroups"]:
        return resource
    group = f"resource group {parts[3]}"
    group += "" if parts[1] == _DEFAULT_SUBSCRIPTION else f" of subscription {parts[1]}"
    if len(parts) == 4:
        return group
    return (
        f"{_RESOURCE_TYPES[parts[6]]} {parts[7]} of {group}"
        if len(parts) == 8 and parts[6] in _RESOURCE_TYPES
        else resource
    )


def event_kind(event: JsonObject) -> str:
    """Return the kind of an event as VMs see it, such as `Reboot`; if they never see it, its verb."""
    return str(event["kind"] or event["verb"])


def status_text(event: JsonObject) -> Text:
    """Return an event's ending (`finished`) if it is over, else its status (`started`), in its colour."""
    return state_text(event["ending"] or event["status"])


def event_time(event: JsonObject) -> float:
    """Return when an event ended, else started, else may start; `event` is the API's view of it."""
    return posix_seconds(event["over_at"] or event["started_at"] or event["not_before"])


def waiting_reason(event: JsonObject, now: float) -> str:
    """Return what an event waits for and until when, or what is being done, or why it ended; may be ""."""
    wait = event["waits_for"]
    if not wait:
        return str(event["reason"] or event["note"] or "") if event["status"] == "over" else _acts_under_way(event)
    until = wait["until"]
    return str(wait["text"]) if until is None else f"{wait['text']} ({relative_time(until, now)})"


def _acts_under_way(event: JsonObject) -> str:
    owed = [act for act in event["acts"] if act["ok"] is None]
    if not owed or event["status"] != "started":
        return ""
    note = next((f": {act['note']}" for act in owed if act["note"]), "")
    return f"{action_noun(event['verb'])} of {join_names([act['vm'] for act in owed])}{note}"


EVENT_HEADERS = ("event", "kind", "status", "VMs", "when", "waits for")


def event_headers(events: Sequence[JsonObject]) -> tuple[str, ...]:
    """Return the table headers for rows of `event_row`: EVENT_HEADERS, whose last one fits `events`."""
    over = [event["status"] == "over" for event in events]
    last = "why" if all(over) else "waits for, why" if any(over) else "waits for"
    return (*EVENT_HEADERS[:-1], last)


def event_row(event: JsonObject, now: float, shown_id: str) -> list[Cell]:
    """Return the table cells of one event, in the order of EVENT_HEADERS."""
    approved = dim(" approved") if event["approved_at"] and event["status"] == "scheduled" else Text()
    return [
        bold(shown_id),
        event_kind(event),
        join_text(status_text(event), approved),
        join_names(event["vms"]),
        describe_time(event_time(event), now, units=1),  # so that the row fits in 80 columns
        _short_waiting_reason(event, now),
    ]


def _short_waiting_reason(event: JsonObject, now: float) -> str:
    wait = event["waits_for"]
    return "an approval" if wait and wait["reason"] == "notice" else waiting_reason(event, now)


def history_lines(entries: Sequence[JsonObject], now: float) -> list[tuple[Text, Text]]:
    """Return a label (local time and kind) and a sentence for each history entry, in the same order."""
    times = clock_times((entry["at"] for entry in entries), now)
    return [_history_line(entry, time) for entry, time in zip(entries, times, strict=True)]


def _history_line(entry: JsonObject, time: str) -> tuple[Text, Text]:
    shows_actor = entry["kind"] in _ENTRIES_WITH_ACTOR and entry["actor"] and entry["actor"] not in entry["text"]
    who = f"  ({entry['actor']})" if shows_actor else ""
    what = Text(f"{without_control_characters(entry['kind']):<10}", style=state_text(entry["kind"]).style)
    return join_text(dim(time), "  ", what, "  "), join_text(entry["text"], dim(who))


def failure_reasons(events: Iterable[JsonObject]) -> list[str]:
    """Return a clause for each event that failed or was withdrawn, such as `event ID failed (web-0: …)`."""
    return [_failure_of_event(event) for event in events if event["ending"] in ("failed", "withdrawn")]


def _failure_of_event(event: JsonObject) -> str:
    notes = [f"{act['vm']}: {act['note'] or 'no reason given'}" for act in event["acts"] if act["ok"] is False]
    why = "; ".join(notes) or event["reason"] or "no reason given"
    return (
        f"event {event['id']} was {event['ending']} ({why})"
        if event["ending"] == "withdrawn"
        else f"event {event['id']} failed ({why})"
    )
