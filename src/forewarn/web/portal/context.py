"""The request context of the portal: the session, the indexes in memory and the API's route table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from starlette.requests import Request

from forewarn.control.directory import FleetDirectory
from forewarn.core.access import Principal
from forewarn.core.explain.explanation import VmState
from forewarn.web.context import Reauthenticate, RequestContext
from forewarn.web.dependencies import Dependencies
from forewarn.web.portal.event_index import EventIndex
from forewarn.web.portal.fleet_overview import FleetOverview, VisibleScopes
from forewarn.web.portal.store_monitor import StoreHealth
from forewarn.web.routing import ApiRouteTable

PORTAL_PREFIX = "/portal"  # of the path of every page
FLEET_PATH = f"{PORTAL_PREFIX}/fleet"  # of the page with all VMs


class PortalContext(RequestContext):
    """The request context of a portal page: one user's view of the service, for one request.

    `overview` has the states of all VMs in memory, `events` the live events; await `ensure_built` of each first. Forms
    call the handlers of `api_routes`, so that the API alone decides what a user may do.
    """

    def __init__(
        self,
        dependencies: Dependencies,
        directory: FleetDirectory,
        principal: Principal,
        again: Reauthenticate,
        *,
        overview: FleetOverview,
        events: EventIndex,
        store_health: StoreHealth,
        api_routes: ApiRouteTable,
    ) -> None:
        super().__init__(dependencies, directory, principal, again)
        self.overview = overview
        self.events = events
        self.store_health = store_health
        self.api_routes = api_routes

    def can_see_present(self, key: str) -> bool:
        """Return whether the VM with this key is present (not removed), and the user may read it."""
        if self.overview.state_of(key) is VmState.GONE:
            return False
        return self.can_see_everything() or ((vm := self.store.vm(key)) is not None and self.can_see(vm))

    def visible_scopes(self) -> VisibleScopes | None:
        """Return the scopes in which the user may read a present VM; None if they may see everything."""
        return None if self.can_see_everything() else self.overview.visible_scopes_by_group(self.directory)


class CurrentSession(msgspec.Struct, frozen=True, kw_only=True):
    """The signed-in session that a request belongs to; made from its cookie anew for each request."""

    principal: Principal  # the user with their current grants
    csrf_token: str  # every form repeats it, so that no other site can submit one
    ends_at: float  # POSIX seconds in real time
    history_seq: int = 0  # the page shows everything up to this entry of the history, and perhaps later ones; 0: unset


# Resolves the session cookie of a request. Raises Unauthenticated if it is missing, expired or ended.
SessionAuthenticator = Callable[[Request], Awaitable[CurrentSession]]

# Like SessionAuthenticator, with the context that a page handler is given.
PageAuthenticator = Callable[[Request], Awaitable[tuple[PortalContext, CurrentSession]]]
