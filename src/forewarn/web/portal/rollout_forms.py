"""Forms for rollouts: start, pause, resume and abort one, hold all of them, and lift the hold."""

from __future__ import annotations

from typing import Any

from forewarn.core.event import EventState
from forewarn.core.request import ROLLOUT_CAUSES
from forewarn.errors import Refused, Rejected
from forewarn.web.context import RequestContext
from forewarn.web.portal import form_definition
from forewarn.web.portal.context import PORTAL_PREFIX
from forewarn.web.portal.form_definition import (
    NOTICE_FIELD,
    SCOPE_FIELD,
    SHORT_NOTICE_FIELD,
    FieldKind,
    Form,
    FormField,
    FormValues,
    require_notice_length,
    rollout_url,
)
from forewarn.web.request_parsing import HandlerCall

IMPACT_FIELD = FormField(
    name="impact",
    kind=FieldKind.CHOICE,
    label="Impact on each VM",
    body_member="impact",
    default="update",
    choices=(
        ("update", "update: a Freeze of some seconds, all VMs of a host together"),
        ("migrate", "migrate: a Freeze while the VM moves to another host"),
        ("reboot", "reboot: a Reboot, all VMs of a host together"),
    ),
)
_ROLLOUT_FIELD = FormField(name="rollout", kind=FieldKind.ID, label="Rollout", path_parameter="id", is_required=True)
_HOSTS_FIELD = FormField(name="host", kind=FieldKind.HOSTS, label="Hosts", body_member="hosts")
_ALL_HOSTS_FIELD = FormField(name="all_hosts", kind=FieldKind.CHECK, label="All hosts of the fleet")


WINDOWS_FIELD = FormField(
    name="windows",
    kind=FieldKind.TEXT,
    label="Maintenance windows",
    hint="Such as sat,sun 02:00 4h Europe/Berlin; separate several by semicolons. Empty: at any time.",
)
BLACKOUTS_FIELD = FormField(
    name="blackouts",
    kind=FieldKind.TEXT,
    label="Not on these days",
    hint="Such as 2026-12-24..2026-12-26; separate several by semicolons.",
)


_SHARES_FIELD = FormField(
    name="shares",
    kind=FieldKind.TEXT,
    label="Then these shares (%)",
    hint="Such as 10, 50: waves of 10 % and 50 % of all VMs; the rest follows.",
)
_OTHER_TARGETS = (
    FormField(name="tag", kind=FieldKind.TEXT, label="VMs with this tag", body_member="tag", hint="Or name=value."),
    FormField(name="location", kind=FieldKind.TEXT, label="VMs in this location", body_member="location"),
    FormField(name="everything", kind=FieldKind.CHECK, label="All VMs, also those that are added later",
        body_member="everything"),
)  # fmt: skip
_WAVE_FIELDS = (
    FormField(
        name="canary",
        kind=FieldKind.TEXT,
        label="Begin with",
        body_member="canary",
        hint="A number of VMs such as 2, or a tag such as tag=canary. Empty: no canary.",
    ),
    _SHARES_FIELD,
    FormField(
        name="settle",
        kind=FieldKind.DURATION,
        label="Settling time after each wave",
        body_member="settle_s",
        hint="Such as 10m. Empty: none.",
    ),
)


def _shares(values: FormValues) -> dict[str, Any]:
    text = _SHARES_FIELD.parse(values)
    if not text:
        return {}
    try:
        return {"shares": [float(part.strip().removesuffix("%")) for part in text.split(",")]}
    except ValueError:
        raise Rejected(f"{text!r} are not shares: enter percentages such as 10, 50") from None


def _rollout_body(context: RequestContext, values: FormValues) -> dict[str, Any]:
    return _rollout_hosts(context, values) | _shares(values) | window_members(values)


def window_members(values: FormValues) -> dict[str, list[str]]:
    """Return the members `windows` and `blackouts` of a request body, from the texts of a form."""
    return {
        field.name: [part.strip() for part in text.split(";") if part.strip()]
        for field in (WINDOWS_FIELD, BLACKOUTS_FIELD)
        if (text := field.parse(values))
    }


def _rollout_hosts(context: RequestContext, values: FormValues) -> dict[str, Any]:
    if not _ALL_HOSTS_FIELD.parse(values):
        return require_notice_length(context, values)
    if _HOSTS_FIELD.parse(values) or SCOPE_FIELD.parse(values):
        raise Rejected("a rollout is for hosts or for one scope: choose one of them")
    names = [host.name for host in context.store.hosts()]
    if not names:
        raise Rejected("the fleet has no hosts: choose a scope instead")
    return {"hosts": names, **require_notice_length(context, values)}


