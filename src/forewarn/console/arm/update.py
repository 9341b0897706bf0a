"""PUT and PATCH of VMs and sets: tags, and the profile and policy of scheduled events. The fleet file has the rest.

Both are answered when it is done, with what a GET shows then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import asdict

from forewarn.console.arm.action import INSTANCE, SCALE_SET, VM
from forewarn.console.arm.member import MISSING, Path, member, merged, must_be_as_shown
from forewarn.console.arm.profile import read_policy, read_profile, read_tags
from forewarn.console.arm.refusal import Coded
from forewarn.console.arm.route import ArmAnswer, ArmCall, ArmRoute, Handler, Over, own
from forewarn.console.arm.scale_set import vms_in
from forewarn.console.arm.shape import Json, availability_set_json, instance_json, scale_set_json, vm_json
from forewarn.console.arm.target import Absent, instance_called, vm_called
from forewarn.console.arm.version import must_know
from forewarn.console.room import Room
from forewarn.core.access import Right
from forewarn.core.amendment import Amendment, settings_of
from forewarn.core.fleet import Vm
from forewarn.core.resource import resource_of
from forewarn.errors import Forbidden, Rejected

_AVAILABILITY_SET = VM.replace("/virtualMachines/{vm}", "/availabilitySets/{set}")
_TAGS: Path = ("tags",)
_PROFILE: Path = ("properties", "scheduledEventsProfile")
_SET_PROFILE: Path = ("properties", "virtualMachineProfile", "scheduledEventsProfile")
_POLICY: Path = ("properties", "scheduledEventsPolicy")

Routes = tuple[ArmRoute, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is updated: the VMs it consists of, and what a GET shows of it."""

    vms: Sequence[Vm]
    shown: Json
    called: str  # by the history


@dataclass(frozen=True, slots=True, kw_only=True)
class Sort:
    """A sort of resource: how it is found, and where it has what can be changed."""

    find: Callable[[Room, ArmCall], Subject]
    profile: Path | None = None
    policy: Path | None = None

    @property
    def changeable(self) -> frozenset[Path]:
        return frozenset(path for path in (_TAGS, self.profile, self.policy) if path is not None)


def _vm(room: Room, call: ArmCall) -> Subject:
    vm = vm_called(room, call)
    return Subject(vms=[vm], shown=vm_json(vm), called=vm.name)


def _instance(room: Room, call: ArmCall) -> Subject:
    vm = instance_called(room, call)
    return Subject(vms=[vm], shown=instance_json(vm), called=vm.name)


def _scale_set(room: Room, call: ArmCall) -> Subject:
    vms = vms_in(room, call.resource)
    if not vms:
        raise _absent(call, "scale set")
    return Subject(vms=vms, shown=scale_set_json(vms), called=vms[0].scale_set)


def _availability_set(room: Room, call: ArmCall) -> Subject:
    vms = vms_in(room, call.resource)
    if not vms:
        raise _absent(call, "availability set")
    shown = availability_set_json(vms, [vm for vm in vms if room.sees(vm)])
    return Subject(vms=vms, shown=shown, called=vms[0].availability_set)


def _absent(call: ArmCall, what: str) -> Absent:
    group = call.names["group"]
    listed = f"`az {'vmss' if what == 'scale set' else 'vm availability-set'} list -g {group}` lists them"
    return Absent(f"{what} {call.names['set']!r} does not exist in resource group {group!r}: {listed}")


def _updates(sort: Sort) -> Handler:
    async def handler(room: Room, call: ArmCall) -> ArmAnswer:
        subject = _found(sort, room, call)
        try:
            amendment = _amendment(sort, subject, call, room.house.strict_api_versions)
        except RecursionError as error:
            raise Rejected("the body is nested too deeply: send less") from error
        await room.control.fleets.amend(subject.vms, amendment, called=subject.called, who=room.who)
        return ArmAnswer(body=sort.find(room, call).shown)

    return handler


