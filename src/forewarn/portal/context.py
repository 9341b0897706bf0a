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


class PortalContext(RequestContext):
    """Forms send what was typed through the handlers of `api_routes`, so that one place decides who may."""

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
    principal: Principal
    csrf_token: str  # that every write must repeat, so that no other site can write in this one's name
    ends_at: float  # in real time
    history_seq: int = 0  # of the history: what happened up to it is in what is shown, and perhaps what happened since


PageAuthenticator = Callable[
    [Request], Awaitable[tuple[PortalContext, CurrentSession]]
]  # raises Unauthenticated, as a Welcome does

# Who is looking. Raises Unauthenticated where nobody is signed in, or no longer.
SessionAuthenticator = Callable[[Request], Awaitable[CurrentSession]]

PORTAL_PREFIX = "/portal"
