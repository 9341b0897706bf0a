"""Which resources a call is about: over these its right is needed. Asked before a handler runs, so none forgets it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from forewarn.console.body import Asking
from forewarn.console.call import Call
from forewarn.console.room import Room
from forewarn.core.access import Right
from forewarn.core.resource import EVERYTHING, resource_of
from forewarn.errors import Forbidden

Over = Callable[[Room, Call], Iterable[str]]


def everything(room: Room, call: Call) -> Iterable[str]:
    """Hosts, rollouts, faults, the clock: what belongs to no owner of VMs."""
    return (EVERYTHING,)


def signed_in(room: Room, call: Call) -> Iterable[str]:
    """Whoever is signed in, with or without a role: nothing of the fleet is shown."""
    return ()


def listing(room: Room, call: Call) -> Iterable[str]:
    """The handler shows what the caller may read; somebody who may read nothing at all is told so."""
    if not room.principal.may_somewhere(Right.READ):
        _, outside, known_as = room.principal.id.partition("oidc:")
        how = f"forewarn access grant ROLE --to-external {known_as}" if outside else "forewarn access grant"
        raise Forbidden(f"{room.who} has no role anywhere: ask an administrator for one (`{how}`)")
    return ()


def named_vm(room: Room, call: Call) -> Iterable[str]:
    return (resource_of(room.directory.find(call.names["name"])),)


def named_event(room: Room, call: Call) -> Iterable[str]:
    """Every VM that it hits; one that has left the scope since is nobody's in particular."""
    event = room.event(call.names["id"])
    there = {vm.name.casefold(): vm for vm in room.store.vms(scope_id=event.scope_id, removed=True)}
    hit = [there.get(name.casefold()) for name in event.vms]
    return [EVERYTHING if vm is None else resource_of(vm) for vm in hit] or [EVERYTHING]


def vms_asked_for(room: Room, call: Call) -> Iterable[str]:
    return [resource_of(room.directory.find(name)) for name in call.read_body(Asking).vms]
