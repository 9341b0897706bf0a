"""Commands that replay a recording to a VM of a lab, and list or stop replays."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import click
from rich.console import RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table

from forewarn.base.duration import format_duration
from forewarn.base.times import time_text
from forewarn.cli.api_client import JsonObject
from forewarn.cli.completion import vm_names
from forewarn.cli.follow import Snapshot, follow
from forewarn.cli.invocation import Invocation, service_command
from forewarn.cli.output import Cell, bold, describe_time, join_text, posix_seconds, state_text
from forewarn.client.recording import EndpointRecording, RecordedResponse, decode_recording
from forewarn.errors import Rejected

_BAR_WIDTH = 40
_HEADERS = ("replay", "VM", "state", "step", "loop", "shows", "until")
_NO_REPLAYS = "There are no replays. Make a recording with `forewarn record`, then: forewarn replay FILE --vm VM"


@click.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
@click.option("--vm", required=True, metavar="VM", shell_complete=vm_names, help="Replay to the scope of this VM.")
@click.option(
    "--speed", type=float, default=1.0, show_default=True, help="Replay this many times as fast; notices shrink too."
)
@click.option("--loop", "loops", type=int, default=1, show_default=True, metavar="N", help="Replay it N times.")
@click.option("--map", "pairs", multiple=True, metavar="OLD=NEW", help="Replace a VM name; repeatable.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until it is over.")
@service_command
def replay(call: Invocation, file: Path, vm: str, speed: float, loops: int, pairs: tuple[str, ...], wait: bool) -> int:
    """Replay a recording to a VM of a lab.

    The VM's scope sees the recorded events, at the pace of the lab's clock, with new ids and times. Nothing is done to
    the VM. A real event of the scope ends the replay.
    """
    recording = _recording_body(_read_file(file))
    body = {"vm": vm, "recording": recording, "speed": speed, "loops": loops, "map": _parse_name_map(pairs)}
    view = call.api.post("replays", body=body)
    if wait:
        return _wait_for_replay(call, view["id"])
    _print_replay(call, view)
    return 0


@click.command()
@click.option("--stop", metavar="REPLAY", help="Stop this replay: its id, or a unique beginning.")
@service_command
def replays(call: Invocation, stop: str | None) -> None:
    """List the replays, or stop one."""
    if stop is not None:
        _print_replay(call, call.api.delete("replays", stop))
        return
    page = call.api.get("replays")
    if call.output.as_json:
        call.output.print_json(page)
    elif page["replays"]:
        now = call.api.now()
        call.output.print_table(_HEADERS, (_replay_row(call, view, now) for view in page["replays"]))
    else:
        call.output.print_line(_NO_REPLAYS)


def _read_file(file: Path) -> EndpointRecording:
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise Rejected(f"{str(file)!r} cannot be read ({error.strerror}): give a recording's file") from error
    return decode_recording(raw, str(file))


def _recording_body(recording: EndpointRecording) -> dict[str, Any]:
    end = recording.end
    return {
        "vm": recording.header.vm,
        "api_version": recording.header.api_version,
        "started_at": time_text(recording.header.started_at),
        "ended_s": end.at_s if end else None,
        "ended_date": time_text(end.date) if end else None,
        "answers": [_answer_body(answer) for answer in recording.answers],
    }


def _answer_body(answer: RecordedResponse) -> dict[str, Any]:
    return {
        "at_s": answer.at_s,
        "date": time_text(answer.date),
        "status": answer.status,
        "content_type": answer.content_type,
        "retry_after": answer.retry_after,
        "body": base64.b64encode(answer.body).decode("ascii"),
    }


def _parse_name_map(pairs: tuple[str, ...]) -> dict[str, str]:
    names: dict[str, str] = {}
    for pair in pairs:
        old, _, new = pair.partition("=")
        if not old or not new:
            raise Rejected(f"--map {pair!r} has no OLD=NEW form: write it like web-0=web-7")
        names[old] = new
    return names


def _wait_for_replay(call: Invocation, replay_id: str) -> int:
    """Follow a replay until it is over; returns the exit code. Ctrl-C ends only the waiting."""

    def take_snapshot() -> Snapshot:
        view = call.api.get("replays", replay_id)
        return Snapshot(view=view, is_over=view["outcome"] is not None, renderable=_progress_panel(call, view))

    try:
        view = follow(call, take_snapshot, entries_of={"request": replay_id})
    except KeyboardInterrupt:
        call.output.print_note(f"the replay continues: `forewarn replays --stop {replay_id}` stops it")
        raise
    _print_replay(call, view)
    return 0 if view["outcome"] == "finished" else 1


def _progress_panel(call: Invocation, view: JsonObject) -> RenderableType:
    done, total = (view["loop"] - 1) * view["steps"] + view["step"], view["loops"] * view["steps"]
    grid = Table.grid(padding=(0, 2, 0, 0))
    left = format_duration(posix_seconds(view["ends_at"]) - call.api.now())
    grid.add_row(ProgressBar(total=total, completed=done, width=_BAR_WIDTH), f"step {done} of {total}, {left} left")
    return grid


def _print_replay(call: Invocation, view: JsonObject) -> None:
    if call.output.as_json:
        call.output.print_json(view)
        return
    shown = call.output.short_id(view["id"])
    why = f": {view['reason']}" if view["reason"] else ""
    call.output.print_line(f"Replay {shown} to {view['vm']} is ", state_text(view["outcome"] or "running"), why, ".")
    if view["outcome"] is None:
        call.output.print_hints(
            [("forewarn replays", "show its progress"), (f"forewarn replays --stop {shown}", "stop it")]
        )


def _replay_row(call: Invocation, view: JsonObject, now: float) -> list[Cell]:
    return [
        bold(call.output.short_id(view["id"])),
        view["vm"],
        state_text(view["outcome"] or "running"),
        f"{view['step']} of {view['steps']}",
        f"{view['loop']} of {view['loops']}",
        join_text(view["shown_document"] or "its own document"),
        describe_time(view["ended_at"] or view["ends_at"], now),
    ]
