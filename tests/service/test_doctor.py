"""What `forewarn doctor` finds in a running service."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from forewarn.service.doctor import hypervisor_checks, run_checks
from forewarn.service.settings import HypervisorKind, Settings
from forewarn.store import SqliteStore
from forewarn.store.sqlite_file import prepare_store_file

NOBODY = 65534


def test_the_doctor_reports_acts_that_the_hypervisor_does_not_answer() -> None:
    settings = Settings(hypervisor=HypervisorKind.SIMULATED)
    assert [check.ok for check in hypervisor_checks(settings, {})] == [True]
    named, check = hypervisor_checks(settings, {"E:web-0": 15.0, "E:web-1": 180.0})
    assert named.text.startswith("simulated: no real VMs")
    assert not check.ok
    assert check.text == "the hypervisor has not answered 2 acts, the oldest for 3 min"


def test_the_doctor_reports_hosts_that_do_not_answer() -> None:
    settings = Settings(hypervisor=HypervisorKind.SIMULATED)
    _, first, second = hypervisor_checks(settings, {}, {"h2", "h1"})
    assert not first.ok
    assert first.text == "host h1 is unreachable: it does not answer the hypervisor, and acts on its VMs wait"
    assert first.remedy.endswith("if it is certainly down, run `forewarn confirm-down h1`")
    assert "h2" in second.text


def test_the_doctor_reports_an_empty_database_beside_files_of_an_earlier_service(tmp_path: Path) -> None:
    database = tmp_path / "forewarn.db"
    database.touch()
    assert check_named("database", tmp_path) == (True, "no database yet: the first start creates it")
    (tmp_path / "admin.secret").write_text("secret")
    assert check_named("database", tmp_path) == (False, "forewarn.db is empty beside admin.secret")


def test_the_doctor_reports_a_database_that_its_user_may_not_read() -> None:
    with tempfile.TemporaryDirectory() as place:
        data = Path(place)
        data.chmod(0o755)
        prepare_store_file(data / "forewarn.db")
        (data / "forewarn.db").chmod(0o000)
        with as_ordinary_user():
            found = check_named("database", data)
        assert found == (False, f"{data / 'forewarn.db'} cannot be read: Permission denied")


def test_the_doctor_reports_a_data_directory_that_its_user_may_not_enter() -> None:
    with tempfile.TemporaryDirectory() as place:
        data = Path(place) / "private" / "data"
        data.mkdir(parents=True)
        data.parent.chmod(0o000)
        Path(place).chmod(0o755)
        try:
            with as_ordinary_user():
                found = [check_named(name, data) for name in ("data", "database")]
        finally:
            data.parent.chmod(0o700)
        assert found == [
            (False, f"{data} cannot be read: Permission denied"),
            (False, f"{data / 'forewarn.db'} cannot be read: Permission denied"),
        ]


def test_the_doctor_reports_a_database_that_sqlite_cannot_read(tmp_path: Path) -> None:
    database = tmp_path / "forewarn.db"
    prepare_store_file(database)
    with closing(sqlite3.connect(database)) as db:
        db.execute("PRAGMA journal_mode = WAL")
    (tmp_path / "forewarn.db-wal").mkdir()  # not a log that SQLite can read
    ok, text = check_named("database", tmp_path)
    assert not ok
    assert text.startswith(f"{database} cannot be read: ")


def test_the_doctor_reports_lost_writes_before_the_next_start_and_for_a_day_after_it(tmp_path: Path) -> None:
    database = tmp_path / "forewarn.db"

    async def start(now: float, saves: int = 0) -> None:
        store = SqliteStore.open(database, now=now)
        for number in range(saves):
            await store.save("a", b"%d" % number)
        await store.close()

    def problems(*, is_running: bool) -> list[str]:
        checks = run_checks(Settings(data=str(tmp_path), lab=True), database, is_running=is_running)
        return [check.text for check in checks if check.name == "database" and not check.ok]

    now = time.time()
    asyncio.run(start(now, saves=1))
    older = database.read_bytes()
    asyncio.run(start(now, saves=2))
    assert not problems(is_running=False)

    database.write_bytes(older)
    loss = "the database has lost confirmed writes: it ends at write 1, but write 3 was made"
    assert problems(is_running=False) == [f"{loss}: the next start gives every scope a new epoch"]
    asyncio.run(start(now))
    assert problems(is_running=True) == [f"{loss}: every scope has the new epoch {int(now) + 1}"]

    database.write_bytes(older)
    asyncio.run(start(now - 86400))
    assert not problems(is_running=True)


@contextmanager
def as_ordinary_user() -> Iterator[None]:
    """Run the block without the rights of root, which may read everything."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)


def check_named(name: str, data: Path) -> tuple[bool, str]:
    checks = run_checks(Settings(data=str(data), lab=True), data / "forewarn.db")
    return next((check.ok, check.text) for check in checks if check.name == name)
