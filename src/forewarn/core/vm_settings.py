"""What its owner changes about VMs that exist: notices, automatic approval, tags. All else is the fleet file's."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TypeVar

import msgspec

from forewarn.core.fleet import AutoApproval, Priority, Vm
from forewarn.core.scope import Scope
from forewarn.errors import Refused

SHORTEST_TERMINATE_MIN, LONGEST_TERMINATE_MIN = 5, 15  # spec §6.3; the shortest is the default too
OS_IMAGE_MIN = 15  # the only one there is
_LONGEST_TOLD = 200
T = TypeVar("T")


class Amendment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """None: that stays as it is. A notice of 0 is none."""

    terminate_notice_min: int | None = None
    os_image_notice_min: int | None = None
    approve_restart: bool | None = None
    approve_redeploy: bool | None = None
    publish_outside: bool | None = None
    tags: dict[str, str] | None = None  # these come
    untagged: tuple[str, ...] = ()  # and those go; others stay

    @property
    def is_empty(self) -> bool:
        return self == Amendment()

    @property
    def is_of_policy(self) -> bool:
        """What the VMs of a set have in common, always."""
        return (self.approve_restart, self.approve_redeploy, self.publish_outside) != (None, None, None)


def settings_of(vm: Vm) -> Amendment:
    """How it is, besides its tags."""
    return Amendment(
        terminate_notice_min=vm.terminate_notice_min,
        os_image_notice_min=vm.os_image_notice_min,
        approve_restart=vm.auto_approve.restart,
        approve_redeploy=vm.auto_approve.redeploy,
        publish_outside=vm.publish_outside,
    )


def amended(vm: Vm, amendment: Amendment) -> Vm:
    approve = AutoApproval(
        restart=_chosen(amendment.approve_restart, vm.auto_approve.restart),
        redeploy=_chosen(amendment.approve_redeploy, vm.auto_approve.redeploy),
    )
    kept = {name: text for name, text in vm.tags.items() if name not in amendment.untagged}
    return msgspec.structs.replace(
        vm,
        terminate_notice_min=_chosen(amendment.terminate_notice_min, vm.terminate_notice_min),
        os_image_notice_min=_chosen(amendment.os_image_notice_min, vm.os_image_notice_min),
        auto_approve=approve,
        publish_outside=_chosen(amendment.publish_outside, vm.publish_outside),
        tags=kept | (amendment.tags or {}),
    )


def amended_scope(scope: Scope, keys: Collection[str], amendment: Amendment) -> Scope:
    """The scope with those of its VMs amended that have these keys; Refused where one cannot be."""
    _must_share_policy(scope, keys, amendment)
    for vm in scope.present:
        if vm.key in keys:
            _must_suit(vm, amendment)
            scope = scope.with_vm(amended(vm, amendment))
    return scope


def told(amendment: Amendment, called: str) -> str:
    """`the terminate notice of workers to 10 min, the tags to team=shop`: what was set, for the history."""
    parts = [f"the {what} to {value}" for what, value in _parts(amendment)]
    return ", ".join(parts).replace(" to ", f" of {called} to ", 1)


def _must_suit(vm: Vm, amendment: Amendment) -> None:
    if vm.priority is Priority.SPOT and amendment.terminate_notice_min:
        raise Refused(
            f"VM {vm.name!r} is Spot and gets no terminate notification (spec §6.3): leave it out, or disable it"
        )


def _must_share_policy(scope: Scope, keys: Collection[str], amendment: Amendment) -> None:
    """As in a fleet file: a set approves automatically or does not, and no VM of it has a rule of its own."""
    meant = [vm for vm in scope.present if vm.key in keys]
    if not amendment.is_of_policy or not meant or len(meant) == len(scope.present):
        return
    vm = meant[0]
    among = f"scale set {vm.scale_set!r}" if vm.scale_set else f"availability set {vm.availability_set!r}"
    raise Refused(f"VM {vm.name!r} is in {among} and has no policy of its own: change that of the set")


def _parts(amendment: Amendment) -> Iterator[tuple[str, str]]:
    if amendment.terminate_notice_min is not None:
        yield "terminate notice", _notice(amendment.terminate_notice_min)
    if amendment.os_image_notice_min is not None:
        yield "OS image notice", _notice(amendment.os_image_notice_min)
    if amendment.approve_restart is not None:
        yield "automatic approval of restarts", _switch(amendment.approve_restart)
    if amendment.approve_redeploy is not None:
        yield "automatic approval of redeploys", _switch(amendment.approve_redeploy)
    if amendment.publish_outside is not None:
        yield "publishing of events outside", _switch(amendment.publish_outside)
    if amendment.tags is not None:
        yield "tags", _tags(amendment.tags)


def _notice(minutes: int) -> str:
    return f"{minutes} min" if minutes else "none"


def _switch(on: bool) -> str:
    return "on" if on else "off"


def _tags(tags: dict[str, str]) -> str:
    text = " ".join(f"{name}={value}" for name, value in tags.items()) or "none"
    return text if len(text) <= _LONGEST_TOLD else f"{text[:_LONGEST_TOLD]}…"


def _chosen(new: T | None, old: T) -> T:
    return old if new is None else new
