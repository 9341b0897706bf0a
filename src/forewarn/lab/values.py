"""The events, VMs and faults of a lab, as a test holds them.

Each property reads the lab anew, also after the lab was closed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

from forewarn.control.event_facts import EventWaits, scope_facts
from forewarn.core.cause import Verb
from forewarn.core.event import Ending, Event, EventState
from forewarn.core.explain.explanation import (
    Explanation,
    ScopeFacts,
    VmPoll,
    event_explanation,
    event_kind_text,
    vm_explanation,
)
from forewarn.core.fleet import Vm
from forewarn.core.history import HistoryEntry
from forewarn.core.projection import document_for
from forewarn.core.scope import Scope, scope_title
from forewarn.lab.arguments import utc_datetime
from forewarn.lab.service import LabService
from forewarn.protocol.codec import encode_document
from forewarn.protocol.versions import NEWEST_VERSION

T = TypeVar("T")


# The history of a lab, and the explanation of one event or VM, as text.
#
# Built from the store alone, so it also works after the lab is closed.

_MAX_EVENTS = 10  # the newest


class LabReader(Protocol):
    """The part of a `Lab` that its events, VMs and faults use to read the service; `Lab` implements it."""

    def read(self, query: Callable[[LabService], T]) -> T:
        """Do everything that is due in the lab, then call `query` with its service and return the result."""


def history_lines(service: LabService, after: int = 0) -> tuple[str, ...]:
    """Return the history entries with a sequence number above `after`, oldest first, one line each."""
    return tuple(_entry_line(service, entry) for entry in service.store.history(after=after))


def explanation_of(service: LabService, thing: Event | Vm) -> Explanation:
    """Explain what happened to an event or a VM, why, and what it waits for, from the lab's store."""
    if isinstance(thing, Event):
        return event_explanation(thing, _explanation_input(service, thing.scope_id, [thing]))
    listed = [event for event in service.store.events(scope_id=thing.scope_id) if thing.name in event.vms]
    return vm_explanation(thing, listed, _explanation_input(service, thing.scope_id, listed))


def format_explanation(service: LabService, explanation: Explanation) -> str:
    """Format an explanation as text: its title, a line for each thing that happened, and lines about now."""
    lines = (
        f"  {_format_offset(service.started_at, line.at)}  {line.text}{_in_parentheses(line.detail)}"
        for line in explanation.lines
    )
    return "\n".join((explanation.title, *lines, *(f"  now  {sentence}" for sentence in explanation.now)))


def format_in_one_line(service: LabService, explanation: Explanation) -> str:
    """Format an explanation in one line for a `repr`: title, what happened, first sentence about now.

    Leaves out the details of each line, because test runners cut the middle of a long line.
    """
    lines = (f"{_format_offset(service.started_at, line.at)} {line.text}" for line in explanation.lines)
    return f"{explanation.title} · {' · '.join((*lines, *explanation.now[:1]))}"


def full_report(service: LabService) -> str:
    """Return the whole history of the lab, then the explanations of the ten newest events, as text."""
    events = service.store.events(limit=_MAX_EVENTS)
    return "\n".join(
        (
            *history_lines(service),
            *(f"\n{format_explanation(service, explanation_of(service, event))}" for event in events),
        )
    )


def _entry_line(service: LabService, entry: HistoryEntry) -> str:
    return f"{_format_offset(service.started_at, entry.at)}  {entry.kind:<10} {entry.text}"


def _in_parentheses(detail: str) -> str:
    return f" ({detail})" if detail else ""


def _explanation_input(service: LabService, scope_id: str, events: Sequence[Event]) -> ScopeFacts:
    scope = service.store.scope(scope_id) or Scope(id=scope_id)
    return scope_facts(
        service.control,
        scope,
        scope_title(scope),
        entries=_entries(service, events),
        deliveries=[delivery for event in events for delivery in service.store.deliveries(event_id=event.id)],
        waits=EventWaits(service.control).pending_waits(events),
        # In virtual time: a test reads the same text on every machine.
        describe_poll=lambda poll, name: VmPoll(vm=name, silent_s=service.now() - poll.at, version=poll.version),
    )


def _entries(service: LabService, events: Iterable[Event]) -> list[HistoryEntry]:
    known = {entry.seq: entry for event in events for entry in service.store.history(event_id=event.id)}
    for request_id in {event.request_id for event in events}:
        known.update({entry.seq: entry for entry in service.store.history(request_id=request_id)})
    return list(known.values())


def _format_offset(started_at: float, at: float) -> str:
    """The time from `started_at` to `at`, such as `+0:15:00` or `+7d 0:10:00`; never negative."""
    days, left = divmod(max(0, round(at - started_at)), 86_400)
    hours, left = divmod(left, 3_600)
    minutes, seconds = divmod(left, 60)
    return f"+{f'{days}d ' if days else ''}{hours}:{minutes:02}:{seconds:02}"