def _found(sort: Sort, room: Room, call: ArmCall) -> Subject:
    try:
        return sort.find(room, call)
    except Absent as error:
        if call.method != "PUT":
            raise
        made = "what is new comes with a fleet file (`forewarn fleet apply`) or with `forewarn fleet add`"
        raise Absent(f"{str(error).partition(': `')[0]}, and a PUT does not make it: {made}") from error


def _amendment(sort: Sort, subject: Subject, call: ArmCall, strict: bool) -> Amendment:
    """What is to change; Rejected, if anything else would."""
    sent, is_whole = _read(call), call.method == "PUT"
    if is_whole and not sent.get("location"):
        raise Coded(400, "LocationRequired", "location is missing: send the whole resource, or PATCH it", "location")
    must_be_as_shown(sent, subject.shown, sort.changeable)

    fields: dict[str, Any] = _tagging(sent, subject.shown["tags"], is_whole)
    for path, read in ((sort.profile, read_profile), (sort.policy, read_policy)):
        if path is not None and (is_whole or member(sent, path) is not MISSING):
            if strict:
                must_know(call.api_version, path, member(sent, path))
            new = read(_wanted(sent, subject.shown, path, is_whole), path)
            fields |= _moving(new, subject.vms[:1] if is_whole else subject.vms)
    return Amendment(**fields)


def _read(call: ArmCall) -> Json:
    try:
        return msgspec.json.decode(call.body or b"{}", type=dict[str, Any])
    except msgspec.ValidationError as error:
        raise Rejected("the body is not an object: send one such as {}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Rejected(f"the body is not JSON ({error}): send an object such as {{}}") from error


def _wanted(sent: Json, shown: Json, path: Path, is_whole: bool) -> Any:
    """What a PUT leaves out shall not be; what a PATCH leaves out stays."""
    new, old = member(sent, path), member(shown, path)
    if is_whole:
        return None if new is MISSING else new
    return merged(None if old is MISSING else old, new)


def _moving(new: Amendment, vms: Sequence[Vm]) -> dict[str, Any]:
    """Of what is wanted, that which is not so already. A PUT of what was shown moves nothing, even in a set whose VMs
    differ; a PATCH means all of them."""
    settings = [settings_of(vm) for vm in vms]
    return {
        name: value
        for name, value in asdict(new).items()
        if value not in (None, ()) and any(getattr(one, name) != value for one in settings)
    }


def _tagging(sent: Json, old: dict[str, str], is_whole: bool) -> dict[str, Any]:
    """Tags come as a whole, in a PATCH too."""
    new = member(sent, _TAGS)
    if new == old or (new is MISSING and not is_whole):
        return {}
    tags = read_tags(None if new is MISSING else new, _TAGS)
    return {} if tags == old else {"tags": tags, "untagged": tuple(old)}


def over_its_vms(room: Room, call: ArmCall, right: Right) -> None:
    """Over the set and over each VM of it: these do not lie under the id of their availability set."""
    own(room, call, right)
    if not room.principal.may_all(right, map(resource_of, vms_in(room, call.resource))):
        raise Forbidden(f"{room.who} does not have the right to {right} over every VM of {call.resource}")


def _routes(path: str, sort: Sort, what: str, over: Over = own, methods: Sequence[str] = ("PUT", "PATCH")) -> Routes:
    summary = f"changes the settings of {what}"
    return tuple(ArmRoute(method, path, _updates(sort), Right.OPERATE, over, summary) for method in methods)


ROUTES: Routes = (
    *_routes(VM, Sort(find=_vm, profile=_PROFILE, policy=_POLICY), "a VM"),
    *_routes(SCALE_SET, Sort(find=_scale_set, profile=_SET_PROFILE, policy=_POLICY), "a scale set"),
    *_routes(INSTANCE, Sort(find=_instance), "an instance", methods=("PUT",)),
    *_routes(_AVAILABILITY_SET, Sort(find=_availability_set, policy=_POLICY), "an availability set", over_its_vms),
)
