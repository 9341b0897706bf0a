"""Commands for backups of the store: `backup` while the service runs, `restore` while it does not."""

from __future__ import annotations

from pathlib import Path

import click

from forewarn.cli.invocation import Invocation, local_command, require_server_extra, service_command
from forewarn.errors import Rejected

_TIMEOUT_S = 3600.0


@click.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
@service_command
def backup(call: Invocation, file: Path) -> None:
    """Copy the running service's store to a new file.

    The service writes it, on the machine where it runs.
    """
    answer = call.api.post("backup", body={"path": _path_for_service(call, file)}, patience_s=_TIMEOUT_S)
    if call.output.as_json:
        call.output.print_json(answer)
    else:
        there = f" on {call.remote_profile.server}" if call.remote_profile else ""
        call.output.print_line(f"{answer['path']}{there} holds the whole store, {answer['bytes']:,} bytes.")
        if not call.remote_profile:
            call.output.print_hints([(f"forewarn restore {file}", "put it back, while the service is stopped")])


def _path_for_service(call: Invocation, file: Path) -> str:
    """The service writes it, so a path is its own."""
    if call.remote_profile is None:
        return str(file.expanduser().absolute())
    if not file.is_absolute():
        raise Rejected(
            f"the service {call.api.location} writes the backup where it runs, so {str(file)!r} could be anywhere: "
            "give an absolute path"
        )
    return str(file)


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE")
@local_command
def restore(call: Invocation, file: Path) -> None:
    """Put a backup in place of a stopped service's store.

    What was there is moved aside, never deleted.
    """
    with require_server_extra("restore"):
        from forewarn.clock import read_real_time
        from forewarn.service.data_directory import DataDirectory
        from forewarn.store.backup import restore_backup as put_back

    directory = DataDirectory.acquire(call.data)
    try:
        aside = put_back(file.absolute(), directory.database, now=read_real_time())
    finally:
        directory.close()
    answer = {"path": str(directory.database), "moved_aside": None if aside is None else str(aside)}
    if call.output.as_json:
        call.output.print_json(answer)
        return
    call.output.print_line(f"{answer['path']} is restored from {file}.")
    if aside is not None:
        call.output.print_line(f"What was there is now {aside}.")
    call.output.print_hints([("forewarn up", "start the service again")])
