"""What an administrator does with a record: migrate it."""

from __future__ import annotations

import psycopg
from sqlalchemy.exc import DBAPIError

from forewarn.errors import Refused
from forewarn.store import postgres_connection
from forewarn.store.postgres_connection import failure_text
from forewarn.store.postgres_record import open_record
from forewarn.store.record import RecordUnavailable
from forewarn.store.schema import REVISION, REVISIONS

_LOCK_LIMIT = "SET LOCAL lock_timeout = '5s'"


def migrate_record(url: str) -> str | None:
    """Create the tables of a record, or migrate them to the newest revision; return that before, or None.

    Blocks; durable on return. Control nodes of the release before may be active: a migration only adds. Raises Refused
    for a database of a newer release, Rejected and RecordUnavailable as `postgres_connection.connect`; then nothing
    has changed.
    """
    from forewarn.store import migrations  # here, because Alembic is slow to load and seldom needed

    db = postgres_connection.connect(url)
    name = postgres_connection.describe_url(url)
    try:
        found = _read_revision(db)
        if found is not None and found not in REVISIONS:
            raise Refused(
                f"{name} has schema revision {found}, unknown to this forewarn, which knows {REVISION} and earlier; it "
                "was left as it is: use the forewarn that wrote it, or a later one"
            )
        if found != REVISION:
            db.autocommit = False
            migrations.migrate_record_to_newest(db)
    except DBAPIError as error:
        reason = failure_text(error.orig) if isinstance(error.orig, psycopg.Error) else str(error.orig)
        raise RecordUnavailable(f"{name} was not migrated ({reason}): nothing has changed there") from error
    except psycopg.Error as error:
        raise RecordUnavailable(
            f"{name} was not migrated ({failure_text(error)}): nothing has changed there"
        ) from error
    finally:
        db.close()
    open_record(url).close()  # checks the result
    return found


def _read_revision(db: psycopg.Connection[tuple[object, ...]]) -> str | None:
    """Return the revision of the schema; None if there is no schema."""
    ((table,),) = db.execute("SELECT to_regclass('alembic_version')::text").fetchall()
    if table is None:
        return None
    return "/".join(str(number) for (number,) in db.execute("SELECT version_num FROM alembic_version"))
