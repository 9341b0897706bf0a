"""Control nodes as processes: killed, stopped and continued, and with a primary that is killed and replaced."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forewarn.cluster.postgres_record import open_record
from tests.cluster.replicate_until_killed import STOPPED
from tests.support.postgres_pair import ServerPair
from tests.support.postgres_server import wait_until
from tests.support.replication_checks import check_copy, check_record

pytestmark = pytest.mark.cluster
PROGRAM = Path(__file__).with_name("replicate_until_killed.py")


class NodeProcess:
    """A control node that commits all the time, and the commits that it was told are durable."""

    def __init__(self, path: Path, url: str, name: str) -> None:
        self.path = path
        self.log = path.with_suffix(".err").open("ab")
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(path), url, name], stdout=subprocess.PIPE, stderr=self.log
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._output = b""

    def acknowledged(self) -> list[str]:
        """Return all commits that were acknowledged; a kill may have cut off the last line."""
        return [line for line in self._lines() if not line.startswith("active:")]

    def is_active(self) -> bool:
        return any(line.startswith("active:") for line in self._lines())

    def wait_for(self, count: int) -> None:
        """Wait until this many more commits were acknowledged."""
        wanted = len(self.acknowledged()) + count
        wait_until(lambda: len(self.acknowledged()) >= wanted, f"{wanted} commits of {self.path.name}")

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def has_stopped(self) -> bool:
        return self._process.poll() == STOPPED

    def kill(self) -> list[str]:
        """Kill the process; return what was acknowledged."""
        self._process.kill()
        self._process.wait(60)
        acknowledged = self.acknowledged()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self.log.close()
        return acknowledged

    def _lines(self) -> list[str]:
        assert self._process.stdout is not None
        while not self._process.stdout.closed and (data := self._process.stdout.read()):
            self._output += data
        return self._output.decode().split("\n")[:-1]


@contextmanager
def node(path: Path, url: str, name: str = "c1") -> Iterator[NodeProcess]:
    process = NodeProcess(path, url, name)
    try:
        yield process
    finally:
        process.signal(signal.SIGCONT)
        process.kill()


def check_all(url: str, acknowledged: list[str], *copies: Path) -> None:
    """Every acknowledged commit is in the record once, the log leads to the tables, and the copies follow."""
    record = open_record(url)
    check_record(record)
    for path in copies:
        check_copy(path, record)
    with record.snapshot() as snapshot:
        rows = {table: list(rows) for table, rows in snapshot.tables if table in ("scopes", "history")}
    record.close()
    kept = Counter(row[7].decode().partition('"text":"')[2].partition('"')[0] for row in rows["history"])
    assert set(kept.values()) == {1}, "a commit was applied twice"
    assert set(acknowledged) <= kept.keys(), "an acknowledged commit is lost"
    assert Counter(text.split(":")[0] for text in kept) == {row[0]: row[1] for row in rows["scopes"]}


def test_a_kill_at_any_time_loses_no_acknowledged_commit(servers: ServerPair, tmp_path: Path) -> None:
    moments = random.Random(20170301)
    acknowledged: list[str] = []
    for _ in range(3):
        with node(tmp_path / "c1.db", servers.url) as process:
            process.wait_for(moments.randint(1, 300))
            acknowledged += process.kill()
        check_all(servers.url, acknowledged, tmp_path / "c1.db")


def test_a_node_that_stood_still_finds_itself_deposed(servers: ServerPair, tmp_path: Path) -> None:
    with (
        node(tmp_path / "c1.db", servers.url, "c1") as first,
        node(tmp_path / "c2.db", servers.url, "c2") as second,
    ):
        wait_until(lambda: first.is_active() or second.is_active(), "one node is active")
        active, standby = (first, second) if first.is_active() else (second, first)
        active.wait_for(20)
        assert not standby.is_active()
        active.signal(signal.SIGSTOP)
        standby.wait_for(20)
        active.signal(signal.SIGCONT)
        wait_until(active.has_stopped, "the deposed node ends")
        standby.wait_for(20)
        acknowledged = active.kill() + standby.kill()
    check_all(servers.url, acknowledged, tmp_path / "c1.db", tmp_path / "c2.db")


def test_a_restarted_primary_interrupts_a_node_only_for_a_time(servers: ServerPair, tmp_path: Path) -> None:
    with node(tmp_path / "c1.db", servers.url) as process:
        process.wait_for(20)
        servers.primary.stop()
        servers.primary.start()
        process.wait_for(20)
        acknowledged = process.kill()
    wait_until(servers.is_synchronous, "the standby follows again")
    check_all(servers.url, acknowledged, tmp_path / "c1.db")


def test_a_promoted_standby_has_every_acknowledged_commit(tmp_path: Path) -> None:
    servers = ServerPair()
    try:
        with node(tmp_path / "c1.db", servers.both_url) as process:
            process.wait_for(200)
            servers.primary.kill()
            servers.go_on_alone()
            process.wait_for(50)
            acknowledged = process.kill()
        check_all(servers.both_url, acknowledged, tmp_path / "c1.db")
        assert len(acknowledged) >= 250
    finally:
        servers.remove()
