"""Rows of older versions: migrations keep them, and a new field of a JSON body has a default."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from forewarn.core.commit import Commit
from forewarn.core.event import Gate
from forewarn.store import SqliteStore
from forewarn.store.interface import LastPoll
from forewarn.store.row_codec import read_last_poll


def test_a_poll_without_an_agent_is_read_with_an_empty_one() -> None:
    old = b'{"vm":"a","scope_id":"s","at":1.0,"version":"2020-07-01","count":3}'
    assert read_last_poll(old) == LastPoll(
        vm="a", scope_id="s", at=1.0, version="2020-07-01", count=3, agent="", wait_s=0
    )


ARCHIVE = Path(__file__).parents[1] / "golden" / "data" / "data-directory.tar.gz"  # of the first version


def old_store(folder: Path) -> Path:
    """Return the database of the first version's data directory, with a gate of a request."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Debian 12's Python has none
        for member in archive.getmembers():
            if Path(member.name).name.startswith("forewarn.db"):
                member.name = Path(member.name).name
                archive.extract(member, folder)
    gate = json.dumps({"id": "g", "request_id": "r", "host": "h", "released_at": 4.5}).encode()
    with closing(sqlite3.connect(folder / "forewarn.db", isolation_level=None)) as db:
        db.execute("INSERT INTO gates (id, version, wakes_at, body) VALUES ('g', 3, 7.5, ?)", (gate,))
    return folder / "forewarn.db"


def test_deliveries_and_gates_of_the_first_version_are_read_after_the_migration(tmp_path: Path) -> None:
    path = old_store(tmp_path)
    with closing(sqlite3.connect(path)) as db:
        old: list[dict[str, Any]] = [json.loads(body) for (body,) in db.execute("SELECT body FROM sightings")]
    assert old

    async def scenario() -> None:
        store = SqliteStore.open(path)
        found = [{name: getattr(row, name) for name in row.__struct_fields__} for row in store.deliveries()]
        assert sorted(found, key=str) == sorted(old, key=str)
        assert store.deliveries(event_id=old[0]["event_id"], vm=old[0]["vm"])
        assert store.gate("g") == Gate(id="g", request_id="r", host="h", version=3, released_at=4.5, wakes_at=7.5)
        await store.close()

    asyncio.run(scenario())
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT request_id FROM gates WHERE id = 'g'").fetchall() == [("r",)]
        assert db.execute("SELECT count(*) FROM sqlite_master WHERE name LIKE '%sighting%'").fetchone() == (0,)
        assert db.execute("PRAGMA quick_check").fetchall() == [("ok",)]


def test_a_host_of_an_older_version_is_not_confirmed_down(tmp_path: Path) -> None:
    path = old_store(tmp_path)

    async def scenario() -> None:
        store = SqliteStore.open(path)
        hosts = store.hosts()
        assert hosts
        assert not any(host.confirmed_down for host in hosts)
        down = replace(hosts[0], confirmed_down=True)
        await store.commit(Commit(hosts=(down,)))
        await store.close()
        reopened = SqliteStore.open(path)
        assert [host.name for host in reopened.hosts() if host.confirmed_down] == [down.name]
        await reopened.close()

    asyncio.run(scenario())
