"""The HTTPS port for operators: address, certificate, and the first administrator client."""

from __future__ import annotations

import asyncio
import socket
import ssl
import stat
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from msgspec import structs

from forewarn.auth.certificates import ServiceCertificates
from forewarn.auth.client_secrets import secret_matches
from forewarn.core.access import ADMIN_CLIENT_ID, Role
from forewarn.core.commit import Commit
from forewarn.errors import ForewarnError, Rejected, Unavailable
from forewarn.service.data_directory import DataDirectory
from forewarn.service.settings import Settings
from forewarn.service.web_server import OperatorServer, open_operator_server
from forewarn.store.memory import MemoryStore

NOW = 5000.0


def open_server(
    data: Path, store: MemoryStore, inspect: Callable[[OperatorServer], Any] = lambda server: None, **settings: Any
) -> Any:
    """Open the server with these settings, return the result of `inspect`, and close it."""

    async def scenario() -> Any:
        directory = DataDirectory.acquire(data)
        try:
            options = Settings(data=str(data), **{"api": "127.0.0.1:0", **settings})
            server = await open_operator_server(options, directory, store, NOW)
            assert server is not None
            try:
                found = inspect(server)
                return await found if isinstance(found, Awaitable) else found
            finally:
                server.port.sock.close()
        finally:
            directory.close()

    return asyncio.run(scenario())


def test_the_first_start_creates_an_administrator_whose_secret_only_its_owner_can_read(tmp_path: Path) -> None:
    store = MemoryStore()
    open_server(tmp_path, store)
    secret = tmp_path / "admin.secret"
    client = store.client(ADMIN_CLIENT_ID)
    assert client is not None
    assert secret_matches(secret.read_text().strip(), client.secret_hash)
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    (grant,) = store.grants()
    assert (grant.role, grant.resource, grant.principal) == (Role.ADMINISTRATOR, "/", "client:admin")
    (entry,) = store.history()
    assert entry.at == NOW
    assert secret.read_text().strip() not in entry.text


def test_a_second_start_keeps_client_tenant_and_certificate(tmp_path: Path) -> None:
    store = MemoryStore()

    def inspect(server: OperatorServer) -> tuple[str, str]:
        return server.sign_in.tenant_id, server.port.certificate_files.facts.fingerprint

    before = open_server(tmp_path, store, inspect), (tmp_path / "admin.secret").read_text(), store.clients()
    again = open_server(tmp_path, store, inspect), (tmp_path / "admin.secret").read_text(), store.clients()
    assert before == again


def test_a_crash_between_the_secret_file_and_its_client_is_repaired_at_the_next_start(tmp_path: Path) -> None:
    open_server(tmp_path, MemoryStore())
    secret = (tmp_path / "admin.secret").read_text().strip()
    store = MemoryStore()
    open_server(tmp_path, store)
    client = store.client(ADMIN_CLIENT_ID)
    assert client is not None
    assert secret_matches(secret, client.secret_hash)


def test_a_removed_administrator_client_stays_removed(tmp_path: Path) -> None:
    store = MemoryStore()
    open_server(tmp_path, store)
    asyncio.run(store.commit(Commit(removed_clients=(ADMIN_CLIENT_ID,), removed_grants=("admin",))))
    open_server(tmp_path, store)
    assert store.clients() == []


def test_with_an_external_issuer_no_administrator_client_is_created(tmp_path: Path) -> None:
    store = MemoryStore()
    issuer = {"oidc_issuer": "https://login.example", "oidc_audience": ("api://forewarn",)}
    described = open_server(tmp_path, store, OperatorServer.describe, **issuer)
    assert store.clients() == []
    assert described["issuer"] == "https://login.example"


def test_an_address_in_use_is_reported_with_the_setting_to_change(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Rejected, match="the port is in use; name another with --api ADDRESS:PORT"):
            open_server(tmp_path, MemoryStore(), api=f"127.0.0.1:{port}")


def test_the_certificate_has_the_names_of_the_settings_and_the_name_in_the_url(tmp_path: Path) -> None:
    names, url = open_server(
        tmp_path,
        MemoryStore(),
        lambda server: (server.port.certificate_files.facts.names, server.url),
        api_names=("forewarn.example",),
    )
    assert {"forewarn.example", "localhost", "127.0.0.1"} <= set(names)
    assert url.startswith("https://localhost:")


def test_a_certificate_from_the_settings_is_used_and_read_again(tmp_path: Path) -> None:
    open_server(tmp_path, MemoryStore())
    certificate, key = tmp_path / "tls" / "server.pem", tmp_path / "tls" / "server.key"

    def inspect(server: OperatorServer) -> tuple[Path, Path | None, str, str]:
        return (
            server.port.certificate_files.certificate,
            server.port.ca_path,
            server.port.certificate_files.facts.fingerprint,
            server.port.ensure_certificate().facts.fingerprint,
        )

    user_certificate = {"api_certificate": str(certificate), "api_key": str(key)}
    described, ca, one, other = open_server(tmp_path, MemoryStore(), inspect, **user_certificate)
    assert (described, ca) == (certificate, None)
    assert one == other
    context = ssl.create_default_context(cafile=tmp_path / "tls" / "ca.pem")
    assert context.cert_store_stats()["x509_ca"] == 1


