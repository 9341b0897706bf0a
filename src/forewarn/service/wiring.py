"""A whole service in one process: everything wired, started in order, and stopped in the opposite one."""

from __future__ import annotations

import asyncio
import getpass
import logging
import os
import socket
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

from forewarn import __version__
from forewarn.assembly.chores import (
    anchor,
    keep_time,
    note_faults,
    prune_history,
    tend_faults,
    write_all,
    write_many,
    write_observations,
)
from forewarn.assembly.directory import DataDirectory
from forewarn.assembly.doctor import examine, workers_seen
from forewarn.assembly.exposition import Window, open_sockets
from forewarn.assembly.fleet import apply_first_fleet
from forewarn.assembly.front import Front, open_front
from forewarn.assembly.hands import open_hypervisor
from forewarn.assembly.keepers import Door, entry_about
from forewarn.assembly.metrics import OwnerMetrics
from forewarn.assembly.mouth import Backing, Mouth
from forewarn.assembly.settings import Hands, Settings, read_metrics
from forewarn.assembly.starter import Starter
from forewarn.assembly.token import Tokens
from forewarn.clock import Clock, LabClock, SystemClock
from forewarn.console.app import build
from forewarn.console.directory import Directory
from forewarn.console.house import House
from forewarn.console.portal.link import pass_for
from forewarn.console.server import serve_unix
from forewarn.console.survey import Attendance, attendance
from forewarn.control.control import Control, Outside
from forewarn.control.labtime import stored_setting
from forewarn.core.access import owner
from forewarn.core.change import Commit
from forewarn.core.enablement import enable
from forewarn.core.event import Event
from forewarn.core.fleet import Vm
from forewarn.core.history import Entry, What
from forewarn.core.policy import Around, Enablement
from forewarn.core.scope import Scope
from forewarn.errors import Rejected
from forewarn.hypervisor.keepers import Keepers
from forewarn.hypervisor.roster import Roster
from forewarn.store.seam import Store
from forewarn.store.sqlite import SqliteStore

