"""The request context: one caller's view of the service, given to every handler.

It finds events, scopes, requests, rollouts and hosts by name or id prefix, and raises NotFound for what the caller
may not see.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from itertools import chain

from starlette.requests import Request as HttpRequest

from forewarn.base.wording import did_you_mean
from forewarn.control.control_plane import ControlPlane
from forewarn.control.directory import FleetDirectory
from forewarn.control.visibility import Visibility, VisibleDirectory
from forewarn.core.access import Principal, Right, role_granting
from forewarn.core.commit import Commit
from forewarn.core.event import Event, EventState
from forewarn.core.fleet import Host, Vm
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.request import MaintenanceRequest
from forewarn.core.resource_ids import ROOT_RESOURCE
from forewarn.core.scope import Scope
from forewarn.errors import Conflict, Forbidden, NotFound, Refused, Remedy, Unavailable
from forewarn.store.interface import Store
from forewarn.web.dependencies import Dependencies

log = logging.getLogger(__name__)
MIN_ID_PREFIX = 4  # characters of an event id that a caller must give
Reauthenticate = Callable[[], Awaitable[Principal]]  # authenticates the same caller again; raises Unauthenticated
_RECENT_LIMIT = 10_000  # an id prefix is searched among this many recent events or requests, and all live ones


class RequestContext:
    """One caller of one request: who they are, what they may do and see, and the service's dependencies.

    `directory` and `visibility` show only what this caller may see; `store` and `control` are not filtered. Finders
    (`find_…`) raise NotFound for what the caller may not see.
    """

    def __init__(
        self,
        dependencies: Dependencies,
        directory: FleetDirectory,
        principal: Principal,
        reauthenticate: Reauthenticate | None = None,
    ) -> None:
        self.dependencies = dependencies
        self._reauthenticate = reauthenticate
        self._set_principal(principal, directory)

    async def refresh(self) -> None:
        """Authenticate the caller again; a handler that waited calls it before it answers."""
        principal = self.principal if self._reauthenticate is None else await self._reauthenticate()
        self._set_principal(principal, self.directory.unfiltered)

    def _set_principal(self, principal: Principal, directory: FleetDirectory) -> None:
        self.principal = principal
        self.directory = VisibleDirectory(directory, principal)
        self.visibility = Visibility(self.store, directory, principal)

    @property
    def control(self) -> ControlPlane:
        """The service's control plane, with all its use cases. They check no rights: the handler does."""
        return self.dependencies.control

    @property
    def store(self) -> Store:
        """The store of the service, not filtered: handlers check what the caller may see."""
        return self.dependencies.control.store

    @property
    def caller_name(self) -> str:
        """The caller's name as history entries show it, such as `client ci` or `VM web-0`."""
        return self.principal.name

    def can_see(self, vm: Vm) -> bool:
        """Return whether the caller may read this VM, which may be a removed one."""
        return self.visibility.can_see_vm(vm)

    def can_see_everything(self) -> bool:
        """Return whether the caller has the right to read `/`, and so the whole fleet."""
        return self.visibility.sees_everything

    def can_see_scope(self, scope_id: str) -> bool:
        """Return whether the caller may read everything, or any VM of this scope, present or removed."""
        return self.visibility.can_see_scope(scope_id)

    def require(self, right: Right, resource: str) -> None:
        """Raise Forbidden unless the caller has this right over the resource with this id."""
        if not self.principal.may(right, resource):
            raise self.missing_right_error(right, "everything" if resource == ROOT_RESOURCE else resource)

    def require_any_role(self) -> None:
        """Raise Forbidden for a caller who may read nothing, and who would be told that no name exists."""
        if not self.principal.may_anywhere(Right.READ):
            _, _, external_id = self.principal.id.partition("oidc:")
            raise Forbidden(
                f"{self.caller_name} has no role anywhere", Remedy.ASK_FOR_ANY_ROLE, external_id=external_id
            )

    def missing_right_error(self, right: Right, over: str) -> Forbidden:
        """Return (not raise) the error for a missing right, with the role that has it as the remedy."""
        action = "run the platform" if right is Right.PLATFORM else right
        return Forbidden(
            f"{self.caller_name} does not have the right to {action} over {over}",
            Remedy.ASK_FOR_ROLE,
            role=role_granting(right),
        )

    def now(self) -> float:
        """Return the service's time in POSIX seconds: lab time, or real time if the service is not a lab."""
        return self.dependencies.control.clock.now()

    async def record_history(self, what: EntryKind, text: str) -> None:
        """Commit a history entry of this kind, with the present lab time, by this caller; durable on return."""
        entry = HistoryEntry(at=self.now(), kind=what, actor=self.caller_name, text=f"{text} by {self.caller_name}")
        await self.store.commit(Commit(entries=(entry,)))

    async def wait_for_reconciler(self) -> None:
        """Wait until the reconciler has done all work that is due now, so that the response shows its effect.

        The request is durable already: if the work fails, that is logged, and the reconciler tries again later. Waits
        for ten seconds of real time at most.
        """
        try:
            await self.control.reconciler.catch_up()
        except (Unavailable, Conflict) as error:
            log.warning("due work failed, the reconciler will retry: %s", error)

    def find_event(self, name: str) -> Event:
        """Return the visible event, live or over, with this id or unique id prefix, ignoring letter case."""
        wanted = name.strip().upper()
        if (event := self.store.event(wanted)) is not None and self.can_see_scope(event.scope_id):
            return event
        if len(wanted) < MIN_ID_PREFIX:
            raise NotFound(f"{name!r} is too short for an event's id: give at least {MIN_ID_PREFIX} characters of it")
        found = self._events_by_prefix(wanted)
        if not found:
            raise NotFound(f"event {name!r} does not exist", Remedy.LIST_ALL_EVENTS)
        if len(found) > 1:
            raise Refused(
                f"event {name!r} is ambiguous, {len(found)} ids start with it: give more, such as {min(found)}"
            )
        return next(iter(found.values()))

    def _events_by_prefix(self, wanted: str) -> dict[str, Event]:
        live = self.store.events(statuses=[EventState.SCHEDULED, EventState.STARTED])
        recent = self.store.events(limit=_RECENT_LIMIT)
        matching = {event.id: event for event in (*live, *recent) if event.id.startswith(wanted)}
        return {event_id: event for event_id, event in matching.items() if self.can_see_scope(event.scope_id)}

    def find_scope(self, name: str) -> Scope:
        """Return the visible scope with this id or name, or of the VM with this name, ignoring letter case."""
        wanted = name.strip().casefold()
        exact = self.store.scope(wanted) if self.can_see_scope(wanted) else None
        if (scope := exact or self._scope_by_set_name(name, wanted)) is not None:
            return scope
        try:
            vm = self.directory.find_any(name)
        except NotFound:
            suggestion = did_you_mean(name, self._visible_set_names())
            raise NotFound(f"scope {name!r} does not exist{suggestion}", Remedy.LIST_SCOPES) from None
        return self.control.transactions.load(vm.scope_id)

    def _scope_by_set_name(self, name: str, wanted: str) -> Scope | None:
        named = (scope_id for scope_id in self.store.scope_ids() if _scope_has_name(scope_id, wanted))
        ids = [scope_id for scope_id in named if self.can_see_scope(scope_id)]
        if len(ids) > 1:
            raise Refused(f"scope {name!r} is ambiguous: say {' or '.join(ids[:4])}")
        return self.store.scope(ids[0]) if ids else None

    def find_request(self, name: str) -> MaintenanceRequest:
        """Return the visible request whose full id is `name`, ignoring letter case."""
        request = self.store.request(name.strip().lower())
        if request is None or not self.visibility.can_see_request(request):
            raise NotFound(f"request {name!r} does not exist", Remedy.LIST_REQUESTS)
        return request

    def list_rollouts(self) -> list[MaintenanceRequest]:
        """Return the requests of all open rollouts, and of the ended ones among the 10,000 newest requests."""
        if not self.can_see_everything():
            return []
        known = {r.id: r for r in (*self.store.requests(open_only=True), *self.store.requests(limit=_RECENT_LIMIT))}
        return sorted((r for r in known.values() if r.rollout is not None), key=lambda r: r.requested_at)

    def find_rollout(self, name: str) -> MaintenanceRequest:
        """Return the request of the rollout with this id or unique id prefix, ignoring letter case."""
        wanted = name.strip().lower()
        if not wanted:
            raise NotFound("the name of the rollout is empty: give its id", Remedy.LIST_ROLLOUTS)
        exact = self.store.request(wanted) if self.can_see_everything() else None
        found = [exact] if exact else [request for request in self.list_rollouts() if request.id.startswith(wanted)]
        if len(found) > 1:
            raise Refused(f"rollout {name!r} is ambiguous, {len(found)} ids start with it: give more of the id")
        if not found:
            raise NotFound(f"rollout {name!r} does not exist", Remedy.LIST_ROLLOUTS)
        return self.control.rollout_requests.find(found[0].id)

    def find_host(self, name: str) -> Host:
        """Return the host with this name, ignoring letter case, if the caller may see it."""
        hosts = self.control.transactions.placement.hosts()
        wanted = name.casefold()
        found = next((host for host in hosts if host.name.casefold() == wanted), None)
        if found is None or not self.visibility.can_see_host(found.name):
            suggestion = did_you_mean(name, self._visible_host_names())
            raise NotFound(f"host {name!r} does not exist{suggestion}", Remedy.LIST_HOSTS)
        return found

    def similar_name(self, name: str) -> str:
        """Return `: did you mean 'web-0'?` with the most similar name of a visible VM, host or set; else "".

        It never suggests `name` itself: the caller may see a host's name and still not be allowed to ask about it.
        """
        vms = map(self.store.vm, self.directory.unfiltered.keys())
        vm_names = (vm.name for vm in vms if vm is not None and self.directory.can_see(vm))
        names = chain(self._visible_host_names(), self._visible_set_names(), vm_names)
        return did_you_mean(name, (found for found in names if found.casefold() != name.casefold()))

    def _visible_host_names(self) -> Iterator[str]:
        hosts = self.control.transactions.placement.hosts()
        return (host.name for host in hosts if self.visibility.can_see_host(host.name))

    def _visible_set_names(self) -> Iterator[str]:
        visible = filter(self.can_see_scope, self.store.scope_ids())
        return (set_name for scope_id in visible for set_name in _set_names(scope_id))


# Authenticates the caller of a request; raises Unauthenticated, or Unavailable if it cannot verify the token now.
ContextFactory = Callable[[HttpRequest], Awaitable[RequestContext]]


def _scope_has_name(scope_id: str, wanted: str) -> bool:
    """`web` and `lab/web` name the set web of the group lab; `pool` and `pool/pg-0` a placement group."""
    names = _set_names(scope_id)
    path = scope_id.partition(":")[2]
    return wanted in names or any(wanted.endswith(f"/{name}") and path.endswith(f"/{wanted}") for name in names[:1])


def _set_names(scope_id: str) -> list[str]:
    """The names of a scope that is a set: `web`, or `pool/pg-0` and `pool`; none for a VM's own scope."""
    kind, _, path = scope_id.partition(":")
    if kind == "vm":
        return []
    ends = path.split("/")[-2:] if kind == "placement" else path.split("/")[-1:]
    return list(dict.fromkeys(["/".join(ends), ends[0]]))
