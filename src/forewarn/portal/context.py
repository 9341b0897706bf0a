"""The request context of the portal: the session, the fleet overview and the API's route table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from starlette.requests import Request

from forewarn.core.access import Principal
from forewarn.portal.fleet_overview import FleetOverview
from forewarn.web.context import Reauthenticate, RequestContext
from forewarn.web.dependencies import Dependencies
from forewarn.web.directory import FleetDirectory
from forewarn.web.routing import ApiRouteTable

PORTAL_PREFIX = "/portal"  # of the path of every page


class PortalContext(RequestContext):
    """The request context of a page: one user's view of the service, with what only the portal needs.

    `overview` has the states of all VMs in memory. `api_routes` are the API's routes by method and path: forms call
    their handlers, so that the API alone decides what a user may do. `again` authenticates the same user anew.
    """

    def __init__(
        self,
        dependencies: Dependencies,
        directory: FleetDirectory,
        principal: Principal,
        again: Reauthenticate,
        *,
        overview: FleetOverview,
        api_routes: ApiRouteTable,
    ) -> None:
        super().__init__(dependencies, directory, principal, again)
        self.overview = overview
        self.api_routes = api_routes


class CurrentSession(msgspec.Struct, frozen=True, kw_only=True):
    """The signed-in session that a request belongs to, made from its cookie for each request."""

    principal: Principal  # the user with their current grants
    csrf_token: str  # every form repeats it, so that no other site can submit one
    ends_at: float  # POSIX seconds in real time
    history_seq: int = 0  # the page shows everything up to this entry of the history, and perhaps later ones; 0: unset


# Resolves the session cookie of a request. Raises Unauthenticated if it is missing, expired or ended.
SessionAuthenticator = Callable[[Request], Awaitable[CurrentSession]]

# Like SessionAuthenticator, with the context that a page handler is given.
PageAuthenticator = Callable[[Request], Awaitable[tuple[PortalContext, CurrentSession]]]
