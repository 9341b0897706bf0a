"""`QemuDriver`: single operations on VMs of plain QEMU, over QMP.

The destination of a live migration is started with `-incoming defer -S`, so that it never runs by itself, and takes its
disks only when it is resumed. The source of a completed migration is never resumed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import msgspec

from forewarn.core.unannounced import ObservedMachine
from forewarn.errors import Refused
from forewarn.machines.driver import (
    IN_MEMORY,
    FreeCapacity,
    HostUnreachable,
    MachineMark,
    MachineState,
    MigrationProgress,
    VmNeeds,
    run_fence_command,
)
from forewarn.machines.qemu.definition import (
    DEFINITION_SUFFIX,
    QemuHost,
    VmDefinition,
    check_vm_name,
    option_text,
    parse_definition,
)
from forewarn.machines.qemu.definition_writes import DefinitionWrites
from forewarn.machines.qemu.disks import DiskFileJobs, DiskLocks, find_disk_users
from forewarn.machines.qemu.live_migration import begin_to_receive, begin_to_send, is_listening, listening_uri
from forewarn.machines.qemu.observation import (
    changed_hosts,
    has_arrivals,
    is_migrating,
    migration_progress,
    observe_instance,
    read_state,
    stop_reason,
)
from forewarn.machines.qemu.processes import (
    NotRunning,
    QemuInstance,
    QemuProcesses,
    create_file,
    delete_file,
    file_error,
    require_defined,
    require_files,
    require_movable,
    require_shared_disks,
    sync_directory,
    write_durably,
)
from forewarn.machines.qemu.qmp import Monitor, require_qmp

log = logging.getLogger(__name__)


# What a QEMU host can still take, and what its VMs need, from their definitions.


def host_capacity(instances: Iterable[QemuInstance], *, total_mib: int) -> FreeCapacity:
    """Return what a host with these VMs can still take: its memory less that of VMs with a QEMU process."""
    instances = list(instances)
    used = sum(instance.read_definition()[0].memory_mib for instance in instances if instance.is_alive())
    total = total_mib or _machine_memory_mib()
    return FreeCapacity(memory_mib=max(0, total - used), vms=vm_needs(instances))


def vm_needs(instances: Iterable[QemuInstance]) -> dict[str, VmNeeds]:
    """Return what each of these VMs needs, by name; only memory is known."""
    needs = {}
    for instance in instances:
        with suppress(Refused, HostUnreachable):
            needs[instance.vm] = VmNeeds(memory_mib=instance.read_definition()[0].memory_mib)
    return needs


def _machine_memory_mib() -> int:
    line = Path("/proc/meminfo").read_text(encoding="ascii").partition("\n")[0]  # MemTotal:  16384 kB
    return int(line.split()[1]) // 1024


# Copies of VMs' definitions outside their hosts, for lost hosts and for VMs that are on no host.


class QemuDefinitionCopies:
    """Copies of VMs' latest definitions, in one directory of this machine, created when it is needed."""

    # One copy per VM name, of the host where the VM was last seen: for VMs whose host is lost, and VMs that are on no
    # host.

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def instance(self, vm: str) -> QemuInstance:
        """Return the VM as if it were on a host "" whose directory is that of the copies."""
        return QemuInstance("", vm, self._directory)

    def instances(self) -> list[QemuInstance]:
        """Return all VMs of which there is a copy, as `instance` returns each; sorted by name, may be []."""
        return [self.instance(path.stem) for path in sorted(self._directory.glob(f"*{DEFINITION_SUFFIX}"))]

    def keep(self, instance: QemuInstance) -> None:
        """Copy the definition of a VM from its host's directory, durably, if the copy differs."""
        copy = self.instance(instance.vm).definition_file
        try:
            data = instance.definition_file.read_bytes()
            if copy.exists() and copy.read_bytes() == data:
                return
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise file_error(f"definition {str(instance.definition_file)!r} cannot be copied", error) from error
        write_durably(copy, data)

    def keep_definition(self, vm: str, data: bytes) -> None:
        """Keep this definition, which came from another host, as the copy of the VM's, durably."""
        if not data:
            return
        copy = self.instance(vm).definition_file
        parse_definition(data, copy)
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_durably(copy, data)
        except OSError as error:
            raise file_error(f"definition {str(copy)!r} cannot be written", error) from error

    def read(self, instance: QemuInstance) -> tuple[VmDefinition, bytes]:
        """Return the VM's definition and its bytes, from its host or else from the copy."""
        copy = self.instance(instance.vm)
        try:
            if instance.host and instance.is_defined():
                return instance.read_definition()
        except HostUnreachable:
            if not copy.definition_file.exists():
                raise
        if not copy.definition_file.exists():
            where = f"on host {instance.host!r}" if instance.host else "on a host"
            raise Refused(f"VM {instance.vm!r} is not defined {where}, and there is no copy of its definition")
        return copy.read_definition()

    def forget(self, vm: str) -> None:
        """Delete the copy of the VM with this name, if there is one, after its disks were deleted."""
        delete_file(self.instance(vm).definition_file)


