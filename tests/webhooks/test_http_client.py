"""The HTTP client for receivers: requests, responses and errors."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import time

import pytest
import uvloop

from forewarn.auth.certificates import ServiceCertificates, ca_certificate_path
from forewarn.webhooks.http_client import WebhookHttpClient
from forewarn.webhooks.message import ReceiverUnreachable, WebhookRequest, WebhookResponse
from tests.support.webhook_receiver import ReceiverAnswer, WebhookReceiver


class Sender:
    """Sends one request, on asyncio's loop or on uvloop, which the service uses."""

    def __init__(self, loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self._loop_factory = loop_factory

    def send(self, url: str) -> WebhookResponse:
        webhook_request = WebhookRequest(url=url, headers={"X-Some": "thing"}, body=b"[1]")
        with asyncio.Runner(loop_factory=self._loop_factory) as runner:
            return runner.run(WebhookHttpClient(timeout_s=2.0, body_timeout_s=0.2).send(webhook_request))

    def unreached(self, url: str) -> str:
        with pytest.raises(ReceiverUnreachable) as caught:
            self.send(url)
        return str(caught.value)


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def sender(request: pytest.FixtureRequest) -> Sender:
    return Sender(request.param)


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
    assert reply.is_success


def test_a_url_without_a_path_requests_the_root(sender: Sender, receiver: WebhookReceiver) -> None:
    sender.send(f"http://127.0.0.1:{receiver.port}?a=1")
    assert receiver.received[0].target == "/?a=1"


@pytest.mark.parametrize("status", [200, 202, 204, 299])
def test_a_2xx_status_is_a_success(sender: Sender, receiver: WebhookReceiver, status: int) -> None:
    receiver.answer(status)
    assert sender.send(receiver.url).is_success


def test_a_redirect_is_not_followed(sender: Sender, receiver: WebhookReceiver) -> None:
    with WebhookReceiver(lambda method, body: ReceiverAnswer(status=307, headers={"Location": receiver.url})) as other:
        reply = sender.send(other.url)
    assert (reply.status, reply.is_success) == (307, False)
    assert receiver.received == []


def test_proxies_of_the_environment_are_not_used(
    sender: Sender, receiver: WebhookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert sender.send(receiver.url).status == 200


def test_only_the_start_of_a_response_body_is_read(sender: Sender) -> None:
    with WebhookReceiver(lambda method, body: ReceiverAnswer(body=b"x" * 1_000_000)) as receiver:
        assert sender.send(receiver.url).body == b"x" * 4096


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nhalf"], id="breaks off"),
        pytest.param([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzzz"], id="garbled"),
        pytest.param([b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200 Fine\r\n\r\n"], id="after another"),
    ],
)
def test_a_2xx_status_counts_even_if_the_body_breaks_off(sender: Sender, parts: list[bytes]) -> None:
    with raw(*parts) as url:
        assert sender.send(url).is_success


def test_an_endless_body_does_not_delay_the_client(sender: Sender) -> None:
    with raw(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nhalf", stays=True) as url:
        assert sender.send(url).body == b"half"


REASONS = [
    pytest.param([], False, "it closed the connection before it responded", id="nothing"),
    pytest.param([b"HTTP/1.1 20"], False, "it closed the connection before it responded", id="half"),
    pytest.param([b"SSH-2.0-OpenSSH_9.2\r\n\r\n"], False, "its response is not HTTP", id="another protocol"),
    pytest.param([b"HTTP/1.1 200 OK\r\nX: " + b"x" * 99_999], True, "its response is not HTTP", id="endless head"),
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


def secure(directory: Path) -> Callable[[socket.socket], socket.socket]:
    certificates = ServiceCertificates.load_or_create(directory, (), time())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server.certificate, certificates.server.key)
    return lambda sock: context.wrap_socket(sock, server_side=True)


def test_certificates_are_checked_against_ssl_cert_file(
    sender: Sender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with WebhookReceiver(wrap=secure(tmp_path)) as receiver:
        assert "its certificate is not trusted (" in sender.unreached(receiver.url)
        assert receiver.received == []
        monkeypatch.setenv("SSL_CERT_FILE", str(ca_certificate_path(tmp_path)))
        assert sender.send(receiver.url).is_success


def test_a_failed_tls_handshake_is_described_in_words(sender: Sender, receiver: WebhookReceiver) -> None:
    assert sender.unreached(receiver.url.replace("http://", "https://")).startswith("the TLS handshake failed (")