def _rollout_change_form(
    name: str, title: str, button: str, description: str, done_message: str, *, danger: str = ""
) -> Form:
    verb = name.partition("-")[2]
    return Form(
        name=name,
        title=title,
        button=button,
        description=description,
        confirms_directly=True,
        route=f"POST /rollouts/{{id}}/{verb}",
        done_message=done_message,
        result_url=rollout_url,
        fields=(_ROLLOUT_FIELD,),
        preview=form_definition.rollout_change_preview(description),
        danger=danger,
    )


def _rollouts_url(response: Any) -> str:
    return f"{PORTAL_PREFIX}/rollouts"


def _hold_preview(context: RequestContext, call: HandlerCall) -> list[str]:
    open_rollouts = sum(request.rollout is not None for request in context.store.requests(open_only=True))
    return [
        f"Rollouts that are open: {open_rollouts}. They publish nothing more.",
        f"Their scheduled events: {_held_events(context)}. Each starts only if it is approved.",
    ]


def _lift_preview(context: RequestContext, call: HandlerCall) -> list[str]:
    hold = context.control.rollouts.hold
    if hold is None:
        raise Refused("rollouts are not on hold: there is nothing to lift")
    return [
        f"The hold of {hold.set_by} ends: {hold.reason}",
        f"Scheduled events of rollouts: {_held_events(context)}. Each starts when its notice has ended.",
    ]


def _held_events(context: RequestContext) -> int:
    scheduled = context.store.events(statuses=(EventState.SCHEDULED,))
    return sum(event.cause in ROLLOUT_CAUSES for event in scheduled)


ROLLOUT_FORMS = (
    Form(
        name="rollout",
        title="Start a rollout",
        button="Start",
        description="Performs platform maintenance on VMs in waves, one update domain of each scope at a time.",
        route="POST /rollouts",
        done_message="Rollout started.",
        result_url=rollout_url,
        fields=(
            IMPACT_FIELD,
            _ALL_HOSTS_FIELD,
            _HOSTS_FIELD,
            SCOPE_FIELD,
            *_OTHER_TARGETS,
            *_WAVE_FIELDS,
            FormField(
                name="max_failures",
                kind=FieldKind.NUMBER,
                label="Stop after N failures",
                body_member="max_failures",
                default="1",
                hint="0: never stop.",
            ),
            NOTICE_FIELD,
            SHORT_NOTICE_FIELD,
            WINDOWS_FIELD,
            BLACKOUTS_FIELD,
            FormField(name="deadline", kind=FieldKind.INSTANT, label="Outside of windows from (UTC)",
                body_member="deadline"),
        ),
        extra_body=_rollout_body,
        preview="/rollouts/preview",
    ),
    _rollout_change_form("rollout-pause", "Pause a rollout", "Pause",
        "Publishes no more events until you resume it. Scheduled events still start when they are approved or due.",
        "The rollout is paused."),
    _rollout_change_form("rollout-resume", "Resume a rollout", "Resume", "Continues with the next update domain.",
        "The rollout is resumed."),
    _rollout_change_form("rollout-abort", "Abort a rollout", "Abort",
        "Ends the rollout: withdraws events that have not started, and completes those that have.",
        "The rollout is aborted.",
        danger="An aborted rollout cannot be resumed: VMs that are not done stay without the maintenance."),
    Form(
        name="rollout-hold",
        title="Hold all rollouts",
        button="Hold",
        description="Rollouts publish nothing, and none of their events starts without an approval, until the hold is "
        "lifted. Started events go on, and so do the operations of users.",
        route="POST /rollouts/hold",
        done_message="All rollouts are on hold.",
        result_url=_rollouts_url,
        fields=(
            FormField(
                name="reason", kind=FieldKind.TEXT, label="Reason", body_member="reason", is_required=True,
                hint="Everybody sees it.",
            ),
        ),
        preview=_hold_preview,
    ),
    Form(
        name="rollout-lift-hold",
        title="Lift the hold on all rollouts",
        button="Lift the hold",
        description="Events whose notice has ended start, and rollouts go on.",
        route="POST /rollouts/hold/lift",
        done_message="The hold on all rollouts is lifted.",
        result_url=_rollouts_url,
        preview=_lift_preview,
    ),
)  # fmt: skip
