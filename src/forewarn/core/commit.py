"""A commit: what a store writes atomically; and the commit that turns one scope into another.

Scopes, hosts, gates and requests carry the version they were decided on; the store raises Conflict if one has changed.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from forewarn.core.access import Grant, RegisteredClient
from forewarn.core.event import Act, Event, EventState, Gate
from forewarn.core.fleet import Host, Vm
from forewarn.core.health import Measurement
from forewarn.core.history import HistoryEntry
from forewarn.core.maintenance_configuration import ConfigurationAssignment, MaintenanceConfiguration
from forewarn.core.request import MaintenanceRequest, PlannedEvent
from forewarn.core.scope import Scope
from forewarn.core.webhook import WebhookCursor, WebhookSubscription


class SavedValue(msgspec.Struct, frozen=True, gc=False):
    """A value that a commit writes under a name, as `Store.save` does; `Store.load` returns its bytes."""

    name: str  # the key; an earlier value of the same name is replaced
    value: bytes


class Commit(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Everything that one store transaction writes: all of it, or nothing.

    Scopes, hosts, gates and requests carry the version they were decided on (0: must not exist yet). If one of them has
    changed since, the store raises Conflict for the whole commit; otherwise it adds 1 to each version. Changed and
    removed hosts must also have the `arrivals` they were decided on; each host in `destinations` must have its version
    and gets one more arrival, so commits that only bring VMs to a host do not conflict with each other. Everything else
    is written or deleted by its id or key, without a check of its version.
    """

    scopes: tuple[Scope, ...] = ()  # only their rows; changed VMs and events are in `vms` and `events`
    vms: tuple[Vm, ...] = ()  # new and changed ones; a removed VM stays stored, with `removed_at`
    events: tuple[Event, ...] = ()  # new and changed ones
    hosts: tuple[Host, ...] = ()  # new and changed ones
    removed_hosts: tuple[Host, ...] = ()  # as they were decided on
    destinations: tuple[Host, ...] = ()  # hosts that this commit brings VMs to, or begins to move them to
    gates: tuple[Gate, ...] = ()  # new and changed ones
    wake_gates: tuple[str, ...] = ()  # ids of gates to check again at once; adds 1 to their versions, checks none
    requests: tuple[MaintenanceRequest, ...] = ()  # new and changed ones
    planned: tuple[PlannedEvent, ...] = ()  # to be applied later
    unplanned: tuple[str, ...] = ()  # ids of planned events that were applied or dropped
    clients: tuple[RegisteredClient, ...] = ()  # new and changed ones
    removed_clients: tuple[str, ...] = ()  # ids; unknown ones are ignored
    grants: tuple[Grant, ...] = ()  # new ones
    removed_grants: tuple[str, ...] = ()  # ids; unknown ones are ignored
    webhooks: tuple[WebhookSubscription, ...] = ()  # new ones
    removed_webhooks: tuple[str, ...] = ()  # ids; unknown ones are ignored
    cursors: tuple[WebhookCursor, ...] = ()  # new positions of webhooks; none moves back
    measurements: tuple[Measurement, ...] = ()  # new ones of health checks of open rollouts, oldest first
    configurations: tuple[MaintenanceConfiguration, ...] = ()  # new and changed ones
    removed_configurations: tuple[str, ...] = ()  # keys; unknown ones are ignored
    assignments: tuple[ConfigurationAssignment, ...] = ()  # new and changed ones
    removed_assignments: tuple[str, ...] = ()  # keys; unknown ones are ignored
    saved: tuple[SavedValue, ...] = ()  # in place of earlier values of the same names
    entries: tuple[HistoryEntry, ...] = ()  # appended to the history, in this order

    @property
    def changes_configurations(self) -> bool:
        """Whether the commit adds, changes or removes maintenance configurations or their assignments."""
        changed = (self.configurations, self.removed_configurations, self.assignments, self.removed_assignments)
        return any(changed)


def scope_commit(old: Scope | None, new: Scope) -> Commit:
    """Return the commit that changes the stored scope from `old` (None: it did not exist) to `new`.

    It wakes the gates of all events of `new` that are scheduled or over. VMs and events that only `old` has stay
    stored. Hosts in `destinations` are left to the caller.
    """
    known_vms = {vm.key: vm for vm in old.vms} if old and old.vms is not new.vms else {}
    known_events = {event.id: event for event in old.events} if old else {}
    gates = {e.gate_id for e in new.events if e.gate_id and e.status is not EventState.STARTED}
    return Commit(
        scopes=(new,),
        vms=() if old and old.vms is new.vms else tuple(vm for vm in new.vms if known_vms.get(vm.key) != vm),
        events=tuple(event for event in new.events if known_events.get(event.id) != event),
        wake_gates=tuple(sorted(gates)),
        entries=new.new_entries,
    )


def new_destinations(old: Scope | None, changed: Sequence[Event]) -> set[str]:
    """Return the hosts (names) to which these changed events of a scope bring VMs, or begin to move them.

    An event without acts in `old` has just started, so all its unfinished moves begin; of any other one, the moves that
    have succeeded since `old` count.
    """
    moving = [event for event in changed if any(act.to_host for act in event.acts)]
    if not moving:
        return set()
    begun = {event.id: event for event in old.events if event.acts} if old else {}
    acts = (_arrivals(begun[e.id], e) if e.id in begun else e.unfinished_acts for e in moving)
    return {act.to_host for of_event in acts for act in of_event if act.to_host}


def new_hosts_of_vms(old: Scope | None, changed: Sequence[Vm]) -> set[str]:
    """Return the hosts (names) on which these changed VMs of a scope are now, and were not in `old`."""
    before = {vm.key: vm.host for vm in old.vms} if old and changed else {}
    return {vm.host for vm in changed if vm.host and before.get(vm.key, vm.host) != vm.host}


def _arrivals(before: Event, after: Event) -> tuple[Act, ...]:
    unfinished = {act.id for act in before.unfinished_acts}
    return tuple(act for act in after.acts if act.id in unfinished and act.outcome is not None and act.outcome.ok)


def merge_commits(*commits: Commit) -> Commit:
    """Return one commit with the contents of all `commits`, in their order; duplicates stay."""
    fields = {name: tuple(x for c in commits for x in getattr(c, name)) for name in Commit.__struct_fields__}
    return Commit(**fields)
