"""Real VMs: from a guest's approval until it is frozen, or runs on another host, compared with QMP alone.

Both are QEMU processes with an idle guest in software emulation, measured in turn, and each first every other time. A
file is made durable between them, so that a figure shows how slow the disk was meanwhile. The times of the effects are
those of QEMU's own events. A migration by hand also starts the destination's QEMU, as the service does. How long QEMU
itself takes to transfer the guest is not counted on either side: it limits its rate in intervals of 100 ms, so equal
migrations differ by more than what is measured here.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from bench.figure import Figure, absent
from bench.qmp import MEMORY_MIB, OBSERVER, WITH_OBSERVER, BareVm, QmpClient, TimedMigration, guest_command
from bench.run_context import RunContext
from bench.sample_statistics import median, percentile
from bench.service import BenchService
from forewarn.machines.qemu.definition import QemuHost
from forewarn.machines.qemu.driver import QemuDriver
from tests.support.service_process import eventually
from tests.vms.hosts import toml_text, wait_for, why_vms_are_unavailable

T = TypeVar("T")
_FREEZES = 40
_MIGRATIONS = 100  # the 99th percentile of fewer would be the slowest one
_VM = "web-0"
_HOSTS = ("host-1", "host-2")
_FLEET = f'[[hosts]]\nname = "host-{{n}}"\ncount = 2\nfirst = 1\n\n[[vms]]\nname = "{_VM}"\nhost = "{_HOSTS[0]}"\n'
_BOOTED = r"^tick 3\b"
_WITHIN_S = 120.0


def measure(context: RunContext) -> tuple[Figure, ...]:
    if reason := why_vms_are_unavailable():
        return absent("freeze-overhead", reason), absent("migrate-overhead", reason)
    with _running(context.directory) as vm, ExitStack() as stack:
        bare = BareVm(context.directory / "bare")
        stack.callback(lambda: bare.close())
        wait_for(_BOOTED, bare.console, within_s=_WITHIN_S)
        sync = partial(sync_s, context.directory / "sync")
        freezes = [
            in_turn(number, vm.freeze, bare.freeze, sync)
            for number in context.track("real VMs, freezes", range(context.scaled(_FREEZES)))
        ]
        migrations = [
            in_turn(number, vm.migrate, bare.migrate, sync)
            for number in context.track("real VMs, migrations", range(context.scaled(_MIGRATIONS)))
        ]
    return _figure("freeze-overhead", freezes), migration_figure(migrations)


def in_turn(number: int, ours: Callable[[], T], bare: Callable[[], T], sync: Callable[[], float]) -> tuple[T, T, float]:
    """Measure our side first if `number` is even, else QMP alone; return ours, bare, and the seconds of a sync between.

    What the first one leaves to the machine, such as the end of a process, disturbs both sides equally often.
    """
    if number % 2:
        second, sync_took_s, first = bare(), sync(), ours()
        return first, second, sync_took_s
    first, sync_took_s, second = ours(), sync(), bare()
    return first, second, sync_took_s


def sync_s(path: Path) -> float:
    """Append a block to the file, and return the seconds until it is on the disk (fsync)."""
    with path.open("ab") as file:
        file.write(bytes(4096))
        file.flush()
        begin = time.perf_counter()
        os.fsync(file.fileno())
        return time.perf_counter() - begin


def _figure(name: str, rounds: Sequence[tuple[float, float, float]]) -> Figure:
    ours, bare, sync = (tuple(1000 * took_s for took_s in side) for side in zip(*rounds, strict=True))
    note = (
        f"median {overhead(ours, bare, 0.5):.0f}, p90 {overhead(ours, bare, 0.9):.0f} ms of {len(ours)}; median, p90 "
        f"and p99 of QMP alone {_percentiles(bare)}, from the approval {_percentiles(ours)}, of an fsync "
        f"{_percentiles(sync)} ms"
    )
    samples = {"ours_ms": ours, "qmp_ms": bare, "fsync_ms": sync}
    return Figure(name=name, value=overhead(ours, bare, 0.99), note=note, samples=samples)


def _percentiles(values: Sequence[float]) -> str:
    return " ".join(f"{percentile(values, share):.1f}" for share in (0.5, 0.9, 0.99))


def migration_figure(rounds: Sequence[tuple[TimedMigration, TimedMigration, float]]) -> Figure:
    """Return by how much ours are slower outside of QEMU's transfers, with the transfers among the samples.

    Each round is our migration, the one with QMP alone, and the seconds that an fsync took between them.
    """
    figure = _figure(
        "migrate-overhead", [(ours.beside_transfer_s, bare.beside_transfer_s, sync) for ours, bare, sync in rounds]
    )
    transfers = [tuple(1000 * each.transfer_s for each in side) for side in list(zip(*rounds, strict=True))[:2]]
    note = f"{figure.note}; QEMU's transfers besides: {median(transfers[1]):.0f} and {median(transfers[0]):.0f} ms"
    samples = figure.samples | {"ours_transfer_ms": transfers[0], "qmp_transfer_ms": transfers[1]}
    return msgspec.structs.replace(figure, note=note, samples=samples)


def overhead(ours: Sequence[float], bare: Sequence[float], share: float) -> float:
    """Return by how much this percentile of our times is above the same percentile of QMP alone.

    Both were measured in turn, so what the machine did besides disturbs both.
    """
    return percentile(ours, share) - percentile(bare, share)


class ServedVm:
    """The VM of a service, observed through a monitor of its own."""

    def __init__(self, service: BenchService, directory: Path) -> None:
        self._service = service
        self._directory = directory
        self._host = _HOSTS[0]
        self._monitor = QmpClient(directory / self._host / OBSERVER)

    def freeze(self) -> float:
        """Return the seconds from the approval of a freeze until QEMU has stopped the guest."""
        event_id = self._roll_out("update")
        self._monitor.forget_events()
        begin = time.time()
        self._approve(event_id)
        took_s = self._monitor.wait_for("STOP") - begin
        self._service.advance(60)  # ends the freeze
        self._monitor.wait_for("RESUME")
        self._wait_for_end(event_id)
        return took_s

    def migrate(self) -> TimedMigration:
        """Time a live migration, from its approval until QEMU resumes the guest on the other host."""
        event_id = self._roll_out("migrate")
        (there,) = (host for host in _HOSTS if host != self._host)
        arrivals: list[tuple[QmpClient, float]] = []
        path = self._directory / there / OBSERVER
        path.unlink(missing_ok=True)

        def watch() -> None:
            monitor = QmpClient(path)
            arrivals.append((monitor, monitor.wait_for("RESUME")))

        watcher = threading.Thread(target=watch)
        watcher.start()
        self._monitor.forget_events()
        begin = time.time()
        self._approve(event_id)
        transfer_s = self._monitor.transfer_s()
        watcher.join(timeout=_WITHIN_S)
        self._wait_for_end(event_id)
        self._monitor.close()
        ((self._monitor, resumed_at),) = arrivals
        self._host = there
        return TimedMigration(resumed_at - begin, transfer_s)

    def _roll_out(self, impact: str) -> str:
        """Announce maintenance of the VM's host; returns the id of the event."""
        known = {event["id"] for event in self._events()}
        self._service.ask("POST", "/rollouts", {"impact": impact, "hosts": [self._host]})
        new = eventually(lambda: [event["id"] for event in self._events() if event["id"] not in known])
        return str(new[0])

    def _events(self) -> list[dict[str, str]]:
        found: list[dict[str, str]] = self._service.ask("GET", f"/events?all=true&vm={_VM}")["events"]
        return found

    def _approve(self, event_id: str) -> None:
        answer = self._service.approve(_VM, event_id)
        assert answer.status == 200, f"the approval was answered with {answer.status}: {answer.body!r}"

    def _wait_for_end(self, event_id: str) -> None:
        eventually(lambda: self._service.ask("GET", f"/events/{event_id}")["status"] == "over", within_s=_WITHIN_S)
        (act,) = self._service.ask("GET", f"/events/{event_id}")["acts"]
        assert act["ok"] is True, f"the act failed: {act['note']}"

    def close(self) -> None:
        self._monitor.close()