log = logging.getLogger(__name__)
DRAIN_S = 5.0
_AT_ONCE = 256  # scopes decided side by side, so that the store can commit them together


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A service that runs, for whoever wants to tell people about it."""

    settings: Settings
    control: Control
    mouth: Mouth
    keepers: Keepers
    front: Front | None
    metrics: OwnerMetrics
    started_at: float

    def info(self) -> dict[str, Any]:
        now, speed, lab = self.control.labtime.show()
        return {
            "version": __version__,
            "pid": os.getpid(),
            "data": self.settings.data,
            "started_at": self.started_at,
            "now": now,
            "lab": lab,
            "speed": speed,
            "enablement": self.settings.enablement,
            "identity_on_loopback": self.settings.identity_on_loopback,
            "listeners": self.mouth.listeners(),
            "workers": self.mouth.workers(),
            "console": self.front.shown() if self.front else None,
            "counts": self.control.store.counts()._asdict(),
        }

    def pending(self) -> int:
        """How many events are not over."""
        return self.control.store.counts().events

    def seats(self, most: int) -> list[tuple[str, str]]:
        """The first VMs of a lab, each with the base URL under which it is served."""
        seated = ((vm.name, self.mouth.endpoint_of(vm)) for vm in self.control.store.vms())
        return list(islice(((name, url) for name, url in seated if url), most))

    def sign_in_link(self) -> str:
        """To the portal, for whoever started this: good once, and soon. "" where there is no portal."""
        if self.front is None:
            return ""
        whom = pass_for(owner(owners_name()), self.front.sign_in, self.control.store)
        return self.front.links.make(whom).url


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[Service]:
    """The service, from the moment it answers until the block is left."""
    async with AsyncExitStack() as stack:
        directory = DataDirectory.take(settings.directory)
        stack.callback(directory.close)
        keepers = Keepers(Roster(directory.vms))
        control = await _take_up(stack, settings, directory, keepers)
        names = Directory(control.store)  # one for all, since it holds the name of every VM
        front = await open_front(settings, directory, control.store, control.clock.now())
        if front is not None:
            stack.callback(front.sock.close)
        windows = _open_windows(stack, settings)
        mouth = Mouth.open(settings, control)
        service = Service(
            settings=settings,
            control=control,
            mouth=mouth,
            keepers=keepers,
            front=front,
            metrics=OwnerMetrics(
                control, counted=mouth.counted, behind=mouth.behind, attend=lambda live: _attend(mouth, names, live)
            ),
            started_at=control.clock.now(),
        )
        stack.callback(service.metrics.close)
        await _go_on(stack, service, windows[1:])
        await _let_keepers_in(stack, service, directory)
        await _open_doors(stack, service, directory, names)
        if windows:
            window = Window(service.metrics.show_own)
            await window.open(windows[0])
            stack.push_async_callback(window.close)
        yield service
        await _say(control, "service stopped")


async def _take_up(stack: AsyncExitStack, settings: Settings, directory: DataDirectory, keepers: Keepers) -> Control:
    """What is stored, and whoever decides about it: where the last service left off, or at the first fleet."""
    store = SqliteStore.open(directory.database)
    stack.push_async_callback(store.close)
    hypervisor = open_hypervisor(settings, directory, keepers)
    stack.push_async_callback(hypervisor.close)
    control = Control(
        store=store,
        clock=_clock(settings, store),
        hypervisor=hypervisor,
        outside=Outside(new_id=new_guid, polls=store.polls, lab_addresses=settings.lab),
        policy=settings.policy,
    )
    stack.push_async_callback(control.close)
    await _say(control, f"service started, version {__version__}, process {os.getpid()}")
    await apply_first_fleet(control, settings)
    await _enable_all(control, settings)
    return control


async def _go_on(stack: AsyncExitStack, service: Service, windows: tuple[socket.socket, ...]) -> None:
    """VMs are answered, and what goes on by itself does."""
    control, mouth, front = service.control, service.mouth, service.front
    await _keep(stack, control.reconciler.run())
    await _keep(stack, control.outbox.run())
    await mouth.start(Backing(control, Tokens(front.sign_in, front.url) if front else None), windows)
    stack.push_async_callback(write_all, mouth.observations, control.store)
    stack.push_async_callback(note_faults, mouth.faults, control.faults)
    stack.push_async_callback(mouth.drain, DRAIN_S)
    await _keep(stack, tend_faults(mouth.faults, control.faults))
    await _keep(stack, write_observations(mouth.observations, control.store))
    stack.push_async_callback(anchor, control.labtime)
    await _keep(stack, keep_time(control.labtime))
    await _keep(stack, prune_history(control.store, control.clock, days=service.settings.history_days))


async def _open_doors(stack: AsyncExitStack, service: Service, directory: DataDirectory, names: Directory) -> None:
    """Operators are answered, on the socket and, where the settings want it, on a port."""
    house = _console_house(service, directory)
    await stack.enter_async_context(serve_unix(build(house, directory=names), directory.socket))
    if service.front is not None:
        await stack.enter_async_context(service.front.serve(house, names))


def new_guid() -> str:
    return str(uuid.uuid4()).upper()


def _clock(settings: Settings, store: Store) -> Clock:
    stored = stored_setting(store)
    if settings.lab:
        return LabClock(stored)
    clock = SystemClock()
    if stored is not None and stored.shows(clock.now()) > clock.now() + 1:
        raise Rejected(
            f"the data directory {settings.data!r} is a lab's, whose clock was moved ahead, and time never moves back "
            "(spec §12): serve another directory, or go on with this one by `forewarn up`"
        )
    return clock


async def _let_keepers_in(stack: AsyncExitStack, service: Service, directory: DataDirectory) -> None:
    """VMs made of namespaces: their keepers call, and those that the fleet asks for are started."""
    control = service.control

    async def tell(what: What, vm: Vm, text: str) -> None:
        await _write(control, entry_about(vm, what, text, control.clock.now()))

    door = Door(keepers=service.keepers, store=control.store, mouth=service.mouth, tell=tell)
    await stack.enter_async_context(door.open(directory.keepers))
    if service.settings.hypervisor is Hands.PROCESS:
        starter = Starter(store=control.store, keepers=service.keepers, data=directory.path, tell=tell)
        await _keep(stack, starter.run())


def _console_house(service: Service, directory: DataDirectory) -> House:
    async def doctor() -> list[Any]:
        found = await asyncio.to_thread(examine, service.settings, directory.database)
        return [*found, *workers_seen(service.mouth.workers())]

    async def observe() -> None:
        await service.mouth.report()
        await write_many(service.mouth.observations, service.control.store)
        await note_faults(service.mouth.faults, service.control.faults)

    return House(
        control=service.control,
        info=service.info,
        doctor=doctor,
        who=owners_name(),
        endpoint_of=service.mouth.endpoint_of,
        rules_for=service.mouth.rules_for,
        keepers=lambda: service.keepers.links,
        observe=observe,
        follow_sightings=service.mouth.observations.follow,
        follow_asking=service.mouth.observations.follow_asking,
        pace=service.mouth.observations.pace,
        metrics=service.metrics.show,
        shown=service.mouth.caught_up if service.settings.workers else None,
        sign_in=service.front.sign_in if service.front else None,
        links=service.front.links if service.front else None,
        strict_api_versions=service.settings.strict_api_versions,
    )


def owners_name() -> str:
    """How the history calls whoever the service belongs to."""
    return f"local user {getpass.getuser()}"


def _open_windows(stack: AsyncExitStack, settings: Settings) -> tuple[socket.socket, ...]:
    """Where metrics are shown: by the owner, then by each worker."""
    if not settings.metrics:
        return ()
    sockets = open_sockets(*read_metrics(settings.metrics), workers=settings.workers)
    for sock in sockets:
        stack.callback(sock.close)
    return sockets


async def _attend(mouth: Mouth, names: Directory, live: Sequence[Event]) -> Attendance:
    return await attendance(names, mouth.observations.pace, mouth.observations.paces, live)


async def _keep(stack: AsyncExitStack, work: Any) -> None:
    """Run this beside everything else until the stack unwinds."""
    task = asyncio.create_task(work)

    async def end() -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    stack.push_async_callback(end)


async def _say(control: Control, text: str) -> None:
    await _write(control, Entry(at=control.clock.now(), what=What.SERVICE, who="forewarn", text=text))


async def _write(control: Control, entry: Entry) -> None:
    try:
        await control.store.commit(Commit(entries=(entry,)))
    except Exception as error:
        log.warning("the history could not be written: %s", error)


async def _enable_all(control: Control, settings: Settings) -> None:
    """A lab on data that knew another setting: every scope is enabled from now on (spec §8.3)."""
    if settings.enablement is not Enablement.ALWAYS:
        return

    def decision(scope: Scope, around: Around) -> Scope:
        return enable(scope, by="the service", now=around.now)

    missing = control.store.scope_ids(enabled=False)
    for at in range(0, len(missing), _AT_ONCE):
        await asyncio.gather(*(control.desk.decide(scope_id, decision) for scope_id in missing[at : at + _AT_ONCE]))
