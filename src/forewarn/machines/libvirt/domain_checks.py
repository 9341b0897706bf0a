"""What libvirt operations check before they change a domain: its state, and the memory of the host."""

from __future__ import annotations

from forewarn.errors import Refused
from forewarn.machines.driver import MachineState
from forewarn.machines.libvirt.domain_state import machine_state
from forewarn.machines.libvirt.domain_xml import parse_domain
from forewarn.machines.libvirt.session import LibvirtSession


def state_of(session: LibvirtSession, vm: str) -> MachineState:
    """Return the state of the VM on the host of this session; ABSENT if the host does not know it."""
    status = session.status(vm)
    return MachineState.ABSENT if status is None else machine_state(status)


def require_memory(session: LibvirtSession, host: str, vm: str, xml: str) -> None:
    """Raise Refused if a VM, by its definition `xml`, needs more memory than the host has free."""
    needed, free = parse_domain(xml).memory_mib, session.free_memory_mib()
    if needed > free:
        raise Refused(f"host {host} has {free} MiB of memory left, but VM {vm!r} needs {needed} MiB")


def require_state(
    session: LibvirtSession, host: str, vm: str, what: str, *allowed: MachineState, done: MachineState | None = None
) -> bool:
    """Return True if the VM is in one of the allowed states, and False if it is in state `done` already."""
    state = state_of(session, vm)
    if state is done:
        return False
    if state not in allowed:
        wanted = " or ".join(allowed)
        raise Refused(f"VM {vm!r} is {state} on host {host}, so the host cannot {what} it: the VM must be {wanted}")
    return True
