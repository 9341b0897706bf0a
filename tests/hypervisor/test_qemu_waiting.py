"""The QEMU driver waits for events of QEMU, and keeps a connection for the operations that follow at once."""

from __future__ import annotations

import asyncio
import fcntl
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from forewarn.machines.driver import MachineState
from forewarn.machines.qemu.definition import QemuHost
from forewarn.machines.qemu.driver import QemuDriver
from forewarn.machines.qemu.processes import QemuInstance
from tests.support.fake_qemu import GREETING

HOST, VM = "host-1", "web-0"
STOP = {"event": "STOP", "timestamp": {"seconds": 1, "microseconds": 0}}
LONG_S, SHORT_S = 60.0, 0.05


class EventfulMonitor:
    """A monitor that answers every command with the same run state, and sends events when it is told to."""

    def __init__(self) -> None:
        self.connections = 0  # so far
        self.open: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open.append(writer)
        _send(writer, GREETING)
        with suppress(ConnectionError):
            while text := await reader.read(65536):
                _send(writer, {"id": json.loads(text).get("id"), "return": {"status": "running"}})
        self.open.remove(writer)
        writer.close()

    def report(self) -> None:
        """Send an event to the client that is connected now."""
        _send(self.open[-1], STOP)


def _send(writer: asyncio.StreamWriter, message: Mapping[str, object]) -> None:
    writer.write(json.dumps(message).encode() + b"\r\n")


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[QemuInstance]:
    """A VM whose QEMU runs, as far as its files show."""
    instance = QemuInstance(HOST, VM, tmp_path)
    instance.definition_file.write_text('command = ["qemu"]\nmemory_mib = 16\n')
    with instance.log_file.open("w") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        yield instance


@asynccontextmanager
async def driver_of(directory: Path) -> AsyncIterator[QemuDriver]:
    driver = QemuDriver({HOST: QemuHost(directory=str(directory))}, copies=directory / "copies")
    try:
        yield driver
    finally:
        await driver.close()


def run(instance: QemuInstance, scenario: Callable[[QemuDriver, EventfulMonitor], Awaitable[None]]) -> None:
    async def main() -> None:
        monitor = EventfulMonitor()
        server = await asyncio.start_unix_server(monitor.serve, instance.monitor_socket)
        async with server, driver_of(instance.directory) as driver:
            await scenario(driver, monitor)

    asyncio.run(main())


async def settle(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LONG_S):
        while not condition():
            await asyncio.sleep(0.01)


def test_waiting_ends_when_qemu_reports_a_change(instance: QemuInstance) -> None:
    async def scenario(driver: QemuDriver, monitor: EventfulMonitor) -> None:
        assert await driver.state(HOST, VM) is MachineState.RUNNING
        waiting = asyncio.ensure_future(driver.wait_for_change(HOST, VM, within_s=LONG_S))
        await settle(lambda: bool(monitor.open))
        assert not waiting.done()
        monitor.report()
        assert await waiting

    run(instance, scenario)


def test_a_change_between_looking_and_waiting_is_not_missed(instance: QemuInstance) -> None:
    async def scenario(driver: QemuDriver, monitor: EventfulMonitor) -> None:
        await driver.state(HOST, VM)
        monitor.report()
        assert await driver.wait_for_change(HOST, VM, within_s=LONG_S)
        assert not await driver.wait_for_change(HOST, VM, within_s=SHORT_S), "it is reported once"

    run(instance, scenario)


def test_a_change_before_the_last_look_is_not_waited_for(instance: QemuInstance) -> None:
    async def scenario(driver: QemuDriver, monitor: EventfulMonitor) -> None:
        await driver.state(HOST, VM)
        monitor.report()
        await driver.migration(HOST, VM)  # the event comes before this answer
        await driver.state(HOST, VM)
        assert not await driver.wait_for_change(HOST, VM, within_s=SHORT_S)

    run(instance, scenario)


def test_there_is_nothing_to_wait_for_without_a_process(tmp_path: Path) -> None:
    async def main() -> None:
        async with driver_of(tmp_path) as driver:
            assert not await driver.wait_for_change(HOST, VM, within_s=LONG_S)

    asyncio.run(main())


def test_operations_that_follow_at_once_share_a_connection_which_is_closed_soon(instance: QemuInstance) -> None:
    async def scenario(driver: QemuDriver, monitor: EventfulMonitor) -> None:
        for _ in range(5):
            await driver.state(HOST, VM)
        assert (monitor.connections, len(monitor.open)) == (1, 1)
        await settle(lambda: not monitor.open)
        await driver.state(HOST, VM)
        assert monitor.connections == 2

    run(instance, scenario)


def test_a_connection_that_qemu_has_closed_is_not_used_again(instance: QemuInstance) -> None:
    async def scenario(driver: QemuDriver, monitor: EventfulMonitor) -> None:
        await driver.state(HOST, VM)
        monitor.open[0].close()
        await settle(lambda: not monitor.open)
        assert await driver.state(HOST, VM) is MachineState.RUNNING
        assert monitor.connections == 2

    run(instance, scenario)


def test_a_question_is_asked_again_if_qemu_closes_the_kept_connection_meanwhile(instance: QemuInstance) -> None:
    async def scenario(driver: QemuDriver, monitor: EventfulMonitor) -> None:
        await driver.state(HOST, VM)
        monitor.open[0].transport.abort()  # the driver learns it only when it asks
        assert await driver.state(HOST, VM) is MachineState.RUNNING
        assert monitor.connections == 2

    run(instance, scenario)


def test_the_connection_to_a_qemu_that_has_ended_is_not_used_again(instance: QemuInstance) -> None:
    async def scenario(driver: QemuDriver, monitor: EventfulMonitor) -> None:
        await driver.state(HOST, VM)
        instance.log_file.unlink()  # with its lock
        instance.monitor_socket.unlink()
        assert await driver.state(HOST, VM) is MachineState.OFF

    run(instance, scenario)
