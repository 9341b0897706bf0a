"""The proxy in front of a real lab service: it is transparent, and records everything."""

from __future__ import annotations

import asyncio

import pytest

from forewarn.crash_test.timeline import Approved, ConnectionOpened, OtherRequest, Poller
from forewarn.metadata.limits import Limits
from tests.support.proxied_lab import (
    TARGET,
    ProxiedLab,
    RunScenario,
    approval,
    converse,
    listening_socket,
    make_proxy,
    request,
)

GET = f"GET {TARGET} HTTP/".encode()
CONVERSATIONS = {
    "poll": request(),
    "polls on one connection": request() + request(),
    "connection close": request(Connection="close"),
    "http 1.0": GET + b"1.0\r\nMetadata: true\r\n\r\n",
    "http 1.0 keep-alive": GET + b"1.0\r\nMetadata: true\r\nConnection: keep-alive\r\n\r\n",
    "without header": GET + b"1.1\r\nHost: x\r\n\r\n",
    "unknown version": request("/metadata/scheduledevents?api-version=2031-01-01"),
    "instance": request("/metadata/instance?api-version=2021-02-01"),
    "instance text": request("/metadata/instance/compute/name?api-version=2021-02-01&format=text"),
    "unknown path": request("/latest/meta-data/"),
    "head, then poll": request(method="HEAD") + request(),
    "put": request(method="PUT", body=b"x"),
    "unknown method": request(method="BREW"),
    "options": request("*", method="OPTIONS"),
    "connect": request("host:80", method="CONNECT"),
    "unknown event": approval("00000000-0000-0000-0000-000000000000"),
    "approval of nothing": approval(),
    "approval that is not json": request(method="POST", body=b"StartRequests=1"),
    "chunked approval": request(method="POST", Transfer_Encoding="chunked") + b"2\r\n{}\r\n0\r\n\r\n",
    "expect continue": request(method="POST", body=b"{}", Expect="100-continue"),
    "upgrade": request(Upgrade="websocket", Connection="Upgrade"),
    "forwarded": request(X_Forwarded_For="10.0.0.1"),
    "empty lines first": b"\r\n\r\n" + request(),
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 500,
    "rubbish": b"hello\r\n\r\n",
    "rubbish after a poll": request() + b"\x00\x01\x02",
    "no host": GET + b"1.1\r\nMetadata: true\r\n\r\n",
    "long head": request(Padding="x" * 20_000),
    "long body": request(method="POST", body=b" " * 70_000),
}
WITHOUT_ANSWER = {"incomplete request": request()[:-4], "nothing": b""}


@pytest.mark.parametrize("raw", CONVERSATIONS.values(), ids=list(CONVERSATIONS))
def test_the_answer_through_the_proxy_is_the_services_own_to_the_byte(raw: bytes, run_proxied: RunScenario) -> None:
    async def scenario(world: ProxiedLab) -> None:
        await world.reboot()
        direct = await converse(world.upstream, raw)
        assert direct.startswith(b"HTTP/1.1 ")
        assert await converse(world.address, raw) == direct

    run_proxied(scenario)


@pytest.mark.parametrize("raw", WITHOUT_ANSWER.values(), ids=list(WITHOUT_ANSWER))
def test_a_client_that_ends_before_its_request_is_complete_gets_nothing(raw: bytes, run_proxied: RunScenario) -> None:
    async def scenario(world: ProxiedLab) -> None:
        assert await converse(world.upstream, raw) == b""
        assert await converse(world.address, raw) == b""
        assert [type(item) for item in world.observations] == [ConnectionOpened]

    run_proxied(scenario)


@pytest.mark.parametrize("name", ["poll", "polls on one connection", "chunked approval", "long head", "rubbish", "tls"])
def test_a_request_in_small_pieces_gets_the_same_answer(name: str, run_proxied: RunScenario) -> None:
    async def scenario(world: ProxiedLab) -> None:
        raw = CONVERSATIONS[name]
        client = await world.connect()
        for start in range(0, len(raw), 997 if len(raw) > 2000 else 7):
            client.writer.write(raw[start : start + (997 if len(raw) > 2000 else 7)])
            await asyncio.sleep(0.001)
        client.writer.write_eof()
        assert await client.reader.read() == await converse(world.upstream, raw)

    run_proxied(scenario)


def test_a_conditional_poll_gets_the_services_own_304(run_proxied: RunScenario) -> None:
    async def scenario(world: ProxiedLab) -> None:
        tag = dict((await world.ask()).headers)["etag"]
        raw = request(If_None_Match=tag)
        direct = await converse(world.upstream, raw)
        assert direct.startswith(b"HTTP/1.1 304 ")
        assert await converse(world.address, raw) == direct
        assert (await world.polls(2))[1].status == 304

    run_proxied(scenario)


def test_a_client_that_waits_for_100_continue_gets_it(run_proxied: RunScenario) -> None:
    async def scenario(world: ProxiedLab) -> None:
        client = await world.connect()
        raw = request(method="POST", body=b"{}", Expect="100-continue")
        client.writer.write(raw[:-2])
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert (await client.ask(raw[-2:])).status == 400

    run_proxied(scenario)


