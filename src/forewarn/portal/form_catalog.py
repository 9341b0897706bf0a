"""Forms about what goes wrong on purpose, and about the lab's clock."""

from __future__ import annotations

from typing import Any

from forewarn.console.portal import foresight
from forewarn.console.portal.field import Field, Kind, Typed
from forewarn.console.portal.formline import SCOPE, Form, to_lab
from forewarn.console.room import Room
from forewarn.core.fault import FAULTS
from forewarn.errors import Rejected

_FOR = Field(name="for", kind=Kind.DURATION, label="For so long", member="for_s", hint="Such as 70s or 10m.")
_BY = Field(name="by", kind=Kind.DURATION, label="By", hint="Such as 15m or 7d.")
_UNTIL = Field(name="until", kind=Kind.INSTANT, label="Or to this time (UTC)")
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


LAB_FORMS = (
    Form(
        name="fault",
        title="Set a fault",
        button="Set",
        about="What real clients have met, on purpose. It stays until it is cleared, unless you say how long.",
        route="POST /faults",
        done="The fault is set.",
        leads_to=to_lab,
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
            SCOPE,
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
        leads_to=to_lab,
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
        leads_to=to_lab,
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
        leads_to=to_lab,
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
        leads_to=to_lab,
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
        leads_to=to_lab,
        fields=(
            Field(name="speed", kind=Kind.NUMBER, label="Speed", member="speed", default="1", needed=True,
                hint="0: paused. 1: real time. 60: a minute is a second."),
        ),
        foresight=foresight.of_speed,
    ),
)  # fmt: skip