@contextmanager
def _running(directory: Path) -> Iterator[ServedVm]:
    """Boot a VM on the first host, and run a service for it on any core, until the block ends."""
    hosts = {name: QemuHost(directory=str(directory / name), prefix=WITH_OBSERVER) for name in _HOSTS}
    for name in _HOSTS:
        (directory / name).mkdir()
    definition = f"command = {toml_text(guest_command())}\nmemory_mib = {MEMORY_MIB}\n"
    (directory / _HOSTS[0] / f"{_VM}.toml").write_text(definition)

    def driver() -> QemuDriver:
        return QemuDriver(hosts, copies=directory / "copies", start_timeout_s=_WITHIN_S)

    async def boot() -> None:
        await (starter := driver()).power_on(_HOSTS[0], _VM)
        await starter.close()

    async def end() -> None:
        ender = driver()
        for name in _HOSTS:
            if await ender.state(name, _VM) not in ("absent", "off"):
                await ender.power_off(name, _VM)
        await ender.close()

    config = directory / "settings.toml"
    config.write_text(
        'hypervisor = "qemu"\n'
        + "".join(
            f"[qemu.hosts.{name}]\ndirectory = {toml_text(host.directory)}\nprefix = {toml_text(host.prefix)}\n"
            for name, host in hosts.items()
        )
    )
    try:
        asyncio.run(boot())
        wait_for(_BOOTED, directory / _HOSTS[0] / "console.log", within_s=_WITHIN_S)
        data = directory / "data"
        with BenchService(data=data, fleet=_FLEET, arguments=("--config", str(config)), core=None) as service:
            assert isinstance(service, BenchService)
            vm = ServedVm(service, directory)
            try:
                yield vm
            finally:
                vm.close()
    finally:
        asyncio.run(end())
