"""What happened in a lab, in words: its history, and the story of an event or a VM. Told from the record alone, so it
can be told after the lab is closed as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

from forewarn.core.event import Event, Status
from forewarn.core.fleet import Vm
from forewarn.core.history import Entry
from forewarn.core.release import Reason, Wait, gate_wait, is_free, waits_for
from forewarn.core.scope import Scope
from forewarn.core.story import Asked, Record, Story, story_of_event, story_of_vm
from forewarn.testing.lab_service import LabService
from forewarn.testing.lab_span import since

T = TypeVar("T")
_MOST_EVENTS = 10  # the newest


class Reader(Protocol):
    """A lab, as far as its things need it."""

    def read(self, look: Callable[[LabService], T]) -> T:
        """What `look` finds once everything due is done."""


def history_of(service: LabService, after: int = 0) -> tuple[str, ...]:
    return tuple(_line(service, entry) for entry in service.store.history(after=after))


def story_of(service: LabService, thing: Event | Vm) -> Story:
    if isinstance(thing, Event):
        return story_of_event(thing, _record(service, thing.scope_id, [thing]))
    listed = [event for event in service.store.events(scope_id=thing.scope_id) if thing.name in event.vms]
    return story_of_vm(thing, listed, _record(service, thing.scope_id, listed))


def told(service: LabService, story: Story) -> str:
    """One line under the other."""
    lines = (f"  {since(service.began_at, line.at)}  {line.text}{_detail(line.detail)}" for line in story.lines)
    return "\n".join((story.title, *lines, *(f"  now  {sentence}" for sentence in story.now)))


def told_in_a_line(service: LabService, story: Story) -> str:
    """For a `repr`, which test runners cut in the middle: what it is comes first, where it stands last."""
    lines = (f"{since(service.began_at, line.at)} {line.text}" for line in story.lines)
    return f"{story.title} · {' · '.join((*lines, *story.now[:1]))}"


def whole_story(service: LabService) -> str:
    """For whoever has to find out why a test failed: everything that happened, then event by event."""
    events = service.store.events(limit=_MOST_EVENTS)
    return "\n".join((*history_of(service), *(f"\n{told(service, story_of(service, event))}" for event in events)))


def _line(service: LabService, entry: Entry) -> str:
    return f"{since(service.began_at, entry.at)}  {entry.what:<10} {entry.text}"


def _detail(detail: str) -> str:
    return f" ({detail})" if detail else ""


def _record(service: LabService, scope_id: str, events: Sequence[Event]) -> Record:
    store = service.store
    scope = store.scope(scope_id) or Scope(id=scope_id)
    names = {vm.key: vm.name for vm in store.vms(scope_id=scope_id, removed=True)}
    return Record(
        now=service.now(),
        scope=scope,
        title=_title(scope),
        polls=[Asked(vm=names.get(p.vm, p.vm), at=p.at, version=p.version) for p in store.polls(scope_id=scope_id)],
        sightings=[sighting for event in events for sighting in store.sightings(event_id=event.id)],
        entries=_entries(service, events),
        waits=dict(_waits(service, scope, events)),
        names=names,
    )


def _title(scope: Scope) -> str:
    vm = scope.vms[0] if scope.vms else None
    if vm is None:
        return scope.id
    sets = (("cloud service", vm.cloud_service), ("scale set", vm.scale_set), ("availability set", vm.availability_set))
    return next((f"{sort} {name}" for sort, name in sets if name), f"VM {vm.name}")


def _entries(service: LabService, events: Iterable[Event]) -> list[Entry]:
    known = {entry.seq: entry for event in events for entry in service.store.history(event_id=event.id)}
    for request_id in {event.request_id for event in events}:
        known.update({entry.seq: entry for entry in service.store.history(request_id=request_id)})
    return list(known.values())


def _waits(service: LabService, scope: Scope, events: Iterable[Event]) -> Iterator[tuple[str, Wait]]:
    around = service.control.desk.around(rehearsal=True)
    for event in events:
        wait = waits_for(scope, event, around) if event.status is Status.SCHEDULED else None
        if wait is not None and wait.reason is Reason.GATE:
            wait = gate_wait(event, _unready(service, event.gate_id))
        if wait is not None:
            yield event.id, wait


def _unready(service: LabService, gate_id: str) -> list[Event]:
    """Those behind a gate that keep it closed."""
    around = service.control.desk.around(rehearsal=True)
    behind = service.store.events(gate_id=gate_id, statuses=[Status.SCHEDULED])
    scopes = ((event, service.store.scope(event.scope_id)) for event in behind)
    return [event for event, scope in scopes if scope is not None and not is_free(scope, event, around)]
