"""The bus over a real NATS server: delivery, permissions, TLS, and servers that are killed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from forewarn.auth.certificates import ServiceCertificates, ca_certificate_path
from forewarn.cluster.bus import BusMessage, NoAnswer, NoResponders, Subjects, request_repeatedly
from forewarn.cluster.nats_bus import NatsBus, NatsSettings
from forewarn.errors import Refused
from tests.support.nats_server import NatsServer, nats_program
from tests.support.service_process import free_port

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(nats_program() is None, reason="NATS is not installed: run tests/cluster/install_servers.sh"),
]


def run(work: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await work

    asyncio.run(limited())


async def connect(server: NatsServer, name: str = "client", **settings: str) -> NatsBus:
    return await NatsBus.connect(
        NatsSettings(url=settings.pop("url", server.url), **settings), name=name, inbox=f"forewarn.inbox.{name}"
    )


async def wait_for(condition: Callable[[], Any], within_s: float = 20.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.01)


def users(*entries: str) -> str:
    return "authorization { users = [\n" + "\n".join(entries) + "\n] }"


@pytest.fixture
def server(tmp_path: Path) -> Any:
    with NatsServer(tmp_path) as started:
        yield started


def test_messages_arrive_in_order_and_requests_are_answered(server: NatsServer) -> None:
    async def scenario() -> None:
        one, other = await connect(server, "one"), await connect(server, "other")
        received: list[bytes] = []
        await other.subscribe("forewarn.host.h1", lambda message: received.append(message.payload))
        await other.subscribe("forewarn.request.*", lambda message: message.respond(message.subject.encode()))
        for number in range(1000):
            one.publish("forewarn.host.h1", str(number).encode())
        assert await one.request("forewarn.request.h7", b"x", timeout_s=2) == b"forewarn.request.h7"
        await wait_for(lambda: len(received) == 1000)
        assert received == [str(number).encode() for number in range(1000)]
        await one.close()
        await other.close()

    run(scenario())


def test_a_request_without_a_receiver_fails_at_once_and_one_without_an_answer_in_time(server: NatsServer) -> None:
    async def scenario() -> None:
        bus = await connect(server)
        began = time.monotonic()
        with pytest.raises(NoResponders):
            await bus.request("forewarn.request.h7", b"x", timeout_s=5)
        assert time.monotonic() - began < 4
        await bus.subscribe("forewarn.request.h7", lambda message: None)
        with pytest.raises(NoAnswer, match=r"no answer on 'forewarn\.request\.h7' within 0\.2 s"):
            await bus.request("forewarn.request.h7", b"x", timeout_s=0.2)
        await bus.close()

    run(scenario())


def test_a_repeated_request_accepts_the_late_answer_to_an_earlier_attempt(server: NatsServer) -> None:
    async def scenario() -> None:
        bus = await connect(server)
        attempts: list[BusMessage] = []

        def answer_the_first_one(message: BusMessage) -> None:
            attempts.append(message)
            if len(attempts) == 3:
                attempts[0].respond(b"done")

        await bus.subscribe("forewarn.request.h7", answer_the_first_one)
        assert await request_repeatedly(bus, "forewarn.request.h7", b"x", within_s=20) == b"done"
        assert len(attempts) == 3
        await bus.close()

    run(scenario())


def test_subscriptions_survive_a_killed_server_and_the_doubt_is_reported(server: NatsServer) -> None:
    async def scenario() -> None:
        one, other = await connect(server, "one"), await connect(server, "other")
        received: list[bytes] = []
        doubts: list[str] = []
        await other.subscribe("forewarn.host.h1", lambda message: received.append(message.payload))
        other.subscribe_doubts(doubts.append)
        server.kill()
        await wait_for(lambda: not one.is_connected)
        one.publish("forewarn.host.h1", b"lost")
        with pytest.raises(NoResponders):
            await one.request("forewarn.host.h1", b"x", timeout_s=1)
        server.start()
        await wait_for(lambda: one.is_connected and doubts == ["reconnected"])
        one.publish("forewarn.host.h1", b"arrives")
        await wait_for(lambda: received)
        assert received == [b"arrives"]  # nothing was kept to be sent late
        await one.close()
        await other.close()

    run(scenario())


def test_wrong_credentials_are_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "good").write_text("h7:secret\n", encoding="utf-8")
    (tmp_path / "bad").write_text("h7:wrong\n", encoding="utf-8")

    async def scenario() -> None:
        with NatsServer(tmp_path, config=users('{user: "h7", password: "secret"}')) as server:
            await (await connect(server, credentials=str(tmp_path / "good"))).close()
            with pytest.raises(Refused, match="does not accept the credentials of 'client': correct them"):
                await connect(server, credentials=str(tmp_path / "bad"))

    run(scenario())


def test_a_user_without_permissions_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text("h7:secret\n", encoding="utf-8")
    config = users('{user: "h7", password: "secret", permissions: {publish: ["x"], subscribe: ["forewarn.inbox.>"]}}')

    async def scenario() -> None:
        with NatsServer(tmp_path, config=config) as server:
            bus = await connect(server, credentials=str(tmp_path / "credentials"))
            with pytest.raises(Refused) as refused:
                await bus.subscribe("forewarn.host.h7", lambda message: None)
            assert str(refused.value) == (
                "NATS does not permit 'client' to subscribe to 'forewarn.host.h7': give its user the permissions that "
                "`forewarn cluster init` writes"
            )
            bus.publish("forewarn.request.h7", b"x")
            await bus.flush()
            await wait_for(lambda: "to publish on 'forewarn.request.h7'" in bus.problem)
            await bus.close()

    run(scenario())


def test_a_subscription_that_was_refused_can_be_made_once_it_is_permitted(tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text("h7:secret\n", encoding="utf-8")

    def config(*subjects: str) -> str:
        permitted = ", ".join(f'"{subject}"' for subject in ("forewarn.inbox.>", *subjects))
        return users(f'{{user: "h7", password: "secret", permissions: {{subscribe: [{permitted}]}}}}')

    async def scenario() -> None:
        received: list[bytes] = []
        doubts: list[str] = []
        with NatsServer(tmp_path, config=config()) as server:
            bus = await connect(server, credentials=str(tmp_path / "credentials"))
            bus.subscribe_doubts(doubts.append)
            for _ in range(3):
                with pytest.raises(Refused, match=r"to subscribe to 'forewarn\.heartbeat'"):
                    await bus.subscribe("forewarn.heartbeat", lambda message: received.append(message.payload))
            server.kill()
            server.configure(config("forewarn.heartbeat"))
            server.start()
            await wait_for(lambda: bus.is_connected and doubts == ["reconnected"])
            await bus.subscribe("forewarn.heartbeat", lambda message: received.append(message.payload))
            assert bus.problem == ""
            for payload in (b"one", b"two"):
                bus.publish("forewarn.heartbeat", payload)
            await wait_for(lambda: b"two" in received)
            assert received == [b"one", b"two"]
            await bus.close()

    run(scenario())


def test_a_refused_subscription_does_not_refuse_others(tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text("h7:secret\n", encoding="utf-8")
    permitted = '["forewarn.inbox.>", "forewarn.host.h7"]'
    config = users(f'{{user: "h7", password: "secret", permissions: {{subscribe: {permitted}}}}}')

    async def scenario() -> None:
        with NatsServer(tmp_path, config=config) as server:
            bus = await connect(server, credentials=str(tmp_path / "credentials"))
            with pytest.raises(Refused, match=r"to subscribe to 'forewarn\.host\.h8'"):
                await bus.subscribe("forewarn.host.h8", lambda message: None)
            await bus.subscribe("forewarn.host.h7", lambda message: message.respond(b"yes"))
            assert await bus.request("forewarn.host.h7", b"?", timeout_s=5) == b"yes"
            assert "forewarn.host.h8" in bus.problem
            await bus.close()

    run(scenario())


def test_the_permissions_of_a_node_are_enough_for_it_and_for_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "service").write_text("service:s\n", encoding="utf-8")
    (tmp_path / "node").write_text("h7:n\n", encoding="utf-8")
    subjects = Subjects()
    allowed = subjects.host_node_permissions("h7")
    config = users(
        '{user: "service", password: "s", permissions: {publish: "forewarn.>", subscribe: "forewarn.>"}}',
        f'{{user: "h7", password: "n", permissions: {{publish: {allowed["publish"]}, subscribe: '
        f"{allowed['subscribe']}, allow_responses: true}}}}",
    ).replace("'", '"')

    async def scenario() -> None:
        with NatsServer(tmp_path, config=config) as server:
            service = await connect(server, "service", credentials=str(tmp_path / "service"))
            node = await NatsBus.connect(
                NatsSettings(url=server.url, credentials=str(tmp_path / "node")),
                name="node",
                inbox=subjects.inbox("h7"),
            )
            for subject in (subjects.request("*"), subjects.report("*")):
                await service.subscribe(subject, lambda message: message.respond(b"yes"))
            await node.subscribe(subjects.act("h7"), lambda message: message.respond(b"done"))
            await node.subscribe(subjects.host("h7"), lambda message: None)
            await node.subscribe(subjects.heartbeat, lambda message: None)
            assert await node.request(subjects.request("h7"), b"?", timeout_s=5) == b"yes"
            assert await node.request(subjects.report("h7"), b"?", timeout_s=5) == b"yes"
            assert await service.request(subjects.act("h7"), b"?", timeout_s=5) == b"done"
            assert node.problem == ""
            with pytest.raises(Refused, match=r"forewarn\.host\.h8"):
                await node.subscribe(subjects.host("h8"), lambda message: None)
            await node.close()
            await service.close()

    run(scenario())


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The lines for NATS, and the path of the CA."""
    directory = tmp_path_factory.mktemp("tls")
    made = ServiceCertificates.load_or_create(directory, (), time.time()).server
    config = f'tls {{ cert_file: "{made.certificate}", key_file: "{made.key}" }}'
    return config, str(ca_certificate_path(directory))


