"""Records what changes about VMs and hosts without an act: crashes, moves by hand, silent hosts.

Level-triggered: each host is observed again and again, and compared with what the store says. Events of hosts are only
a reason to observe one at once, so nothing is lost while the service or a connection is down. Never acts on a VM.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection
from contextlib import aclosing

import msgspec
from msgspec.structs import replace

from forewarn.base.duration import duration_text
from forewarn.control.observed_fleet import ObservedFleet, ObservedVm
from forewarn.control.scope_transactions import ScopeTransactions, group_by_scope, retry_on_conflict
from forewarn.core.commit import Commit
from forewarn.core.decision import DecisionContext
from forewarn.core.event import EventState
from forewarn.core.fleet import Host, Vm
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.observation import HostObservation
from forewarn.core.scope import Scope
from forewarn.core.unannounced import UnannouncedKind, VmFinding, VmReports, compare_vm
from forewarn.errors import ForewarnError, NotFound, full_message
from forewarn.machines.interface import Hypervisor, ObservingHypervisor

log = logging.getLogger(__name__)
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
