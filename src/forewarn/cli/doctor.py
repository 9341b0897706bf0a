"""Is everything as it should be? Asks the service, or looks from outside when there is none."""

from __future__ import annotations

import click
from rich.text import Text

from forewarn.cli.connection import NotRunning, View
from forewarn.cli.extra import server_extra
from forewarn.cli.invocation import Invocation, served
from forewarn.cli.screen import clean, faint, joined


@click.command()
@served
def doctor(call: Invocation) -> int:
    """Check this machine and the service."""
    try:
        checks: list[View] = [*call.api.get("doctor")["checks"], _there(call)]
        running = True
    except NotRunning as error:
        checks, running = [*_from_outside(call), _away(error)], False
    if call.screen.as_json:
        call.screen.document({"checks": checks})
    else:
        for check in checks:
            _show(call, check)
    if not running:
        return 3
    return 0 if all(check["ok"] for check in checks) else 1


def _there(call: Invocation) -> View:
    return {"name": "service", "ok": True, "text": f"it answers {call.api.where}", "remedy": ""}


def _away(error: NotRunning) -> View:
    what, _, remedy = str(error).partition(": ")
    return {"name": "service", "ok": False, "text": what, "remedy": remedy}


def _from_outside(call: Invocation) -> list[View]:
    with server_extra("doctor"):
        from dataclasses import asdict

        from forewarn.assembly.directory import DATABASE
        from forewarn.assembly.doctor import examine
        from forewarn.assembly.settings import Settings
    settings = Settings(data=str(call.data), lab=True)
    return [asdict(check) for check in examine(settings, call.data / DATABASE)]


def _show(call: Invocation, check: View) -> None:
    mark = Text("ok  ", style="green") if check["ok"] else Text("bad ", style="red")
    call.screen.say(joined(mark, " ", f"{clean(check['name']):<10}", "  ", check["text"]))
    if not check["ok"] and check["remedy"]:
        call.screen.say(" " * 17, faint("→ "), check["remedy"])
