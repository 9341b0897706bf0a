"""Commands that begin rollouts: `rollout start` and `rollout plan`, by options or with a rollout file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click

from forewarn.base.times import time_text
from forewarn.cli.api_client import JsonObject
from forewarn.cli.completion import host_names, scope_ids
from forewarn.cli.formatting import Instant, count_noun, local_time, posix_seconds, zone_name
from forewarn.cli.invocation import Invocation, duration, service_command
from forewarn.cli.output import Cell, bold, dim, join_text
from forewarn.cli.request import short_notice_option, wait_option
from forewarn.cli.request_output import preview_options
from forewarn.cli.rollout import print_rollout, rollout, rollout_title, wait_for_rollout
from forewarn.core.rollout_file import parse_deadline
from forewarn.errors import Rejected

_Command = TypeVar("_Command", bound=Callable[..., Any])
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
    return time_text(parse_deadline(text, call.api.now()))


def read_rollout_text(file: str) -> str:
    """Return the text of a rollout file by its path, unparsed."""
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise Rejected(f"{file} cannot be read ({why}): give the path of a rollout file") from error
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
