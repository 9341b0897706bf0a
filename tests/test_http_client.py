"""The HTTP client of the service: requests, responses, errors, and which addresses it calls."""

from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import time
from typing import Any

import pytest
import uvloop

from forewarn.auth.certificates import ServiceCertificates, ca_certificate_path
from forewarn.base.http_client import ClientResponse, HttpClient, HttpLimits, HttpRequestFailed, LocalTargets
from forewarn.errors import Rejected
from tests.support.webhook_receiver import ReceiverAnswer, WebhookReceiver

LIMITS = HttpLimits(timeout_s=2.0, body_timeout_s=0.2)


class Sender:
    """Sends one request, on asyncio's loop or on uvloop, which the service uses."""

    def __init__(self, loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self._loop_factory = loop_factory

    def send(self, url: str, client: HttpClient | None = None) -> ClientResponse:
        client = client or HttpClient(local_targets=LocalTargets.LOOPBACK)
        return self.run(client.send("POST", url, headers={"X-Some": "thing"}, body=b"[1]", limits=LIMITS))

    def run(self, request: Coroutine[Any, Any, ClientResponse]) -> ClientResponse:
        with asyncio.Runner(loop_factory=self._loop_factory) as runner:
            return runner.run(request)

    def unreached(self, url: str, client: HttpClient | None = None) -> str:
        with pytest.raises(HttpRequestFailed) as caught:
            self.send(url, client)
        return str(caught.value)


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def sender(request: pytest.FixtureRequest) -> Sender:
    return Sender(request.param)


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    with WebhookReceiver() as receiver:
        yield receiver


@contextmanager
def raw(*parts: bytes, stays: bool = False) -> Iterator[str]:
    """A server that answers every request with these bytes."""
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                for part in parts:
                    connection.sendall(part)
                if stays:
                    done.wait(30)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        done.set()
        thread.join(30)


def test_a_request_arrives_unchanged(sender: Sender, receiver: WebhookReceiver) -> None:
    reply = sender.send(f"{receiver.url}/a%20b?code=x%26y")
    (received,) = receiver.received
    assert (received.method, received.target, received.body) == ("POST", "/hook/a%20b?code=x%26y", b"[1]")
    assert received.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert received.headers["x-some"] == "thing"
    assert reply.status == 200


def test_a_url_without_a_path_requests_the_root(sender: Sender, receiver: WebhookReceiver) -> None:
    sender.send(f"http://127.0.0.1:{receiver.port}?a=1")
    assert receiver.received[0].target == "/?a=1"


@pytest.mark.parametrize("status", [200, 204, 299, 404, 503])
def test_a_response_of_any_status_is_returned(sender: Sender, receiver: WebhookReceiver, status: int) -> None:
    receiver.answer(status)
    assert sender.send(receiver.url).status == status


def test_a_redirect_is_not_followed(sender: Sender, receiver: WebhookReceiver) -> None:
    with WebhookReceiver(lambda method, body: ReceiverAnswer(status=307, headers={"Location": receiver.url})) as other:
        reply = sender.send(other.url)
    assert reply.status == 307
    assert receiver.received == []


def test_proxies_of_the_environment_are_not_used(
    sender: Sender, receiver: WebhookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert sender.send(receiver.url).status == 200


def test_only_the_start_of_a_response_body_is_read(sender: Sender) -> None:
    with WebhookReceiver(lambda method, body: ReceiverAnswer(body=b"x" * 1_000_000)) as receiver:
        reply = sender.send(receiver.url)
        assert (reply.body, reply.is_complete) == (b"x" * 4096, False)


def test_a_compressed_body_is_not_unpacked(sender: Sender) -> None:
    packed = gzip.compress(b"x" * 1_000_000)
    with WebhookReceiver(
        lambda method, body: ReceiverAnswer(body=packed, headers={"Content-Encoding": "gzip"})
    ) as receiver:
        reply = sender.send(receiver.url)
        assert (reply.body, reply.is_complete) == (packed, True)


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nhalf"], id="breaks off"),
        pytest.param([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzzz"], id="garbled"),
        pytest.param([b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200 Fine\r\n\r\n"], id="after another"),
    ],
)
def test_the_status_is_returned_even_if_the_body_breaks_off(sender: Sender, parts: list[bytes]) -> None:
    with raw(*parts) as url:
        assert sender.send(url).status == 200


def test_an_endless_body_does_not_delay_the_client(sender: Sender) -> None:
    with raw(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nhalf", stays=True) as url:
        reply = sender.send(url)
        assert (reply.body, reply.is_complete) == (b"half", False)


REASONS = [
    pytest.param([], False, "it closed the connection before it responded", id="nothing"),
    pytest.param([b"HTTP/1.1 20"], False, "it closed the connection before it responded", id="half"),
    pytest.param([b"SSH-2.0-OpenSSH_9.2\r\n\r\n"], False, "its response is not HTTP", id="another protocol"),
    pytest.param([b"HTTP/1.1 200 OK\r\nX: " + b"x" * 199_999], True, "its response is not HTTP", id="endless head"),
    pytest.param([], True, "there was no response within 2 s", id="silence"),
]


@pytest.mark.parametrize(("parts", "stays", "why"), REASONS)
def test_a_missing_response_is_described_in_words(sender: Sender, parts: list[bytes], stays: bool, why: str) -> None:
    with raw(*parts, stays=stays) as url:
        assert sender.unreached(url) == why


def test_a_refused_connection_is_described_in_words(sender: Sender, receiver: WebhookReceiver) -> None:
    receiver.stop()
    assert sender.unreached(receiver.url) == "it refused the connection"


@pytest.mark.parametrize("host", ["x" * 64 + ".invalid", "a..b"])
def test_an_unresolvable_name_is_described_in_words(sender: Sender, host: str) -> None:
    assert sender.unreached(f"http://{host}/").startswith("its name cannot be resolved")


def test_names_that_no_server_resolves_delay_no_other_request(
    sender: Sender, receiver: WebhookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve, ended = socket.getaddrinfo, threading.Event()

    def slowly(host: str, *arguments: Any, **options: Any) -> Any:
        if host.startswith("hang"):
            ended.wait(30)
        return resolve("127.0.0.1", *arguments, **options)

    async def send_beside_hanging_ones(client: HttpClient) -> ClientResponse:
        others = [f"http://hang-{n}.invalid/" for n in range(50)]
        hanging = [asyncio.create_task(client.send("GET", url, headers={}, limits=LIMITS)) for url in others]
        await asyncio.sleep(0)
        for task in hanging[:40]:
            task.cancel()
        url = f"http://fine.invalid:{receiver.port}/"
        reply = await client.send("POST", url, headers={}, body=b"[1]", limits=LIMITS)
        ended.set()
        await asyncio.gather(*hanging, return_exceptions=True)
        return reply

    monkeypatch.setattr(socket, "getaddrinfo", slowly)
    assert sender.run(send_beside_hanging_ones(HttpClient(local_targets=LocalTargets.LOOPBACK))).status == 200


def secure(
    directory: Path, names: tuple[str, ...] = (), on_name: Callable[[str | None], object] = lambda name: None
) -> Callable[[socket.socket], socket.socket]:
    """Wraps a socket in TLS, with a certificate for these names; `on_name` gets the name that a client indicates."""
    certificates = ServiceCertificates.load_or_create(directory, names, time())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server.certificate, certificates.server.key)

    def note_name(connection: object, name: str | None, context: ssl.SSLContext) -> None:
        on_name(name)

    context.sni_callback = note_name
    return lambda sock: context.wrap_socket(sock, server_side=True)


def test_certificates_are_checked_against_ssl_cert_file(
    sender: Sender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with WebhookReceiver(wrap=secure(tmp_path)) as receiver:
        assert "its certificate is not trusted (" in sender.unreached(receiver.url)
        assert receiver.received == []
        monkeypatch.setenv("SSL_CERT_FILE", str(ca_certificate_path(tmp_path)))
        assert sender.send(receiver.url).status == 200


def test_a_failed_tls_handshake_is_described_in_words(sender: Sender, receiver: WebhookReceiver) -> None:
    assert sender.unreached(receiver.url.replace("http://", "https://")).startswith("the TLS handshake failed (")


NAME = "receiver.localhost"  # our own CA signs such names; the resolvers below decide what it means


class Resolver:
    """Resolves every name to the next of these lists of addresses, and counts."""

    def __init__(self, *answers: list[str]) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        return self._answers[min(len(self.asked), len(self._answers)) - 1]


def local(*answers: list[str], targets: LocalTargets = LocalTargets.LOOPBACK) -> HttpClient:
    return HttpClient(local_targets=targets, resolve=Resolver(*answers))


def test_a_name_is_resolved_once_and_the_connection_goes_to_that_address(
    sender: Sender, receiver: WebhookReceiver
) -> None:
    """A second lookup could give another address, which was not checked (DNS rebinding)."""
    resolver = Resolver(["127.0.0.1"], ["192.0.2.1"])
    client = HttpClient(local_targets=LocalTargets.LOOPBACK, resolve=resolver)
    assert sender.send(f"http://{NAME}:{receiver.port}/hook", client).status == 200
    assert resolver.asked == [NAME]
    assert receiver.received[0].headers["host"] == f"{NAME}:{receiver.port}"


@pytest.mark.parametrize(
    ("address", "needs"),
    [
        ("127.0.0.1", "loopback"),
        ("127.8.8.8", "loopback"),
        ("0.0.0.0", "loopback"),
        ("::1", "loopback"),
        ("::", "loopback"),
        ("::ffff:127.0.0.1", "loopback"),
        ("169.254.169.254", "link-local"),
        ("::ffff:169.254.169.254", "link-local"),
        ("fe80::1", "link-local"),
    ],
)
def test_a_near_address_is_not_called_without_the_setting(sender: Sender, address: str, needs: str) -> None:
    message = f"which the setting 'local_targets' does not allow: set it to '{needs}'"
    literal = f"[{address}]" if ":" in address else address
    assert message in sender.unreached(f"http://{literal}:9/", HttpClient())
    assert message in sender.unreached(f"https://{NAME}/", HttpClient(resolve=Resolver([address])))
    with pytest.raises(Rejected, match="local_targets"):
        HttpClient().require_allowed(f"https://{literal}/hook")
    HttpClient(local_targets=LocalTargets.LINK_LOCAL).require_allowed(f"https://{literal}/hook")


def test_loopback_does_not_include_link_local_addresses() -> None:
    client = HttpClient(local_targets=LocalTargets.LOOPBACK)
    client.require_allowed("http://localhost:9000/")
    with pytest.raises(Rejected, match=r"'169\.254\.169\.254' is a link-local address"):
        client.require_allowed("http://169.254.169.254/metadata")


@pytest.mark.parametrize("url", ["https://example.org/", "http://10.0.0.1/", "https://[2001:db8::1]/", "http://a.b:1/"])
def test_other_machines_are_always_allowed(url: str) -> None:
    HttpClient().require_allowed(url)


def test_of_several_addresses_only_the_allowed_ones_are_called(sender: Sender, receiver: WebhookReceiver) -> None:
    client = local(["169.254.169.254", "127.0.0.1"])
    assert sender.send(f"http://{NAME}:{receiver.port}/", client).status == 200


def test_the_next_address_is_called_if_one_refuses_the_connection(sender: Sender, receiver: WebhookReceiver) -> None:
    client = local(["127.9.9.9", "127.0.0.1"])
    assert sender.send(f"http://{NAME}:{receiver.port}/", client).status == 200
    assert len(receiver.received) == 1


def test_a_certificate_is_checked_against_the_name_and_not_the_address(
    sender: Sender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str | None] = []
    with WebhookReceiver(wrap=secure(tmp_path, (NAME,), names.append)) as receiver:
        monkeypatch.setenv("SSL_CERT_FILE", str(ca_certificate_path(tmp_path)))
        assert sender.send(f"https://{NAME}:{receiver.port}/", local(["127.0.0.1"])).status == 200
        assert names == [NAME]  # server name indication
        other = sender.unreached(f"https://other.localhost:{receiver.port}/", local(["127.0.0.1"]))
        assert "its certificate is not trusted (Hostname mismatch" in other
        assert len(receiver.received) == 1


def test_connections_use_no_cipher_suite_with_cbc() -> None:
    """`aead` covers the suites of TLS 1.3 too."""
    context = HttpClient()._tls_context
    assert all(suite["aead"] for suite in context.get_ciphers())
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2