def test_a_server_is_trusted_by_its_ca(tmp_path: Path, certificates: tuple[str, str]) -> None:
    config, ca = certificates

    async def scenario() -> None:
        with NatsServer(tmp_path, config=config) as server:
            url = f"tls://localhost:{server.port}"
            bus = await connect(server, url=url, ca=ca)
            await bus.subscribe("forewarn.request.h7", lambda message: message.respond(b"yes"))
            assert await bus.request("forewarn.request.h7", b"?", timeout_s=5) == b"yes"
            await bus.close()
            with pytest.raises(Refused, match="cannot be trusted"):
                await connect(server, url=url)

    run(scenario())


def test_no_password_is_sent_to_a_server_without_tls(tmp_path: Path) -> None:
    """nats-py would go on without TLS."""
    (tmp_path / "credentials").write_text("h7:secret\n", encoding="utf-8")

    async def scenario() -> None:
        received = bytearray()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b'INFO {"server_id":"x","version":"2.11.0","max_payload":1048576,"auth_required":true}\r\n')
            received.extend(await reader.read(1000))
            writer.close()

        plain = await asyncio.start_server(serve, "127.0.0.1", free_port())
        url = f"tls://127.0.0.1:{plain.sockets[0].getsockname()[1]}"
        settings = NatsSettings(url=url, credentials=str(tmp_path / "credentials"))
        with pytest.raises(Refused, match="does not use TLS, but the settings ask for it: no credentials"):
            await NatsBus.connect(settings, name="client", inbox="forewarn.inbox.x")
        plain.close()
        assert b"secret" not in received

    run(scenario())


def test_a_server_without_tls_is_refused_without_credentials_too(server: NatsServer) -> None:
    async def scenario() -> None:
        with pytest.raises(Refused, match="does not use TLS"):
            await connect(server, url=f"tls://127.0.0.1:{server.port}")

    run(scenario())


def test_a_connection_that_the_server_ended_for_good_is_opened_again(tmp_path: Path) -> None:
    """nats-py gives up when its user is removed; a node must come back once the user exists again."""
    (tmp_path / "credentials").write_text("h7:secret\n", encoding="utf-8")
    with_user, without = users('{user: "h7", password: "secret"}'), users('{user: "other", password: "x"}')

    async def scenario() -> None:
        with NatsServer(tmp_path, config=with_user) as server:
            bus = await connect(server, credentials=str(tmp_path / "credentials"))
            await bus.subscribe("forewarn.request.h7", lambda message: message.respond(b"yes"))
            server.configure(without)
            server.reload()
            await wait_for(lambda: not bus.is_connected)
            server.configure(with_user)
            server.reload()
            await wait_for(lambda: bus.is_connected, within_s=40)
            assert await request_repeatedly(bus, "forewarn.request.h7", b"?", within_s=10) == b"yes"
            await bus.close()

    run(scenario())
