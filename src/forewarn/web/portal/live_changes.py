"""Collects commits, history entries and deliveries into change batches for open pages. Pure.

A batch names the things that changed and the new state of VMs; `visible_change` leaves out what a user may not see.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import msgspec

from forewarn.base.times import Timestamp, encode_time, timestamp
from forewarn.core.commit import Commit
from forewarn.core.event import Act, Event
from forewarn.core.history import EventDelivery, HistoryEntry
from forewarn.store.interface import Store
from forewarn.web.authorization import Visibility

T = TypeVar("T")


class LiveChange(msgspec.Struct, frozen=True, kw_only=True):
    """What changed, for one user: the message `change` of the live stream. Field names are JSON keys."""

    seq: int  # number of a history entry; the change covers everything up to it
    now: Timestamp
    scopes: tuple[str, ...]  # ids of the scopes that changed, sorted, as in the next two fields
    events: tuple[str, ...]  # ids, upper case
    requests: tuple[str, ...]  # ids, lower case
    hosts: tuple[str, ...]  # names, sorted, also of hosts with a VM or an event that changed
    vms: tuple[tuple[str, str], ...]  # key and state of each VM whose state has changed, or may have
    kinds: tuple[str, ...]  # the kinds of the history entries, each once, sorted

    @property
    def is_empty(self) -> bool:
        """Whether the change names nothing that changed, so that it need not be sent."""
        return not (self.scopes or self.events or self.requests or self.hosts or self.vms or self.kinds)


@dataclass(frozen=True, kw_only=True)
class ChangeBatch:
    """Changes of a short time, collected once for all open pages; each page gets what its user may see."""

    seq: int  # number of a history entry; the batch covers everything up to it
    now: Timestamp
    scopes: frozenset[str]  # ids
    events: Mapping[str, str]  # id → id of its scope
    requests: frozenset[str]  # ids
    hosts: frozenset[str]  # names of those that changed themselves; "" does not count
    vms: Mapping[str, str]  # key → VmState, where it has changed or may have
    hosts_by_id: Mapping[str, Set[str]]  # an event's id or a VM's key → hosts whose pages show it
    entries: Sequence[HistoryEntry]  # that were collected; () for what the history does not record

    @cached_property
    def full_change(self) -> LiveChange:
        """The change for users who may see everything; built on first use and cached."""
        hosts = self.hosts.union(*self.hosts_by_id.values())
        return self._build_change(self.scopes, self.events, self.requests, hosts, self.vms, self.entries)

    @cached_property
    def full_change_json(self) -> bytes:
        """The change for users who may see everything, encoded as JSON once for all of them."""
        return msgspec.json.encode(self.full_change, enc_hook=encode_time)

    def visible_change(self, visible: Visibility, store: Store) -> LiveChange:
        """Return the change with only what one user may see, as `visible` decides; it may be empty."""
        if visible.sees_everything:
            return self.full_change
        events = [event_id for event_id, scope_id in self.events.items() if visible.can_see_scope(scope_id)]
        vms = {key: self.vms[key] for key in _visible_names(self.vms, store.vm, visible.can_see_vm)}
        # A host's page changes for this user only if one of their own events or VMs on it changed.
        hosts = self.hosts.union(*(self.hosts_by_id.get(item, ()) for item in (*events, *vms)))
        return self._build_change(
            filter(visible.can_see_scope, self.scopes),
            events,
            _visible_names(self.requests, store.request, visible.can_see_request),
            filter(visible.can_see_host, filter(None, hosts)),
            vms,
            filter(visible.can_see_entry, self.entries),
        )

    def _build_change(
        self,
        scopes: Iterable[str],
        events: Iterable[str],
        requests: Iterable[str],
        hosts: Iterable[str],
        vms: Mapping[str, str],
        entries: Iterable[HistoryEntry],
    ) -> LiveChange:
        return LiveChange(
            seq=self.seq,
            now=self.now,
            scopes=tuple(sorted(scopes)),
            events=tuple(sorted(events)),
            requests=tuple(sorted(requests)),
            hosts=tuple(sorted(filter(None, hosts))),
            vms=tuple(vms.items()),
            kinds=tuple(sorted({entry.kind for entry in entries})),
        )


class ChangeCollector:
    """Collects commits, history entries, deliveries and acts until `to_batch` makes one batch of them."""

    def __init__(self) -> None:
        self._scopes: set[str] = set()
        self._events: dict[str, str] = {}
        self._requests: set[str] = set()
        self._hosts: set[str] = set()
        self._hosts_by_id: dict[str, set[str]] = defaultdict(set)
        self.vm_states: dict[str, str] = {}
        self._entries: list[HistoryEntry] = []

    def add_commit(self, commit: Commit) -> None:
        """Add what a commit changed: scopes, requests, hosts, events and history entries."""
        self._scopes.update(scope.id for scope in commit.scopes)
        self._scopes.update(vm.scope_id for vm in commit.vms)
        self._requests.update(request.id for request in commit.requests)
        self._requests.update(planned.request_id for planned in commit.planned)
        self._hosts.update(host.name for host in commit.hosts)
        self._hosts.update(host.name for host in commit.removed_hosts)
        for vm in commit.vms:
            self._hosts_by_id[vm.key].add(vm.host)
        for event in commit.events:
            self._add_event(event)
        self.add_entries(commit.entries)

    def _add_event(self, event: Event) -> None:
        self._events[event.id] = event.scope_id
        self._scopes.add(event.scope_id)
        self._requests.add(event.request_id)
        self._hosts_by_id[event.id].add(event.host)
        for act in event.acts:
            self._hosts_by_id[event.id].update((act.from_host, act.to_host))

    def add_entries(self, entries: Iterable[HistoryEntry]) -> None:
        """Add history entries, and the scopes, requests and events that they name."""
        for entry in entries:
            self._entries.append(entry)
            self._scopes.add(entry.scope_id)
            self._requests.add(entry.request_id)
            if not entry.scope_id:
                self._hosts.add(entry.host)
            if entry.event_id:
                self._hosts_by_id[entry.event_id].add(entry.host)
                self._events.setdefault(entry.event_id, entry.scope_id)

    def add_deliveries(self, deliveries: Iterable[EventDelivery]) -> None:
        """Add the events and scopes of deliveries to VMs: pages show deliveries, the history does not."""
        for delivery in deliveries:
            self._events[delivery.event_id] = delivery.scope_id
            self._scopes.add(delivery.scope_id)

    def add_act(self, act: Act, scope_id: str) -> None:
        """Add the event and the hosts of an act on which the hypervisor has reported progress."""
        self._events[act.event_id] = scope_id
        self._hosts_by_id[act.event_id].update((act.from_host, act.to_host))

    def add_vm_states(self, states: Iterable[tuple[str, str]]) -> None:
        """Add VMs, as pairs of key and new state; a later state replaces an earlier one."""
        self.vm_states.update(states)

    @property
    def scope_ids(self) -> frozenset[str]:
        """The ids of the scopes that were added as changed so far, in a new set."""
        return frozenset(self._scopes - {""})

    def to_batch(self, seq: int, now: float, host_of: Callable[[str], str]) -> ChangeBatch:
        """Return the batch of everything collected. Add nothing afterwards: the batch shares the data."""
        for key in self.vm_states:
            self._hosts_by_id[key].add(host_of(key))
        return ChangeBatch(
            seq=seq,
            now=timestamp(now),
            scopes=self.scope_ids,
            events=self._events,
            requests=frozenset(self._requests - {""}),
            hosts=frozenset(self._hosts),
            vms=self.vm_states,
            hosts_by_id=self._hosts_by_id,
            entries=self._entries,
        )


def _visible_names(names: Iterable[str], read: Callable[[str], T | None], sees: Callable[[T], bool]) -> list[str]:
    return [name for name in names if (item := read(name)) is not None and sees(item)]
