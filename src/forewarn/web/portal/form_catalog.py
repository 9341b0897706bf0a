"""All forms: about VMs, events, hosts, rollouts, budgets, faults, replays and the clock.

`FORMS` maps form names, which are part of the URL `/portal/forms/NAME`, to their definitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from forewarn.core.access import Right
from forewarn.core.faults import FAULT_DEFINITIONS
from forewarn.core.fleet import Host, HostHealth, Vm
from forewarn.core.planning import OPERATION_CAUSES, is_applicable, pending_platform_events
from forewarn.core.request import RequestedOperation
from forewarn.core.resource_ids import ROOT_RESOURCE, vm_resource_id
from forewarn.core.scope import Scope
from forewarn.errors import Refused, Rejected
from forewarn.web.context import RequestContext
from forewarn.web.portal import form_definition
from forewarn.web.portal.budget_forms import BUDGET_FORMS
from forewarn.web.portal.form_definition import (
    NOTICE_FIELD,
    SCOPE_FIELD,
    SHORT_NOTICE_FIELD,
    FieldKind,
    Form,
    FormField,
    FormValues,
    clock_report_url,
    event_url,
    first_event_url,
    host_url,
    lab_url,
    request_url,
    require_notice_length,
)
from forewarn.web.portal.rollout_forms import ROLLOUT_FORMS
from forewarn.web.portal.standing_order_forms import STANDING_ORDER_FORMS
from forewarn.web.request_parsing import StrictBody
from forewarn.web.views import BaseView

_VMS_FIELD = FormField(name="vm", kind=FieldKind.VMS, label="VMs", body_member="vms", is_required=True)
_EVENT_FIELD = FormField(name="event", kind=FieldKind.ID, label="Event", path_parameter="id", is_required=True)


def _vm_request_form(
    operation: str,
    title: str,
    button: str,
    description: str,
    *,
    noun: str = "",
    notice: bool = False,
    danger: str = "",
) -> Form:
    def body(context: RequestContext, values: FormValues) -> dict[str, Any]:
        if _VMS_FIELD.parse(values) is None:
            raise Rejected(f"{operation} needs at least one VM: choose or enter one")
        return require_notice_length(context, values)

    return Form(
        name=operation,
        title=title,
        button=button,
        description=description,
        route="POST /requests",
        done_message=f"{noun or button} requested.",
        result_url=request_url,
        fields=(_VMS_FIELD, NOTICE_FIELD, SHORT_NOTICE_FIELD) if notice else (_VMS_FIELD,),
        fixed_body={"operation": operation},
        extra_body=body,
        preview="/requests/preview",
        danger=danger,
        confirms_directly=not notice,
    )


_AT_ONCE_IF_NOT_POLLING = (
    "If no VM of the scope polls, so that scheduled events are disabled there, this happens at once, without an event."
)
_WITHOUT_EVENT = "This happens at once, without an event."

# Operations on VMs.
VM_FORMS = (
    _vm_request_form("restart", "Restart VMs", "Restart",
        f"Publishes a Reboot with at least 15 minutes of notice. {_AT_ONCE_IF_NOT_POLLING}", notice=True),
    _vm_request_form("redeploy", "Redeploy VMs", "Redeploy",
        "Publishes a Redeploy with at least 10 minutes of notice, and then moves each VM to another host. "
        f"{_AT_ONCE_IF_NOT_POLLING}",
        notice=True, danger="Each VM restarts on another host and loses its temporary disk."),
    _vm_request_form("evict", "Simulate an eviction", "Evict",
        "Publishes a Preempt of Spot VMs with 30 seconds of notice, and then deallocates or deletes them, depending on "
        "their eviction policy.",
        noun="Eviction", notice=True,
        danger="Each VM is taken away: it is deallocated, or deleted with its disks if its eviction policy says so."),
    _vm_request_form("delete", "Delete VMs", "Delete",
        "Publishes a Terminate with the notice that the VM's owner has configured. Without terminate notification, the "
        "VM is deleted at once.",
        noun="Deletion", notice=True, danger="Deleted VMs and their data cannot be brought back."),
    _vm_request_form("scale-in", "Scale in", "Scale in",
        "Deletes VMs as the platform does when it scales in: publishes a Terminate with the notice that the VM's owner "
        "has configured.",
        noun="Scale-in", notice=True, danger="Deleted VMs and their data cannot be brought back."),
    _vm_request_form("power-off", "Power off VMs", "Power off", _WITHOUT_EVENT, noun="Power-off"),
    _vm_request_form("start", "Start VMs", "Start", _WITHOUT_EVENT),
    _vm_request_form("deallocate", "Deallocate VMs", "Deallocate", _WITHOUT_EVENT, noun="Deallocation",
        danger="Each VM stops without notice, leaves its host and loses its temporary disk."),
    _vm_request_form("reapply", "Reapply VMs", "Reapply", _WITHOUT_EVENT),
    _vm_request_form("reimage", "Reimage VMs", "Reimage",
        f"{_WITHOUT_EVENT} A VM with an OS image notification gets a Reboot event first. The data on the VM's disk is "
        "lost.",
        danger="The data on the disk of each VM is lost and cannot be brought back."),
    Form(
        name="perform-maintenance",
        title="Perform maintenance now",
        button="Perform now",
        description="Lets the platform's pending maintenance of a VM start now, instead of at the end of its notice.",
        confirms_directly=True,
        route="POST /vms/{name:path}/perform-maintenance",
        done_message="The pending maintenance may start now.",
        result_url=first_event_url,
        fields=(FormField(name="vm", kind=FieldKind.VM, label="VM", path_parameter="name", is_required=True),),
        preview=form_definition.preview_perform_maintenance,
    ),
)  # fmt: skip

# Operations on events.
EVENT_FORMS = (
    Form(
        name="approve",
        title="Approve an event",
        button="Approve",
        description="An approved event may start before the end of its notice, as if one of its VMs had approved it.",
        confirms_directly=True,
        route="POST /events/{id}/approve",
        done_message="The event is approved.",
        result_url=event_url,
        fields=(_EVENT_FIELD,),
        preview=form_definition.preview_approve,
    ),
    Form(
        name="withdraw",
        title="Withdraw an event",
        button="Withdraw",
        description="Withdraws an event that has not started. It disappears from the document of its VMs.",
        route="POST /events/{id}/withdraw",
        done_message="The event is withdrawn.",
        result_url=event_url,
        fields=(
            _EVENT_FIELD,
            FormField(
                name="reason",
                kind=FieldKind.TEXT,
                label="Reason",
                body_member="reason",
                hint="Recorded in the history.",
            ),
        ),
        preview=form_definition.preview_withdraw,
    ),
)

_HOST_FIELD = FormField(name="host", kind=FieldKind.HOST, label="Host", path_parameter="name", is_required=True)
# The health of hosts.
HOST_FORMS = (
    Form(
        name="degrade",
        title="Predict that a host will fail",
        button="Predict",
        description="Publishes a Redeploy with at least 10 minutes of notice for each VM on the host.",
        route="POST /hosts/{name}/degrade",
        done_message="The host is predicted to fail.",
        result_url=request_url,
        fields=(
            _HOST_FIELD,
            FormField(name="in", kind=FieldKind.DURATION, label="Fails in", body_member="in_s",
                default="7d", is_required=True,
                hint="Such as 7d or 10m."),
            SHORT_NOTICE_FIELD,
        ),
        preview="/hosts/{name}/degrade/preview",
        danger="Each VM on the host restarts on another host and loses its temporary disk.",
    ),
    Form(
        name="fail",
        title="Fail a host",
        button="Fail",
        description="Fails a host now: its VMs start on other hosts, without notice.",
        confirms_directly=True,
        route="POST /hosts/{name}/fail",
        done_message="The host has failed.",
        result_url=request_url,
        fields=(_HOST_FIELD,),
        preview="/hosts/{name}/fail/preview",
        danger="Each VM on the host goes down without notice, restarts on another host and loses its temporary disk.",
    ),
    Form(
        name="confirm-down",
        title="Confirm that a host is down",
        button="Confirm down",
        description="States that a host that does not answer is certainly down, so that its VMs may start elsewhere.",
        confirms_directly=True,
        route="POST /hosts/{name}/confirm-down",
        done_message="The host is confirmed down.",
        result_url=host_url,
        fields=(_HOST_FIELD,),
        preview=form_definition.preview_confirm_down,
        danger="If the host still runs, its VMs will run twice and damage their disks.",
    ),
    Form(
        name="repair",
        title="Repair a host",
        button="Repair",
        description="Makes a host healthy again, so that VMs may move to it.",
        confirms_directly=True,
        route="POST /hosts/{name}/repair",
        done_message="The host is healthy again.",
        result_url=host_url,
        fields=(_HOST_FIELD,),
        preview=form_definition.preview_repair_host,
    ),
)  # fmt: skip

_FAULT_PARAMETER_FIELDS = tuple(
    FormField(
        name=name,
        kind=FieldKind.DURATION if name.endswith("_s") else FieldKind.NUMBER,
        label=name.removesuffix("_s").replace("_", "-"),
        hint=f"{value.minimum:g} to {value.maximum:g}{' s' if name.endswith('_s') else ''}; "
        f"empty: {value.default:g}{' s' if name.endswith('_s') else ''}.",
        body_member=f"parameters.{name}",
        fault_kind=kind,
    )
    for kind, row in FAULT_DEFINITIONS.items()
    for name, value in row.parameters.items()
)
_DURATION_FIELD = FormField(
    name="for", kind=FieldKind.DURATION, label="Duration", body_member="duration_s", hint="Such as 70s or 10m."
)
_ADVANCE_BY_FIELD = FormField(name="by", kind=FieldKind.DURATION, label="By", hint="Such as 15m or 7d.")
_ADVANCE_TO_FIELD = FormField(name="until", kind=FieldKind.INSTANT, label="Or to this time (UTC)")
_WITHOUT_POLLS_FIELD = FormField(
    name="without_polls",
    kind=FieldKind.CHECK,
    label="Without polls",
    hint="VMs that poll now count as polling throughout, unless this is checked: then their scopes become idle.",
    body_member="without_polls",
)


def _advance_body(context: RequestContext, values: FormValues) -> dict[str, Any]:
    by_s, until = _ADVANCE_BY_FIELD.parse(values), _ADVANCE_TO_FIELD.parse(values)
    if (by_s is None) == (until is None):
        raise Rejected("the clock advances by a duration or to a time: give one of them")
    return {"by_s": by_s if by_s is not None else until - context.now()}


# Faults, storms, replays and the clock.
LAB_FORMS = (
    Form(
        name="fault",
        title="Set a fault",
        button="Set",
        description="Makes the service misbehave on purpose, until you clear the fault or its duration or limit ends.",
        route="POST /faults",
        done_message="Fault set.",
        result_url=lab_url,
        fields=(
            FormField(
                name="kind",
                kind=FieldKind.CHOICE,
                label="Fault",
                body_member="kind",
                choices=tuple(
                    (str(kind), f"{kind}: {row.symptom.replace('`', '')}") for kind, row in FAULT_DEFINITIONS.items()
                ),
                is_required=True,
            ),
            *_FAULT_PARAMETER_FIELDS,
            FormField(name="vm", kind=FieldKind.VM, label="VM", body_member="vm"),
            SCOPE_FIELD,
            FormField(name="all", kind=FieldKind.CHECK, label="All VMs", body_member="all"),
            FormField(name="count", kind=FieldKind.NUMBER, label="Limit to the next N requests or events",
                body_member="count"),
            _DURATION_FIELD,
        ),
        preview=form_definition.preview_fault,
    ),
    Form(
        name="fault-clear",
        title="Clear faults",
        button="Clear",
        description="Clears the faults that match all fields.",
        confirms_directly=True,
        route="POST /faults/clear",
        done_message="Faults cleared.",
        result_url=lab_url,
        fields=(
            FormField(name="fault", kind=FieldKind.IDS, label="Ids of faults or storms", body_member="ids"),
            FormField(
                name="kind",
                kind=FieldKind.CHOICE,
                label="Kind",
                body_member="kind",
                choices=(("", "any kind"), *((str(kind), str(kind)) for kind in FAULT_DEFINITIONS)),
            ),
            FormField(name="vm", kind=FieldKind.VM, label="VM", body_member="vm"),
            FormField(name="all", kind=FieldKind.CHECK, label="All faults and storms", body_member="all"),
        ),
        preview=form_definition.preview_clear_faults,
    ),
    Form(
        name="storm",
        title="Start a fault storm",
        button="Start",
        description="Sets a mix of faults from a seed. The same seed and VMs give the same faults at the same times.",
        route="POST /faults/storm",
        done_message="Fault storm started.",
        result_url=lab_url,
        fields=(
            FormField(name="seed", kind=FieldKind.NUMBER, label="Seed",
                body_member="seed", default="1", is_required=True),
            FormField(name="vm", kind=FieldKind.VMS, label="VMs", body_member="vms", hint="None: all VMs."),
            FormField(name="for", kind=FieldKind.DURATION, label="Duration", body_member="duration_s", default="10m"),
        ),
        preview=form_definition.preview_storm,
    ),
    Form(
        name="replay-stop",
        title="Stop a replay",
        button="Stop",
        description="Ends a replay: the VMs of its scope receive their own document again.",
        confirms_directly=True,
        route="DELETE /replays/{id}",
        done_message="Replay stopped.",
        result_url=lab_url,
        fields=(FormField(name="replay", kind=FieldKind.ID, label="Replay", path_parameter="id", is_required=True),),
        preview=form_definition.preview_stop_replay,
    ),
    Form(
        name="clock-advance",
        title="Advance the clock",
        button="Advance",
        description="Advances lab time, and performs everything that becomes due on the way.",
        confirms_directly=True,
        route="POST /clock/advance",
        done_message="Clock advanced.",
        result_url=clock_report_url,
        fields=(_ADVANCE_BY_FIELD, _ADVANCE_TO_FIELD, _WITHOUT_POLLS_FIELD),
        extra_body=_advance_body,
        preview=form_definition.preview_advance_clock,
    ),
    Form(
        name="clock-speed",
        title="Set the clock's speed",
        button="Set",
        description="Sets how much faster than real time the lab clock runs.",
        confirms_directly=True,
        route="POST /clock/speed",
        done_message="Clock speed set.",
        result_url=lab_url,
        fields=(
            FormField(name="speed", kind=FieldKind.NUMBER, label="Speed",
                body_member="speed", default="1", is_required=True,
                hint="0: paused. 1: real time. 60: one minute per second."),
        ),
        preview=form_definition.preview_clock_speed,
    ),
)  # fmt: skip

# All forms by name, which is part of their URL `/portal/forms/NAME`. Read-only.
FORMS: Mapping[str, Form] = MappingProxyType(
    {
        form.name: form
        for form in (
            *VM_FORMS,
            *EVENT_FORMS,
            *ROLLOUT_FORMS,
            *BUDGET_FORMS,
            *STANDING_ORDER_FORMS,
            *HOST_FORMS,
            *LAB_FORMS,
        )
    }
)


class DoneMessageQuery(StrictBody, frozen=True, kw_only=True):
    """The query of pages that show a message after a form was submitted."""

    done: str = ""  # the name of the form that led to the page; "": none did


def done_message(query: DoneMessageQuery) -> str:
    """Return the done message of the form that led to a page, such as `Fault set.`; "" for none."""
    # The query contains only the form's name, so that a link cannot make the page show any other text.
    form = FORMS.get(query.done)
    return form.done_message if form is not None else ""


# Links to the forms that a user may submit for a VM, a host or a scope in its current state.

_VM_REQUESTS = (
    RequestedOperation.RESTART,
    RequestedOperation.START,
    RequestedOperation.POWER_OFF,
    RequestedOperation.REAPPLY,
    RequestedOperation.REDEPLOY,
    RequestedOperation.DEALLOCATE,
    RequestedOperation.REIMAGE,
    RequestedOperation.EVICT,
    RequestedOperation.SCALE_IN,
    RequestedOperation.DELETE,
)
_LINK_TITLES = {
    "evict": "Simulate eviction",
    "fault": "Set a fault",
    "rollout": "Start a rollout",
    "degrade": "Predict failure",
    "fail": "Fail host",
}
_FORMS_BY_HEALTH = {
    HostHealth.HEALTHY: ("rollout", "degrade", "fail"),
    HostHealth.DEGRADED: ("repair", "rollout", "fail"),
    HostHealth.FAILED: ("repair",),
}


class FormLink(BaseView, frozen=True, kw_only=True):
    """A button on a page that opens a form."""

    form: str  # its name, a key of FORMS
    title: str  # of the button
    danger: str  # what the form loses for good, in a sentence, which makes the button red; "": nothing


def form_links_for_vm(context: RequestContext, vm: Vm, scope: Scope | None) -> tuple[FormLink, ...]:
    """Return links to the forms that the user may submit for a VM in its current state."""
    if vm.removed_at is not None:
        return ()
    operations = [*_suitable_requests(vm, scope)] if context.principal.may(Right.OPERATE, vm_resource_id(vm)) else []
    return _links_to((*operations, *_platform_forms(context, "fault")))


def form_links_for_host(context: RequestContext, host: Host) -> tuple[FormLink, ...]:
    """Return links to the forms that suit a host in its health; () if the user has no platform right."""
    names = list(_FORMS_BY_HEALTH[host.health])
    if host.confirmed_down and "repair" not in names:
        names.insert(0, "repair")
    is_suspected = host.health is HostHealth.FAILED or host.name in context.control.unreachable_hosts()
    if is_suspected and not host.confirmed_down:
        names.append("confirm-down")
    return _links_to(_platform_forms(context, *names))


def form_links_for_scope(context: RequestContext) -> tuple[FormLink, ...]:
    """Return one link, to the form that starts a rollout, for any scope; () without the platform right."""
    return _links_to(_platform_forms(context, "rollout"))


def _platform_forms(context: RequestContext, *names: str) -> tuple[str, ...]:
    return names if context.principal.may(Right.PLATFORM, ROOT_RESOURCE) else ()


def _suitable_requests(vm: Vm, scope: Scope | None) -> Iterator[RequestedOperation]:
    if scope is not None and _has_pending_maintenance(scope, vm):
        yield RequestedOperation.PERFORM_MAINTENANCE
    for operation in _VM_REQUESTS:
        if is_applicable(vm, OPERATION_CAUSES[operation]) and (
            vm.scale_set or operation is not RequestedOperation.SCALE_IN
        ):
            yield operation


def _has_pending_maintenance(scope: Scope, vm: Vm) -> bool:
    try:
        return bool(pending_platform_events(scope, vm.name))
    except Refused:
        return False


def _links_to(names: Iterable[str]) -> tuple[FormLink, ...]:
    return tuple(sorted(map(_form_link, names), key=lambda link: bool(link.danger)))


def _form_link(name: str) -> FormLink:
    title = _LINK_TITLES.get(name, name.replace("-", " ").capitalize())
    return FormLink(form=name, title=title, danger=FORMS[name].danger)