@pytest.mark.parametrize(
    "error", [Unavailable("the disk is full"), Rejected("the key is not its own"), OSError("gone")], ids=repr
)
def test_a_failed_certificate_renewal_is_logged_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: ForewarnError | OSError
) -> None:
    def fail() -> NoReturn:
        raise error

    async def renewed(server: OperatorServer) -> int:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        served = await replace(server.port, ensure_certificate=fail).renew_certificate(
            context, server.port.certificate_files
        )
        assert served == server.port.certificate_files
        await server.port.renew_certificate(context, served)
        return len(caplog.records)

    assert open_server(tmp_path, MemoryStore(), renewed) == 1
    assert f"the API keeps its certificate, because it could not be renewed: {error}" in caplog.text


def test_a_certificate_that_is_not_valid_stays_so_after_a_failed_renewal(tmp_path: Path) -> None:
    """It is then checked every minute, not every few hours."""

    def fail() -> NoReturn:
        raise Unavailable("the disk is full")

    async def renewed(server: OperatorServer) -> tuple[str, str]:
        context, failing = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), replace(server.port, ensure_certificate=fail)
        not_valid = structs.replace(server.port.certificate_files, problem="its CA is not valid yet")
        expired_facts = structs.replace(server.port.certificate_files.facts, not_after=time.time() - 1)
        expired = structs.replace(server.port.certificate_files, facts=expired_facts)
        return (
            (await failing.renew_certificate(context, not_valid)).problem,
            (await failing.renew_certificate(context, expired)).problem,
        )

    before, now = open_server(tmp_path, MemoryStore(), renewed)
    assert before == "its CA is not valid yet"
    assert "server.pem' expired at " in now


def test_a_service_starts_while_the_clock_is_before_its_certificate(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A machine whose clock is not set yet must serve its VMs all the same."""
    ServiceCertificates.load_or_create(tmp_path / "tls", (), time.time() + 30 * 86400)

    async def serve(server: OperatorServer) -> str:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        renewing = asyncio.create_task(server.port._renew_forever(context))
        await asyncio.sleep(0)
        renewing.cancel()
        return (await server.port.renew_certificate(context, server.port.certificate_files)).problem

    problem = open_server(tmp_path, MemoryStore(), serve)
    assert "ca.pem' is not valid before" in problem
    reason = problem.partition(", and it is ")[0]  # the time of each check follows
    assert f"VMs are served, but clients do not trust the API now: {reason}" in caplog.text


def test_a_user_certificate_that_is_not_valid_does_not_keep_the_service_from_starting(tmp_path: Path) -> None:
    made = ServiceCertificates.load_or_create(tmp_path / "mine", (), time.time() + 30 * 86400).server
    files = {"api_certificate": str(made.certificate), "api_key": str(made.key)}
    problem = open_server(
        tmp_path / "data", MemoryStore(), lambda server: server.port.certificate_files.problem, **files
    )
    assert "server.pem' is not valid before" in problem


EXTERNAL_ISSUER: dict[str, Any] = {
    "oidc_issuer": "https://login.example",
    "oidc_audience": ("x",),
    "oidc_client_id": "portal",
}


def test_people_sign_in_at_the_external_issuer_if_the_portal_has_a_client_id_there(tmp_path: Path) -> None:
    flow = open_server(tmp_path, MemoryStore(), lambda server: server.code_flow, **EXTERNAL_ISSUER)
    assert flow.issuer.url == "https://login.example"
    without = {**EXTERNAL_ISSUER, "oidc_client_id": ""}
    assert open_server(tmp_path, MemoryStore(), lambda server: server.code_flow, **without) is None


def test_a_portal_secret_that_other_users_can_read_is_rejected(tmp_path: Path) -> None:
    secret = tmp_path / "portal.secret"
    secret.write_text("s3cret\n")
    secret.chmod(0o644)
    with pytest.raises(Rejected, match="holds a secret and others may read it"):
        open_server(tmp_path / "data", MemoryStore(), oidc_client_secret_file=str(secret), **EXTERNAL_ISSUER)


@pytest.mark.parametrize(
    ("console", "portal"),
    [("127.0.0.1:0", "http://localhost:"), ("0.0.0.0:0", "http://localhost:"), ("[::1]:0", "http://localhost:")],
)
def test_the_portal_url_is_plain_http_for_users_of_this_machine(tmp_path: Path, console: str, portal: str) -> None:
    described = open_server(tmp_path, MemoryStore(), OperatorServer.describe, api=console)
    assert described["portal"].startswith(portal)
    assert described["portal"].endswith("/portal/")
