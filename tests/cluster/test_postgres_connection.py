"""Connections to PostgreSQL: one clear sentence for each wrong URL or server, poolers, several hosts and TLS."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from forewarn.cluster.postgres_connection import parse_url
from forewarn.cluster.postgres_record import PostgresRecord, open_record
from forewarn.cluster.record import RecordUnavailable, SharedRecord
from forewarn.cluster.record_administration import examine_record
from forewarn.conformance.record import FIRST_ROW, RecordConformance, group_after
from forewarn.errors import ForewarnError, Refused, Rejected
from tests.support.postgres_pair import DATABASE, ServerPair
from tests.support.postgres_server import new_directory, owner, wait_until
from tests.support.replicated_store import take
from tests.support.service_process import free_port

pytestmark = pytest.mark.cluster
POOLER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def refusal(url: str) -> ForewarnError:
    with pytest.raises(ForewarnError) as caught:
        open_record(url)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite:///x", "the store is not a URL of PostgreSQL: give it as postgresql://USER@HOST/DATABASE"),
        ("postgresql://u@h/d?unknown=1", "the URL of PostgreSQL is not valid (invalid URI query parameter"),
        ("postgresql://u@h:port/d", "the URL of PostgreSQL has the port 'port': give a number from 1 to 65535"),
    ],
)
def test_a_wrong_url_is_named(url: str, message: str) -> None:
    error = refusal(url)
    assert isinstance(error, Rejected)
    assert message in str(error)


def test_a_wrong_password_is_named(servers: ServerPair) -> None:
    error = refusal(servers.url.replace("secret", "wrong"))
    assert isinstance(error, Rejected)
    assert 'refuses the connection (password authentication failed for user "postgres")' in str(error)


def test_an_unknown_database_is_named(servers: ServerPair) -> None:
    error = refusal(servers.primary.url("nowhere"))
    assert isinstance(error, Rejected)
    assert 'database "nowhere" does not exist' in str(error)


def test_a_server_that_is_not_there_is_unavailable() -> None:
    error = refusal(f"postgresql://postgres:secret@127.0.0.1:{free_port()}/x")
    assert isinstance(error, RecordUnavailable)
    assert "cannot be reached now (Connection refused): check the server and the URL" in str(error)


def test_a_standby_alone_is_read_only(servers: ServerPair) -> None:
    for parameters in ({}, {"target_session_attrs": "any"}):
        error = refusal(servers.standby.url(DATABASE, **parameters))
        assert isinstance(error, RecordUnavailable)
        assert "give the primary server" in str(error)


def test_a_read_only_database_is_named(servers: ServerPair) -> None:
    error = refusal(servers.primary.url(DATABASE, options="-cdefault_transaction_read_only%3Don"))
    assert isinstance(error, RecordUnavailable)
    assert "read-only" in str(error)


def test_asynchronous_commits_are_refused(servers: ServerPair) -> None:
    error = refusal(servers.primary.url(DATABASE, options="-csynchronous_commit%3Doff"))
    assert isinstance(error, Refused)
    assert "synchronous_commit = off, so that it may lose what it has confirmed" in str(error)


def test_a_user_without_rights_writes_nothing(servers: ServerPair) -> None:
    servers.query("DROP ROLE IF EXISTS reader")
    servers.query("CREATE ROLE reader LOGIN PASSWORD 'secret'")
    servers.query("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
    record = open_record(servers.url.replace("postgres:secret", "reader:secret"))
    with pytest.raises(RecordUnavailable, match="permission denied for table lease"):
        record.take_lease("c1", "")
    record.close()
    servers.query("DROP OWNED BY reader; DROP ROLE reader")


def test_of_several_hosts_the_primary_is_used(servers: ServerPair) -> None:
    dead_first = f"postgresql://postgres:secret@127.0.0.1:{free_port()},127.0.0.1:{servers.primary.port}/{DATABASE}"
    for url in (servers.both_url, dead_first):
        record = open_record(url)
        record.commit(group_after(take(record), FIRST_ROW))
        record.release_lease(record.read_lease().term)
        record.close()
        servers.empty()


def test_parameters_of_the_url_replace_our_defaults() -> None:
    given = parse_url("postgresql://u@a,b/d?sslmode=verify-full&connect_timeout=9")
    assert (given["host"], given["sslmode"], given["connect_timeout"]) == ("a,b", "verify-full", "9")
    assert (given["tcp_user_timeout"], given["target_session_attrs"]) == (3000, "read-write")


def test_tls_is_configured_by_the_url(servers: ServerPair, tmp_path: Path) -> None:
    certificate, key = servers.primary.data / "server.crt", servers.primary.data / "server.key"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    request = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", *subject]
    subprocess.run([*request, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    for file in (certificate, key):
        shutil.chown(file, owner() or os.geteuid())
    key.chmod(0o600)
    trusted = tmp_path / "root.crt"
    shutil.copy(certificate, trusted)
    servers.primary.configure("ssl = on\n")
    servers.primary.reload()
    url = servers.primary.url(DATABASE, sslmode="verify-full", sslrootcert=str(trusted))
    wait_until(lambda: _is_reachable(url), "the server uses TLS")
    error = refusal(servers.primary.url(DATABASE, sslmode="verify-full", sslrootcert="/dev/null"))
    assert "cannot be reached now" in str(error)
    servers.primary.configure("ssl = off\n")
    servers.primary.reload()


def _is_reachable(url: str) -> bool:
    try:
        open_record(url).close()
    except ForewarnError:
        return False
    return True


class Pooler:
    """PgBouncer in transaction mode: each transaction may use another connection to the server."""

    def __init__(self, servers: ServerPair) -> None:
        self.port = free_port()
        self.directory = new_directory()
        users = self.directory / "users.txt"
        users.write_text('"postgres" "secret"\n')
        settings = self.directory / "pgbouncer.ini"
        settings.write_text(
            f"[databases]\n{DATABASE} = host=127.0.0.1 port={servers.primary.port}\n[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {self.port}\nauth_type = plain\nauth_file = {users}\n"
            "pool_mode = transaction\ndefault_pool_size = 3\nserver_round_robin = 1\nunix_socket_dir =\n"
        )
        assert POOLER is not None
        self._process = subprocess.Popen(
            [POOLER, str(settings)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, user=owner(), cwd="/"
        )
        wait_until(lambda: _is_reachable(self.url), "the pooler answers")

    @property
    def url(self) -> str:
        return f"postgresql://postgres:secret@127.0.0.1:{self.port}/{DATABASE}"

    def remove(self) -> None:
        self._process.terminate()
        self._process.wait(60)
        shutil.rmtree(self.directory)


@pytest.fixture(scope="module")
def pooler(_pair: ServerPair) -> Iterator[Pooler]:
    if POOLER is None:
        pytest.skip("PgBouncer is not installed: run tests/cluster/install_servers.sh")
    pooler = Pooler(_pair)
    yield pooler
    pooler.remove()


class TestPooledRecord(RecordConformance):
    """A record behind a pooler in transaction mode works like any other."""

    @pytest.fixture(autouse=True)
    def _connections(self, servers: ServerPair, pooler: Pooler) -> Iterator[None]:
        self.servers, self.pooler = servers, pooler
        self.opened: list[PostgresRecord] = []
        yield
        for record in self.opened:
            record.close()

    def open(self) -> SharedRecord:
        self.opened.append(open_record(self.pooler.url))
        assert self.opened[-1].is_pooled
        return self.opened[-1]

    def expire_lease(self) -> None:
        self.servers.query("UPDATE lease SET expires_at = clock_timestamp() - interval '1 second'")

    def make_log_old(self) -> None:
        self.servers.query("UPDATE log SET at = at - interval '2 hours'")


def test_a_report_says_that_there_is_a_pooler(servers: ServerPair, pooler: Pooler) -> None:
    assert examine_record(pooler.url).pooled
    assert not examine_record(servers.url).pooled
