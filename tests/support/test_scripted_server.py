"""The scripted server, on which other tests rely."""

import http.client
from urllib.parse import urlsplit

import pytest

from tests.support.scripted_server import ScriptedReply, ScriptedServer, json_reply


def ask(url: str, method: str = "GET", body: bytes | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=10)
    try:
        connection.request(method, "/here", body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_replies_come_in_order_and_the_last_one_repeats() -> None:
    with ScriptedServer(ScriptedReply(status=500), json_reply({"a": 1})) as server:
        assert [ask(server.url) for _ in range(3)] == [(500, b""), (200, b'{"a": 1}'), (200, b'{"a": 1}')]


def test_requests_are_recorded() -> None:
    with ScriptedServer(ScriptedReply()) as server:
        ask(server.url, "POST", b"body")
    assert [(r.method, r.target, r.body) for r in server.requests] == [("POST", "/here", b"body")]


def test_a_reply_can_be_a_reset() -> None:
    with ScriptedServer(ScriptedReply(resets=True)) as server, pytest.raises(ConnectionError):
        ask(server.url)


def test_a_reply_can_close_its_connection_without_announcing_it() -> None:
    with ScriptedServer(ScriptedReply(closes=True), json_reply({})) as server:
        connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=10)
        connection.request("GET", "/")
        answer = connection.getresponse()
        assert (answer.read(), answer.will_close) == (b"", False)
        assert connection.sock.recv(1) == b""
        connection.close()
        ask(server.url)
    assert server.connections == 2
