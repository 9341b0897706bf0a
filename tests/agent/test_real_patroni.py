"""A real PostgreSQL cluster with Patroni: a switchover during writes loses no acknowledged commit."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from forewarn.agent.model import StepOutcome
from tests.support.external_server import ExternalServer, as_nobody, give_to_nobody, port_answers
from tests.support.reaction_harness import ReactionHarness
from tests.support.service_process import eventually, free_port

pytestmark = pytest.mark.real
PARTS = Path(__file__).parents[2] / ".venv-parts"
BIN = PARTS / "debian/usr/lib/postgresql/15/bin"
ETCD, PATRONI, PYTHON = PARTS / "debian/usr/bin/etcd", PARTS / "bin/patroni", PARTS / "bin/python"
PASSWORD = "a password of the API"
WRITER = """
import sys, threading, psycopg

conninfo, goal = sys.argv[1], threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), goal.set()), daemon=True).start()
number = 0
while not goal.is_set():
    try:
        with psycopg.connect(conninfo, autocommit=True, connect_timeout=2) as connection:
            connection.execute("create table if not exists written (number bigint primary key)")
            while not goal.is_set():
                number += 1
                connection.execute("insert into written values (%s)", (number,))
                print(number, flush=True)  # acknowledged
    except psycopg.Error:
        goal.wait(0.05)
with psycopg.connect(conninfo, connect_timeout=2) as connection:
    rows = connection.execute("select number from written").fetchall()
    print("found", *(number for number, in rows), flush=True)
"""


class Node:
    """A PostgreSQL server with its Patroni, both running as user nobody."""

    def __init__(self, name: str, folder: Path, etcd: int) -> None:
        self.name, self.folder, self._etcd = name, folder / name, etcd
        self.api = free_port(2)
        self.database = self.api + 1
        self.folder.mkdir()
        give_to_nobody(self.folder)
        (self.folder / "patroni.json").write_text(json.dumps(self._configuration()))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.api}"

    @property
    def daemon(self) -> ExternalServer:
        command = as_nobody([PATRONI, self.folder / "patroni.json"])
        environment = {"LC_ALL": "C.UTF-8", "HOME": str(self.folder)}
        return ExternalServer(command, log=self.folder / "patroni.log", is_up=self._is_running, environment=environment)

    def _is_running(self) -> bool:
        return self.name in self.members and self.members[self.name]["state"] in ("running", "streaming")

    @property
    def members(self) -> dict[str, dict[str, Any]]:
        try:
            with urllib.request.urlopen(f"{self.url}/cluster", timeout=5) as response:
                return {member["name"]: member for member in json.load(response)["members"]}
        except (OSError, urllib.error.HTTPError):
            return {}

    @property
    def leader(self) -> str:
        return next((name for name, member in self.members.items() if member["role"] == "leader"), "")

    def _configuration(self) -> dict[str, Any]:
        settings = {"max_connections": 20, "shared_buffers": "16MB", "jit": "off", "unix_socket_directories": ""}
        hba = [f"host {what} all 127.0.0.1/32 trust" for what in ("all", "replication")]
        account = {name: {"username": name, "password": "x"} for name in ("superuser", "replication")}
        return {
            "scope": "site",
            "name": self.name,
            "restapi": {
                "listen": f"127.0.0.1:{self.api}",
                "connect_address": f"127.0.0.1:{self.api}",
                "authentication": {"username": "ops", "password": PASSWORD},
            },
            "etcd3": {"hosts": f"127.0.0.1:{self._etcd}"},
            "bootstrap": {
                "dcs": {"ttl": 20, "loop_wait": 1, "retry_timeout": 3, "postgresql": {"use_pg_rewind": True}},
                "initdb": [{"encoding": "UTF8"}, {"locale": "C"}, "data-checksums"],
            },
            "postgresql": {
                "listen": f"127.0.0.1:{self.database}",
                "connect_address": f"127.0.0.1:{self.database}",
                "data_dir": f"{self.folder}/data",
                "bin_dir": str(BIN),
                "pgpass": f"{self.folder}/pgpass",
                "authentication": account,
                "parameters": settings,
                "pg_hba": hba,
            },
        }


class Writer:
    """Writes numbers to the current primary, one commit each; prints those that were acknowledged."""

    def __init__(self, output: Path, *nodes: Node) -> None:
        hosts, ports = ",".join("127.0.0.1" for _ in nodes), ",".join(str(node.database) for node in nodes)
        account = "user=superuser password=x dbname=postgres target_session_attrs=read-write"
        command: list[str | Path] = [PYTHON, "-c", WRITER, f"host={hosts} port={ports} {account}"]
        self._output = output
        with output.open("wb") as file:
            self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=file)

    @property
    def acknowledged(self) -> set[int]:
        complete_lines = self._output.read_text().rpartition("\n")[0].splitlines()
        return {int(line) for line in complete_lines if line.isdecimal()}

    def wait_for_commits(self, count: int) -> None:
        """Waits until this many more commits were acknowledged."""
        goal = len(self.acknowledged) + count
        eventually(lambda: len(self.acknowledged) >= goal)

    def stop_and_read(self) -> set[int]:
        """Stops writing; returns the numbers that the primary has."""
        self._child.communicate(timeout=60)
        return {int(number) for number in self._output.read_text().splitlines()[-1].split()[1:]}

    def end(self) -> None:
        if self._child.poll() is None:
            self._child.kill()
        self._child.communicate(timeout=60)


@pytest.fixture(scope="module")
def nodes() -> Iterator[tuple[Node, Node]]:
    """Two nodes, the first one leads. The folder is outside of pytest's, which only root may enter."""
    for program in (BIN / "postgres", ETCD, PATRONI):
        if not program.exists():
            pytest.skip(f"{program.name} is not here: make test-real fetches it")
    folder = Path(tempfile.mkdtemp(prefix="forewarn-patroni-"))
    folder.chmod(0o755)
    try:
        with ExitStack() as daemons:
            client = free_port(2)
            urls = {"client": f"http://127.0.0.1:{client}", "peer": f"http://127.0.0.1:{client + 1}"}
            options = [f"--listen-{kind}-urls={url}" for kind, url in urls.items()]
            options += [f"--advertise-client-urls={urls['client']}", f"--initial-advertise-peer-urls={urls['peer']}"]
            options += [f"--data-dir={folder}/etcd", f"--initial-cluster=default={urls['peer']}"]
            command: list[str | Path] = [ETCD, *options]
            daemons.enter_context(ExternalServer(command, log=folder / "etcd.log", is_up=lambda: port_answers(client)))
            first = Node("db-0", folder, client)
            daemons.enter_context(first.daemon)
            eventually(lambda: first.leader == "db-0", within_s=60)
            second = Node("db-1", folder, client)
            daemons.enter_context(second.daemon)
            eventually(lambda: second.members["db-1"]["state"] == "streaming", within_s=60)
            yield first, second
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def writer(nodes: tuple[Node, Node], tmp_path: Path) -> Iterator[Writer]:
    writer = Writer(tmp_path / "output", *nodes)
    yield writer
    writer.end()


