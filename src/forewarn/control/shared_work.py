"""Finds the work of other rollouts that serves a rollout too (spec §13.6)."""

from __future__ import annotations

from collections.abc import Iterator

from forewarn.core.event import Event
from forewarn.core.fleet import Vm
from forewarn.core.request import MaintenanceRequest, Rollout
from forewarn.core.shared_work import NO_SHARED_WORK, SharedWork, may_share_work, shared_work
from forewarn.store.interface import Store

_MAX_REQUESTS_READ = 10_000  # the newest ones, of which rollouts are looked for at the start


class SharedWorkIndex:
    """Knows the rollouts, open or lately closed, whose work may also serve another open rollout."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rollouts: dict[str, MaintenanceRequest] = {}
        self._hosts: dict[str, frozenset[str]] = {}  # request id → names of its hosts
        for request in (*store.requests(limit=_MAX_REQUESTS_READ), *store.requests(open_only=True)):
            self.on_request(request)
        self._forget_old()

    def on_request(self, request: MaintenanceRequest) -> None:
        """Remember the newest state of a rollout's request; a request without a rollout is ignored."""
        if request.rollout is None:
            return
        if request.id not in self._hosts:
            self._hosts[request.id] = frozenset(request.rollout.hosts)
        self._rollouts[request.id] = request
        if request.rollout.closed and len(self._rollouts) > 1:
            self._forget_old()

    def _forget_old(self) -> None:
        oldest = min((request.requested_at for request in self._rollouts.values() if request.is_open), default=None)
        for request_id, request in list(self._rollouts.items()):
            rollout = request.rollout
            if rollout is not None and rollout.closed and (oldest is None or (rollout.closed_at or 0.0) < oldest):
                del self._rollouts[request_id], self._hosts[request_id]

    def work_for(
        self, request: MaintenanceRequest, rollout: Rollout, vms: list[Vm], own_events: list[Event]
    ) -> SharedWork:
        """Return what other rollouts do, or have done, to the VMs of a rollout in its place."""
        others = [other for other in self._rollouts.values() if may_share_work(request, other)]
        if not others:
            return NO_SHARED_WORK
        events = [event for other in others for event in self._store.events(request_id=other.id)]
        planned = [item for other in others for item in self._store.planned(request_id=other.id)]
        return shared_work(request, rollout, vms, own_events, events, planned)

    def others_on_host(self, event: Event) -> Iterator[str]:
        """Yield the ids of the open rollouts, without that of the event, that could share its work."""
        for request_id, request in self._rollouts.items():
            rollout, hosts = request.rollout, self._hosts[request_id]
            if rollout is None or request_id == event.request_id or not request.is_open:
                continue
            if rollout.cause is event.cause and (not hosts or event.host in hosts):
                yield request_id

    def open_peers(self, request: MaintenanceRequest) -> list[str]:
        """Return the ids of the other open rollouts that could share work with this one."""
        return [other.id for other in self._rollouts.values() if other.is_open and may_share_work(request, other)]
