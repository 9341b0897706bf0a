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

    The service writes the file on its own machine.
    """
    answer = call.api.post("backup", body={"path": _path_for_service(call, file)}, timeout_s=_TIMEOUT_S)
    if call.output.as_json:
        call.output.print_json(answer)
    else:
        there = f" on {call.remote_profile.server}" if call.remote_profile else ""
        call.output.print_line(f"{answer['path']}{there} holds the whole store, {answer['bytes']:,} bytes.")
        if not call.remote_profile:
            call.output.print_hints([(f"forewarn restore {file}", "restore it, while the service is stopped")])


def _path_for_service(call: Invocation, file: Path) -> str:
    """The absolute path of the backup on the service's machine; Rejected if a remote one is relative."""
    if call.remote_profile is None:
        return str(file.expanduser().absolute())
    if not file.is_absolute():
        raise Rejected(
            f"the service {call.api.location} writes the backup on its own machine, where {str(file)!r} is ambiguous: "
            "give an absolute path"
        )
    return str(file)


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE")
@click.option("--change-purpose", is_flag=True, help="Let a lab's backup replace a production store, or the reverse.")
@local_command
def restore(call: Invocation, file: Path, change_purpose: bool) -> None:
    """Replace a stopped service's store with a backup.

    The old store is moved aside, never deleted. Every scope gets a new epoch, and DocumentIncarnation continues above
    every number that VMs may have seen.
    """
    with require_server_extra("restore"):
        from forewarn.base.clock import read_real_time
        from forewarn.service.data_directory import START_COMMANDS, DataDirectory
        from forewarn.store.backup import restore_backup
        from forewarn.store.purpose import read_purpose

    directory = DataDirectory.acquire(call.data)
    try:
        if not change_purpose:
            directory.check_restore(file.absolute())
        moved = restore_backup(file.absolute(), directory.database, now=read_real_time())
        purpose = read_purpose(directory.database)
    finally:
        directory.close()
    answer = {
        "path": str(directory.database),
        "moved_aside": None if moved is None else str(moved),
        "purpose": purpose,
    }
    if call.output.as_json:
        call.output.print_json(answer)
        return
    call.output.print_line(f"{answer['path']} is restored from {file}.")
    if moved is not None:
        call.output.print_line(f"The old store is now {moved}.")
    call.output.print_line("Every scope has a new epoch, so no VM takes a document for one that it saw before.")
    if purpose is not None:
        call.output.print_hints([(START_COMMANDS[purpose], "start it again, with the options it had")])
