"""The catalog of all forms: about VMs, events, hosts, rollouts, faults, replays and the clock.

`FORMS` maps form names, which are part of the URL `/portal/forms/NAME`, to their definitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from forewarn.core.faults import FAULT_DEFINITIONS
from forewarn.errors import Rejected
from forewarn.portal import form_previews
from forewarn.portal.form_definition import (
    NOTICE_FIELD,
    SCOPE_FIELD,
    SHORT_NOTICE_FIELD,
    FieldKind,
    Form,
    FormField,
    FormValues,
    event_url,
    first_event_url,
    host_url,
    lab_url,
    request_url,
    require_notice_length,
    rollout_url,
)
from forewarn.web.context import RequestContext
from forewarn.web.request_parsing import StrictBody

_VMS_FIELD = FormField(name="vm", kind=FieldKind.VMS, label="VMs", body_member="vms", is_required=True)
_EVENT_FIELD = FormField(name="event", kind=FieldKind.ID, label="Event", path_parameter="id", is_required=True)


def _vm_request_form(
    ask: str, title: str, button: str, about: str, *, notice: bool = False, is_grave: bool = False
) -> Form:
    def body(context: RequestContext, typed: FormValues) -> dict[str, Any]:
        if _VMS_FIELD.parse(typed) is None:
            raise Rejected(f"{ask} needs at least one VM: name it")
        return require_notice_length(context, typed)

    return Form(
        name=ask,
        title=title,
        button=button,
        description=about,
        route="POST /requests",
        done_message=f"{title}: asked for.",
        result_url=request_url,
        fields=(_VMS_FIELD, NOTICE_FIELD, SHORT_NOTICE_FIELD) if notice else (_VMS_FIELD,),
        fixed_body={"ask": ask},
        extra_body=body,
        preview="/requests/preview",
        is_destructive=is_grave,
        confirms_directly=not notice,
    )


_AT_ONCE_IF_NOT_POLLING = (
    "Where no VM of the scope has asked for scheduled events within 24 hours, it happens at once, without an event."
)
_WITHOUT_EVENT = "This gives no event: it happens at once."

VM_FORMS = (
    _vm_request_form("restart", "Restart VMs", "Restart",
        f"A Reboot, with 15 minutes of notice at least. {_AT_ONCE_IF_NOT_POLLING}", notice=True),
    _vm_request_form("redeploy", "Redeploy VMs", "Redeploy",
        f"A Redeploy: each VM moves to another host, with 10 minutes of notice at least. {_AT_ONCE_IF_NOT_POLLING}",
        notice=True),
    _vm_request_form("evict", "Simulate an eviction", "Evict",
        "A Preempt of Spot VMs, with 30 seconds of notice: they are deallocated or deleted, as their policy says.",
        notice=True, is_grave=True),
    _vm_request_form("delete", "Delete VMs", "Delete",
        "A Terminate, with the notice that the VM's owner has chosen; without terminate notification, at once.",
        notice=True, is_grave=True),
    _vm_request_form("scale-in", "Scale in", "Scale in",
        "As if the platform scaled in: a Terminate, with the notice that the VM's owner has chosen.",
        notice=True, is_grave=True),
    _vm_request_form("power-off", "Power off VMs", "Power off", _WITHOUT_EVENT),
    _vm_request_form("start", "Start VMs", "Start", _WITHOUT_EVENT),
    _vm_request_form("deallocate", "Deallocate VMs", "Deallocate", _WITHOUT_EVENT, is_grave=True),
    _vm_request_form("reapply", "Reapply VMs", "Reapply", _WITHOUT_EVENT),
    _vm_request_form("reimage", "Reimage VMs", "Reimage",
        f"{_WITHOUT_EVENT} What is on the VM's disk is lost.", is_grave=True),
    Form(
        name="perform-maintenance",
        title="Perform maintenance now",
        button="Perform now",
        description="The platform's pending maintenance of a VM may start now, instead of at the end of its notice.",
        confirms_directly=True,
        route="POST /vms/{name:path}/perform-maintenance",
        done_message="The pending maintenance may start now.",
        result_url=first_event_url,
        fields=(FormField(name="vm", kind=FieldKind.VM, label="VM", path_parameter="name", is_required=True),),
        preview=form_previews.preview_perform_maintenance,
    ),
)  # fmt: skip

EVENT_FORMS = (
    Form(
        name="approve",
        title="Approve an event",
        button="Approve",
        description="It may then start before the end of its notice, as if one of its VMs had approved it.",
        confirms_directly=True,
        route="POST /events/{id}/approve",
        done_message="The event is approved.",
        result_url=event_url,
        fields=(_EVENT_FIELD,),
        preview=form_previews.preview_approve,
    ),
    Form(
        name="withdraw",
        title="Withdraw an event",
        button="Withdraw",
        description="An event can be taken back until it starts. Its VMs see that it is gone.",
        route="POST /events/{id}/withdraw",
        done_message="The event is withdrawn.",
        result_url=event_url,
        fields=(
            _EVENT_FIELD,
            FormField(
                name="reason", kind=FieldKind.TEXT, label="Reason", body_member="reason", hint="For the history."
            ),
        ),
        preview=form_previews.preview_withdraw,
    ),
)

_HOST_FIELD = FormField(name="host", kind=FieldKind.HOST, label="Host", path_parameter="name", is_required=True)
_ROLLOUT_FIELD = FormField(name="rollout", kind=FieldKind.ID, label="Rollout", path_parameter="id", is_required=True)
_HOSTS_FIELD = FormField(name="host", kind=FieldKind.HOSTS, label="Hosts", body_member="hosts")
_ALL_HOSTS_FIELD = FormField(name="all_hosts", kind=FieldKind.CHECK, label="Every host of the fleet")


def _rollout_body(context: RequestContext, typed: FormValues) -> dict[str, Any]:
    if not _ALL_HOSTS_FIELD.parse(typed):
        return require_notice_length(context, typed)
    if _HOSTS_FIELD.parse(typed) or SCOPE_FIELD.parse(typed):
        raise Rejected("a rollout goes over hosts or over one scope: name the one or the other")
    every = [host.name for host in context.store.hosts()]
    if not every:
        raise Rejected("the fleet has no hosts: add some with `forewarn fleet add-host`, or give --scope")
    return {"hosts": every, **require_notice_length(context, typed)}


def _rollout_change_form(name: str, title: str, button: str, about: str, done: str, *, is_grave: bool = False) -> Form:
    verb = name.partition("-")[2]
    return Form(
        name=name,
        title=title,
        button=button,
        description=about,
        confirms_directly=True,
        route=f"POST /rollouts/{{id}}/{verb}",
        done_message=done,
        result_url=rollout_url,
        fields=(_ROLLOUT_FIELD,),
        preview=form_previews.rollout_change_preview(about),
        is_destructive=is_grave,
    )


HOST_FORMS = (
    Form(
        name="rollout",
        title="Start a rollout",
        button="Start",
        description="Platform maintenance over hosts or over a scope: one update domain of a scope at a time.",
        route="POST /rollouts",
        done_message="The rollout has begun.",
        result_url=rollout_url,
        fields=(
            FormField(
                name="impact",
                kind=FieldKind.CHOICE,
                label="What is done to each VM",
                body_member="impact",
                default="update",
                choices=(
                    ("update", "update: a Freeze of some seconds, everything on a host together"),
                    ("migrate", "migrate: a Freeze while it moves to another host"),
                    ("reboot", "reboot: a Reboot, everything on a host together"),
                ),
            ),
            _ALL_HOSTS_FIELD,
            _HOSTS_FIELD,
            SCOPE_FIELD,
            FormField(
                name="max_failures",
                kind=FieldKind.NUMBER,
                label="Stop at so many failed VMs",
                body_member="max_failures",
                default="1",
                hint="0: never stop.",
            ),
            NOTICE_FIELD,
            SHORT_NOTICE_FIELD,
        ),
        extra_body=_rollout_body,
        preview="/rollouts/preview",
    ),
    _rollout_change_form("rollout-pause", "Pause a rollout", "Pause",
        "Nothing more is published until it is resumed. What is scheduled still starts when approved or due.",
        "The rollout is paused."),
    _rollout_change_form("rollout-resume", "Resume a rollout", "Resume", "It goes on with the next update domain.",
        "The rollout goes on."),
    _rollout_change_form("rollout-abort", "Abort a rollout", "Abort",
        "It ends: what has not started is withdrawn, what has started is completed.", "The rollout is aborted.",
        is_grave=True),
    Form(
        name="degrade",
        title="Predict that a host will fail",
        button="Predict",
        description="Each VM on it is told to move: a Redeploy, with 10 minutes of notice at least.",
        route="POST /hosts/{name}/degrade",
        done_message="The host is predicted to fail.",
        result_url=request_url,
        fields=(
            _HOST_FIELD,
            FormField(name="in", kind=FieldKind.DURATION, label="In", body_member="in_s",
                default="7d", is_required=True,
                hint="Such as 7d or 10m."),
            SHORT_NOTICE_FIELD,
        ),
        preview="/hosts/{name}/degrade/preview",
    ),
    Form(
        name="fail",
        title="Let a host fail",
        button="Let it fail",
        description="Now, without warning: its VMs start elsewhere, with no notice.",
        confirms_directly=True,
        route="POST /hosts/{name}/fail",
        done_message="The host has failed.",
        result_url=request_url,
        fields=(_HOST_FIELD,),
        preview="/hosts/{name}/fail/preview",
        is_destructive=True,
    ),
    Form(
        name="repair",
        title="Repair a host",
        button="Repair",
        description="It is healthy again, and VMs may move to it.",
        confirms_directly=True,
        route="POST /hosts/{name}/repair",
        done_message="The host is healthy again.",
        result_url=host_url,
        fields=(_HOST_FIELD,),
        preview=form_previews.preview_repair_host,
    ),
)  # fmt: skip

_FAULT_PARAMETER_FIELDS = tuple(
    FormField(
        name=name,
        kind=FieldKind.DURATION if name.endswith("_s") else FieldKind.NUMBER,
        label=name.removesuffix("_s").replace("_", "-"),
        hint=f"{value.minimum:g} to {value.maximum:g}{' s' if name.endswith('_s') else ''}; "
        f"left empty, {value.default:g}{' s' if name.endswith('_s') else ''}.",
        body_member=f"parameters.{name}",
        fault_kind=kind,
    )
    for kind, row in FAULT_DEFINITIONS.items()
    for name, value in row.parameters.items()
)
_DURATION_FIELD = FormField(
    name="for", kind=FieldKind.DURATION, label="For so long", body_member="for_s", hint="Such as 70s or 10m."
)
_ADVANCE_BY_FIELD = FormField(name="by", kind=FieldKind.DURATION, label="By", hint="Such as 15m or 7d.")
_ADVANCE_TO_FIELD = FormField(name="until", kind=FieldKind.INSTANT, label="Or to this time (UTC)")


def _advance_body(context: RequestContext, typed: FormValues) -> dict[str, Any]:
    """How far ahead the clock is to go: by a span, or to an instant."""
    by_s, until = _ADVANCE_BY_FIELD.parse(typed), _ADVANCE_TO_FIELD.parse(typed)
    if (by_s is None) == (until is None):
        raise Rejected("the clock goes ahead by a span or to a time: give the one or the other")
    return {"by_s": by_s if by_s is not None else until - context.now()}


LAB_FORMS = (
    Form(
        name="fault",
        title="Set a fault",
        button="Set",
        description="What real clients have met, on purpose. It stays until it is cleared, unless you say how long.",
        route="POST /faults",
        done_message="The fault is set.",
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
            FormField(name="vm", kind=FieldKind.VM, label="For a VM", body_member="vm"),
            SCOPE_FIELD,
            FormField(name="all", kind=FieldKind.CHECK, label="For every VM", body_member="all"),
            FormField(name="count", kind=FieldKind.NUMBER, label="The next so many requests or events",
                body_member="count"),
            _DURATION_FIELD,
        ),
        preview=form_previews.preview_fault,
    ),
    Form(
        name="fault-clear",
        title="Clear faults",
        button="Clear",
        description="Those that everything given here fits.",
        confirms_directly=True,
        route="POST /faults/clear",
        done_message="Cleared.",
        result_url=lab_url,
        fields=(
            FormField(name="fault", kind=FieldKind.IDS, label="Faults or storms, by their ids", body_member="ids"),
            FormField(
                name="kind",
                kind=FieldKind.CHOICE,
                label="Only of this kind",
                body_member="kind",
                choices=(("", "any kind"), *((str(kind), str(kind)) for kind in FAULT_DEFINITIONS)),
            ),
            FormField(name="vm", kind=FieldKind.VM, label="Only for this VM", body_member="vm"),
            FormField(name="all", kind=FieldKind.CHECK, label="All of them, and storms too", body_member="all"),
        ),
        preview=form_previews.preview_clear_faults,
    ),
    Form(
        name="storm",
        title="Play a storm",
        button="Play",
        description="A mix of faults that follows from a seed: same seed, same VMs, same faults at the same offsets.",
        route="POST /faults/storm",
        done_message="The storm has begun.",
        result_url=lab_url,
        fields=(
            FormField(name="seed", kind=FieldKind.NUMBER, label="Seed",
                body_member="seed", default="1", is_required=True),
            FormField(name="vm", kind=FieldKind.VMS, label="VMs", body_member="vms", hint="None: all of them."),
            FormField(name="for", kind=FieldKind.DURATION, label="For so long", body_member="for_s", default="10m"),
        ),
        preview=form_previews.preview_storm,
    ),
    Form(
        name="replay-stop",
        title="Stop a replay",
        button="Stop",
        description="The VMs of its scope see their own document again.",
        confirms_directly=True,
        route="DELETE /replays/{id}",
        done_message="The replay is stopped.",
        result_url=lab_url,
        fields=(FormField(name="replay", kind=FieldKind.ID, label="Replay", path_parameter="id", is_required=True),),
        preview=form_previews.preview_stop_replay,
    ),
    Form(
        name="clock-advance",
        title="Advance the clock",
        button="Advance",
        description="Through everything that falls due on the way.",
        confirms_directly=True,
        route="POST /clock/advance",
        done_message="The clock was advanced.",
        result_url=lab_url,
        fields=(_ADVANCE_BY_FIELD, _ADVANCE_TO_FIELD),
        extra_body=_advance_body,
        preview=form_previews.preview_advance_clock,
    ),
    Form(
        name="clock-speed",
        title="Set the clock's speed",
        button="Set",
        description="How much faster than real time lab time runs.",
        confirms_directly=True,
        route="POST /clock/speed",
        done_message="The clock's speed was set.",
        result_url=lab_url,
        fields=(
            FormField(name="speed", kind=FieldKind.NUMBER, label="Speed",
                body_member="speed", default="1", is_required=True,
                hint="0: paused. 1: real time. 60: a minute is a second."),
        ),
        preview=form_previews.preview_clock_speed,
    ),
)  # fmt: skip

FORMS: Mapping[str, Form] = MappingProxyType(
    {form.name: form for form in (*VM_FORMS, *EVENT_FORMS, *HOST_FORMS, *LAB_FORMS)}
)


class DoneMessageQuery(StrictBody, frozen=True, kw_only=True):
    done: str = ""  # the form that led here


def done_message(query: DoneMessageQuery) -> str:
    """What the form that led here has done, in its own words; a link cannot make it say anything else."""
    form = FORMS.get(query.done)
    return form.done_message if form is not None else ""
