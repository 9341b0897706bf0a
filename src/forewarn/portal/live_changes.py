"""What happened, as open pages need to know it: which things changed, never how they look. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import msgspec

from forewarn.console.visibility import Visibility
from forewarn.core.change import Commit
from forewarn.core.event import Event
from forewarn.core.history import Entry, Sighting
from forewarn.store.seam import Store

T = TypeVar("T")


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What a page is sent."""

    seq: int
    now: float
    scopes: tuple[str, ...]
    events: tuple[str, ...]
    requests: tuple[str, ...]
    hosts: tuple[str, ...]
    vms: tuple[tuple[str, str], ...]  # key, and the state it is in now
    what: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        return not (self.scopes or self.events or self.requests or self.hosts or self.vms or self.what)


@dataclass(frozen=True, kw_only=True)
class News:
    """Some commits together; made once for everybody who looks."""

    seq: int
    now: float
    scopes: frozenset[str]
    events: Mapping[str, str]  # id → its scope
    requests: frozenset[str]
    hosts: frozenset[str]
    vms: Mapping[str, str]  # key → state
    hosts_of: Mapping[str, Set[str]]  # an event's id or a VM's key → hosts that show it
    entries: Sequence[Entry]

    @cached_property
    def whole(self) -> Change:
        """For those who see everything."""
        hosts = self.hosts.union(*self.hosts_of.values())
        return self._change(self.scopes, self.events, self.requests, hosts, self.vms, self.entries)

    @cached_property
    def whole_json(self) -> bytes:
        return msgspec.json.encode(self.whole)

    def seen_by(self, visible: Visibility, store: Store) -> Change:
        """Without what a visitor may not see: to them it did not happen."""
        if visible.is_whole:
            return self.whole
        events = [event_id for event_id, scope_id in self.events.items() if visible.scope(scope_id)]
        vms = {key: self.vms[key] for key in _those(self.vms, store.vm, visible.vm)}
        # That something happens to others on a host is nobody's business.
        hosts = self.hosts.union(*(self.hosts_of.get(one, ()) for one in (*events, *vms)))
        return self._change(
            filter(visible.scope, self.scopes),
            events,
            _those(self.requests, store.request, visible.request),
            filter(visible.host, filter(None, hosts)),
            vms,
            filter(visible.entry, self.entries),
        )

    def _change(
        self,
        scopes: Iterable[str],
        events: Iterable[str],
        requests: Iterable[str],
        hosts: Iterable[str],
        vms: Mapping[str, str],
        entries: Iterable[Entry],
    ) -> Change:
        return Change(
            seq=self.seq,
            now=self.now,
            scopes=tuple(sorted(scopes)),
            events=tuple(sorted(events)),
            requests=tuple(sorted(requests)),
            hosts=tuple(sorted(filter(None, hosts))),
            vms=tuple(vms.items()),
            what=tuple(sorted({entry.what for entry in entries})),
        )


class Gathering:
    """Commits and entries, until they are told together."""

    def __init__(self) -> None:
        self._scopes: set[str] = set()
        self._events: dict[str, str] = {}
        self._requests: set[str] = set()
        self._hosts: set[str] = set()
        self._hosts_of: dict[str, set[str]] = defaultdict(set)
        self.vms: dict[str, str] = {}
        self._entries: list[Entry] = []

    def add(self, commit: Commit) -> None:
        self._scopes.update(scope.id for scope in commit.scopes)
        self._scopes.update(vm.scope_id for vm in commit.vms)
        self._requests.update(request.id for request in commit.requests)
        self._requests.update(planned.request_id for planned in commit.planned)
        self._hosts.update(host.name for host in commit.hosts)
        self._hosts.update(commit.removed_hosts)
        for vm in commit.vms:
            self._hosts_of[vm.key].add(vm.host)
        for event in commit.events:
            self._add_event(event)
        self.add_entries(commit.entries)

    def _add_event(self, event: Event) -> None:
        self._events[event.id] = event.scope_id
        self._scopes.add(event.scope_id)
        self._requests.add(event.request_id)
        self._hosts_of[event.id].add(event.host)
        for act in event.acts:
            self._hosts_of[event.id].update((act.from_host, act.to_host))

    def add_entries(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._entries.append(entry)
            self._scopes.add(entry.scope_id)
            self._requests.add(entry.request_id)
            if not entry.scope_id:
                self._hosts.add(entry.host)
            if entry.event_id:
                self._hosts_of[entry.event_id].add(entry.host)
                self._events.setdefault(entry.event_id, entry.scope_id)

    def add_sightings(self, sightings: Iterable[Sighting]) -> None:
        """A VM was given an event: no entry tells, but pages show it."""
        for sighting in sightings:
            self._events[sighting.event_id] = sighting.scope_id
            self._scopes.add(sighting.scope_id)

    def add_vms(self, states: Iterable[tuple[str, str]]) -> None:
        self.vms.update(states)

    @property
    def scopes(self) -> frozenset[str]:
        return frozenset(self._scopes - {""})

    def news(self, seq: int, now: float, home_of: Callable[[str], str]) -> News:
        for key in self.vms:
            self._hosts_of[key].add(home_of(key))
        return News(
            seq=seq,
            now=now,
            scopes=self.scopes,
            events=self._events,
            requests=frozenset(self._requests - {""}),
            hosts=frozenset(self._hosts),
            vms=self.vms,
            hosts_of=self._hosts_of,
            entries=self._entries,
        )


def _those(names: Iterable[str], read: Callable[[str], T | None], sees: Callable[[T], bool]) -> list[str]:
    return [name for name in names if (one := read(name)) is not None and sees(one)]
