"""The headers Server and x-ms-request-id, with the setting `imds_headers` (spec §4.1)."""

from __future__ import annotations

import re

from forewarn.metadata.response_writer import ResponseWriter
from forewarn.protocol.http_message import JSON_CONTENT_TYPE, HttpResponse
from forewarn.protocol.responses import approval_accepted, too_many_requests, unsupported_method
from forewarn.service.settings import load_settings
from tests.metadata.conftest import POLL, RunScenario, World

NOW = 1_474_309_787.0
GUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
DOCUMENT = HttpResponse(status=200, headers=(JSON_CONTENT_TYPE, ("ETag", '"1"')), body=b"{}")
ID = b"x-ms-request-id: ID"


def writer(*, imds_headers: bool = True) -> ResponseWriter:
    return ResponseWriter(lambda: NOW, imds_headers=imds_headers)


def rendered(response: HttpResponse, *, keep_alive: bool = True, is_http10: bool = False) -> bytes:
    raw = writer().bytes_for(response, keep_alive=keep_alive, is_http10=is_http10)
    return re.sub(rb"(?<=x-ms-request-id: )\S+", b"ID", raw)


def test_the_headers_stand_in_the_order_of_captured_responses() -> None:
    """Captures show Content-Type, Server, x-ms-request-id, Date, Content-Length."""
    assert rendered(DOCUMENT) == (
        b'HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=utf-8\r\nETag: "1"\r\n'
        b"Server: IMDS/150.870.65.1854\r\n" + ID + b"\r\nDate: Mon, 19 Sep 2016 18:29:47 GMT\r\n"
        b"Content-Length: 2\r\n\r\n{}"
    )


def test_the_front_end_answers_unsupported_verbs_itself_without_a_request_id() -> None:
    """Captures: `Content-Length, Content-Type, Server, Date` for HEAD, and Date before Server for PUT."""
    head = rendered(unsupported_method("HEAD"))
    assert head == (
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 323\r\nContent-Type: text/xml; charset=utf-8\r\n"
        b"Server: Microsoft-IIS/10.0\r\nDate: Mon, 19 Sep 2016 18:29:47 GMT\r\n\r\n"
    )
    put = rendered(unsupported_method("PUT"))
    assert put.partition(b"\r\n\r\n")[0] == (
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 322\r\nContent-Type: text/xml; charset=utf-8\r\n"
        b"Date: Mon, 19 Sep 2016 18:29:47 GMT\r\nServer: Microsoft-IIS/10.0"
    )


def test_every_other_response_has_the_headers_and_says_whether_the_connection_stays() -> None:
    for response in (approval_accepted(), too_many_requests(), HttpResponse(status=304, headers=(("ETag", '"1"'),))):
        raw = rendered(response, keep_alive=False)
        assert b"\r\nServer: IMDS/150.870.65.1854\r\n" + ID in raw
        assert b"\r\nConnection: close\r\n\r\n" in raw
        assert (b"Content-Length" in raw) is (response.status != 304)
    assert b"\r\nConnection: keep-alive\r\n\r\n" in rendered(DOCUMENT, is_http10=True)


def test_without_the_setting_no_response_has_them() -> None:
    for response in (DOCUMENT, unsupported_method("PUT"), too_many_requests()):
        raw = writer(imds_headers=False).bytes_for(response, keep_alive=True, is_http10=False)
        assert b"Server" not in raw
        assert b"x-ms-request-id" not in raw


def test_the_ids_of_two_servers_differ() -> None:
    first, second = (writer().bytes_for(DOCUMENT, keep_alive=True, is_http10=False) for _ in range(2))
    assert first != second


def test_every_response_has_its_own_request_id_also_when_it_is_cached(run_scenario: RunScenario) -> None:
    async def scenario(world: World) -> None:
        client = await world.connect()
        replies = [await client.ask() for _ in range(5)]
        replies += [await client.ask(If_None_Match=replies[0].headers["etag"]) for _ in range(3)]
        replies += [await world.ask(POLL, vm="unknown"), await world.ask("/metadata")]
        assert [reply.status for reply in replies] == [200] * 5 + [304] * 3 + [404, 400]
        ids = [reply.headers["x-ms-request-id"] for reply in replies]
        assert len(set(ids)) == len(ids)
        assert all(map(GUID.fullmatch, ids))
        assert {reply.headers["server"] for reply in replies} == {"IMDS/150.870.65.1854"}
        world.backend.at += 5
        assert (await client.ask()).headers["date"] != replies[0].headers["date"]

    run_scenario(scenario, imds_headers=True)


def test_the_setting_reaches_the_rules_of_every_process_that_answers_vms() -> None:
    settings = load_settings({}, lab=True, environ={"HOME": "/home/ann", "FOREWARN_IMDS_HEADERS": "true"})
    assert settings.serving.rules.imds_headers
    assert not load_settings({}, lab=True, environ={"HOME": "/home/ann"}).serving.rules.imds_headers
