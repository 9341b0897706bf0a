"""What must hold in every simulation, beyond the checks of single commits in `tests.properties.commit_checks`.

`HostChecker` follows where each VM is and which hosts have failed, and checks acts against that (spec §6.4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from forewarn.core.acts import can_act_on
from forewarn.core.cause import Cause, Verb
from forewarn.core.decision import EnablementMode, Policy
from forewarn.core.event import Act, Ending, Event, EventState
from forewarn.core.fleet import HostHealth, PowerState, Vm
from forewarn.core.history import EntryKind
from forewarn.core.placement import is_destination
from forewarn.core.request import RolloutState
from forewarn.machines.ledger import EffectLedger
from forewarn.protocol.document import Kind
from forewarn.store.interface import AppliedCommit, Store
from tests.simulation.guest import Report

LIVE = (EventState.SCHEDULED, EventState.STARTED)
ACTS_ON_LIVE_HOSTS = frozenset(
    {Verb.FREEZE, Verb.MIGRATE, Verb.REBOOT, Verb.POWER_OFF, Verb.START, Verb.REAPPLY, Verb.REIMAGE}
)
HOST_WORK = frozenset({Cause.HOST_UPDATE, Cause.LIVE_MIGRATION, Cause.PLATFORM_REBOOT, Cause.PREDICTED_FAILURE})


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that did not hold, and what happened."""

    rule: str
    text: str


class HostChecker:
    """Follows commits, and checks each act against the hosts (spec §6.4)."""

    def __init__(self, report: Report, ledger: Callable[[], EffectLedger], now: Callable[[], float]) -> None:
        self._report, self._ledger, self._now = report, ledger, now
        self._vms: dict[str, Vm] = {}
        self._failed_at: dict[str, float] = {}  # host → lab time at which that was stored, while it has failed
        self._started: set[str] = set()
        self._known_outcomes: set[str] = set()

    def follow(self, store: Store) -> None:
        """Check the commits of a new process; what earlier ones committed is known."""
        store.subscribe(self.on_commit)

    def on_commit(self, applied: AppliedCommit) -> None:
        """Check one commit, then remember it."""
        commit = applied.commit
        for event in commit.events:
            if event.started_at is not None and event.id not in self._started:
                self._started.add(event.id)
                self._check_start(event)
            for act in event.acts:
                if act.outcome is not None and act.id not in self._known_outcomes:
                    self._known_outcomes.add(act.id)
                    self._check_outcome(act)
        self._vms.update({vm.key: vm for vm in commit.vms})
        for host in commit.hosts:
            if host.health is not HostHealth.FAILED:
                self._failed_at.pop(host.name, None)
            else:
                self._failed_at.setdefault(host.name, self._now())
        for host in commit.removed_hosts:
            self._failed_at.pop(host.name, None)

    def on_perform(self, act: Act, now: float) -> None:
        """Check an act that the service begins now; a host that fails in the same instant does not count."""
        vm = self._vms.get(act.vm)
        if vm is None:
            return
        failed = {host for host, at in self._failed_at.items() if at < now}
        if act.verb in ACTS_ON_LIVE_HOSTS and vm.host in failed:
            self._report("§6.4 nothing is performed on a host that has failed", f"{act} on {vm.host}")
        if act.to_host in failed:
            self._report("§6.4 no VM moves to a host that has failed", f"{act}")
        if act.to_host and act.to_host == vm.host:
            self._report("§6.4 a VM moves to another host", f"{act}")
        if vm.removed_at is not None:
            self._report("§4.2 nothing is performed on a VM that is gone", f"{act}")
        elif vm.host and act.from_host != vm.host:
            self._report("§6.4 an act is performed where its VM is", f"{act}, but {vm.name} is on {vm.host}")
        if not can_act_on(vm, act.verb):
            self._report("§6.4 an act is performed only where the VM's power state allows it", f"{act}, {vm.power}")

    def _check_start(self, event: Event) -> None:
        if event.cause not in HOST_WORK or not event.host:
            return
        for act in event.acts:
            vm = self._vms.get(act.vm)
            if vm is not None and vm.host != event.host:
                self._report(
                    "§6.4 work on a host concerns only VMs that are on it",
                    f"{event.cause} of {act.name} because of {event.host}, but it is on {vm.host}",
                )

    def _check_outcome(self, act: Act) -> None:
        effect = self._ledger().find(act.id)
        failed_at = self._failed_at.get(act.from_host)
        if effect is None or failed_at is None or act.outcome is None or not act.outcome.ok:
            return
        if act.abrupt:
            return  # it takes the VM away from a host that had failed, and so needs nothing from it
        if effect.begun_at < failed_at < effect.ends_at:
            self._report(
                "§6.4 an act whose source host fails before its end fails", f"{act}, host failed at {failed_at}"
            )


