"""Use cases for rollouts: start, preview, pause, resume and abort them."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from forewarn.control.health_probes import HealthProber
from forewarn.control.requests import new_request, requested_entry
from forewarn.control.scope_transactions import ScopeTransactions, retry_on_conflict
from forewarn.core.cause import CAUSE_RULES
from forewarn.core.commit import Commit
from forewarn.core.fleet import Host, Vm
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.placement import require_destination
from forewarn.core.planning import allowed_notice
from forewarn.core.request import (
    MaintenanceRequest,
    RequestedOperation,
    RequestKey,
    Rollout,
    RolloutState,
    with_request_key,
)
from forewarn.core.rollout import require_usable_calendar
from forewarn.core.scope import scope_name
from forewarn.core.waves import covers_vm, require_target, require_valid_waves, rollout_target_text
from forewarn.errors import NotFound, Refused, Rejected, Remedy
from forewarn.machines.interface import VerbSupport
from forewarn.store.interface import Store

_MAX_HOSTS_READ_ALONE = 100


def rollout_vms(store: Store, rollout: Rollout) -> list[Vm]:
    """Return the present VMs that a rollout covers now, even those whose maintenance is done; on hosts, by host."""
    if rollout.scope_id:
        return store.vms(scope_id=rollout.scope_id)
    if len(rollout.hosts) > _MAX_HOSTS_READ_ALONE and len(rollout.hosts) * 4 > store.counts().hosts:
        by_host: dict[str, list[Vm]] = {}  # one read of the fleet is faster than one for each of most of its hosts
        for vm in store.vms():
            by_host.setdefault(vm.host, []).append(vm)
        return [vm for host in rollout.hosts for vm in by_host.get(host, ())]
    if rollout.hosts:
        return [vm for host in rollout.hosts for vm in store.vms(host=host)]
    return [vm for vm in store.vms() if covers_vm(rollout, vm)]


def checked_rollout_vms(store: Store, rollout: Rollout) -> list[Vm]:
    """Return the present VMs that a new rollout covers, after checking its target and waves."""
    if rollout.max_failures < 0:
        raise Rejected(f"max failures {rollout.max_failures} is negative: give 0 (never stop) or more")
    vms = rollout_vms(store, rollout)
    require_target(rollout, vms)
    require_valid_waves(rollout, vms)
    return vms


_STATE_CHANGE_ENTRIES = {
    RolloutState.PAUSED: (EntryKind.PAUSED, "paused"),
    RolloutState.RUNNING: (EntryKind.RESUMED, "resumed"),
    RolloutState.ABORTED: (EntryKind.STOPPED, "aborted"),
}
_STATES_BEFORE = {  # the states from which a user may change to each state
    RolloutState.PAUSED: {RolloutState.RUNNING},
    RolloutState.RUNNING: {RolloutState.PAUSED},
    RolloutState.ABORTED: {RolloutState.RUNNING, RolloutState.PAUSED},
}


class RolloutRequestService:
    """Accepts requests of users for rollouts. `RolloutService` carries them out."""

    def __init__(
        self,
        *,
        transactions: ScopeTransactions,
        new_id: Callable[[], str],
        find_host: Callable[[str], Host],
        verbs: VerbSupport,
        prober: HealthProber,
    ) -> None:
        self._transactions = transactions
        self._store = transactions.store
        self._new_id = new_id
        self._find_host = find_host
        self._verbs = verbs
        self._prober = prober

    async def start(
        self,
        rollout: Rollout,
        *,
        who: str,
        notice_s: float = 0,
        short_notice: bool = False,
        key: RequestKey | None = None,
    ) -> MaintenanceRequest:
        """Commit a new rollout and its history entry, durably, and return its request."""
        request = self.plan(rollout, who=who, notice_s=notice_s, short_notice=short_notice)
        request = with_request_key(request, key)
        await self._store.commit(Commit(requests=(request,), entries=(requested_entry(request),)))
        return request

    def plan(
        self, rollout: Rollout, *, who: str, notice_s: float = 0, short_notice: bool = False
    ) -> MaintenanceRequest:
        """Return the request that `start` would commit with these arguments; commits nothing."""
        rules = CAUSE_RULES[rollout.cause]
        self._verbs.require(rules.verb)
        notice_s = allowed_notice(rules, rules.minimum_notice_s, notice_s=notice_s, short_notice=short_notice)
        rollout = replace(rollout, checks=self._prober.require_usable(rollout.checks))
        rollout = self._with_declared_host_names(rollout)
        scope = self._transactions.load(rollout.scope_id) if rollout.scope_id else None
        vms = checked_rollout_vms(self._store, rollout)
        if rules.verb.rules.moves:
            for vm in vms:
                require_destination(vm, self._transactions.placement.hosts())
        now = self._transactions.clock.now()
        names = [scope_name(scope)] if scope else list(rollout.hosts) or [rollout_target_text(rollout)]
        request = new_request(self._new_id(), RequestedOperation.ROLLOUT, who, now, names, notice_s, short_notice)
        require_usable_calendar(rollout, request.requested_at, notice_s)
        return replace(request, rollout=rollout)

    async def change_state(self, request_id: str, progress: RolloutState, *, who: str) -> MaintenanceRequest:
        """Pause, resume or abort a rollout, durably, and return its request in the new state.

        A paused rollout publishes nothing more, and its events stay. After a resume, measurements from before no longer
        count. After an abort, the reconciler withdraws events that have not started.
        """

        async def attempt() -> MaintenanceRequest:
            request = self.check_state_change(request_id, progress)
            assert request.rollout is not None
            what, verb = _STATE_CHANGE_ENTRIES[progress]
            why = f"{who} ended it" if progress is RolloutState.ABORTED else ""
            rollout = replace(request.rollout, progress=progress, reason=why, unclear="")
            now = self._transactions.clock.now()
            if progress is RolloutState.RUNNING:
                rollout = replace(rollout, check_round=rollout.check_round + 1, resumed_at=now)
            changed = replace(request, rollout=rollout)
            text = f"rollout {request.id} {verb} by {who}"
            entry = HistoryEntry(at=now, kind=what, actor=who, text=text, request_id=request.id)
            await self._store.commit(Commit(requests=(changed,), entries=(entry,)))
            return changed

        # Publications before it are stored, later ones see it. Retries keep the lock: else each would wait for a batch.
        async with self._transactions.publication_lock:
            return await retry_on_conflict(attempt, f"rollout {request_id}")

    def check_state_change(self, request_id: str, progress: RolloutState) -> MaintenanceRequest:
        """Return the rollout's request if its state allows this change, which `change_state` makes."""
        request = self.find(request_id)
        assert request.rollout is not None
        state = request.rollout.progress
        if state not in _STATES_BEFORE[progress]:
            raise Refused(f"rollout {request.id} is {_state_change_error(state, progress)}")
        return request

    def find(self, request_id: str) -> MaintenanceRequest:
        """Return the rollout's request by its full id, ignoring letter case and blanks around it."""
        request = self._store.request(request_id.strip().lower())
        if request is None or request.rollout is None:
            raise NotFound(f"rollout {request_id!r} does not exist", Remedy.LIST_ROLLOUTS)
        return request

    def _with_declared_host_names(self, rollout: Rollout) -> Rollout:
        names = dict.fromkeys(self._find_host(name).name for name in rollout.hosts)
        return replace(rollout, hosts=tuple(names))


def _state_change_error(state: RolloutState, wanted: RolloutState) -> str:
    if state in (RolloutState.RUNNING, RolloutState.PAUSED):
        return f"{state} already: {'pause' if state is RolloutState.RUNNING else 'resume'} or abort it"
    return f"{state}: it has ended and cannot be {_STATE_CHANGE_ENTRIES[wanted][1]}; start another"
