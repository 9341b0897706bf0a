"""Real clients in strict mode trust certificates of the local CA, and no others."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from forewarn.auth import pem
from forewarn.auth.certificate_authority import CertificateAuthority, issue_server_certificate, new_ec_key
from forewarn.auth.certificates import ServiceCertificates, ca_certificate_path

HOST = "vmhost.example.org"


def strict_client(ca: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca)
    context.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN  # the default of Python 3.13
    return context


def served(certificate: Path, key: Path, fetch: Callable[[int], Awaitable[str]]) -> str:
    """What a client gets from a TLS server on loopback that answers every request."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
        await writer.drain()
        writer.close()

    async def serve_and_visit() -> str:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)  # refused handshakes
        async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context) as server:
            return await fetch(server.sockets[0].getsockname()[1])

    return asyncio.run(asyncio.wait_for(serve_and_visit(), 30))


async def request_with_python(port: int, ca: Path, name: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=strict_client(ca), server_hostname=name)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return answer.decode().rpartition("\r\n")[2]


async def request_with_curl(port: int, ca: Path, name: str) -> str:
    shown = f"[{name}]" if ":" in name else name
    curl = await asyncio.create_subprocess_exec(
        "curl", "--silent", "--show-error", "--noproxy", "*", "--cacert", str(ca),
        "--connect-to", f"{shown}:{port}:127.0.0.1:{port}", f"https://{shown}:{port}/",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    return (await curl.communicate())[0].decode()


CLIENTS = [request_with_python, *([request_with_curl] if shutil.which("curl") else [])]


@pytest.mark.parametrize("fetch", CLIENTS, ids=lambda fetch: fetch.__name__)
@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1"])
@pytest.mark.parametrize("more", [(), (HOST,)], ids=["loopback only", "a host name too"])
def test_clients_trust_the_service_under_every_loopback_name(
    tmp_path: Path, fetch: Callable[[int, Path, str], Awaitable[str]], name: str, more: tuple[str, ...]
) -> None:
    made = ServiceCertificates.load_or_create(tmp_path, more, time.time())
    ca = made.ca.certificate
    assert served(made.server.certificate, made.server.key, lambda port: fetch(port, ca, name)) == "hello"


@pytest.mark.parametrize("fetch", CLIENTS, ids=lambda fetch: fetch.__name__)
def test_clients_trust_the_service_under_its_host_name(
    tmp_path: Path, fetch: Callable[[int, Path, str], Awaitable[str]]
) -> None:
    made = ServiceCertificates.load_or_create(tmp_path, [HOST], time.time())
    ca = made.ca.certificate
    assert served(made.server.certificate, made.server.key, lambda port: fetch(port, ca, HOST)) == "hello"


def test_clients_do_not_trust_another_ca(tmp_path: Path) -> None:
    made = ServiceCertificates.load_or_create(tmp_path / "one", [], time.time())
    other = ServiceCertificates.load_or_create(tmp_path / "other", [], time.time()).ca.certificate
    with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer"):
        served(made.server.certificate, made.server.key, lambda port: request_with_python(port, other, "localhost"))


def test_clients_reject_other_names_from_a_stolen_loopback_ca(tmp_path: Path) -> None:
    ServiceCertificates.load_or_create(tmp_path, [], time.time())
    ca_key = pem.parse_private_key((tmp_path / "ca.key").read_bytes(), tmp_path)
    stolen = CertificateAuthority(certificate=pem.read_certificate(ca_certificate_path(tmp_path)), key=ca_key)  # type: ignore[arg-type]
    key = new_ec_key()
    pem.write_certificate(tmp_path / "evil.pem", issue_server_certificate(stolen, key, ["bank.example"], time.time()))
    pem.write_key(tmp_path / "evil.key", key)
    with pytest.raises(ssl.SSLCertVerificationError, match="permitted subtree violation"):
        served(
            tmp_path / "evil.pem",
            tmp_path / "evil.key",
            lambda port: request_with_python(port, ca_certificate_path(tmp_path), "bank.example"),
        )