def check_notice(event: Event, store: Store) -> str | None:
    """Return what is wrong with the notice of a new event, or None (spec §6.3)."""
    request = store.request(event.request_id)
    if not event.listed or event.cause is Cause.HOST_FAILED or event.approved_by == "policy" or event.faults:
        return None
    if request is None or request.short_notice or event.rules.kind is Kind.TERMINATE:
        return None
    notice_s = event.not_before - event.published_at
    return f"{event.cause} with {notice_s:g} s" if notice_s < event.rules.minimum_notice_s else None


def lost_requests(store: Store, accepted: dict[str, tuple[str, ...]]) -> Iterator[str]:
    """Yield the accepted requests that are gone, or some of whose VMs have neither event nor explanation."""
    for request_id, names in accepted.items():
        if store.request(request_id) is None:
            yield f"request {request_id}"
            continue
        listed = {name for event in store.events(request_id=request_id) for name in event.vms}
        listed |= {name for planned in store.planned(request_id=request_id) for name in planned.vms}
        listed |= {e.vm for e in store.history(request_id=request_id) if e.kind is EntryKind.SKIPPED}
        if missing := set(names) - listed:
            yield f"request {request_id} for {sorted(missing)}"


def unfinished_business(store: Store, ledger: EffectLedger) -> Iterator[tuple[str, str]]:
    """Yield each rule that does not hold although everything has had time to end, with what breaks it."""
    for event in store.events(statuses=LIVE):
        yield "every event ends", f"{event}"
    for planned in store.planned():
        yield "every planned event is applied", f"{planned}"
    for request in store.requests():
        if request.rollout is not None and request.rollout.progress is RolloutState.RUNNING:
            yield "every rollout ends", f"{request}"
    acts = {act.id: act for event in store.events() for act in event.acts}
    effects = ledger.effects()
    if ledger.repeated_effects or len({effect.act_id for effect in effects}) != len(effects):
        yield "an act has at most one effect", f"{effects}"
    ended = {effect.act_id for effect in effects if effect.ended}
    for effect in effects:
        if effect.act_id not in acts:
            yield "an effect belongs to an act", f"{effect}"
    for act in acts.values():
        if act.outcome is None:
            yield "every act has an outcome", f"{act}"
        elif act.outcome.ok and act.id not in ended:
            yield "an act that succeeded has had its effect", f"{act}"
    yield from _vms_on_failed_hosts(store)


def _vms_on_failed_hosts(store: Store) -> Iterator[tuple[str, str]]:
    """Spec §6.4: a VM stays on a failed host only if an act on it failed, or it has nowhere to go."""
    failed = {host.name for host in store.hosts() if host.health is HostHealth.FAILED}
    for vm in store.vms():
        if vm.host not in failed or vm.power is PowerState.DEALLOCATED:
            continue
        moves = [act for event in store.events() for act in event.failed_acts if act.vm == vm.key]
        if not moves and any(is_destination(host, vm) for host in store.hosts()):
            yield "§6.4 no VM stays on a failed host", f"{vm.name} on {vm.host}"


def idle_scopes(store: Store, policy: Policy, now: float) -> Iterator[str]:
    """Yield the scopes that are enabled although no VM polled for a day (spec §8.2)."""
    for scope in store.scopes():
        if policy.enablement is EnablementMode.ALWAYS or scope.enabled_at is None:
            continue
        if now >= max(scope.enabled_at, scope.last_request_at or 0) + policy.idle_s:
            yield scope.id


def withdrawn_without_reason(store: Store) -> Iterator[str]:
    """Yield events that ended without a start and do not say why."""
    for event in store.events(statuses=(EventState.OVER,)):
        if event.ending is Ending.WITHDRAWN and not event.reason:
            yield event.id
