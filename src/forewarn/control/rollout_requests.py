"""Use cases for rollouts: start, preview, pause, resume and abort them."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from forewarn.control.health_probes import HealthProber
from forewarn.control.requests import new_request, requested_entry
from forewarn.control.rollout_vms import checked_rollout_vms
from forewarn.control.scope_transactions import ScopeTransactions, retry_on_conflict
from forewarn.core.cause import CAUSE_RULES
from forewarn.core.commit import Commit
from forewarn.core.fleet import Host
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
from forewarn.core.scope import scope_title
from forewarn.core.waves import rollout_target_text
from forewarn.errors import NotFound, Refused, Remedy
from forewarn.hypervisor.verb_support import VerbSupport

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
    """Accepts requests of users for rollouts. `RolloutService` carries them out.

    A change is durable when its method returns. `new_id` returns a new GUID at each call; `find_host` returns the host
    with a name, ignoring letter case, or raises NotFound; `verbs` says what the hypervisor can do, and `prober` which
    health checks can be used. `who` is the caller's name. All changes raise Unavailable if the store cannot be written.
    """

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
        """Commit a new rollout and its history entry, durably, and return its request.

        The reconciler publishes its events, wave by wave. The letter case of host names is ignored. `notice_s` is in
        seconds of lab time; 0 means the minimum, or no notice with `short_notice`. Raises Rejected for a notice below
        the minimum without `short_notice`, for negative numbers, if no maintenance window follows the notice, for
        health checks that cannot be used, and unless the rollout has exactly one target; InvalidRollout, a Rejected,
        for wrong waves and a tag or location without VMs; NotFound for an unknown host or scope; Refused if the
        hypervisor cannot do it, or a VM must move and no host can take it; Conflict if the id of the `key` is used; or
        Unavailable. A `key` gives the request its id; the caller has already checked whether a request with it exists
        (`RequestKeys`).
        """
        request = self.plan(rollout, who=who, notice_s=notice_s, short_notice=short_notice)
        request = with_request_key(request, key)
        await self._store.commit(Commit(requests=(request,), entries=(requested_entry(request),)))
        return request

    def plan(
        self, rollout: Rollout, *, who: str, notice_s: float = 0, short_notice: bool = False
    ) -> MaintenanceRequest:
        """Return the request that `start` would commit with these arguments; commits nothing.

        It has a new id, the notice that VMs will get (in lab time), and host names as the fleet spells them. Raises
        Rejected for too short a notice without `short_notice`, for negative numbers, if no maintenance window follows,
        for health checks that cannot be used, and unless the rollout has exactly one target; InvalidRollout, a
        Rejected, for wrong waves and a tag or location without VMs; NotFound for an unknown host or scope; Refused if
        the hypervisor cannot do it, or a VM must move and no host can take it.
        """
        rules = CAUSE_RULES[rollout.cause]
        self._verbs.require(rules.verb)
        notice_s = allowed_notice(rules, rules.minimum_notice_s, notice_s=notice_s, short_notice=short_notice)
        rollout = replace(rollout, checks=self._prober.require_usable(rollout.checks))
        rollout = self._with_declared_host_names(rollout)
        scope = self._transactions.load(rollout.scope_id) if rollout.scope_id else None
        vms = checked_rollout_vms(self._store, rollout)
        if rules.moves_vm:
            for vm in vms:
                require_destination(vm, self._transactions.placement.hosts())
        now = self._transactions.clock.now()
        names = [scope_title(scope)] if scope else list(rollout.hosts) or [rollout_target_text(rollout)]
        request = new_request(self._new_id(), RequestedOperation.ROLLOUT, who, now, names, notice_s, short_notice)
        require_usable_calendar(rollout, request.at, notice_s)
        return replace(request, rollout=rollout)

    async def change_state(self, request_id: str, progress: RolloutState, *, who: str) -> MaintenanceRequest:
        """Pause, resume or abort a rollout, durably, and return its request in the new state.

        `progress` is the state to change to: PAUSED (it publishes nothing more; its events stay), RUNNING (measurements
        from before no longer count) or ABORTED (the reconciler also withdraws events that have not started).
        `request_id` is the full id, ignoring letter case. Raises KeyError for another `progress`, Refused if the
        rollout is in that state already or has ended, NotFound if there is no such rollout, Conflict if it keeps
        changing, or Unavailable. Writes a history entry.
        """

        async def attempt() -> MaintenanceRequest:
            request = self.check_state_change(request_id, progress)
            assert request.rollout is not None
            what, verb = _STATE_CHANGE_ENTRIES[progress]
            why = f"{who} ended it" if progress is RolloutState.ABORTED else ""
            rollout = replace(request.rollout, progress=progress, why=why, unclear="")
            now = self._transactions.clock.now()
            if progress is RolloutState.RUNNING:
                rollout = replace(rollout, check_round=rollout.check_round + 1, resumed_at=now)
            changed = replace(request, rollout=rollout)
            text = f"rollout {request.id} {verb} by {who}"
            entry = HistoryEntry(at=now, what=what, who=who, text=text, request_id=request.id)
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
        """Return the rollout's request by its full id, ignoring letter case and blanks around it.

        The rollout may be open or closed. Raises NotFound if there is none, or if the request is not a rollout.
        """
        request = self._store.request(request_id.strip().lower())
        if request is None or request.rollout is None:
            raise NotFound(f"rollout {request_id!r} does not exist", Remedy.LIST_ROLLOUTS)
        return request

    def _with_declared_host_names(self, rollout: Rollout) -> Rollout:
        """Return the rollout with its hosts spelled as declared, each once; NotFound for an unknown host."""
        names = dict.fromkeys(self._find_host(name).name for name in rollout.hosts)
        return replace(rollout, hosts=tuple(names))


def _state_change_error(state: RolloutState, wanted: RolloutState) -> str:
    """Return the end of a sentence: why a rollout in this state cannot change to `wanted`, and what to do."""
    if state in (RolloutState.RUNNING, RolloutState.PAUSED):
        return f"{state} already: {'pause' if state is RolloutState.RUNNING else 'resume'} or abort it"
    return f"{state}: it has ended and cannot be {_STATE_CHANGE_ENTRIES[wanted][1]}; start another"
