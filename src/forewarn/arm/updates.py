"""PUT and PATCH of VMs and sets: tags, and the profile and policy of scheduled events. The fleet file has the rest.

Both are answered when it is done, with what a GET shows then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import asdict

from forewarn.console.arm.action import INSTANCE, SCALE_SET, VM
from forewarn.console.arm.member import MISSING, Path, member, merged, must_be_as_shown
from forewarn.console.arm.profile import read_policy, read_profile, read_tags
from forewarn.console.arm.refusal import Coded
from forewarn.console.arm.route import ArmAnswer, ArmCall, ArmRoute, Handler, Over, own
from forewarn.console.arm.scale_set import vms_in
from forewarn.console.arm.shape import Json
from forewarn.console.arm.subject import (
    A_SCALE_SET,
    A_VM,
    AN_AVAILABILITY_SET,
    AN_INSTANCE,
    TAGS,
    Sort,
    Subject,
    found,
)
from forewarn.console.arm.version import must_know
from forewarn.console.call import fault_in
from forewarn.console.room import Room
from forewarn.core.access import Right
from forewarn.core.amendment import Amendment, settings_of
from forewarn.core.fleet import Vm
from forewarn.core.resource import resource_of
from forewarn.errors import Forbidden, Rejected

_AVAILABILITY_SET = VM.replace("/virtualMachines/{vm}", "/availabilitySets/{set}")
Routes = tuple[ArmRoute, ...]


def _updates(sort: Sort) -> Handler:
    async def handler(room: Room, call: ArmCall) -> ArmAnswer:
        subject = found(sort, room, call)
        try:
            amendment = _amendment(sort, subject, call, room.house.strict_api_versions)
        except RecursionError as error:
            raise Rejected("the body is nested too deeply: send less") from error
        await room.control.fleets.amend(subject.vms, amendment, called=subject.called, who=room.who)
        return ArmAnswer(body=sort.find(room, call).shown)

    return handler


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
        raise Rejected(f"the body cannot be taken: {fault_in(error)[1]}") from error
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
    new = member(sent, TAGS)
    if new == old or (new is MISSING and not is_whole):
        return {}
    tags = read_tags(None if new is MISSING else new, TAGS)
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
    *_routes(VM, A_VM, "a VM"),
    *_routes(SCALE_SET, A_SCALE_SET, "a scale set"),
    *_routes(INSTANCE, AN_INSTANCE, "an instance", methods=("PUT",)),
    *_routes(_AVAILABILITY_SET, AN_AVAILABILITY_SET, "an availability set", over_its_vms),
)
