"""The one table of states: what pages call each state, its symbol and its colour.

Templates show a state with the filters `state` and `state_label`, scripts read the labels from the page, and the style
sheet of states is rendered from the table. So a state has one name and one symbol on every page. The values are those
of the JSON, which do not change; only the labels are words for people.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from typing import NamedTuple, Protocol

from markupsafe import Markup

from forewarn.core.event import Ending, EventState
from forewarn.core.explain.explanation import VmState
from forewarn.core.explain.polling import EventAwareness, PollingState
from forewarn.core.fleet import HostHealth
from forewarn.core.health import CheckOutcome
from forewarn.core.history import EntryKind
from forewarn.core.request import RolloutState
from forewarn.core.request_state import RequestState


class StateFamily(StrEnum):
    """The kinds of things that have a state. The value is the CSS class of an element that shows one."""

    VM = "state"
    EVENT = "event-state"
    HOST = "health"
    ROLLOUT = "rollout-state"
    REQUEST = "request-state"
    PROGRESS = "progress-state"  # how far a VM or an update domain is in a rollout
    POLLING = "polling"
    DELIVERY = "delivery"  # of a pending event to a VM
    NODE = "node-state"  # of a cluster: control nodes and host nodes
    CHECK = "check-outcome"  # of a measurement of a rollout's health check
    VISIT = "visit-state"  # of a host, in the standing order
    ENTRY = "entry-kind"  # of the history


class StateLook(NamedTuple):
    """How pages show a state: its label, its symbol, and the name of its colour in style.css."""

    label: str  # for people
    symbol: str  # one character, which does not depend on colour; "": none
    tone: str  # the name of a CSS variable, without the dashes


_SCHEDULED = ("◇", "noticed")
_STARTED = StateLook("started", "▶", "started")
_STOPPED = StateLook("stopped", "■", "stopped")
_DONE = ("✓", "good")
_FAILED = StateLook("failed", "✕", "bad")
_WITHDRAWN = StateLook("withdrawn", "⊘", "gone")
_NOT_NEEDED = StateLook("not needed", "⊖", "gone")
_APPROVED = StateLook("approved", "☑", "accent")
_IN_PROGRESS = StateLook("in progress", "◐", "started")
_PAUSED = StateLook("paused", "‖", "warn")
_CANCELED = ("⊗", "gone")
_WAITING = StateLook("waiting", "○", "faint")

# Every state of every kind of thing, by its value in JSON.
STATES: dict[StateFamily, dict[str, StateLook]] = {
    StateFamily.VM: {
        VmState.RUNNING: StateLook("running", "●", "running"),
        VmState.EVENT_SCHEDULED: StateLook("event scheduled", *_SCHEDULED),
        VmState.STARTED: _STARTED,
        VmState.FROZEN: StateLook("frozen", "❄", "frozen"),
        VmState.REBOOTING: StateLook("rebooting", "↻", "rebooting"),
        VmState.MOVING: StateLook("moving", "⇄", "moving"),
        VmState.STOPPED: _STOPPED,
        VmState.DEALLOCATED: StateLook("deallocated", "□", "stopped"),
        VmState.GONE: StateLook("removed", "∅", "gone"),
    },
    StateFamily.EVENT: {
        EventState.SCHEDULED: StateLook("scheduled", *_SCHEDULED),
        "approved": _APPROVED,
        EventState.STARTED: _STARTED,
        Ending.FINISHED: StateLook("finished", *_DONE),
        Ending.FAILED: _FAILED,
        Ending.WITHDRAWN: _WITHDRAWN,
        Ending.NOT_NEEDED: _NOT_NEEDED,
    },
    StateFamily.HOST: {
        HostHealth.HEALTHY: StateLook("healthy", "●", "good"),
        HostHealth.DEGRADED: StateLook("degraded", "▲", "warn"),
        HostHealth.FAILED: _FAILED,
    },
    StateFamily.ROLLOUT: {
        RolloutState.RUNNING: _IN_PROGRESS,
        RolloutState.PAUSED: _PAUSED,
        RolloutState.STOPPED: StateLook("stopped by failures", "⚠", "bad"),
        RolloutState.ABORTED: StateLook("aborted", *_CANCELED),
        RolloutState.COMPLETED: StateLook("completed", *_DONE),
    },
    StateFamily.REQUEST: {
        RequestState.IN_PROGRESS: _IN_PROGRESS,
        RequestState.SUCCEEDED: StateLook("succeeded", *_DONE),
        RequestState.FAILED: _FAILED,
        RequestState.CANCELED: StateLook("canceled", *_CANCELED),
    },
    StateFamily.PROGRESS: {
        "done": StateLook("done", *_DONE),
        "failed": _FAILED,
        "withdrawn": _WITHDRAWN,
        "not_needed": _NOT_NEEDED,
        "started": _STARTED,
        "scheduled": StateLook("scheduled", *_SCHEDULED),
        "now": _IN_PROGRESS,
        "next": StateLook("next", "▷", "noticed"),
        "waiting": _WAITING,
    },
    StateFamily.POLLING: {
        PollingState.ACTIVE: StateLook("polling", "●", "running"),
        PollingState.STOPPED: StateLook("stopped polling", "⚠", "warn"),
        PollingState.NEVER: StateLook("never polled", "◌", "warn"),
        PollingState.OFF: StateLook("not running", "■", "stopped"),
    },
    StateFamily.DELIVERY: {
        EventAwareness.NO_VM: StateLook("not delivered", "⚠", "bad"),
        EventAwareness.PENDING: StateLook("delivered with the next poll", "○", "faint"),
        EventAwareness.NEIGHBOUR: StateLook("delivered to another VM of the scope only", "◑", "faint"),
        EventAwareness.DELIVERED: StateLook("delivered", *_DONE),
    },
    StateFamily.NODE: {
        "active": StateLook("active", "●", "good"),
        "standby": StateLook("standby", "○", "faint"),
        "starting": StateLook("starting", "◐", "started"),
        "suspended": StateLook("suspended", "‖", "warn"),
        "stopping": StateLook("stopping", "◑", "faint"),
        "answering": StateLook("answering", *_DONE),
        "silent": StateLook("silent", "⚠", "bad"),
        "stopped": _STOPPED,
        "absent": StateLook("not joined", "◌", "warn"),
    },
    StateFamily.CHECK: {
        CheckOutcome.GOOD: StateLook("good", *_DONE),
        CheckOutcome.BAD: StateLook("bad", "✕", "bad"),
        CheckOutcome.UNCLEAR: StateLook("unclear", "◌", "warn"),
        CheckOutcome.ERROR: StateLook("error", "⚠", "warn"),
    },
    StateFamily.VISIT: {
        "visited": StateLook("visited", *_DONE),
        "due": StateLook("due", "○", "faint"),
        "in progress": StateLook("in progress", "◐", "started"),
        "failed": _FAILED,
        "late": StateLook("late", "⚠", "bad"),
    },
    StateFamily.ENTRY: {
        **{kind: StateLook(kind, "", "faint") for kind in EntryKind},
        EntryKind.PUBLISHED: StateLook("published", *_SCHEDULED),
        EntryKind.APPROVED: _APPROVED,
        EntryKind.STARTED: _STARTED,
        EntryKind.PERFORMED: StateLook("performed", *_DONE),
        EntryKind.FAILED: _FAILED,
        EntryKind.FINISHED: StateLook("finished", *_DONE),
        EntryKind.WITHDRAWN: _WITHDRAWN,
        EntryKind.NOT_NEEDED: _NOT_NEEDED,
        EntryKind.PAUSED: _PAUSED,
        EntryKind.STOPPED: StateLook("stopped early", "", "faint"),
        EntryKind.COMPLETED: StateLook("completed", *_DONE),
        EntryKind.UNANNOUNCED: StateLook("unannounced", "⚠", "warn"),
    },
}


class _EventFacts(Protocol):
    @property
    def ending(self) -> str | None: ...
    @property
    def started_at(self) -> float | None: ...
    @property
    def approved_at(self) -> float | None: ...


def event_state(event: _EventFacts) -> str:
    """Return the state of an event as pages show it: how it ended, else started, approved or scheduled."""
    if event.ending is not None:
        return str(event.ending)
    if event.started_at is not None:
        return str(EventState.STARTED)
    return str(EventState.SCHEDULED) if event.approved_at is None else "approved"


def state_label(value: str, family: str = "vm") -> str:
    """Return what pages call a state, such as `event scheduled` for the VM state `noticed`."""
    return _look(value, family).label


def state_class(value: str) -> str:
    """Return the CSS class of a state: its value with dashes for blanks and underscores (`not-needed`)."""
    return value.replace(" ", "-").replace("_", "-")


def state_element(value: str, family: str, *, key: str = "", text: str = "") -> Markup:
    """Return the HTML element that shows a state; its symbol and colour come from `state_stylesheet`."""
    vm = Markup(' data-vm="{}"').format(key) if key else ""
    css = f"{StateFamily[family.upper()].value} {state_class(value)}"
    return Markup('<span class="{}"{}>{}</span>').format(css, vm, text or _look(value, family).label)


def vm_state_labels() -> dict[str, str]:
    """Return the label of every VmState, by its value in JSON, for scripts that change states in place."""
    return {str(value): look.label for value, look in STATES[StateFamily.VM].items()}


@cache
def state_stylesheet() -> str:
    """Return the CSS of all states: the colour and the symbol of each, for elements and for cells of VMs."""
    rules = [
        rule
        for family, looks in STATES.items()
        for value, look in looks.items()
        for rule in _state_rules(family.value, state_class(value), look)
    ]
    cells = [rule for value, look in STATES[StateFamily.VM].items() for rule in _cell_rules(state_class(value), look)]
    return "\n".join((*rules, *cells, ""))


def _state_rules(css: str, name: str, look: StateLook) -> tuple[str, ...]:
    colour = f".{css}.{name} {{ color: var(--{look.tone}); }}"
    return (colour, _symbol_rule(f".{css}.{name}", look.symbol)) if look.symbol else (colour,)


def _cell_rules(name: str, look: StateLook) -> tuple[str, ...]:
    return f".cell.{name} {{ --tone: var(--{look.tone}); }}", _symbol_rule(f".cell.{name}", look.symbol)


def _symbol_rule(selector: str, symbol: str) -> str:
    # U+FE0E asks for the plain character instead of a coloured picture. The second line is for browsers that know it.
    content = f'"{symbol}\\FE0E"'
    return f'{selector}::before {{ content: {content}; content: {content} / ""; }}'


def _look(value: str, family: str) -> StateLook:
    return STATES[StateFamily[family.upper()]].get(value) or StateLook(value, "", "faint")