def failover_of(node: Node, folder: Path, **options: Any) -> ReactionHarness:
    (folder / "password").write_text(PASSWORD)
    account = {"user": "ops", "password_file": str(folder / "password")}
    given = {"url": node.url, **account, **options}
    return ReactionHarness(
        "failover-patroni", given, folder / "case", within_s=90, vm=node.name, resources=(node.name,)
    )


def test_a_primary_switches_over_and_back_and_no_commit_is_lost(
    nodes: tuple[Node, Node], writer: Writer, tmp_path: Path
) -> None:
    first, second = nodes
    failover = failover_of(first, tmp_path, return_leadership=True)
    writer.wait_for_commits(50)
    assert asyncio.run(failover.check()) is False

    outcome = asyncio.run(failover.do())
    assert outcome == StepOutcome(ok=True, text="db-1 leads now", notes={"led": "db-0", "successor": "db-1"})
    assert second.leader == "db-1"
    assert first.members["db-0"]["role"] == "replica"
    assert asyncio.run(failover.check()) is True
    writer.wait_for_commits(50)

    assert asyncio.run(failover.undo()) == StepOutcome(ok=True, text="db-0 leads again")
    assert first.leader == "db-0"
    writer.wait_for_commits(50)
    found = writer.stop_and_read()
    assert len(writer.acknowledged) >= 150
    assert writer.acknowledged <= found


def test_a_replica_has_nothing_to_hand_over(nodes: tuple[Node, Node], tmp_path: Path) -> None:
    _, second = nodes
    leader = second.leader
    outcome = asyncio.run(failover_of(second, tmp_path).do())
    assert outcome == StepOutcome(ok=True, text=f"nothing to hand over: {leader} leads")
    assert second.leader == leader


def test_patroni_rejects_a_candidate_that_does_not_exist(nodes: tuple[Node, Node], tmp_path: Path) -> None:
    first, _ = nodes
    outcome = asyncio.run(failover_of(first, tmp_path, candidate="db-9").do())
    assert outcome.text.startswith("Patroni refuses the switchover: 412 (")
    assert first.leader == "db-0"


def test_patroni_rejects_a_wrong_password(nodes: tuple[Node, Node], tmp_path: Path) -> None:
    first, _ = nodes
    failover = failover_of(first, tmp_path)
    (tmp_path / "password").write_text("a wrong one")
    assert asyncio.run(failover.do()).text.startswith("Patroni refuses the switchover: 401")
