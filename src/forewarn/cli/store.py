"""Commands for the record of a cluster in PostgreSQL: `store migrate`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from forewarn.cli.invocation import Invocation, local_command, require_server_extra
from forewarn.errors import Rejected

_URL = click.argument("url", metavar="URL", envvar="FOREWARN_STORE")


@click.group()
def store() -> None:
    """Prepare and check the record of a cluster in PostgreSQL."""


@contextmanager
def _require_driver(command: str) -> Iterator[None]:
    """Context manager for imports; raises Rejected if the driver of PostgreSQL is not installed."""
    try:
        with require_server_extra(command):
            yield
    except Rejected as error:
        if isinstance(error.__cause__, ModuleNotFoundError) and error.__cause__.name == "psycopg":
            raise Rejected(
                f"`forewarn {command}` needs psycopg, which is not installed: pip install 'forewarn[server,cluster]'"
            ) from error
        raise


@store.command()
@_URL
@local_command
def migrate(call: Invocation, url: str) -> None:
    """Create the tables of a record, or update them for this release.

    URL is postgresql://USER@HOST/DATABASE, with several hosts if there is a standby. The database must exist. Control
    nodes of the release before may run meanwhile.

    \f
    Prints the revision before and after. Raises Refused for a database of a newer release, Rejected for a URL or
    password that is not right, Unavailable if the server cannot be reached; then nothing has changed.
    """
    with _require_driver("store migrate"):
        from forewarn.store.record_administration import migrate_record
        from forewarn.store.schema import REVISION
    before = migrate_record(url)
    if call.output.as_json:
        call.output.print_json({"before": before, "revision": REVISION})
    elif before == REVISION:
        call.output.print_line(f"The record has the schema of this release already ({REVISION}).")
    else:
        call.output.print_line(
            f"The record has the schema of this release now ({REVISION}; before: {before or 'none'})."
        )
