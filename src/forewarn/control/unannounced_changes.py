"""Records what changes about VMs and hosts without an act: crashes, moves by hand, silent hosts.

Level-triggered: each host is observed again and again, and compared with what the store says. Events of hosts are only
a reason to observe one at once, so nothing is lost while the service or a connection is down. Never acts on a VM.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import aclosing
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from forewarn.base.duration import duration_text
from forewarn.control.scope_transactions import ScopeTransactions, group_by_scope, retry_on_conflict
from forewarn.core.commit import Commit
from forewarn.core.decision import DecisionContext
from forewarn.core.event import Event, EventState
from forewarn.core.fleet import Host, LastSeen, PowerState, Vm, VmCondition
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.scope import Scope
from forewarn.core.unannounced import (
    HostObservation,
    ObservedMachine,
    UnannouncedKind,
    VmFinding,
    VmReports,
    compare_vm,
)
from forewarn.errors import ForewarnError, NotFound, full_message
from forewarn.machines.interface import Hypervisor, ObservingHypervisor
from forewarn.store.interface import AppliedCommit, Store

log = logging.getLogger(__name__)


# In-memory index for comparing the fleet with its hosts: VMs, acts in progress, last answers.
#
# One counter orders commits and observations, so that an answer that is older than the last change of a VM is not used
# for it: the VM may have been moved by an act since the host looked.


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


_MIN_INTERVAL_S = 0.5  # real time between two observations of a host, however many changes it reports
_NEW_HOSTS_S = 1.0  # real time between looks for hosts that were not observed so far
_SECOND_LOOK_S = 2.0  # real time until a host is observed again because of a finding that must be confirmed
_MAX_CONCURRENT_SCOPES = 256  # transactions that the store can commit together


class _Suspicion(msgspec.Struct, frozen=True, kw_only=True):
    """A finding from the answers of several hosts, to be recorded if later answers show it again."""

    kind: UnannouncedKind | None
    host: str
    raised: int  # see `ObservedFleet.tick`


class UnannouncedChangeService:
    """Compares the fleet with what hosts report, and records differences that no act explains."""

    def __init__(self, *, transactions: ScopeTransactions, hypervisor: Hypervisor) -> None:
        self._transactions = transactions
        self._store = transactions.store
        self._hypervisor = hypervisor if isinstance(hypervisor, ObservingHypervisor) else None
        self.fleet = ObservedFleet(transactions.store, self._wake) if self._hypervisor is not None else None
        self.counts: Counter[UnannouncedKind] = Counter()
        self._suspicions: dict[str, _Suspicion] = {}  # by VM key
        self._unanswered: Counter[str] = Counter()  # by host: how often in a row it did not answer
        self._wake_events: dict[str, asyncio.Event] = {}  # by host, while `run` runs
        self._lock = asyncio.Lock()  # one answer at a time is compared

    @property
    def is_observing(self) -> bool:
        """Whether the hypervisor observes hosts, and the settings do not switch that off."""
        return self._hypervisor is not None and self._hypervisor.observe_interval_s > 0

    def duplicate_count(self) -> int:
        """Return how many VMs were last found active on several hosts at once."""
        return self.fleet.duplicate_count() if self.fleet is not None else 0

    async def run(self) -> None:
        """Observe all hosts until cancelled: at the interval of the hypervisor, and when one reports a change."""
        await self._forget_unobserved_hosts()
        if self._hypervisor is None or not self.is_observing:
            return
        self._wake_events = {}
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_changes())
            while True:  # host nodes may join later
                for name in self._hypervisor.observed_hosts:
                    if (host := self._fleet_name(name)) not in self._wake_events:
                        self._wake_events[host] = asyncio.Event()
                        group.create_task(self._observe_forever(name))
                await asyncio.sleep(_NEW_HOSTS_S)

    async def observe_host(self, name: str) -> None:
        """Observe one host, by its name in the settings, and record how its VMs differ from the fleet."""
        # That a host does not answer is recorded the second time in a row; findings that need several hosts when these
        # have been observed again.
        if self._hypervisor is None or self.fleet is None:
            return
        host = self._transactions.placement.host(self._fleet_name(name))
        if host is None:
            return
        asked = self.fleet.tick()
        answer = await self._hypervisor.observe(name)
        async with self._lock:
            await self._record_reachability(host.name, answer)
            concerned = self.fleet.set_answer(host.name, None if answer.problem else answer, asked=asked)
            await self._compare(self.fleet, concerned | self._suspicions.keys())

    async def _observe_forever(self, name: str) -> None:
        assert self._hypervisor is not None
        host = self._fleet_name(name)
        wake_event, interval_s = self._wake_events[host], self._hypervisor.observe_interval_s
        while True:
            wake_event.clear()
            try:
                await self.observe_host(name)
            except ForewarnError as error:
                log.warning("host %s could not be compared with the fleet, trying again: %s", host, full_message(error))
            except Exception:
                log.exception("the comparison of host %s with the fleet failed, trying again", host)
            await asyncio.sleep(min(_MIN_INTERVAL_S, interval_s))
            try:
                async with asyncio.timeout(max(0.0, interval_s - _MIN_INTERVAL_S)):
                    await wake_event.wait()
            except TimeoutError:
                pass

    async def _follow_changes(self) -> None:
        assert self._hypervisor is not None
        while True:
            try:
                async with aclosing(self._hypervisor.changed_hosts()) as changed:
                    async for name in changed:
                        self._wake(self._fleet_name(name))
            except Exception:
                log.exception("changes that hosts report cannot be followed, trying again")
            await asyncio.sleep(self._hypervisor.observe_interval_s)

    def _wake(self, host: str) -> None:
        if (wake_event := self._wake_events.get(host)) is not None:
            wake_event.set()

    def _wake_later(self, hosts: Collection[str]) -> None:
        for host in self._wake_events.keys() & hosts:
            asyncio.get_running_loop().call_later(_SECOND_LOOK_S, self._wake, host)

    def _fleet_name(self, name: str) -> str:
        placement = self._transactions.placement
        if placement.host(name) is not None:
            return name
        folded = name.casefold()
        return next((host.name for host in placement.hosts() if host.id == folded), name)

    async def _record_reachability(self, name: str, answer: HostObservation) -> None:
        """Record that a host does not answer, for the second time in a row, or answers again."""
        self._unanswered[name] = self._unanswered[name] + 1 if answer.problem else 0
        host = self._transactions.placement.host(name)
        if host is None or (host.unreachable_since is None) == (not answer.problem):
            return
        if not answer.problem:
            await self._set_reachability(name, None, UnannouncedKind.HOST_FOUND)
        elif self._unanswered[name] > 1:
            await self._set_reachability(name, answer.problem, UnannouncedKind.HOST_LOST)
        else:
            self._wake_later([name])

    async def _set_reachability(self, name: str, problem: str | None, kind: UnannouncedKind) -> None:
        now = self._transactions.clock.now()

        async def attempt() -> bool:
            host = self._transactions.placement.host(name)
            if host is None or (host.unreachable_since is None) == (problem is None):
                return False
            entry = _host_entry(host, problem, now)
            changed = replace(host, unreachable_since=now if problem is not None else None)
            await self._store.commit(Commit(hosts=(changed,), entries=(entry,)))
            log.warning("%s", entry.text)
            return True

        if await retry_on_conflict(attempt, f"host {name!r}"):
            self.counts[kind] += 1

    async def _forget_unobserved_hosts(self) -> None:
        """Hosts that are no longer observed count as reachable: nobody would learn that they answer again."""
        observed = {*self._hypervisor.observed_hosts} if self._hypervisor is not None and self.is_observing else set()
        names = {self._fleet_name(name) for name in observed}
        for host in self._transactions.placement.hosts():
            if host.unreachable_since is not None and host.name not in names:
                try:
                    await self._store.commit(Commit(hosts=(replace(host, unreachable_since=None),)))
                except ForewarnError as error:
                    log.warning("host %s stays marked as unreachable: %s", host.name, full_message(error))

    async def _compare(self, fleet: ObservedFleet, keys: Collection[str]) -> None:
        differing = [vm for vm in map(fleet.vm, sorted(keys)) if vm is not None and self._has_findings(fleet, vm)]
        grouped = list(group_by_scope(differing, lambda vm: vm.scope_id).items())
        for at in range(0, len(grouped), _MAX_CONCURRENT_SCOPES):
            batch = grouped[at : at + _MAX_CONCURRENT_SCOPES]
            results = await asyncio.gather(
                *(self._record(fleet, scope_id, {vm.key for vm in vms}) for scope_id, vms in batch),
                return_exceptions=True,
            )
            for result in results:
                if isinstance(result, BaseException):
                    raise result

    def _has_findings(self, fleet: ObservedFleet, vm: ObservedVm) -> bool:
        reports = fleet.reports(vm)
        findings = compare_vm(vm, reports) if reports is not None else ()
        if not findings:
            self._suspicions.pop(vm.key, None)
            return False
        first = findings[0]
        if not first.compares_hosts:
            return True
        suspicion = self._suspicions.get(vm.key)
        if suspicion is None or (suspicion.kind, suspicion.host) != (first.kind, first.vm.host):
            self._suspicions[vm.key] = _Suspicion(kind=first.kind, host=first.vm.host, raised=fleet.tick())
        elif fleet.answered_after(vm, suspicion.raised, all_hosts=first.needs_all_hosts):
            del self._suspicions[vm.key]
            return True
        self._wake_later(self._wake_events if first.needs_all_hosts else fleet.hosts_listing(vm))
        return False

    async def _record(self, fleet: ObservedFleet, scope_id: str, keys: Collection[str]) -> None:
        applied: list[VmFinding] = []

        def decision(scope: Scope, context: DecisionContext) -> Scope:
            applied.clear()
            for vm in scope.present_vms:
                reports = _current_reports(fleet, scope, vm) if vm.key in keys else None
                if reports is not None:
                    scope = _apply(scope, vm, reports, applied, context.now)
            return scope

        try:
            await self._transactions.run(scope_id, decision)
        except NotFound:
            return  # the scope was removed meanwhile
        for finding in applied:
            self._report(finding)

    def _report(self, finding: VmFinding) -> None:
        if finding.kind is None:
            return
        self.counts[finding.kind] += 1
        level = logging.ERROR if finding.kind is UnannouncedKind.DUPLICATED else logging.WARNING
        log.log(level, "%s", finding.text)


def _apply(scope: Scope, vm: Vm, reports: VmReports, applied: list[VmFinding], now: float) -> Scope:
    findings = compare_vm(vm, reports)
    if not findings:
        return scope
    facts = findings[-1].vm
    applied += findings
    entries = [entry for finding in findings if (entry := finding.entry(now)) is not None]
    changed = replace(vm, host=facts.host, power=facts.power, seen=facts.seen)
    return scope.with_vm(changed).with_entries(*entries)


def _current_reports(fleet: ObservedFleet, scope: Scope, vm: Vm) -> VmReports | None:
    """Return what hosts report about a VM of a committed scope; None during an act, or if it has changed."""
    started = scope.live_events(EventState.STARTED)
    if any(act.vm == vm.key for event in started for act in event.unfinished_acts):
        return None
    known = fleet.vm(vm.key)
    if known is None or (known.host, known.power, known.seen) != (vm.host, vm.power, vm.seen):
        return None
    return fleet.reports(known)


def _host_entry(host: Host, problem: str | None, now: float) -> HistoryEntry:
    if problem is not None:
        text = f"host {host.name} does not answer, and its VMs may be running: {problem}"
    else:
        text = f"host {host.name} answers again, after {duration_text(now - (host.unreachable_since or now))}"
    return HistoryEntry(at=now, kind=EntryKind.UNANNOUNCED, text=text, host=host.name)
