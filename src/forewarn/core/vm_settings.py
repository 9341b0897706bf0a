"""Settings that an owner may change on existing VMs: notices, automatic approval, publishing, tags.

Every other property of a VM comes from the fleet file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TypeVar

import msgspec

from forewarn.base.wording import first_names
from forewarn.core.fleet import AutoApproval, Priority, Vm
from forewarn.core.scope import Scope
from forewarn.errors import Refused

MIN_TERMINATE_NOTICE_MIN, MAX_TERMINATE_NOTICE_MIN = 5, 15  # minutes (spec §6.3); the minimum is the default
OS_IMAGE_NOTICE_MIN = 15  # minutes; the only allowed value
_MAX_TAGS_TEXT = 200
T = TypeVar("T")


class VmSettingsChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change of the VM settings that an owner may change on existing VMs.

    None leaves a setting unchanged; a notice of 0 switches it off. Approval and publishing can only be changed for all
    VMs of a scope together.
    """

    terminate_notice_min: int | None = None  # minutes: 0, or 5 to 15 (not checked here)
    os_image_notice_min: int | None = None  # minutes: 0 or 15 (not checked here)
    approve_restart: bool | None = None  # whether policy approves restarts by users
    approve_redeploy: bool | None = None  # whether policy approves redeploys by users
    approve_all_down: bool | None = None  # whether policy approves what stops the last running VM of the scope too
    publish_outside: bool | None = None  # whether webhooks for opted-in VMs receive its events
    publish_version: str | None = None  # the api-version whose form webhooks receive its events in; "": the newest
    tags: dict[str, str] | None = None  # to add or replace, by exact name
    untagged: tuple[str, ...] = ()  # exact names of tags to remove; a VM need not have them

    @property
    def is_empty(self) -> bool:
        """Whether the change names no setting and no tag to remove."""
        return self == VmSettingsChange()

    @property
    def _changes_policy(self) -> bool:
        policy = (self.approve_restart, self.approve_redeploy, self.approve_all_down)
        return (*policy, self.publish_outside, self.publish_version) != (None,) * 5


def current_settings(vm: Vm) -> VmSettingsChange:
    """Return the current settings of a VM, without its tags, as the change that would restore them."""
    return VmSettingsChange(
        terminate_notice_min=vm.terminate_notice_min,
        os_image_notice_min=vm.os_image_notice_min,
        approve_restart=vm.auto_approve.restart,
        approve_redeploy=vm.auto_approve.redeploy,
        approve_all_down=vm.approves_all_down,
        publish_outside=vm.publish_outside,
        publish_version=vm.publish_version,
    )


def _apply_settings(vm: Vm, change: VmSettingsChange) -> Vm:
    approve = AutoApproval(
        restart=_new_or_old(change.approve_restart, vm.auto_approve.restart),
        redeploy=_new_or_old(change.approve_redeploy, vm.auto_approve.redeploy),
    )
    kept = {name: text for name, text in vm.tags.items() if name not in change.untagged}
    return msgspec.structs.replace(
        vm,
        terminate_notice_min=_new_or_old(change.terminate_notice_min, vm.terminate_notice_min),
        os_image_notice_min=_new_or_old(change.os_image_notice_min, vm.os_image_notice_min),
        auto_approve=approve,
        approves_all_down=_new_or_old(change.approve_all_down, vm.approves_all_down),
        publish_outside=_new_or_old(change.publish_outside, vm.publish_outside),
        publish_version=_new_or_old(change.publish_version, vm.publish_version),
        tags=kept | (change.tags or {}),
    )


def apply_settings_in_scope(scope: Scope, keys: Collection[str], change: VmSettingsChange) -> Scope:
    """Return the scope with the change applied to its present VMs with these keys; other keys are ignored."""
    _require_whole_set(scope, keys, change)
    for vm in scope.present_vms:
        if vm.key in keys:
            _require_supported(vm, change)
            scope = scope.with_vm(_apply_settings(vm, change))
    return scope


def describe_settings(change: VmSettingsChange, called: str) -> str:
    """Return a change in words: `set the terminate notice of workers to 10 min, the tags to team=shop`."""
    parts = [f"the {what} to {value}" for what, value in _described_parts(change)]
    text = ", ".join(parts).replace(" to ", f" of {called} to ", 1)
    if change.tags is not None or not change.untagged:
        return f"set {text}"
    removed = f"removed the {'tag' if len(change.untagged) == 1 else 'tags'} {first_names(change.untagged)}"
    return f"set {text}, and {removed}" if text else f"{removed} of {called}"


def _require_supported(vm: Vm, change: VmSettingsChange) -> None:
    if vm.priority is Priority.SPOT and change.terminate_notice_min:
        raise Refused(
            f"VM {vm.name!r} is Spot and gets no terminate notification (spec §6.3): leave out the VM or the notice"
        )


def _require_whole_set(scope: Scope, keys: Collection[str], change: VmSettingsChange) -> None:
    chosen = [vm for vm in scope.present_vms if vm.key in keys]
    if not change._changes_policy or not chosen or len(chosen) == len(scope.present_vms):
        return
    vm = chosen[0]
    if vm.cloud_service:
        parent, kind = f"cloud service {vm.cloud_service!r}", "service"
    elif vm.scale_set:
        parent, kind = f"scale set {vm.scale_set!r}", "set"
    else:
        parent, kind = f"availability set {vm.availability_set!r}", "set"
    raise Refused(f"VM {vm.name!r} is in {parent} and has no policy of its own: change the policy of the {kind}")


def _described_parts(change: VmSettingsChange) -> Iterator[tuple[str, str]]:
    if change.terminate_notice_min is not None:
        yield "terminate notice", _notice_text(change.terminate_notice_min)
    if change.os_image_notice_min is not None:
        yield "OS image notice", _notice_text(change.os_image_notice_min)
    if change.approve_restart is not None:
        yield "automatic approval of restarts", _on_or_off(change.approve_restart)
    if change.approve_redeploy is not None:
        yield "automatic approval of redeploys", _on_or_off(change.approve_redeploy)
    if change.approve_all_down is not None:
        yield "automatic approval of what stops the last running VM", _on_or_off(change.approve_all_down)
    if change.publish_outside is not None:
        yield "publishing of events outside", _on_or_off(change.publish_outside)
    if change.publish_version is not None:
        yield "api-version of events outside", change.publish_version or "the newest"
    if change.tags is not None:
        yield "tags", _tags_text(change.tags)


def _notice_text(minutes: int) -> str:
    return f"{minutes} min" if minutes else "none"


def _on_or_off(on: bool) -> str:
    return "on" if on else "off"


def _tags_text(tags: dict[str, str]) -> str:
    text = " ".join(f"{name}={value}" for name, value in tags.items()) or "none"
    return text if len(text) <= _MAX_TAGS_TEXT else f"{text[:_MAX_TAGS_TEXT]}…"


def _new_or_old(new: T | None, old: T) -> T:
    return old if new is None else new
