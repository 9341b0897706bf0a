"""Settings that an owner may change on existing VMs: notices, automatic approval, publishing, tags.

Every other property of a VM comes from the fleet file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TypeVar

import msgspec

from forewarn.core.fleet import AutoApproval, Priority, Vm
from forewarn.core.scope import Scope
from forewarn.errors import Refused

MIN_TERMINATE_NOTICE_MIN, MAX_TERMINATE_NOTICE_MIN = 5, 15  # spec §6.3; the shortest is the default too
OS_IMAGE_NOTICE_MIN = 15  # the only one there is
_MAX_TAGS_TEXT = 200
T = TypeVar("T")


class VmSettingsChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
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
        return self == VmSettingsChange()

    @property
    def changes_policy(self) -> bool:
        """What the VMs of a set have in common, always."""
        return (self.approve_restart, self.approve_redeploy, self.publish_outside) != (None, None, None)


def current_settings(vm: Vm) -> VmSettingsChange:
    """How it is, besides its tags."""
    return VmSettingsChange(
        terminate_notice_min=vm.terminate_notice_min,
        os_image_notice_min=vm.os_image_notice_min,
        approve_restart=vm.auto_approve.restart,
        approve_redeploy=vm.auto_approve.redeploy,
        publish_outside=vm.publish_outside,
    )


def apply_settings(vm: Vm, amendment: VmSettingsChange) -> Vm:
    approve = AutoApproval(
        restart=_new_or_old(amendment.approve_restart, vm.auto_approve.restart),
        redeploy=_new_or_old(amendment.approve_redeploy, vm.auto_approve.redeploy),
    )
    kept = {name: text for name, text in vm.tags.items() if name not in amendment.untagged}
    return msgspec.structs.replace(
        vm,
        terminate_notice_min=_new_or_old(amendment.terminate_notice_min, vm.terminate_notice_min),
        os_image_notice_min=_new_or_old(amendment.os_image_notice_min, vm.os_image_notice_min),
        auto_approve=approve,
        publish_outside=_new_or_old(amendment.publish_outside, vm.publish_outside),
        tags=kept | (amendment.tags or {}),
    )


def apply_settings_in_scope(scope: Scope, keys: Collection[str], amendment: VmSettingsChange) -> Scope:
    """The scope with those of its VMs amended that have these keys; Refused where one cannot be."""
    _require_whole_set(scope, keys, amendment)
    for vm in scope.present_vms:
        if vm.key in keys:
            _require_supported(vm, amendment)
            scope = scope.with_vm(apply_settings(vm, amendment))
    return scope


def describe_settings(amendment: VmSettingsChange, called: str) -> str:
    """`the terminate notice of workers to 10 min, the tags to team=shop`: what was set, for the history."""
    parts = [f"the {what} to {value}" for what, value in _described_parts(amendment)]
    return ", ".join(parts).replace(" to ", f" of {called} to ", 1)


def _require_supported(vm: Vm, amendment: VmSettingsChange) -> None:
    if vm.priority is Priority.SPOT and amendment.terminate_notice_min:
        raise Refused(
            f"VM {vm.name!r} is Spot and gets no terminate notification (spec §6.3): leave it out, or disable it"
        )


def _require_whole_set(scope: Scope, keys: Collection[str], amendment: VmSettingsChange) -> None:
    """As in a fleet file: a set approves automatically or does not, and no VM of it has a rule of its own."""
    meant = [vm for vm in scope.present_vms if vm.key in keys]
    if not amendment.changes_policy or not meant or len(meant) == len(scope.present_vms):
        return
    vm = meant[0]
    among = f"scale set {vm.scale_set!r}" if vm.scale_set else f"availability set {vm.availability_set!r}"
    raise Refused(f"VM {vm.name!r} is in {among} and has no policy of its own: change that of the set")


def _described_parts(amendment: VmSettingsChange) -> Iterator[tuple[str, str]]:
    if amendment.terminate_notice_min is not None:
        yield "terminate notice", _notice_text(amendment.terminate_notice_min)
    if amendment.os_image_notice_min is not None:
        yield "OS image notice", _notice_text(amendment.os_image_notice_min)
    if amendment.approve_restart is not None:
        yield "automatic approval of restarts", _on_or_off(amendment.approve_restart)
    if amendment.approve_redeploy is not None:
        yield "automatic approval of redeploys", _on_or_off(amendment.approve_redeploy)
    if amendment.publish_outside is not None:
        yield "publishing of events outside", _on_or_off(amendment.publish_outside)
    if amendment.tags is not None:
        yield "tags", _tags_text(amendment.tags)


def _notice_text(minutes: int) -> str:
    return f"{minutes} min" if minutes else "none"


def _on_or_off(on: bool) -> str:
    return "on" if on else "off"


def _tags_text(tags: dict[str, str]) -> str:
    text = " ".join(f"{name}={value}" for name, value in tags.items()) or "none"
    return text if len(text) <= _MAX_TAGS_TEXT else f"{text[:_MAX_TAGS_TEXT]}…"


def _new_or_old(new: T | None, old: T) -> T:
    return old if new is None else new
