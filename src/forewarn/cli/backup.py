"""Backups of a service's store: taken while it runs, put back while it does not."""

from __future__ import annotations

from pathlib import Path

import click

from forewarn.cli.extra import server_extra
from forewarn.cli.invocation import Invocation, here, served
from forewarn.errors import Rejected

_LONG_S = 3600.0


@click.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
@served
def backup(call: Invocation, file: Path) -> None:
    """Copy the running service's store to a new file.

    The service writes it, on the machine where it runs.
    """
    answer = call.api.post("backup", body={"path": _path(call, file)}, patience_s=_LONG_S)
    if call.screen.as_json:
        call.screen.document(answer)
    else:
        there = f" on {call.elsewhere.server}" if call.elsewhere else ""
        call.screen.say(f"{answer['path']}{there} holds the whole store, {answer['bytes']:,} bytes.")
        if not call.elsewhere:
            call.screen.hints([(f"forewarn restore {file}", "put it back, while the service is stopped")])


def _path(call: Invocation, file: Path) -> str:
    """The service writes it, so a path is its own."""
    if call.elsewhere is None:
        return str(file.expanduser().absolute())
    if not file.is_absolute():
        raise Rejected(
            f"the service {call.api.where} writes the backup where it runs, so {str(file)!r} could be anywhere: "
            "give an absolute path"
        )
    return str(file)


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE")
@here
def restore(call: Invocation, file: Path) -> None:
    """Put a backup in place of a stopped service's store.

    What was there is moved aside, never deleted.
    """
    with server_extra("restore"):
        from forewarn.assembly.directory import DataDirectory
        from forewarn.clock import read_real_time
        from forewarn.store.backup import restore as put_back

    directory = DataDirectory.take(call.data)
    try:
        aside = put_back(file.absolute(), directory.database, now=read_real_time())
    finally:
        directory.close()
    answer = {"path": str(directory.database), "moved_aside": None if aside is None else str(aside)}
    if call.screen.as_json:
        call.screen.document(answer)
        return
    call.screen.say(f"{answer['path']} is restored from {file}.")
    if aside is not None:
        call.screen.say(f"What was there is now {aside}.")
    call.screen.hints([("forewarn up", "start the service again")])
