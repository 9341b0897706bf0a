"""Everything one can ask for in the portal, one entry each: what is asked, and to which route of the API it goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from forewarn.console.portal import foresight
from forewarn.console.portal.field import Field, Kind, Typed
from forewarn.console.portal.foresight import Foresight
from forewarn.console.portal.page import PREFIX
from forewarn.console.room import Room
from forewarn.console.route import RouteLine
from forewarn.console.routes import ROUTES
from forewarn.core.fault import FAULTS
from forewarn.errors import Rejected

Body = Callable[[Room, Typed], dict[str, Any]]  # what the fields alone do not say
LeadsTo = Callable[[Any], str]  # from the API's answer to where one sees what came of it
_LINES = {(line.method, line.path): line for line in ROUTES}


def _nothing_more(room: Room, typed: Typed) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    name: str
    title: str
    button: str
    about: str
    route: str  # of the API, such as `POST /requests`
    done: str  # what has happened once it is sent
    leads_to: LeadsTo
    fields: tuple[Field, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)  # members of the body that nobody is asked for
    body: Body = _nothing_more
    foresight: Foresight | str = ""  # what would happen: told by this, or by this route of the API
    is_grave: bool = False
    is_short: bool = False  # a link that fills it in leads straight to what will happen

    @property
    def line(self) -> RouteLine:
        method, _, path = self.route.partition(" ")
        return _LINES[method, path]

    @property
    def preview(self) -> RouteLine | None:
        return _LINES["POST", self.foresight] if isinstance(self.foresight, str) else None


def _to_request(answer: Any) -> str:
    return f"{PREFIX}/requests/{answer.request.id}"


def _to_rollout(answer: Any) -> str:
    return f"{PREFIX}/rollouts/{answer.id}"


def _to_event(answer: Any) -> str:
    return f"{PREFIX}/events/{answer.id}"


def _to_first_event(answer: Any) -> str:
    return f"{PREFIX}/events/{answer.events[0].id}"


def _to_host(answer: Any) -> str:
    return f"{PREFIX}/hosts/{quote(answer.name, safe='')}"


def _to_lab(answer: Any) -> str:
    return f"{PREFIX}/lab"


_VMS = Field(name="vm", kind=Kind.VMS, label="VMs", member="vms", needed=True)
_HOST = Field(name="host", kind=Kind.HOST, label="Host", in_path="name", needed=True)
_NOTICE = Field(
    name="notice",
    kind=Kind.DURATION,
    label="Notice",
    hint="Such as 20m or 7d. Left empty, it is the minimum of its kind.",
    member="notice_s",
)
_SHORT = Field(
    name="short_notice",
    kind=Kind.CHECK,
    label="Less than the minimum, to rehearse",
    hint="Azure never promises less than the minimum. A rehearsal may: handlers then have only the notice named above.",
    member="short_notice",
)
_EVENT = Field(name="event", kind=Kind.THING, label="Event", in_path="id", needed=True)
_ROLLOUT = Field(name="rollout", kind=Kind.THING, label="Rollout", in_path="id", needed=True)
_FOR = Field(name="for", kind=Kind.DURATION, label="For so long", member="for_s", hint="Such as 70s or 10m.")
_SCOPE = Field(
    name="scope", kind=Kind.SCOPE, label="Scope", member="scope", hint="By its id, or the name of its set or service."
)


def _must_have_length(room: Room, typed: Typed) -> dict[str, Any]:
    if _SHORT.read(typed) and _NOTICE.read(typed) is None:
        raise Rejected("a short notice needs a length: say how long with --notice")
    return {}


def _asking(ask: str, title: str, button: str, about: str, *, notice: bool = False, is_grave: bool = False) -> Form:
    def body(room: Room, typed: Typed) -> dict[str, Any]:
        if _VMS.read(typed) is None:
            raise Rejected(f"{ask} needs at least one VM: name it")
        return _must_have_length(room, typed)

    return Form(
        name=ask,
        title=title,
        button=button,
        about=about,
        route="POST /requests",
        done=f"{title}: asked for.",
        leads_to=_to_request,
        fields=(_VMS, _NOTICE, _SHORT) if notice else (_VMS,),
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

_FOR_VMS = (
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
        leads_to=_to_first_event,
        fields=(Field(name="vm", kind=Kind.VM, label="VM", in_path="name", needed=True),),
        foresight=foresight.of_performing,
    ),
)  # fmt: skip

_FOR_EVENTS = (
    Form(
        name="approve",
        title="Approve an event",
        button="Approve",
        about="It may then start before the end of its notice, as if one of its VMs had approved it.",
        is_short=True,
        route="POST /events/{id}/approve",
        done="The event is approved.",
        leads_to=_to_event,
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
        leads_to=_to_event,
        fields=(_EVENT, Field(name="reason", kind=Kind.TEXT, label="Reason", member="reason", hint="For the history.")),
        foresight=foresight.of_withdrawing,
    ),
)


def _every_host(room: Room, typed: Typed) -> dict[str, Any]:
    if not _ALL_HOSTS.read(typed):
        return _must_have_length(room, typed)
    if _HOSTS.read(typed) or _SCOPE.read(typed):
        raise Rejected("a rollout goes over hosts or over one scope: name the one or the other")
    every = [host.name for host in room.store.hosts()]
    if not every:
        raise Rejected("the fleet has no hosts: add some with `forewarn fleet add-host`, or give --scope")
    return {"hosts": every, **_must_have_length(room, typed)}


_HOSTS = Field(name="host", kind=Kind.HOSTS, label="Hosts", member="hosts")
_ALL_HOSTS = Field(name="all_hosts", kind=Kind.CHECK, label="Every host of the fleet")


def _steering(name: str, title: str, button: str, about: str, done: str, *, is_grave: bool = False) -> Form:
    verb = name.partition("-")[2]
    return Form(
        name=name,
        title=title,
        button=button,
        about=about,
        is_short=True,
        route=f"POST /rollouts/{{id}}/{verb}",
        done=done,
        leads_to=_to_rollout,
        fields=(_ROLLOUT,),
        foresight=foresight.of_steering,
        is_grave=is_grave,
    )


_FOR_HOSTS = (
    Form(
        name="rollout",
        title="Start a rollout",
        button="Start",
        about="Platform maintenance over hosts or over a scope: one update domain of a scope at a time.",
        route="POST /rollouts",
        done="The rollout has begun.",
        leads_to=_to_rollout,
        fields=(
            Field(
                name="impact",
                kind=Kind.CHOICE,
                label="What is done to each VM",
                member="impact",
                default="update",
                choices=(
                    ("update", "update: a Freeze of some seconds, everything on a host together"),
                    ("migrate", "migrate: a Freeze while it moves to another host"),
                    ("reboot", "reboot: a Reboot, everything on a host together"),
                ),
            ),
            _ALL_HOSTS,
            _HOSTS,
            _SCOPE,
            Field(
                name="max_failures",
                kind=Kind.NUMBER,
                label="Stop at so many failed VMs",
                member="max_failures",
                default="1",
                hint="0: never stop.",
            ),
            _NOTICE,
            _SHORT,
        ),
        body=_every_host,
        foresight="/rollouts/preview",
    ),
    _steering("rollout-pause", "Pause a rollout", "Pause",
        "Nothing more is published until it is resumed. What is scheduled still starts when approved or due.",
        "The rollout is paused."),
    _steering("rollout-resume", "Resume a rollout", "Resume", "It goes on with the next update domain.",
        "The rollout goes on."),
    _steering("rollout-abort", "Abort a rollout", "Abort",
        "It ends: what has not started is withdrawn, what has started is completed.", "The rollout is aborted.",
        is_grave=True),
    Form(
        name="degrade",
        title="Predict that a host will fail",
        button="Predict",
        about="Each VM on it is told to move: a Redeploy, with 10 minutes of notice at least.",
        route="POST /hosts/{name}/degrade",
        done="The host is predicted to fail.",
        leads_to=_to_request,
        fields=(
            _HOST,
            Field(name="in", kind=Kind.DURATION, label="In", member="in_s", default="7d", needed=True,
                hint="Such as 7d or 10m."),
            _SHORT,
        ),
        foresight="/hosts/{name}/degrade/preview",
    ),
    Form(
        name="fail",
        title="Let a host fail",
        button="Let it fail",
        about="Now, without warning: its VMs start elsewhere, with no notice.",
        is_short=True,
        route="POST /hosts/{name}/fail",
        done="The host has failed.",
        leads_to=_to_request,
        fields=(_HOST,),
        foresight="/hosts/{name}/fail/preview",
        is_grave=True,
    ),
    Form(
        name="repair",
        title="Repair a host",
        button="Repair",
        about="It is healthy again, and VMs may move to it.",
        is_short=True,
        route="POST /hosts/{name}/repair",
        done="The host is healthy again.",
        leads_to=_to_host,
        fields=(_HOST,),
        foresight=foresight.of_repairing,
    ),
)  # fmt: skip

_PARAMETERS = tuple(
    Field(
        name=name,
        kind=Kind.DURATION if name.endswith("_s") else Kind.NUMBER,
        label=name.removesuffix("_s").replace("_", "-"),
        hint=f"{value.least:g} to {value.most:g}{' s' if name.endswith('_s') else ''}; "
        f"left empty, {value.default:g}{' s' if name.endswith('_s') else ''}.",
        member=f"parameters.{name}",
        only_for=kind,
    )
    for kind, row in FAULTS.items()
    for name, value in row.parameters.items()
)


def _reached(room: Room, typed: Typed) -> dict[str, Any]:
    """How far ahead the clock is to go: by a span, or to an instant."""
    by_s, until = _BY.read(typed), _UNTIL.read(typed)
    if (by_s is None) == (until is None):
        raise Rejected("the clock goes ahead by a span or to a time: give the one or the other")
    return {"by_s": by_s if by_s is not None else until - room.now()}


_BY = Field(name="by", kind=Kind.DURATION, label="By", hint="Such as 15m or 7d.")
_UNTIL = Field(name="until", kind=Kind.INSTANT, label="Or to this time (UTC)")

_FOR_LAB = (
    Form(
        name="fault",
        title="Set a fault",
        button="Set",
        about="What real clients have met, on purpose. It stays until it is cleared, unless you say how long.",
        route="POST /faults",
        done="The fault is set.",
        leads_to=_to_lab,
        fields=(
            Field(
                name="kind",
                kind=Kind.CHOICE,
                label="Fault",
                member="kind",
                choices=tuple((str(kind), f"{kind}: {row.seen.replace('`', '')}") for kind, row in FAULTS.items()),
                needed=True,
            ),
            *_PARAMETERS,
            Field(name="vm", kind=Kind.VM, label="For a VM", member="vm"),
            _SCOPE,
            Field(name="all", kind=Kind.CHECK, label="For every VM", member="all"),
            Field(name="count", kind=Kind.NUMBER, label="The next so many requests or events", member="count"),
            _FOR,
        ),
        foresight=foresight.of_fault,
    ),
    Form(
        name="fault-clear",
        title="Clear faults",
        button="Clear",
        about="Those that everything given here fits.",
        is_short=True,
        route="POST /faults/clear",
        done="Cleared.",
        leads_to=_to_lab,
        fields=(
            Field(name="fault", kind=Kind.THINGS, label="Faults or storms, by their ids", member="ids"),
            Field(
                name="kind",
                kind=Kind.CHOICE,
                label="Only of this kind",
                member="kind",
                choices=(("", "any kind"), *((str(kind), str(kind)) for kind in FAULTS)),
            ),
            Field(name="vm", kind=Kind.VM, label="Only for this VM", member="vm"),
            Field(name="all", kind=Kind.CHECK, label="All of them, and storms too", member="all"),
        ),
        foresight=foresight.of_clearing,
    ),
    Form(
        name="storm",
        title="Play a storm",
        button="Play",
        about="A mix of faults that follows from a seed: same seed, same VMs, same faults at the same offsets.",
        route="POST /faults/storm",
        done="The storm has begun.",
        leads_to=_to_lab,
        fields=(
            Field(name="seed", kind=Kind.NUMBER, label="Seed", member="seed", default="1", needed=True),
            Field(name="vm", kind=Kind.VMS, label="VMs", member="vms", hint="None: all of them."),
            Field(name="for", kind=Kind.DURATION, label="For so long", member="for_s", default="10m"),
        ),
        foresight=foresight.of_storm,
    ),
    Form(
        name="replay-stop",
        title="Stop a replay",
        button="Stop",
        about="The VMs of its scope see their own document again.",
        is_short=True,
        route="DELETE /replays/{id}",
        done="The replay is stopped.",
        leads_to=_to_lab,
        fields=(Field(name="replay", kind=Kind.THING, label="Replay", in_path="id", needed=True),),
        foresight=foresight.of_stopping,
    ),
    Form(
        name="clock-advance",
        title="Advance the clock",
        button="Advance",
        about="Through everything that falls due on the way.",
        is_short=True,
        route="POST /clock/advance",
        done="The clock was advanced.",
        leads_to=_to_lab,
        fields=(_BY, _UNTIL),
        body=_reached,
        foresight=foresight.of_advancing,
    ),
    Form(
        name="clock-speed",
        title="Set the clock's speed",
        button="Set",
        about="How much faster than real time lab time runs.",
        is_short=True,
        route="POST /clock/speed",
        done="The clock's speed was set.",
        leads_to=_to_lab,
        fields=(
            Field(name="speed", kind=Kind.NUMBER, label="Speed", member="speed", default="1", needed=True,
                hint="0: paused. 1: real time. 60: a minute is a second."),
        ),
        foresight=foresight.of_speed,
    ),
)  # fmt: skip

FORMS: Mapping[str, Form] = MappingProxyType(
    {form.name: form for form in (*_FOR_VMS, *_FOR_EVENTS, *_FOR_HOSTS, *_FOR_LAB)}
)
