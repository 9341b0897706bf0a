"""Forms about VMs and their events."""

from __future__ import annotations

from typing import Any

from forewarn.console.portal import foresight
from forewarn.console.portal.field import Field, Kind, Typed
from forewarn.console.portal.formline import (
    NOTICE,
    SHORT_NOTICE,
    Form,
    must_have_length,
    to_event,
    to_first_event,
    to_request,
)
from forewarn.console.room import Room
from forewarn.errors import Rejected

_VMS = Field(name="vm", kind=Kind.VMS, label="VMs", member="vms", needed=True)
_EVENT = Field(name="event", kind=Kind.THING, label="Event", in_path="id", needed=True)


def _asking(ask: str, title: str, button: str, about: str, *, notice: bool = False, is_grave: bool = False) -> Form:
    def body(room: Room, typed: Typed) -> dict[str, Any]:
        if _VMS.read(typed) is None:
            raise Rejected(f"{ask} needs at least one VM: name it")
        return must_have_length(room, typed)

    return Form(
        name=ask,
        title=title,
        button=button,
        about=about,
        route="POST /requests",
        done=f"{title}: asked for.",
        leads_to=to_request,
        fields=(_VMS, NOTICE, SHORT_NOTICE) if notice else (_VMS,),
        fixed={"ask": ask},
        body=body,
        foresight="/requests/preview",
        is_grave=is_grave,
        is_short=not notice,
    )


_ASLEEP = (
    "Where no VM of the scope has asked for scheduled events within 24 hours, it happens at once, without an event."
)
_AT_ONCE = "This gives no event: it happens at once."

VM_FORMS = (
    _asking("restart", "Restart VMs", "Restart",
        f"A Reboot, with 15 minutes of notice at least. {_ASLEEP}", notice=True),
    _asking("redeploy", "Redeploy VMs", "Redeploy",
        f"A Redeploy: each VM moves to another host, with 10 minutes of notice at least. {_ASLEEP}", notice=True),
    _asking("evict", "Simulate an eviction", "Evict",
        "A Preempt of Spot VMs, with 30 seconds of notice: they are deallocated or deleted, as their policy says.",
        notice=True, is_grave=True),
    _asking("delete", "Delete VMs", "Delete",
        "A Terminate, with the notice that the VM's owner has chosen; without terminate notification, at once.",
        notice=True, is_grave=True),
    _asking("scale-in", "Scale in", "Scale in",
        "As if the platform scaled in: a Terminate, with the notice that the VM's owner has chosen.",
        notice=True, is_grave=True),
    _asking("power-off", "Power off VMs", "Power off", _AT_ONCE),
    _asking("start", "Start VMs", "Start", _AT_ONCE),
    _asking("deallocate", "Deallocate VMs", "Deallocate", _AT_ONCE, is_grave=True),
    _asking("reapply", "Reapply VMs", "Reapply", _AT_ONCE),
    _asking("reimage", "Reimage VMs", "Reimage", f"{_AT_ONCE} What is on the VM's disk is lost.", is_grave=True),
    Form(
        name="perform-maintenance",
        title="Perform maintenance now",
        button="Perform now",
        about="The platform's pending maintenance of a VM may start now, instead of at the end of its notice.",
        is_short=True,
        route="POST /vms/{name:path}/perform-maintenance",
        done="The pending maintenance may start now.",
        leads_to=to_first_event,
        fields=(Field(name="vm", kind=Kind.VM, label="VM", in_path="name", needed=True),),
        foresight=foresight.of_performing,
    ),
)  # fmt: skip

EVENT_FORMS = (
    Form(
        name="approve",
        title="Approve an event",
        button="Approve",
        about="It may then start before the end of its notice, as if one of its VMs had approved it.",
        is_short=True,
        route="POST /events/{id}/approve",
        done="The event is approved.",
        leads_to=to_event,
        fields=(_EVENT,),
        foresight=foresight.of_approving,
    ),
    Form(
        name="withdraw",
        title="Withdraw an event",
        button="Withdraw",
        about="An event can be taken back until it starts. Its VMs see that it is gone.",
        route="POST /events/{id}/withdraw",
        done="The event is withdrawn.",
        leads_to=to_event,
        fields=(_EVENT, Field(name="reason", kind=Kind.TEXT, label="Reason", member="reason", hint="For the history.")),
        foresight=foresight.of_withdrawing,
    ),
)
