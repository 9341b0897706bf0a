"""What may be asked for here, by whom: links to forms, only those that make sense now."""

from __future__ import annotations

from collections.abc import Iterator

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
_TITLES = {"evict": "Simulate eviction", "fault": "Set a fault", "rollout": "Start a rollout"}
_OF_HEALTH = {
    Health.HEALTHY: ("degrade", "fail", "rollout"),
    Health.DEGRADED: ("fail", "repair", "rollout"),
    Health.FAILED: ("repair",),
}


class FormLink(View, frozen=True, kw_only=True):
    form: str
    title: str


def forms_for_vm(room: Room, vm: Vm, scope: Scope | None) -> tuple[FormLink, ...]:
    if vm.removed_at is not None:
        return ()
    asks = [*_asks(vm, scope)] if room.principal.may(Right.OPERATE, resource_of(vm)) else []
    return tuple(map(_link, (*asks, *_of_platform(room, "fault"))))


def forms_for_host(room: Room, host: Host) -> tuple[FormLink, ...]:
    return tuple(map(_link, _of_platform(room, *_OF_HEALTH[host.health])))


def forms_for_scope(room: Room) -> tuple[FormLink, ...]:
    return tuple(map(_link, _of_platform(room, "rollout")))


def _of_platform(room: Room, *names: str) -> tuple[str, ...]:
    return names if room.principal.may(Right.PLATFORM, EVERYTHING) else ()


def _asks(vm: Vm, scope: Scope | None) -> Iterator[Ask]:
    if scope is not None and _has_maintenance(scope, vm):
        yield Ask.PERFORM_MAINTENANCE
    for ask in _ASKS:
        if suits(vm, ASK_CAUSE[ask]) and (vm.scale_set or ask is not Ask.SCALE_IN):
            yield ask


def _has_maintenance(scope: Scope, vm: Vm) -> bool:
    try:
        return bool(pending_platform_events(scope, vm.name))
    except Refused:
        return False


def _link(name: str) -> FormLink:
    return FormLink(form=name, title=_TITLES.get(name, name.replace("-", " ").capitalize()))
