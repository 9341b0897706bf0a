"""What may be asked for here, by whom: links to forms, only those that make sense now."""

from __future__ import annotations

from forewarn.console.room import Room
from forewarn.console.views import View
from forewarn.core.access import Right
from forewarn.core.fleet import Health, Host, Vm
from forewarn.core.planning import ASK_CAUSE, pending_platform_events, suits
from forewarn.core.request import Ask
from forewarn.core.resource import EVERYTHING, resource_of
from forewarn.core.scope import Scope
from forewarn.errors import Refused

_ASKS = (
    Ask.RESTART,
    Ask.REDEPLOY,
    Ask.EVICT,
    Ask.START,
    Ask.POWER_OFF,
    Ask.DEALLOCATE,
    Ask.REAPPLY,
    Ask.REIMAGE,
    Ask.SCALE_IN,
    Ask.DELETE,
)
_TITLES = {"evict": "Simulate eviction", "power-off": "Power off"}


class Deed(View, frozen=True, kw_only=True):
    form: str
    title: str


def deeds_for_vm(room: Room, vm: Vm, scope: Scope | None) -> tuple[Deed, ...]:
    if vm.removed_at is not None or not room.principal.may(Right.OPERATE, resource_of(vm)):
        return ()
    asks = [ask for ask in _ASKS if suits(vm, ASK_CAUSE[ask]) and (vm.scale_set or ask is not Ask.SCALE_IN)]
    if scope is not None and _has_maintenance(scope, vm):
        asks.insert(0, Ask.PERFORM_MAINTENANCE)
    return tuple(_deed(ask) for ask in asks)


def deeds_for_host(room: Room, host: Host) -> tuple[Deed, ...]:
    if not room.principal.may(Right.PLATFORM, EVERYTHING):
        return ()
    names = {Health.HEALTHY: ("degrade", "fail"), Health.DEGRADED: ("fail", "repair"), Health.FAILED: ("repair",)}
    return tuple(_deed(name) for name in names[host.health])


def _has_maintenance(scope: Scope, vm: Vm) -> bool:
    try:
        return bool(pending_platform_events(scope, vm.name))
    except Refused:
        return False


def _deed(name: str) -> Deed:
    return Deed(form=name, title=_TITLES.get(name, name.replace("-", " ").capitalize()))
