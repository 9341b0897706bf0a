"""Fixtures: a metadata server on loopback sockets with faults set directly, and raw HTTP clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvloop

from forewarn.core.faults import Fault, FaultKind
from forewarn.metadata import CallerDirectory, LabListeners, MetadataServer, PublishedDocuments, open_lab_listeners
from forewarn.protocol.document import EventNotice, Kind, NoticeStatus
from tests.support.metadata_backend import FakeMetadataBackend
from tests.support.service_process import ServiceProcess

ADDRESSES = {"a": "127.0.8.1", "b": "127.0.8.2", "other": "127.0.8.3"}
PATH = "/metadata/scheduledevents"
POLL = f"{PATH}?api-version=2020-07-01"
SCENARIO_TIMEOUT_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An HTTP response as it came over the wire."""

    raw: bytes  # head and body
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Guest:
    """One connection of a VM to the metadata server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, target: str = POLL, *, method: str = "GET", body: bytes = b"", **headers: str) -> None:
        given = {"Host": "169.254.169.254", "Metadata": "true"} | {k.replace("_", "-"): v for k, v in headers.items()}
        if body:
            given["Content-Length"] = str(len(body))
        lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
        self.writer.write(f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body)

    async def read_head(self) -> tuple[bytes, int, dict[str, str]]:
        raw = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = raw.decode("latin-1").split("\r\n")[:-2]
        return raw, int(first.split(" ")[1]), {n.lower(): v for n, _, v in (line.partition(": ") for line in lines)}

    async def read_reply(self) -> Reply:
        raw, status, headers = await self.read_head()
        body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return Reply(raw=raw + body, status=status, headers=headers, body=body)

    async def ask(self, target: str = POLL, **given: Any) -> Reply:
        self.send(target, **given)
        return await self.read_reply()


@dataclass(kw_only=True)
class MetadataWorld:
    """A metadata server with three VMs: `a` and `b` share scope `pair`, `other` is in scope `single`."""

    backend: FakeMetadataBackend
    server: MetadataServer
    lab: LabListeners
    guests: list[Guest] = field(default_factory=list)

    def set_faults(self, *faults: Fault) -> None:
        """Replace the active faults."""
        self.server.faults.set_faults(faults)

    async def connect(self, vm: str = "a") -> Guest:
        guest = Guest(*await asyncio.open_connection(*self.lab.endpoint(ADDRESSES[vm])))
        self.guests.append(guest)
        return guest

    async def ask(self, target: str = POLL, *, vm: str = "a", **given: Any) -> Reply:
        return await (await self.connect(vm)).ask(target, **given)

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(0.001)

    async def close(self) -> None:
        for guest in self.guests:
            guest.writer.close()
        await self.server.drain(0.5)
        for guest in self.guests:
            with suppress(OSError):
                await guest.writer.wait_closed()


async def make_world(*, enabled: bool = True) -> MetadataWorld:
    documents, callers = PublishedDocuments(), CallerDirectory()
    backend = FakeMetadataBackend(documents)
    backend.add_scope("pair", "a", "b", enabled=enabled)
    backend.add_scope("single", "other")
    lab = open_lab_listeners(lambda: list(ADDRESSES.values()), 0)
    for vm, address in ADDRESSES.items():
        callers.assign(lab.attachment(address), vm)
    server = MetadataServer(documents=documents, backend=backend, callers=callers)
    await server.start([lab.listener])
    return MetadataWorld(backend=backend, server=server, lab=lab)


def make_fault(kind: FaultKind, *, id: str = "f1", vm: str = "a", scope_id: str = "pair", **facts: Any) -> Fault:
    return Fault(id=id, kind=kind, set_by="ann", set_at=0.0, name=vm, vm=vm, vm_name=vm, scope_id=scope_id, **facts)


def make_notice(event_id: str = "EVENT-1") -> EventNotice:
    return EventNotice(
        id=event_id, status=NoticeStatus.SCHEDULED, kind=Kind.REBOOT, resources=("a",), not_before=1_700_000_900.0
    )


@pytest.fixture(params=["asyncio", "uvloop"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    factory = asyncio.new_event_loop if request.param == "asyncio" else uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        yield runner


@pytest.fixture
def run_scenario(runner: asyncio.Runner) -> Callable[..., None]:
    """Run a scenario in a new world; a scenario that hangs fails."""

    async def run(scenario: Callable[[MetadataWorld], Awaitable[None]], **given: Any) -> None:
        async with asyncio.timeout(SCENARIO_TIMEOUT_S):
            world = await make_world(**given)
            try:
                await scenario(world)
            finally:
                await world.close()

    return lambda scenario, **given: runner.run(run(scenario, **given))


@pytest.fixture(name="fault", scope="session")
def _fault() -> Callable[..., Fault]:
    return make_fault


@pytest.fixture(name="notice", scope="session")
def _notice() -> Callable[..., EventNotice]:
    return make_notice


@pytest.fixture(name="new_world", scope="session")
def _new_world() -> Callable[..., Awaitable[MetadataWorld]]:
    return make_world


FLEET = """
[[hosts]]
name = "h{n}"
count = 2

[[vms]]
name = "alone"
"""
_PAIR = """
[[availability_sets]]
name = "@"
update_domains = 2

[[vms]]
name = "@-{n}"
count = 2
availability_set = "@"
"""
PAIRS = ("short", "sudden", "back", "many", "near", "again", "clear", "scoped", "explain", "kept", "wide")


def fleet_file() -> str:
    """Return a fleet file: one single VM, and availability sets of two VMs each (`short-0`, …)."""
    return FLEET + "".join(_PAIR.replace("@", pair) for pair in PAIRS)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    data: Path = tmp_path_factory.mktemp("d")
    with ServiceProcess(data=data, fleet=fleet_file()) as running:
        yield running
