"""The `MachineDriver` interface: single operations on the VMs of real hosts, without any policy.

`qemu` and `libvirt` implement it. All operations are safe to repeat: asked for a state that already holds, they do
nothing. None of them decides whether it may be done; `acts` and `move` do.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Protocol

import msgspec

from forewarn.core.unannounced import ObservedMachine
from forewarn.errors import Unavailable

log = logging.getLogger(__name__)


# The operator's fence command, which cuts a host off from the disks of its VMs.


async def run_fence_command(command: Sequence[str], host: str, *, timeout_s: float) -> bool:
    """Run the operator's fence command of a host; return whether it ended with code 0 in time."""
    if not command:
        return False
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env=os.environ | {"FOREWARN_HOST": host},
        )
    except OSError as error:
        log.warning("fence command %r of host %s cannot be started: %s", command[0], host, error.strerror)
        return False
    try:
        async with asyncio.timeout(timeout_s):
            code = await process.wait()
    except TimeoutError:
        log.warning(
            "fence command %r of host %s has not ended within %g s, and was killed", command[0], host, timeout_s
        )
        return False
    finally:
        with suppress(ProcessLookupError):
            if process.returncode is None:
                process.kill()
                await process.wait()
    if code != 0:
        log.warning("fence command %r of host %s failed (exit code %s)", command[0], host, code)
    return code == 0


class MachineState(StrEnum):
    """What a host reports about a VM."""

    RUNNING = "running"
    PAUSED = "paused"  # in memory and not running: its next resume continues it
    HALTED = "halted by an error"  # in memory; the platform stopped it: a disk fails, or the guest has crashed
    RECEIVING = "receiving"  # prepared as the destination of a live migration whose state is not complete yet
    RECEIVED = "received"  # paused, with the complete state of a live migration
    SENT = "sent"  # paused or ended because a live migration from here has completed; it must not be resumed
    OFF = "off"  # the host knows it, and it does not run
    ABSENT = "absent"  # the host does not know it


IN_MEMORY = frozenset({MachineState.RUNNING, MachineState.PAUSED, MachineState.HALTED})  # the host runs it, or could


class HostUnreachable(Unavailable):
    """The host, its hypervisor's socket or its daemon does not answer: the state of its VMs is unknown.

    An unreachable host has not failed: its VMs may be running.
    """


class MachineMark(msgspec.Struct, frozen=True, kw_only=True):
    """Which act was last begun on a VM, and its step; stored with the VM itself on its host."""

    # There it outlives this service: a service that has lost its journal reads it to continue the act.

    act_id: str  # of the act
    step: str  # the name of the step, as in the journal


class MigrationProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How a live migration is going, as its source reports it."""

    # It is active from the return of `send` until `MachineState` or `error` shows how it ended.

    is_active: bool  # False: it has not begun, or has completed, failed or been cancelled; `MachineState` says which
    transferred_bytes: int = 0  # so far
    remaining_bytes: int = 0  # it may grow, because the guest writes
    downtime_ms: int | None = None  # None: not known yet
    error: str = ""  # for people: why it failed; "": it has not failed, or that is not known


class VmNeeds(msgspec.Struct, frozen=True, kw_only=True):
    memory_mib: int  # memory that must be free, in MiB
    cpu: str = ""  # for `MachineDriver.can_run_cpu`, in the driver's own words; "": any host can run it


class FreeCapacity(msgspec.Struct, frozen=True, kw_only=True):
    """What a host can still take, and what the VMs that it has need."""

    memory_mib: int  # memory that is free for more VMs, in MiB
    cpu_model: str = ""  # of the host, for people and comparison; "": not known
    vms: Mapping[str, VmNeeds] = {}  # by name, also those that are off; without those whose definition is wrong


class MachineDriver(Protocol):
    """Operations on the VMs of several hosts. `host` is the fleet's name of a host, `vm` the VM's name.

    Every call raises HostUnreachable if the host does not answer within the driver's own timeout, Refused if the
    platform refuses for good or the VM is in another state than the call needs, and ActNotTried if a file that the
    driver keeps on this machine cannot be used, such as on a full disk. A call that was lost or came too late must do
    no harm: each call checks the state that it needs, on the host, when it takes effect.
    """

    can_reimage: bool  # whether `reimage` is possible; False: it always refuses

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names of the hosts in the settings, in their order."""

    async def observe(self, host: str) -> dict[str, ObservedMachine]:
        """Return all VMs that the host has now, by name, and their states. Changes nothing.

        This includes VMs that the fleet does not know. A VM whose hypervisor does not answer is CHANGING.
        """

    def changed_hosts(self) -> AsyncGenerator[str, None]:
        """Yield the name of a host whenever its VMs, or the connection to it, may have changed.

        Changes while the host is not connected are not reported.
        """

    async def state(self, host: str, vm: str) -> MachineState:
        """Return what the host reports about the VM now; ABSENT if it does not know it.

        A later `wait_for_change` waits for changes after this call.
        """

    async def stop_reason(self, host: str, vm: str) -> str:
        """Return for people why the VM is HALTED, such as `no space is left for disk vda`."""

    async def wait_for_change(self, host: str, vm: str, *, within_s: float) -> bool:
        """Wait until the host reports that the VM may have changed since `state` was last called.

        Returns False after `within_s` seconds of real time, or earlier if nothing would be reported.
        """

    async def pause(self, host: str, vm: str) -> None:
        """Stop the VM's CPUs: RUNNING becomes PAUSED. Does nothing if it is already paused."""

    async def resume(self, host: str, vm: str) -> None:
        """Let a paused VM continue: PAUSED, RECEIVED or HALTED becomes RUNNING. Refuses a VM that was SENT.

        A VM whose error is still there becomes HALTED again.
        """

    async def reset(self, host: str, vm: str) -> None:
        """Reset a PAUSED or HALTED VM like its reset button: it is PAUSED then, and its next resume boots it."""

    async def press_power_button(self, host: str, vm: str) -> None:
        """Ask the guest through ACPI to shut down, and return at once; a guest may ignore it."""

    async def power_on(self, host: str, vm: str, *, fresh_ephemeral_disk: bool = False) -> None:
        """Boot a VM that is OFF, with a new and empty ephemeral disk if asked: OFF becomes RUNNING.

        Does nothing if it is RUNNING or HALTED: it has been booted. After a failure the disk may already be empty.
        """

    async def power_off(self, host: str, vm: str) -> None:
        """End the VM at once, without asking the guest: any state but ABSENT becomes OFF. Its disks stay."""

    async def remove(self, host: str, vm: str, *, delete_disks: bool) -> None:
        """Make the host forget a VM that is OFF: it becomes ABSENT. Does nothing if it is ABSENT.

        With `delete_disks`, the disks are deleted before the host forgets the VM, so that a repeated call finishes it;
        without, a copy of the definition is kept. For a VM that is on no host, `host` is "": only the disks are left.
        """

    async def reimage(self, host: str, vm: str) -> None:
        """Replace the OS disk of a VM that is OFF with a new copy of its image; it stays OFF."""

    async def copy_definition(
        self, host: str, vm: str, to_host: str, *, fresh_ephemeral_disk: bool = False, then_receives: bool = False
    ) -> None:
        """Define the VM on `to_host`, OFF there, as on `host`.

        The disks must be reachable from both hosts. `fresh_ephemeral_disk` says that `power_on` will be asked for a new
        ephemeral disk there: refuses if that is certainly not possible. `then_receives` says that `prepare_to_receive`
        follows at once: the definition is durable at the latest when that returns. If the service is killed before
        that, the VM is ABSENT there, or OFF or RECEIVING with its definition. Finishes what an earlier call left
        unfinished. Drivers keep what they need outside the host, for when `host` is lost, or is "" because the VM is on
        no host.
        """

    async def read_definition(self, host: str, vm: str) -> bytes:
        """Return the VM's definition, or the driver's copy of it, for `define` by the driver of another host."""

    async def define(
        self, host: str, vm: str, definition: bytes, *, from_host: str, fresh_ephemeral_disk: bool = False
    ) -> None:
        """Define the VM on `host`, OFF there, as `read_definition` described it on `from_host`.

        b"" stands for a lost description: the copies of this driver are used. Keeps the given definition as its copy.
        Finishes what an earlier call left unfinished.
        """

    async def prepare_to_receive(self, to_host: str, vm: str) -> None:
        """Make the VM on `to_host` the destination of a live migration: OFF becomes RECEIVING."""

    async def send(self, host: str, vm: str, to_host: str) -> None:
        """Begin to migrate the VM live to a host where it is RECEIVING, and return at once.

        The migration ends with the VM SENT here and RECEIVED there or, if it fails, in its earlier state here. The VM
        may be RECEIVED there even if the migration fails here at the last moment. Does nothing if the VM is being sent,
        or was SENT.
        """

    async def receive_address(self, host: str, vm: str) -> str:
        """Return the address where a RECEIVING VM waits, for `send_to` of another driver; "": not needed."""

    async def send_to(self, host: str, vm: str, to_host: str, address: str) -> None:
        """Begin to migrate the VM live to a host of another driver, where it waits at this `receive_address`."""

    async def migration(self, host: str, vm: str) -> MigrationProgress:
        """Return how the live migration from this host is going; inactive, with zeros, if none has begun."""

    async def cancel_send(self, host: str, vm: str) -> None:
        """Abort a live migration from this host; the VM continues here. Does nothing if none is active.

        It may complete before it is aborted: then the VM is SENT. After this has returned, an earlier `send` whose
        answer was lost has no further effect.
        """

    async def read_mark(self, host: str, vm: str) -> MachineMark | None:
        """Return the mark that is stored with the VM on this host: the act that was last begun on it."""

    async def write_mark(self, host: str, vm: str, mark: MachineMark) -> None:
        """Store the mark (an act and its step) durably with the VM on this host, in place of an earlier one."""

    async def can_lock_disks(self, host: str, vm: str) -> bool:
        """Return whether the VM's disk locks, which it would hold if it ran on `host`, are free.

        True only if the VM certainly does not run there, was seen there with these locks, and will hold them on any
        other host. `host` may be silent. Keeps no lock.
        """

    async def fence(self, host: str) -> bool:
        """Cut the host off with the operator's fence command; return whether it succeeded. May take long.

        After True, no VM runs on the host.
        """

    async def capacity(self, host: str) -> FreeCapacity:
        """Return what the host can still take, and what its VMs need."""

    async def can_run_cpu(self, host: str, cpu: str) -> bool:
        """Return whether a VM with this CPU (a text from `VmNeeds.cpu`) can be migrated live to the host."""

    async def kept_vms(self) -> dict[str, VmNeeds]:
        """Return the needs, by name, of VMs whose definition the driver keeps apart from any host."""

    async def close(self) -> None:
        """Release connections; may be called twice. VMs and acts under way are left as they are."""