class LabEvent:
    """An event of the lab: maintenance of some VMs. `repr` explains it in one line, `str` in full.

    Requests of `Lab` return it. Properties read the event's current state, even after the lab was closed. Two objects
    are equal if they are the same event of the same lab. Times are lab time. `id` is the event's id, a GUID in upper
    case.
    """

    def __init__(self, lab: LabReader, event_id: str) -> None:
        self._lab = lab
        self.id = event_id

    @property
    def kind(self) -> str:
        """The event's kind: `Freeze`, `Reboot`, `Redeploy`, `Preempt` or `Terminate`.

        If the event is not `listed`, it is what is done to the VMs, such as `Power-off` or `Delete`.
        """
        return event_kind_text(self._event)

    @property
    def vms(self) -> tuple[str, ...]:
        """The names of the VMs that the event affects, as documents list them."""
        return self._event.vms

    @property
    def status(self) -> str:
        """The event's state: `scheduled` (published, not started), `started`, or `over`, however it ended."""
        return str(self._event.status)

    @property
    def listed(self) -> bool:
        """Whether documents show the event while it is live; if not, it started at once, without notice."""
        return self._event.listed

    @property
    def not_before(self) -> datetime:
        """When the event may start without an approval: lab time in UTC, rounded up to a whole second.

        It stays the same after the start. An event that is not `listed` has started at once all the same.
        """
        return utc_datetime(self._event.not_before)

    @property
    def notice(self) -> timedelta:
        """The promised notice of the event: the lab time from its publication to `not_before`.

        If the event is not `listed`, nobody got this notice.
        """
        event = self._event
        return timedelta(seconds=event.not_before - event.published_at)

    @property
    def notice_given(self) -> timedelta | None:
        """The notice that VMs got: the lab time from the event's publication to its start.

        None if it has not started. An early approval makes it shorter than `notice`.
        """
        event = self._event
        return None if event.started_at is None else timedelta(seconds=event.started_at - event.published_at)

    @property
    def seen_by(self) -> tuple[str, ...]:
        """The names of the VMs that received the event in a document, each once, in the order of receipt.

        Every VM of the scope that polls receives it, even a VM that the event does not affect, unless delivery is
        narrow there.
        """

        def query(service: LabService) -> tuple[str, ...]:
            deliveries = sorted(service.store.deliveries(event_id=self.id), key=lambda delivery: delivery.at)
            vms = (service.store.vm(key) for key in dict.fromkeys(delivery.vm for delivery in deliveries))
            return tuple(vm.name for vm in vms if vm is not None)

        return self._lab.read(query)

    @property
    def approved(self) -> bool:
        """Whether the event was approved, by a VM or other caller (see `approved_by`); stays true at its end."""
        return self._event.approved_at is not None

    @property
    def approved_by(self) -> str:
        """The name of the VM that approved the event; "" if it was not approved.

        It is `the test` for `Lab.approve`, and `policy` if a fleet file lets the VM's restarts or redeploys start at
        once.
        """
        return self._event.approved_by

    @property
    def started(self) -> bool:
        """Whether the event has ever started; it may be over by now."""
        return self._event.started_at is not None

    @property
    def started_at(self) -> datetime | None:
        """When the event started: lab time in UTC; None if it has not started."""
        at = self._event.started_at
        return None if at is None else utc_datetime(at)

    @property
    def over(self) -> bool:
        """Whether the event has ended: finished, failed, or without a start (see `withdrawn`)."""
        return self._event.status is EventState.OVER

    @property
    def over_at(self) -> datetime | None:
        """When the event ended: lab time in UTC; None if it has not ended."""
        at = self._event.over_at
        return None if at is None else utc_datetime(at)

    @property
    def finished(self) -> bool:
        """Whether the event ended with every act performed; False while it lasts, and if it failed."""
        return self._event.ending is Ending.FINISHED

    @property
    def failed(self) -> bool:
        """Whether the event ended with at least one act on a VM that failed."""
        return self._event.ending is Ending.FAILED

    @property
    def withdrawn(self) -> bool:
        """Whether the event ended without having started: withdrawn, not needed, or replaced by another."""
        return self._event.is_withdrawn

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LabEvent) and (other._lab, other.id) == (self._lab, self.id)

    def __hash__(self) -> int:
        return hash(self.id)

    def __str__(self) -> str:
        return self._lab.read(
            lambda service: format_explanation(service, explanation_of(service, _find_event(service, self.id)))
        )

    def __repr__(self) -> str:
        line = self._lab.read(
            lambda service: format_in_one_line(service, explanation_of(service, _find_event(service, self.id)))
        )
        return f"<{line}>"

    @property
    def _event(self) -> Event:
        return self._lab.read(lambda service: _find_event(service, self.id))


