"""The program with privilege, so that the service needs none: it opens the sockets that VMs call."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import click

from forewarn.cli.extra import server_extra
from forewarn.cli.invocation import Invocation, here
from forewarn.cli.wording import counted

if TYPE_CHECKING:
    from forewarn.metadata import Entrance


@click.command()
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="The service's settings file (TOML).")
@here
def sockets(call: Invocation, config: Path | None) -> None:
    """Open the sockets that VMs call, and hand them to the service.

    Run it as root beside a service that has `sockets = "helper"` in the same settings file.
    The service's user owns the data directory, and needs no privilege.
    """
    with server_extra("sockets"):
        from forewarn.assembly.settings import load
        from forewarn.assembly.sockets import run

    settings = load({"data": call.given_data}, lab=False, config=config)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")

    def announce(opened: list[Entrance], waits: dict[Entrance, str]) -> None:
        if call.screen.as_json:
            names = {"open": [entrance.name for entrance in opened], "waiting": {e.name: w for e, w in waits.items()}}
            call.screen.document({**names, "data": settings.data})
            return
        call.screen.say(
            f"{counted(len(opened), 'socket')} open, {len(waits)} waited for; handed over in ", settings.data
        )

    run(settings, announce)
