"""Forms about hosts, and about rollouts over them."""

from __future__ import annotations

from typing import Any

from forewarn.console.portal import foresight
from forewarn.console.portal.field import Field, Kind, Typed
from forewarn.console.portal.formline import (
    NOTICE,
    SCOPE,
    SHORT_NOTICE,
    Form,
    must_have_length,
    to_host,
    to_request,
    to_rollout,
)
from forewarn.console.room import Room
from forewarn.errors import Rejected

_HOST = Field(name="host", kind=Kind.HOST, label="Host", in_path="name", needed=True)
_ROLLOUT = Field(name="rollout", kind=Kind.THING, label="Rollout", in_path="id", needed=True)
_HOSTS = Field(name="host", kind=Kind.HOSTS, label="Hosts", member="hosts")
_ALL_HOSTS = Field(name="all_hosts", kind=Kind.CHECK, label="Every host of the fleet")


def _every_host(room: Room, typed: Typed) -> dict[str, Any]:
    if not _ALL_HOSTS.read(typed):
        return must_have_length(room, typed)
    if _HOSTS.read(typed) or SCOPE.read(typed):
        raise Rejected("a rollout goes over hosts or over one scope: name the one or the other")
    every = [host.name for host in room.store.hosts()]
    if not every:
        raise Rejected("the fleet has no hosts: add some with `forewarn fleet add-host`, or give --scope")
    return {"hosts": every, **must_have_length(room, typed)}


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
        leads_to=to_rollout,
        fields=(_ROLLOUT,),
        foresight=foresight.of_steering(about),
        is_grave=is_grave,
    )


HOST_FORMS = (
    Form(
        name="rollout",
        title="Start a rollout",
        button="Start",
        about="Platform maintenance over hosts or over a scope: one update domain of a scope at a time.",
        route="POST /rollouts",
        done="The rollout has begun.",
        leads_to=to_rollout,
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
            SCOPE,
            Field(
                name="max_failures",
                kind=Kind.NUMBER,
                label="Stop at so many failed VMs",
                member="max_failures",
                default="1",
                hint="0: never stop.",
            ),
            NOTICE,
            SHORT_NOTICE,
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
        leads_to=to_request,
        fields=(
            _HOST,
            Field(name="in", kind=Kind.DURATION, label="In", member="in_s", default="7d", needed=True,
                hint="Such as 7d or 10m."),
            SHORT_NOTICE,
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
        leads_to=to_request,
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
        leads_to=to_host,
        fields=(_HOST,),
        foresight=foresight.of_repairing,
    ),
)  # fmt: skip
