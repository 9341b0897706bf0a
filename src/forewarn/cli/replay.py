"""Recorded stories told again to a VM of a lab."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import click
from rich.console import RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table

from forewarn.cli.connection import View
from forewarn.cli.duration import span
from forewarn.cli.following import Look, follow
from forewarn.cli.instant import when
from forewarn.cli.invocation import Invocation, served
from forewarn.cli.screen import Cell, joined, strong, word
from forewarn.cli.suggestion import vm_names
from forewarn.client.recording import Answer, Recording, read_recording
from forewarn.errors import Rejected

_BAR = 40
_HEADERS = ("replay", "VM", "state", "step", "telling", "shows", "until")
_NONE = "There are no replays. Record a story with `forewarn record`, then: forewarn replay FILE --vm VM"


@click.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
@click.option("--vm", required=True, metavar="VM", shell_complete=vm_names, help="Its whole scope is told the story.")
@click.option("--speed", type=float, default=1.0, show_default=True, help="Times as fast; notices shrink with it.")
@click.option("--loop", "loops", type=int, default=1, show_default=True, metavar="N", help="Tell it N times.")
@click.option("--map", "pairs", multiple=True, metavar="OLD=NEW", help="Another VM's name; repeat for more.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Stay until it is over.")
@served
def replay(call: Invocation, file: Path, vm: str, speed: float, loops: int, pairs: tuple[str, ...], wait: bool) -> int:
    """Tell a recorded story again to a VM of a lab.

    The VM's scope is shown what was recorded, at the pace of the lab's clock, with new ids and times. Nothing is done
    to the VM; an event of its own ends the replay.
    """
    recording = _body(_read(file))
    body = {"vm": vm, "recording": recording, "speed": speed, "loops": loops, "map": _names(pairs)}
    view = call.api.post("replays", body=body)
    if wait:
        return _wait(call, view["id"])
    _show(call, view)
    return 0


@click.command()
@click.option("--stop", metavar="REPLAY", help="End this one; any unique beginning of its id will do.")
@served
def replays(call: Invocation, stop: str | None) -> None:
    """List the replays, or stop one."""
    if stop is not None:
        _show(call, call.api.delete("replays", stop))
        return
    page = call.api.get("replays")
    if call.screen.as_json:
        call.screen.document(page)
    elif page["replays"]:
        now = call.api.now()
        call.screen.table(_HEADERS, (_row(call, view, now) for view in page["replays"]))
    else:
        call.screen.say(_NONE)


def _read(file: Path) -> Recording:
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise Rejected(f"{str(file)!r} cannot be read ({error.strerror}): give a recording's file") from error
    return read_recording(raw, str(file))


def _body(recording: Recording) -> dict[str, Any]:
    end = recording.end
    return {
        "vm": recording.beginning.vm,
        "api_version": recording.beginning.api_version,
        "started_at": recording.beginning.started_at,
        "ended_s": end.at_s if end else None,
        "ended_date": end.date if end else None,
        "answers": [_answer(answer) for answer in recording.answers],
    }


def _answer(answer: Answer) -> dict[str, Any]:
    return {
        "at_s": answer.at_s,
        "date": answer.date,
        "status": answer.status,
        "content_type": answer.content_type,
        "retry_after": answer.retry_after,
        "body": base64.b64encode(answer.body).decode("ascii"),
    }


def _names(pairs: tuple[str, ...]) -> dict[str, str]:
    names: dict[str, str] = {}
    for pair in pairs:
        old, _, new = pair.partition("=")
        if not old or not new:
            raise Rejected(f"--map {pair!r} does not say which name becomes which: write it like OLD=NEW")
        names[old] = new
    return names


def _wait(call: Invocation, replay_id: str) -> int:
    """Until it is over; interrupting the waiting does not interrupt the replay."""

    def look() -> Look:
        view = call.api.get("replays", replay_id)
        return Look(view=view, over=view["ended"] is not None, shows=_panel(call, view))

    try:
        view = follow(call, look, about={"request": replay_id})
    except KeyboardInterrupt:
        call.screen.note(f"the replay goes on: `forewarn replays --stop {replay_id}` ends it")
        raise
    _show(call, view)
    return 0 if view["ended"] == "finished" else 1


def _panel(call: Invocation, view: View) -> RenderableType:
    done, whole = (view["loop"] - 1) * view["steps"] + view["step"], view["loops"] * view["steps"]
    grid = Table.grid(padding=(0, 2, 0, 0))
    left = span(view["ends_at"] - call.api.now())
    grid.add_row(ProgressBar(total=whole, completed=done, width=_BAR), f"step {done} of {whole}, {left} left")
    return grid


def _show(call: Invocation, view: View) -> None:
    if call.screen.as_json:
        call.screen.document(view)
        return
    shown = call.screen.short(view["id"])
    why = f": {view['reason']}" if view["reason"] else ""
    call.screen.say(f"Replay {shown} to {view['vm']} is ", word(view["ended"] or "running"), why, ".")
    if view["ended"] is None:
        call.screen.hints([("forewarn replays", "see how far it is"), (f"forewarn replays --stop {shown}", "end it")])


def _row(call: Invocation, view: View, now: float) -> list[Cell]:
    return [
        strong(call.screen.short(view["id"])),
        view["vm"],
        word(view["ended"] or "running"),
        f"{view['step']} of {view['steps']}",
        f"{view['loop']} of {view['loops']}",
        joined(view["shows"] or "its own document"),
        when(view["ended_at"] or view["ends_at"], now),
    ]
