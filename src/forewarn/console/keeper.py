"""Calls about keepers: which VMs are made of namespaces and run a program here."""

from __future__ import annotations

from forewarn.console.call import Call
from forewarn.console.house import Keeper
from forewarn.console.room import Room
from forewarn.console.views import KeepersView, KeeperView


async def show_all(room: Room, call: Call) -> KeepersView:
    """The VMs that are made of namespaces, and the programs inside them."""
    kept = ((room.store.vm(key), keeper) for key, keeper in sorted(room.house.keepers().items()))
    return KeepersView(keepers=tuple(shown(vm.name, keeper) for vm, keeper in kept if vm is not None and room.sees(vm)))


def shown(name: str, keeper: Keeper) -> KeeperView:
    return KeeperView(vm=name, pid=keeper.pid, state=keeper.state, boot_id=keeper.boot_id, program=keeper.program)
