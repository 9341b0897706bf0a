"""What every page and form of the portal is given: the request context, how every VM is, and the API's routes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request

from forewarn.console.directory import Directory
from forewarn.console.house import House
from forewarn.console.portal.overview import Overview
from forewarn.console.portal.visit import Visit
from forewarn.console.room import Again, Room
from forewarn.console.route import RouteTable
from forewarn.core.access import Principal


class PortalContext(Room):
    """Forms send what was typed through the handlers of `api_routes`, so that one place decides who may."""

    def __init__(
        self,
        house: House,
        directory: Directory,
        principal: Principal,
        again: Again,
        *,
        overview: Overview,
        api_routes: RouteTable,
    ) -> None:
        super().__init__(house, directory, principal, again)
        self.overview = overview
        self.api_routes = api_routes


EnterPortal = Callable[[Request], Awaitable[tuple[PortalContext, Visit]]]  # raises Unauthenticated, as a Welcome does
