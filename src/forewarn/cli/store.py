"""Commands for the record of a cluster in PostgreSQL: `store migrate`, `copy`, `check`, `renew`, `without-standby`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from forewarn.cli.invocation import Invocation, offline_command, require_server_extra
from forewarn.errors import Rejected

if TYPE_CHECKING:
    from forewarn.cluster.record_administration import RecordReport

_URL = click.argument("url", metavar="URL", envvar="FOREWARN_STORE")
_URL_PREFIXES = ("postgresql://", "postgres://")


@click.group()
def store() -> None:
    """Prepare and check the record of a cluster in PostgreSQL.

    URL is postgresql://USER@HOST/DATABASE, with several hosts if there is a standby, or comes from FOREWARN_STORE. The
    password may be in the URL, in PGPASSWORD or in ~/.pgpass.

    \b
    forewarn store check postgresql://forewarn@db1,db2/forewarn
    """


@contextmanager
def _require_driver(command: str) -> Iterator[None]:
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
@offline_command
def migrate(call: Invocation, url: str) -> None:
    """Create the tables of a record, or update them.

    The database must exist. Control nodes of the release before may run meanwhile.

    \b
    forewarn store migrate postgresql://forewarn@db1,db2/forewarn
    """
    with _require_driver("store migrate"):
        from forewarn.cluster.record_administration import migrate_record
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


@store.command()
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@offline_command
def copy(call: Invocation, source: str, target: str) -> None:
    """Move a site from its data directory to a record, or back.

    One of FROM and TO is the URL of a record, the other the data directory of a stopped service. Epochs, incarnations,
    tags and history stay the same. The source is marked as moved and is not started again.

    \b
    forewarn store copy /var/lib/forewarn postgresql://forewarn@db1,db2/forewarn
    """
    with _require_driver("store copy"):
        from forewarn.base.clock import read_real_time
        from forewarn.cluster.record_administration import copy_record_to_store, copy_store_to_record
        from forewarn.service.data_directory import DataDirectory
    to_record = target.startswith(_URL_PREFIXES)
    if to_record == source.startswith(_URL_PREFIXES):
        raise Rejected(
            "a site is copied between a data directory and a record: give one path and one postgresql:// URL"
        )
    path = Path(source if to_record else target)
    if to_record and not path.is_dir():
        raise Rejected(f"there is no data directory {source!r}: give that of the service to move")
    directory = DataDirectory.acquire(path)
    try:
        if to_record:
            digests = copy_store_to_record(directory.database, target, now=read_real_time())
        else:
            digests = copy_record_to_store(source, directory.database)
    finally:
        directory.close()
    rows = {table: digest.rows for table, digest in digests.items() if digest.rows}
    if call.output.as_json:
        call.output.print_json({"rows": rows})
        return
    call.output.print_line(
        f"The site was moved: {', '.join(f'{n:,} {table}' for table, n in rows.items()) or 'no rows'}."
    )
    call.output.print_line("The source is marked as moved, and no service starts on it again.")


@store.command()
@_URL
@click.option(
    "--copy",
    "copy_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help=("Compare the record with this copy, the store of a control node on this machine."),
)
@offline_command
def check(call: Invocation, url: str, copy_file: Path | None) -> int:
    """Examine a record: schema, lease, log and standby servers.

    Changes nothing. Exits with 1 if something is wrong.

    \b
    forewarn store check postgresql://forewarn@db1,db2/forewarn
    """
    with _require_driver("store check"):
        from forewarn.cluster.record_administration import examine_record
    report = examine_record(url, copy_file)
    if call.output.as_json:
        import msgspec

        call.output.print_json(msgspec.to_builtins(report))
    else:
        _print_report(call, report)
    return 1 if report.problems else 0


def _print_report(call: Invocation, report: RecordReport) -> None:
    pooled = ", behind a connection pooler" if report.pooled else ""
    call.output.print_line(f"{report.server}: version {report.version}{pooled}, schema {report.revision}.")
    holder = f"{report.holder} is active" if report.holder else "No control node is active"
    call.output.print_line(
        f"{holder}; term {report.term}, group {report.number}, {report.log_groups:,} groups in the log."
    )
    for standby in report.standbys:
        call.output.print_line(f"Standby server {standby.name}: {standby.state}, {standby.sync_state}.")
    for sentence in (*report.problems, *report.warnings):
        call.output.print_line(f"{'Problem' if sentence in report.problems else 'Warning'}: {sentence}.")


@store.command("without-standby")
@_URL
@offline_command
def without_standby(call: Invocation, url: str) -> None:
    """Let control nodes go on without a synchronous standby.

    A cluster that was set up with one is suspended while PostgreSQL demands none, because the failure of its primary
    would lose what was answered. Run this to accept that until synchronous_standby_names is set again. Control nodes
    may run meanwhile.

    \b
    forewarn store without-standby postgresql://forewarn@db1,db2/forewarn
    """
    with _require_driver("store without-standby"):
        from forewarn.cluster.record_administration import allow_no_standby
    allow_no_standby(url)
    if call.output.as_json:
        call.output.print_json({"standby": "not required"})
    else:
        call.output.print_line("Control nodes go on without a synchronous standby, until PostgreSQL demands one again.")


@store.command()
@_URL
@offline_command
def renew(call: Invocation, url: str) -> None:
    """Begin a new epoch, after PostgreSQL was restored.

    VMs then read their documents as new ones, and none mistakes an event for one that it saw before. Stop all control
    nodes first; they build their copies again at the next start.

    \b
    forewarn store renew postgresql://forewarn@db1,db2/forewarn
    """
    with _require_driver("store renew"):
        from forewarn.base.clock import read_real_time
        from forewarn.cluster.record_administration import renew_epochs
    epoch = renew_epochs(url, now=read_real_time())
    if call.output.as_json:
        call.output.print_json({"epoch": epoch})
    else:
        call.output.print_line(f"Every scope has epoch {epoch} now.")
