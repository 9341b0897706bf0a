"""The console's HTTPS port: its address, its certificate, and the client that is there from the first start."""

from __future__ import annotations

import asyncio
import socket
import ssl
import stat
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from forewarn.auth.client_secrets import secret_matches
from forewarn.core.access import ADMIN_CLIENT_ID, Role
from forewarn.core.commit import Commit
from forewarn.errors import ForewarnError, Rejected, Unavailable
from forewarn.service.data_directory import DataDirectory
from forewarn.service.settings import Settings
from forewarn.service.web_server import OperatorServer, open_operator_server
from forewarn.store.memory import MemoryStore

NOW = 5000.0


def opened(
    data: Path, store: MemoryStore, look: Callable[[OperatorServer], Any] = lambda front: None, **settings: Any
) -> Any:
    """What `look` finds at the front of a service with these settings, which is closed again then."""

    async def story() -> Any:
        directory = DataDirectory.acquire(data)
        try:
            told = Settings(data=str(data), **{"console": "127.0.0.1:0", **settings})
            front = await open_operator_server(told, directory, store, NOW)
            assert front is not None
            try:
                found = look(front)
                return await found if isinstance(found, Awaitable) else found
            finally:
                front.sock.close()
        finally:
            directory.close()

    return asyncio.run(story())


def test_the_first_start_makes_one_client_whose_secret_only_its_owner_can_read(tmp_path: Path) -> None:
    store = MemoryStore()
    opened(tmp_path, store)
    secret = tmp_path / "admin.secret"
    client = store.client(ADMIN_CLIENT_ID)
    assert client is not None
    assert secret_matches(secret.read_text().strip(), client.secret_hash)
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    (grant,) = store.grants()
    assert (grant.role, grant.over, grant.to) == (Role.ADMINISTRATOR, "/", "client:admin")
    (entry,) = store.history()
    assert entry.at == NOW
    assert secret.read_text().strip() not in entry.text


def test_a_second_start_keeps_client_tenant_and_certificate(tmp_path: Path) -> None:
    store = MemoryStore()

    def look(front: OperatorServer) -> tuple[str, str]:
        return front.sign_in.tenant_id, front.certificate_files.facts.fingerprint

    before = opened(tmp_path, store, look), (tmp_path / "admin.secret").read_text(), store.clients()
    again = opened(tmp_path, store, look), (tmp_path / "admin.secret").read_text(), store.clients()
    assert before == again


def test_a_crash_between_the_secret_and_its_client_is_made_good(tmp_path: Path) -> None:
    opened(tmp_path, MemoryStore())
    secret = (tmp_path / "admin.secret").read_text().strip()
    store = MemoryStore()
    opened(tmp_path, store)
    client = store.client(ADMIN_CLIENT_ID)
    assert client is not None
    assert secret_matches(secret, client.secret_hash)


def test_an_administrator_who_was_removed_stays_removed(tmp_path: Path) -> None:
    store = MemoryStore()
    opened(tmp_path, store)
    asyncio.run(store.commit(Commit(removed_clients=(ADMIN_CLIENT_ID,), removed_grants=("admin",))))
    opened(tmp_path, store)
    assert store.clients() == []


def test_an_external_issuer_means_no_client_of_our_own(tmp_path: Path) -> None:
    store = MemoryStore()
    issuer = {"oidc_issuer": "https://login.example", "oidc_audience": ("api://forewarn",)}
    shown = opened(tmp_path, store, OperatorServer.describe, **issuer)
    assert store.clients() == []
    assert shown["issuer"] == "https://login.example"


def test_an_address_in_use_is_told_with_the_setting_that_changes_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Rejected, match="the port is in use; name another with --console ADDRESS:PORT"):
            opened(tmp_path, MemoryStore(), console=f"127.0.0.1:{port}")


def test_names_that_are_asked_for_are_in_the_certificate_and_the_url_is_one_it_has(tmp_path: Path) -> None:
    names, url = opened(
        tmp_path,
        MemoryStore(),
        lambda front: (front.certificate_files.facts.names, front.url),
        console_names=("forewarn.example",),
    )
    assert {"forewarn.example", "localhost", "127.0.0.1"} <= set(names)
    assert url.startswith("https://localhost:")


def test_a_certificate_of_ones_own_is_shown_and_read_again_when_it_was_renewed(tmp_path: Path) -> None:
    opened(tmp_path, MemoryStore())
    certificate, key = tmp_path / "tls" / "server.pem", tmp_path / "tls" / "server.key"

    def look(front: OperatorServer) -> tuple[Path, Path | None, str, str]:
        return (
            front.certificate_files.certificate,
            front.ca_path,
            front.certificate_files.facts.fingerprint,
            front.ensure_certificate().facts.fingerprint,
        )

    own = {"console_certificate": str(certificate), "console_key": str(key)}
    shown, ca, one, other = opened(tmp_path, MemoryStore(), look, **own)
    assert (shown, ca) == (certificate, None)
    assert one == other
    context = ssl.create_default_context(cafile=tmp_path / "tls" / "ca.pem")
    assert context.cert_store_stats()["x509_ca"] == 1


@pytest.mark.parametrize(
    "trouble", [Unavailable("the disk is full"), Rejected("the key is not its own"), OSError("gone")], ids=repr
)
def test_trouble_with_a_new_certificate_does_not_end_the_looking_for_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, trouble: ForewarnError | OSError
) -> None:
    def fail() -> NoReturn:
        raise trouble

    async def renewed(front: OperatorServer) -> int:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        await replace(front, ensure_certificate=fail).renew_certificate(context)
        await front.renew_certificate(context)
        return len(caplog.records)

    assert opened(tmp_path, MemoryStore(), renewed) == 1
    assert f"the console keeps its certificate, because it could not be renewed: {trouble}" in caplog.text


OUTSIDE = {"oidc_issuer": "https://login.example", "oidc_audience": ("x",), "oidc_client_id": "portal"}


def test_people_sign_in_outside_where_the_issuer_knows_the_portal(tmp_path: Path) -> None:
    flow = opened(tmp_path, MemoryStore(), lambda front: front.code_flow, **OUTSIDE)
    assert flow.issuer.url == "https://login.example"
    without = {**OUTSIDE, "oidc_client_id": ""}
    assert opened(tmp_path, MemoryStore(), lambda front: front.code_flow, **without) is None


def test_a_secret_of_the_portal_that_others_may_read_is_refused(tmp_path: Path) -> None:
    secret = tmp_path / "portal.secret"
    secret.write_text("s3cret\n")
    secret.chmod(0o644)
    with pytest.raises(Rejected, match="holds a secret and others may read it"):
        opened(tmp_path / "data", MemoryStore(), oidc_client_secret_file=str(secret), **OUTSIDE)


@pytest.mark.parametrize(
    ("console", "portal"),
    [("127.0.0.1:0", "http://localhost:"), ("0.0.0.0:0", "http://localhost:"), ("[::1]:0", "http://localhost:")],
)
def test_people_of_this_machine_are_sent_to_the_portal_over_plain_http(
    tmp_path: Path, console: str, portal: str
) -> None:
    shown = opened(tmp_path, MemoryStore(), OperatorServer.describe, console=console)
    assert shown["portal"].startswith(portal)
    assert shown["portal"].endswith("/portal/")