# Fencing of QEMU hosts: the processes that still use disks after the fence command.


def has_foreign_disk_user(host: str, instances: Sequence[QemuInstance], others: Sequence[QemuInstance]) -> bool:
    """Return whether a process, other than QEMU of `others`, has a disk of these VMs open for writing."""
    users = find_disk_users([disk for instance in instances for disk in instance.disks()])
    known = {instance.pid() for instance in others if instance.is_alive()}
    for user in users:
        if user.pid not in known:
            log.warning("host %s is not fenced: process %d still writes to disk %s", host, user.pid, user.disk)
            return True
    return False


_MAX_CONCURRENT_LOOKS = 16  # at VMs of one host
_INTERVAL_S = 0.02  # between checks of something that QEMU does by itself


class QemuDriver:
    """Implements `MachineDriver` for the hosts of the settings."""

    # `copies` is a directory of this machine for copies of all definitions: a VM whose host is lost, or that is on no
    # host, is defined on another one from there. Operations on one VM wait for each other.

    can_reimage = True  # a VM whose definition names no image refuses

    def __init__(
        self,
        hosts: Mapping[str, QemuHost],
        *,
        copies: Path,
        lock_directories: Sequence[str] = (),
        timeout_s: float = 5.0,
        start_timeout_s: float = 20.0,
    ) -> None:
        require_qmp()
        self._hosts = hosts
        self._copies = QemuDefinitionCopies(copies)
        self._disk_locks = DiskLocks(lock_directories, copies)
        self._timeout_s = timeout_s
        self._disk_files = DiskFileJobs()
        self._writes = DefinitionWrites()
        self._processes = QemuProcesses(timeout_s=timeout_s, start_timeout_s=start_timeout_s)
        # One operation on a VM at a time: QEMU serves one client, and an operation looks before it acts.
        self._locks: defaultdict[tuple[str, str], asyncio.Lock] = defaultdict(asyncio.Lock)

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(self._hosts)

    async def observe(self, host: str) -> dict[str, ObservedMachine]:
        directory = Path(self._host(host).directory)
        if not directory.is_dir():
            raise HostUnreachable(f"directory {str(directory)!r} of host {host!r} does not exist")
        limit = asyncio.Semaphore(_MAX_CONCURRENT_LOOKS)

        async def observe(instance: QemuInstance) -> ObservedMachine:
            async with limit, self._lock(host, instance.vm):
                return await observe_instance(instance, self._processes)

        instances = self._instances(host)
        observed = await asyncio.gather(*map(observe, instances))
        return {instance.vm: machine for instance, machine in zip(instances, observed, strict=True)}

    def changed_hosts(self) -> AsyncGenerator[str, None]:
        return changed_hosts({name: Path(host.directory) for name, host in self._hosts.items()})

    async def state(self, host: str, vm: str) -> MachineState:
        # Ends QEMU after the guest's shutdown, and a destination to which nothing was sent, if it does not listen yet
        # or has no definition.
        async with self._locks[host, vm]:
            return await self._state(self._instance(host, vm))

    async def stop_reason(self, host: str, vm: str) -> str:
        async with self._lock(host, vm):
            try:
                return await self._processes.ask(self._instance(host, vm), stop_reason)
            except NotRunning:
                return ""

    async def wait_for_change(self, host: str, vm: str, *, within_s: float) -> bool:
        async with self._lock(host, vm):
            try:
                async with self._processes.monitor(self._instance(host, vm)) as monitor:
                    return await monitor.wait_for_change(within_s=within_s)
            except NotRunning:
                return False

    async def pause(self, host: str, vm: str) -> None:
        async with self._running(host, vm, "paused") as (instance, monitor):
            if await read_state(monitor, instance) is MachineState.RUNNING:
                await monitor.execute("stop")

    async def resume(self, host: str, vm: str) -> None:
        async with self._running(host, vm, "resumed") as (instance, monitor):
            state = await read_state(monitor, instance)
            if state is MachineState.RUNNING:
                return
            if state not in (MachineState.PAUSED, MachineState.RECEIVED, MachineState.HALTED):
                raise Refused(f"{instance.name} is {state}: it cannot be resumed")
            if state is not MachineState.RECEIVED and await is_migrating(monitor):
                raise Refused(f"{instance.name} is being migrated: it cannot be resumed before the migration has ended")
            await monitor.execute("cont")
            delete_file(instance.incoming_file)

    async def reset(self, host: str, vm: str) -> None:
        async with self._running(host, vm, "reset") as (instance, monitor):
            state = await read_state(monitor, instance)
            if state not in (MachineState.PAUSED, MachineState.HALTED):
                raise Refused(f"{instance.name} is {state}: only a paused VM can be reset")
            await monitor.execute("system_reset")
            async with self._deadline(f"QEMU of {instance.name} did not reset the VM"):
                while (await monitor.execute("query-status"))["status"] != "prelaunch":
                    await asyncio.sleep(_INTERVAL_S)

    async def press_power_button(self, host: str, vm: str) -> None:
        async with self._lock(host, vm):
            instance = self._instance(host, vm)
            try:
                async with self._processes.monitor(instance) as monitor:
                    await monitor.execute("system_powerdown")
            except NotRunning:
                require_defined(instance)

    async def power_on(self, host: str, vm: str, *, fresh_ephemeral_disk: bool = False) -> None:
        async with self._lock(host, vm):
            instance = self._instance(host, vm)
            state = await self._state(instance)
            if state in (MachineState.RUNNING, MachineState.HALTED):
                return
            if state not in (MachineState.OFF, MachineState.ABSENT):
                raise Refused(f"{instance.name} is {state}: only a VM that is off can be booted")
            definition = instance.read_definition()[0]
            await self._processes.end(instance)
            if definition.ephemeral is not None:
                disk = instance.directory / definition.ephemeral.path
                if fresh_ephemeral_disk or not disk.exists():
                    await self._disk_files.make_empty_disk(disk, definition.ephemeral.size_mib)
            delete_file(instance.incoming_file)
            await self._start(instance, definition)

    async def power_off(self, host: str, vm: str) -> None:
        async with self._lock(host, vm):
            instance = self._instance(host, vm)
            if not instance.is_alive():
                require_defined(instance)
            await self._processes.end(instance)

    async def remove(self, host: str, vm: str, *, delete_disks: bool) -> None:
        async with self._lock(host, vm):
            instance = self._instance(host, vm)
            if host:
                state = await self._state(instance)
                if state is MachineState.ABSENT:
                    return
                if state is not MachineState.OFF:
                    raise Refused(f"{instance.name} is {state}: only a VM that is off can be removed")
                await self._processes.end(instance)
            elif not instance.definition_file.exists():
                return
            definition = instance.read_definition()[0]
            if delete_disks:
                require_files(definition, instance)
            local, ephemeral = definition.local_paths(), definition.ephemeral
            if ephemeral is not None and (delete_disks or ephemeral.path in local):
                delete_file(instance.directory / ephemeral.path)
            if delete_disks:
                for disk in definition.disks:
                    delete_file(instance.directory / disk)
            for file in instance.files() if host else ():
                delete_file(file)
            if delete_disks:
                self._copies.forget(vm)
                self._disk_locks.forget(vm)
            await asyncio.to_thread(sync_directory, instance.directory)

    async def reimage(self, host: str, vm: str) -> None:
        async with self._lock(host, vm):
            instance = self._instance(host, vm)
            if (state := await self._state(instance)) is not MachineState.OFF:
                raise Refused(f"{instance.name} is {state}: only a VM that is off can be reimaged")
            definition = instance.read_definition()[0]
            if not definition.image:
                raise Refused(f"{instance.name} cannot be reimaged: add 'image' to {str(instance.definition_file)!r}")
            await self._processes.end(instance)
            image, disk = (instance.directory / path for path in (definition.image, definition.disks[0]))
            await self._disk_files.copy_disk(image, disk)

    async def copy_definition(
        self, host: str, vm: str, to_host: str, *, fresh_ephemeral_disk: bool = False, then_receives: bool = False
    ) -> None:
        source, target = self._instance(host, vm), self._instance(to_host, vm)
        definition, data = self._copies.read(source)
        require_shared_disks(definition, source)
        free_mib = (await self.capacity(to_host)).memory_mib
        if not target.is_alive() and free_mib < definition.memory_mib:
            raise Refused(f"{to_host} has {free_mib} MiB free, and {vm} needs {definition.memory_mib} MiB")
        async with self._lock(to_host, vm):
            if target.is_defined() and target.definition_bytes() == data:
                return
            if (state := await self._state(target)) not in (MachineState.OFF, MachineState.ABSENT):
                raise Refused(f"{target.name} is {state} with a different definition: end it first")
            is_new = not target.is_defined()  # QEMU never starts beside the file of another definition
            self._writes.begin(target, definition, data)
            if not (is_new and then_receives and source.is_alive()):
                await self._writes.finish(target)

    async def read_definition(self, host: str, vm: str) -> bytes:
        return self._copies.read(self._instance(host, vm))[1]

    async def define(
        self, host: str, vm: str, definition: bytes, *, from_host: str, fresh_ephemeral_disk: bool = False
    ) -> None:
        self._copies.keep_definition(vm, definition)
        await self.copy_definition("", vm, host)

    async def prepare_to_receive(self, to_host: str, vm: str) -> None:
        async with self._locks[to_host, vm]:
            instance = self._instance(to_host, vm)
            try:
                await self._prepare_to_receive(instance, address=self._hosts[to_host].migration)
            finally:
                await self._writes.finish(instance)

    async def _prepare_to_receive(self, instance: QemuInstance, *, address: str) -> None:
        state = await self._state(instance)
        if state not in (MachineState.OFF, MachineState.ABSENT, MachineState.RECEIVING):
            raise Refused(f"{instance.name} is {state}: only a VM that is off can receive a live migration")
        if state is not MachineState.RECEIVING:
            definition = self._writes.definition(instance) or instance.read_definition()[0]
            require_movable(definition, instance)
            await self._processes.end(instance)
            create_file(instance.incoming_file)  # is about the process, which the machine would lose with it
            await self._start(instance, definition, "-incoming", "defer", "-S")
        async with self._processes.monitor(instance) as monitor:
            if state is not MachineState.RECEIVING or not await is_listening(monitor):
                await begin_to_receive(monitor, instance, address=address)

    async def send(self, host: str, vm: str, to_host: str) -> None:
        await self.send_to(host, vm, to_host, "")

    async def send_to(self, host: str, vm: str, to_host: str, address: str) -> None:
        async with self._running(host, vm, "migrated") as (instance, monitor):
            find_address = partial(self.receive_address, to_host, vm)
            await begin_to_send(monitor, instance, address=address, find_address=find_address)

    async def receive_address(self, host: str, vm: str) -> str:
        async with self._running(host, vm, "a destination") as (target, receiver):
            return await listening_uri(receiver, target)

    async def migration(self, host: str, vm: str) -> MigrationProgress:
        async with self._lock(host, vm):
            instance = self._instance(host, vm)
            try:
                report = await self._processes.ask(instance, lambda monitor: monitor.execute("query-migrate"))
            except NotRunning:
                return MigrationProgress(is_active=False)
        return migration_progress(report)

    async def cancel_send(self, host: str, vm: str) -> None:
        async with self._lock(host, vm):
            instance = self._instance(host, vm)
            try:
                async with self._processes.monitor(instance) as monitor:
                    if not await is_migrating(monitor):
                        return
                    await monitor.execute("migrate_cancel")
                    async with self._deadline(f"QEMU of {instance.name} did not cancel the migration"):
                        while await is_migrating(monitor):
                            await asyncio.sleep(_INTERVAL_S)
            except NotRunning:
                return

    async def read_mark(self, host: str, vm: str) -> MachineMark | None:
        instance = self._instance(host, vm)
        if not instance.is_defined():
            return None
        try:
            return msgspec.json.decode(instance.mark_file.read_bytes(), type=MachineMark)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            raise Refused(f"mark {str(instance.mark_file)!r} cannot be read ({error}): delete the file") from error

    async def write_mark(self, host: str, vm: str, mark: MachineMark) -> None:
        async with self._lock(host, vm):
            instance = self._instance(host, vm)
            require_defined(instance)
            await asyncio.to_thread(write_durably, instance.mark_file, msgspec.json.encode(mark))

    async def fence(self, host: str) -> bool:
        settings = self._host(host)
        if not await run_fence_command(settings.fence, host, timeout_s=settings.fence_timeout_s):
            return False
        for instance in self._instances(host):
            if instance.is_alive() or await self._processes.is_listening(instance):
                log.warning("host %s is not fenced: QEMU of VM %s still runs", host, instance.vm)
                return False
        instances = self._instances(host) or self._copies.instances()  # if its directory is lost, all that are known
        others = [instance for name in self._hosts if name != host for instance in self._instances(name)]
        return not await asyncio.to_thread(has_foreign_disk_user, host, instances, others)

    async def can_lock_disks(self, host: str, vm: str) -> bool:
        copy = self._copies.instance(vm)
        if not self._disk_locks.is_used or not copy.definition_file.exists():
            return False
        definition = copy.read_definition()[1]
        return await asyncio.to_thread(self._disk_locks.are_free, host, vm, definition)

    async def capacity(self, host: str) -> FreeCapacity:
        settings = self._host(host)
        if not Path(settings.directory).is_dir():
            raise HostUnreachable(f"directory {settings.directory!r} of host {host!r} does not exist")
        return host_capacity(self._instances(host), total_mib=settings.memory_mib)

    async def can_run_cpu(self, host: str, cpu: str) -> bool:
        return True

    async def kept_vms(self) -> dict[str, VmNeeds]:
        return vm_needs(self._copies.instances())

    async def close(self) -> None:
        await self._disk_files.close()
        await self._writes.close()
        await self._processes.close()
        self._processes.release()

    def _host(self, host: str) -> QemuHost:
        try:
            return self._hosts[host]
        except KeyError:
            raise Refused(f"host {host!r} is not in the settings: add [qemu.hosts.{host}]") from None

    def _instance(self, host: str, vm: str) -> QemuInstance:
        instance = QemuInstance(host, vm, Path(self._host(host).directory)) if host else self._copies.instance(vm)
        check_vm_name(vm, instance.directory)
        return instance

    def _instances(self, host: str) -> list[QemuInstance]:
        directory = Path(self._host(host).directory)
        return [QemuInstance(host, path.stem, directory) for path in sorted(directory.glob(f"*{DEFINITION_SUFFIX}"))]

    @asynccontextmanager
    async def _lock(self, host: str, vm: str) -> AsyncIterator[None]:
        """Let no other operation on this VM run until the block is left; its definition is complete."""
        async with self._locks[host, vm]:
            if host:
                await self._writes.finish(self._instance(host, vm))
            yield

    @asynccontextmanager
    async def _running(self, host: str, vm: str, participle: str) -> AsyncIterator[tuple[QemuInstance, Monitor]]:
        """The VM, locked, with its monitor. Refused if it has no process: it cannot be `participle`."""
        async with self._lock(host, vm):
            instance = self._instance(host, vm)
            try:
                async with self._processes.monitor(instance) as monitor:
                    yield instance, monitor
            except NotRunning:
                require_defined(instance)
                raise Refused(f"{instance.name} is off: it cannot be {participle}") from None

    async def _state(self, instance: QemuInstance) -> MachineState:
        is_defined = instance.is_defined()
        if is_defined:
            self._copies.keep(instance)
        is_defined = is_defined or self._writes.definition(instance) is not None
        try:
            state = await self._processes.ask(instance, lambda monitor: read_state(monitor, instance))
            is_undefined = state is MachineState.RECEIVING and not is_defined
            if is_undefined and not await self._processes.ask(instance, has_arrivals):
                state = MachineState.OFF  # the service was killed before it had written the definition
        except NotRunning:
            return MachineState.OFF if is_defined else MachineState.ABSENT
        if state is MachineState.OFF:  # the guest has shut down, but QEMU waits, and holds the locks of its disks
            await self._processes.end(instance)
            return MachineState.OFF if is_defined else MachineState.ABSENT
        if state in IN_MEMORY and self._disk_locks.is_used:
            await asyncio.to_thread(self._disk_locks.observe, instance)
        return state

    async def _start(self, instance: QemuInstance, definition: VmDefinition, *options: str) -> None:
        argv = [
            *self._hosts[instance.host].prefix,
            *definition.command,
            *("-qmp", f"unix:{option_text(instance.monitor_socket)},server=on,wait=off"),
            *("-qmp", f"unix:{option_text(instance.events_socket)},server=on,wait=off"),
            *("-pidfile", str(instance.pid_file), "-no-shutdown", *options),
        ]
        await self._processes.start(instance, argv)

    @asynccontextmanager
    async def _deadline(self, message: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._timeout_s):
                yield
        except TimeoutError as error:
            raise HostUnreachable(f"{message} within {self._timeout_s:g} s") from error
