"""A primary and its synchronous standby, with a database that has our tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from forewarn.cluster.record_administration import allow_no_standby, migrate_record
from tests.support.network_parts import NetworkPart
from tests.support.postgres_server import PostgresServer, wait_until

DATABASE = "forewarn"


class ServerPair:
    """A primary with a synchronous standby, and a database with our tables.

    `parts` are the network namespaces of the two, and `client` is that of the test; None: all are on loopback.
    """

    def __init__(
        self,
        *,
        fsync: bool = False,
        parts: tuple[NetworkPart | None, NetworkPart | None] = (None, None),
        client: NetworkPart | None = None,
    ) -> None:
        self.client = client
        self.primary = PostgresServer.create(fsync=fsync, part=parts[0])
        self._standby: PostgresServer | None = None
        self._standby_part = parts[1]
        try:
            self._start()
        except BaseException:
            self.remove()
            raise

    def _start(self) -> None:
        self.primary.start()
        self.query(f"CREATE DATABASE {DATABASE}", database="postgres")
        self.call(migrate_record, self.url)
        self.add_standby()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a function that connects to the servers."""
        return function(*arguments) if self.client is None else self.client.call(function, *arguments)

    def add_standby(self) -> None:
        """Start a synchronous standby of the primary, in place of an earlier one, which is deleted."""
        port = 0
        if self._standby is not None:
            self._standby.remove()
            port = self._standby.port
        self._standby = self.primary.new_standby("s1", self._standby_part, port)
        self.standby.start()
        self.primary.configure("synchronous_standby_names = 's1'\n")
        self.primary.reload()
        wait_until(self.is_synchronous, "the standby follows")

    @property
    def standby(self) -> PostgresServer:
        assert self._standby is not None
        return self._standby

    @property
    def url(self) -> str:
        return self.primary.url(DATABASE)

    @property
    def both_url(self) -> str:
        """The URL with both servers, of which the driver takes the one that can be written."""
        hosts = ",".join(f"{server.address}:{server.port}" for server in (self.primary, self.standby))
        return f"postgresql://postgres:secret@{hosts}/{DATABASE}"

    def query(
        self, sql: str, database: str = DATABASE, server: PostgresServer | None = None
    ) -> list[tuple[object, ...]]:
        """Execute SQL as the superuser."""
        rows: list[tuple[object, ...]] = self.call(self._query, sql, database, server)
        return rows

    def promote_standby(self, *, alone: bool = False) -> None:
        """Make the standby the primary; the old primary, alive or not, becomes what `add_standby` replaces."""
        if alone:
            self.go_on_alone()
        else:
            self.standby.promote()
        self.primary, self._standby = self.standby, self.primary
        self._standby_part = self.standby.part

    def go_on_alone(self) -> None:
        """Promote the standby, and let control nodes write there although it has no standby."""
        self.standby.promote()
        self.call(allow_no_standby, self.standby.url(DATABASE))

    def _query(self, sql: str, database: str, server: PostgresServer | None) -> list[tuple[object, ...]]:
        with psycopg.connect((server or self.primary).url(database), autocommit=True) as db:
            cursor = db.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def is_synchronous(self) -> bool:
        states = self.query("SELECT sync_state FROM pg_stat_replication", database="postgres")
        return states == [("sync",)]

    @contextmanager
    def without_standby(self) -> Iterator[None]:
        """Stop the standby for a while, so that every COMMIT waits."""
        self.standby.kill()
        try:
            yield
        finally:
            self.standby.start()
            wait_until(self.is_synchronous, "the standby follows again")

    def empty(self) -> None:
        """Delete all rows, and let the record begin again."""
        tables = self.query(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'public' "
            "AND tablename NOT IN ('alembic_version', 'lease')"
        )
        names = ", ".join(f'"{name}"' for (name,) in tables)
        self.query(
            f"TRUNCATE {names}; UPDATE lease SET record_id = gen_random_uuid()::text, term = 0, holder = '', url = '', "
            "expires_at = '-infinity', n = 0, seq = 0, clock = 0, lost = '', demands_standby = false"
        )

    def remove(self) -> None:
        if self._standby is not None:
            self._standby.remove()
        self.primary.remove()
