"""In-memory index for comparing the fleet with its hosts: VMs, acts in progress, last answers.

One counter orders commits and observations, so that an answer that is older than the last change of a VM is not used
for it: the VM may have been moved by an act since the host looked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from forewarn.core.event import Event, EventState
from forewarn.core.fleet import LastSeen, PowerState, Vm, VmCondition
from forewarn.core.observation import HostObservation, ObservedMachine
from forewarn.core.unannounced import VmReports
from forewarn.store.interface import AppliedCommit, Store


class ObservedVm(NamedTuple):
    """The facts about a VM that are compared with its hosts, and where it is stored."""

    key: str  # `subscription id/resource group/name` in lower case
    scope_id: str  # the id of its scope
    name: str  # by which hosts list it
    host: str  # "": none
    power: PowerState  # as the fleet has it
    seen: LastSeen | None  # what its hosts last reported; None: nothing yet


class _HostAnswer(msgspec.Struct, frozen=True, kw_only=True):
    asked: int
    machines: dict[str, ObservedMachine]
    acting_on: frozenset[str]


class ObservedFleet:
    """Knows the VMs of the fleet and what their hosts answered last, in memory, to compare the two.

    A host of the fleet that is not observed counts as silent. `on_act_ended` is called with the host of a VM when an
    act on it has ended.
    """

    def __init__(self, store: Store, on_act_ended: Callable[[str], None] = lambda host: None) -> None:
        self.on_act_ended = on_act_ended
        self._counter = 0
        self._vms: dict[str, ObservedVm] = {}  # by key
        self._changed: dict[str, int] = {}  # by key: when a commit last concerned the VM
        self._acts: dict[str, set[str]] = {}  # by key: ids of unfinished acts
        self._keys_by_name: dict[str, set[str]] = {}
        self._keys_by_host: dict[str, set[str]] = {}
        self._answers: dict[str, _HostAnswer] = {}  # by host, without hosts that did not answer
        self._asked: dict[str, int] = {}  # by host: when it was asked for the last answer, or for none, that is known
        self._listing_hosts: dict[str, set[str]] = {}  # by the VM's name: the hosts whose last answer lists it
        self._acting_on: frozenset[str] = frozenset()  # keys of VMs that any answer says are acted on
        self._all_asked: int | None = None  # when the host was asked that was asked first; 0: one is silent; a cache
        self._hosts = {host.name for host in store.hosts()}
        for vm in store.vms():
            self._track_vm(vm)
        for event in store.events(statuses=[EventState.STARTED]):
            self._track_event(event)

    def tick(self) -> int:
        """Add one to the counter that puts commits and observations in order, and return its new value."""
        self._counter += 1
        return self._counter

    def on_commit(self, applied: AppliedCommit) -> None:
        """Update the VMs, hosts and acts that are known here with a commit. Called for every commit, in order."""
        commit = applied.commit
        for host in commit.hosts:
            self._hosts.add(host.name)
        for host in commit.removed_hosts:
            self._hosts.discard(host.name)
            self.set_answer(host.name, None, asked=self.tick())
            del self._asked[host.name]
        if commit.hosts or commit.removed_hosts:
            self._all_asked = None
        for vm in commit.vms:
            self._track_vm(vm)
        for event in commit.events:
            self._track_event(event)

    def _track_vm(self, vm: Vm) -> None:
        key = vm.key
        if (old := self._vms.pop(key, None)) is not None:
            _discard(self._keys_by_name, old.name, key)
            _discard(self._keys_by_host, old.host, key)
        if vm.removed_at is not None:
            self._changed.pop(key, None)
            return
        known = ObservedVm(key=key, scope_id=vm.scope_id, name=vm.name, host=vm.host, power=vm.power, seen=vm.seen)
        # Answers to questions before this say nothing about where the VM is now.
        if old is None or (old.host, old.power) != (known.host, known.power):
            self._changed[key] = self.tick()
        self._vms[key] = known
        self._keys_by_name.setdefault(vm.name, set()).add(key)
        self._keys_by_host.setdefault(vm.host, set()).add(key)

    def _track_event(self, event: Event) -> None:
        for act in event.acts:
            if (vm := self._vms.get(act.vm)) is None:
                _discard(self._acts, act.vm, act.id)
            elif act.outcome is None and event.status is EventState.STARTED:
                self._changed[act.vm] = self.tick()
                self._acts.setdefault(act.vm, set()).add(act.id)
            elif act.id in self._acts.get(act.vm, ()):
                self._changed[act.vm] = self.tick()
                _discard(self._acts, act.vm, act.id)
                # Its host is asked soon: what the act was to do should be there.
                self.on_act_ended(vm.host)

    def vm(self, key: str) -> ObservedVm | None:
        return self._vms.get(key)

    def set_answer(self, host: str, answer: HostObservation | None, *, asked: int) -> set[str]:
        """Keep the last answer of a host; return the keys of the VMs that it may concern.

        `asked` is the number (see `tick`) at which the host was asked. An answer that was overtaken by one to a later
        question is dropped.
        """
        # A later question has been answered already.
        if asked < self._asked.get(host, 0):
            return set()
        self._asked[host] = asked
        old = self._answers.pop(host, None)
        for name in old.machines if old is not None else ():
            _discard(self._listing_hosts, name, host)
        if answer is not None and host in self._hosts:
            machines = {name: machine for name, machine in answer.machines.items() if name in self._keys_by_name}
            self._answers[host] = _HostAnswer(asked=asked, machines=machines, acting_on=answer.acting_on)
            for name in machines:
                self._listing_hosts.setdefault(name, set()).add(host)
        self._all_asked = None
        self._acting_on = frozenset().union(*(each.acting_on for each in self._answers.values()))
        new = self._answers.get(host)
        names = {*(old.machines if old is not None else ()), *(new.machines if new is not None else ())}
        listed = (key for name in names for key in self._keys_by_name.get(name, ()))
        return {*self._keys_by_host.get(host, ()), *listed}

    def reports(self, vm: ObservedVm) -> VmReports | None:
        """Return what hosts report about a VM; None while an act on it is in progress."""
        changed = self._changed.get(vm.key, 0)
        # What an act does in the middle must not be taken for the work of somebody else.
        if vm.key in self._acts or self._is_acted_on(vm, changed):
            return None
        is_unique = len(self._keys_by_name[vm.name]) == 1
        found = {}
        for host in self._listing_hosts.get(vm.name, ()):
            # Hosts know VMs by name: with two of one name, only its own host can mean this one.
            if self._answers[host].asked > changed and (is_unique or host == vm.host):
                found[host] = self._answers[host].machines[vm.name]
        own = self._answers.get(vm.host)
        return VmReports(
            found=found,
            own_host_answered=not vm.host or (own is not None and own.asked > changed),
            all_hosts_answered=is_unique and self._when_all_asked() > changed,
        )

    def _is_acted_on(self, vm: ObservedVm, changed: int) -> bool:
        if vm.key not in self._acting_on:
            return False
        return any(vm.key in answer.acting_on and answer.asked > changed for answer in self._answers.values())

    def answered_after(self, vm: ObservedVm, number: int, *, all_hosts: bool) -> bool:
        """Return whether the last answers of the VM's own host and those that list it are newer than `number`."""
        if all_hosts:
            return self._when_all_asked() > number
        concerned = {vm.host, *self._listing_hosts.get(vm.name, ())} & self._answers.keys()
        return all(self._answers[host].asked > number for host in concerned)

    def _when_all_asked(self) -> int:
        """Return the number after which every host of the fleet was asked and has answered; 0: one is silent."""
        if self._all_asked is None:
            is_any_silent = not self._hosts <= self._answers.keys()
            self._all_asked = 0 if is_any_silent else min((a.asked for a in self._answers.values()), default=0)
        return self._all_asked

    def hosts_listing(self, vm: ObservedVm) -> frozenset[str]:
        """Return the names of the VM's own host, if it has one, and of the hosts whose last answer lists it."""
        return frozenset({vm.host, *self._listing_hosts.get(vm.name, ())} - {""})

    def duplicate_count(self) -> int:
        """Return how many present VMs were last found active on several hosts at once."""
        seen = (vm.seen for vm in self._vms.values())
        return sum(1 for last in seen if last is not None and last.condition is VmCondition.DUPLICATE)


def _discard(sets: dict[str, set[str]], name: str, value: str) -> None:
    if (values := sets.get(name)) is not None:
        values.discard(value)
        if not values:
            del sets[name]