def _find_event(service: LabService, event_id: str) -> Event:
    event = service.store.event(event_id)
    assert event is not None
    return event


class LabVm:
    """A VM of the lab, or one that was deleted, and its endpoint. `str` explains what happened to it.

    `Lab.vm` and `Lab.vms` make it from the VM's key (`subscription id/resource group/name` in lower case), name and
    endpoint. Properties read the VM's current state; `name` and `endpoint` stay the same. Requests to `endpoint`, which
    is http://127.0.0.1:PORT, count as this VM's; once it is deleted, as those of an unknown VM.
    """

    def __init__(self, lab: LabReader, key: str, name: str, endpoint: str) -> None:
        self._lab = lab
        self._key = key
        self.name = name
        self.endpoint = endpoint

    @property
    def url(self) -> str:
        """The URL from which a VM's handler gets the VM's events, without the query `?api-version=…`."""
        return f"{self.endpoint}/metadata/scheduledevents"

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that tell a handler's process the VM's endpoint, as a new dict.

        FOREWARN_ENDPOINT is the URL of the endpoint, SCHEDULEDEVENTSIP its address and port (`127.0.0.1:PORT`).
        """
        return {"FOREWARN_ENDPOINT": self.endpoint, "SCHEDULEDEVENTSIP": self.endpoint.removeprefix("http://")}

    @property
    def power(self) -> str:
        """The VM's current state: `running`, `stopped`, `deallocated` or `deleted`."""
        vm = self._vm
        return "deleted" if vm.removed_at is not None else str(vm.power)

    @property
    def host(self) -> str:
        """The name of the host that the VM is on; "" if the VM is deallocated or deleted."""
        return self._vm.host

    @property
    def reboots(self) -> int:
        """How often a reboot act was performed on the VM; redeploys and failed reboots do not count."""
        return self.performed.count(Verb.REBOOT)

    @property
    def performed(self) -> tuple[str, ...]:
        """The verbs of the acts that were performed on the VM with success, such as `("freeze", "reboot")`.

        They are in the order in which the acts ended.
        """

        def query(service: LabService) -> tuple[str, ...]:
            acts = (act for event in service.store.events() for act in event.acts if act.vm == self._key)
            done = [(act.outcome.at, str(act.verb)) for act in acts if act.outcome is not None and act.outcome.ok]
            return tuple(verb for _, verb in sorted(done))

        return self._lab.read(query)

    @property
    def polls(self) -> int:
        """How many valid polls and approvals the VM has sent since the lab was opened."""
        return self._lab.read(lambda service: sum(p.count for p in service.store.last_polls() if p.vm == self._key))

    def document(self, version: str = NEWEST_VERSION) -> dict[str, Any]:
        """Return the document of the VM's scope now, decoded from JSON, as the VM would get it without faults.

        Its keys are those of the api-version, such as DocumentIncarnation and Events. This does not count as a poll. It
        has all events of the scope, but with narrow delivery only those that affect the VM. With the enablement
        "on-request", its incarnation is 0 before the first poll, which would receive 1. Raises KeyError for an unknown
        api-version.
        """

        def query(service: LabService) -> bytes:
            vm = _find_vm(service, self._key)
            scope = service.store.scope(vm.scope_id)
            assert scope is not None
            document = document_for(scope)
            return encode_document(document.narrowed_to(vm.name) if scope.is_narrow else document, version)

        document: dict[str, Any] = json.loads(self._lab.read(query))
        return document

    def __str__(self) -> str:
        return self._lab.read(
            lambda service: format_explanation(service, explanation_of(service, _find_vm(service, self._key)))
        )

    def __repr__(self) -> str:
        return f"<VM {self.name}, {self.power}, at {self.endpoint}>"

    @property
    def _vm(self) -> Vm:
        return self._lab.read(lambda service: _find_vm(service, self._key))


class LabFault:
    """A fault that `Lab.fault` injected; it may be over by now.

    `id` is the fault's id, such as f1, and `kind` its kind, such as internal-error.
    """

    def __init__(self, lab: LabReader, fault_id: str, kind: str) -> None:
        self._lab = lab
        self.id = fault_id
        self.kind = kind

    @property
    def applied(self) -> int:
        """How many requests the fault has affected, or events it has changed or added, so far.

        0 for `incarnation-reset`, which affects neither.
        """
        return self._lab.read(
            lambda service: service.requests_touched[self.id] + len(service.events_touched_by(self.id))
        )

    def __repr__(self) -> str:
        return f"<fault {self.kind}, applied {self.applied}>"


def _find_vm(service: LabService, key: str) -> Vm:
    vm = service.store.vm(key)
    assert vm is not None
    return vm