def test_one_connection_is_kept_for_several_requests(run_proxied: RunScenario) -> None:
    async def scenario(world: ProxiedLab) -> None:
        client = await world.connect()
        assert [(await client.ask(request())).status for _ in range(3)] == [200] * 3
        assert world.proxy.open_connections == 1
        assert len(world.seen(ConnectionOpened)) == 1
        assert len(await world.polls(3)) == 3

    run_proxied(scenario)


def test_a_poll_is_recorded_with_its_document_and_its_times(run_proxied: RunScenario) -> None:
    async def scenario(world: ProxiedLab) -> None:
        event = await world.reboot()
        before = asyncio.get_running_loop().time()
        await world.ask()
        (poll,) = await world.polls()
        assert (poll.vm, poll.by, poll.status, poll.version) == ("a", Poller.HANDLER, 200, "2020-07-01")
        assert [(shown.id, shown.kind, shown.vms) for shown in poll.events] == [(event.id, "Reboot", ("a",))]
        assert poll.has_header
        assert poll.incarnation is not None
        assert poll.answered_at is not None
        assert before <= poll.at <= poll.answered_at <= asyncio.get_running_loop().time()

    run_proxied(scenario)


def test_an_approval_reaches_the_service_and_is_recorded(run_proxied: RunScenario) -> None:
    async def scenario(world: ProxiedLab) -> None:
        event = await world.reboot()
        assert (await world.ask(approval(event.id))).status == 200
        (seen,) = await world.until_seen(Approved)
        assert (seen.event_ids, seen.status, seen.problem) == ((event.id,), 200, "")
        assert await world.in_lab(lambda: event.approved_by) == "a"

    run_proxied(scenario)


def test_requests_for_other_paths_and_invalid_ones_are_recorded(run_proxied: RunScenario) -> None:
    async def scenario(world: ProxiedLab) -> None:
        for name in ("instance", "rubbish", "no host"):
            await converse(world.address, CONVERSATIONS[name])
        others = await world.until_seen(OtherRequest, 2)
        assert [(other.method, other.path, other.status) for other in others] == [
            ("GET", "/metadata/instance", 200),
            ("hello", "", 400),
        ]
        assert [poll.status for poll in await world.polls()] == [400]

    run_proxied(scenario)


def test_a_long_poll_is_held_until_the_document_changes(run_proxied: RunScenario) -> None:
    async def scenario(world: ProxiedLab) -> None:
        client = await world.hold_poll()
        event = await world.reboot()
        answer = await client.ask(b"")
        assert answer.status == 200
        assert event.id.encode() in answer.body
        assert [shown.id for shown in (await world.polls(2))[1].events] == [event.id]

    run_proxied(scenario)


def test_a_client_that_left_a_held_long_poll_did_not_get_its_answer(run_proxied: RunScenario) -> None:
    async def scenario(world: ProxiedLab) -> None:
        client = await world.hold_poll()
        await client.close()
        poll = (await world.polls(2))[1]
        assert (poll.status, poll.answered_at) == (None, None)

    run_proxied(scenario)


def test_a_request_that_stays_incomplete_gets_the_time_limit_of_the_service(
    run_proxied: RunScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forewarn.crash_test.proxy._INCOMPLETE_REQUEST_S", 0.05)
    defaults = Limits.__init__.__kwdefaults__  # of the lab's service
    assert defaults is not None
    monkeypatch.setitem(defaults, "request_s", 0.2)

    async def scenario(world: ProxiedLab) -> None:
        client = await world.connect()
        assert (await client.ask(request()[:-2])).status == 408
        assert (await world.polls())[0].status == 408

    run_proxied(scenario)


def test_closing_the_proxy_records_open_requests_without_an_answer(run_proxied: RunScenario) -> None:
    async def scenario(world: ProxiedLab) -> None:
        client = await world.hold_poll()
        await world.proxy.close()
        await world.proxy.close()
        assert [poll.status for poll in await world.polls(2)] == [200, None]
        assert world.proxy.open_connections == 0
        assert await client.is_closed()

    run_proxied(scenario)


def test_a_service_that_is_gone_resets_the_clients_connection(run_proxied: RunScenario) -> None:
    async def scenario(world: ProxiedLab) -> None:
        gone = listening_socket()
        upstream = gone.getsockname()
        gone.close()
        listener = listening_socket()
        proxy = make_proxy(listener, upstream, world.observations, Poller.REFERENCE)
        address = listener.getsockname()
        await proxy.start()
        client = await world.connect(address)
        assert await client.is_closed()
        assert [opened.by for opened in world.seen(ConnectionOpened)] == [Poller.REFERENCE]
        await proxy.close()

    run_proxied(scenario)


def test_more_connections_than_the_limit_are_reset(run_proxied: RunScenario, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forewarn.crash_test.proxy._MAX_CONNECTIONS", 2)

    async def scenario(world: ProxiedLab) -> None:
        clients = [await world.connect() for _ in range(2)]
        assert [(await client.ask(request())).status for client in clients] == [200, 200]
        with pytest.raises(ConnectionResetError):
            await (await world.connect()).reader.read()
        assert len(await world.until_seen(ConnectionOpened, 3)) == 3

    run_proxied(scenario)
