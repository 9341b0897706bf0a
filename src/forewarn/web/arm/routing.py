"""ARM calls, responses and routes: path templates in Azure's spelling, matched ignoring letter case."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from forewarn.core.access import Right
from forewarn.core.request import RequestKey
from forewarn.web.context import RequestContext

_PATH_PARAM = re.compile(r"\{(\w+)\}")
SUBSCRIPTION_PATH = "/subscriptions/{subscription}"
GROUP_PATH = f"{SUBSCRIPTION_PATH}/resourceGroups/{{group}}"
COMPUTE_PROVIDER = "providers/Microsoft.Compute"
COMPUTE_PATH = f"{GROUP_PATH}/{COMPUTE_PROVIDER}"
MAINTENANCE_PROVIDER = "providers/Microsoft.Maintenance"
VM_PATH = f"{COMPUTE_PATH}/virtualMachines/{{vm}}"
SCALE_SET_PATH = f"{COMPUTE_PATH}/virtualMachineScaleSets/{{set}}"
INSTANCE_PATH = f"{SCALE_SET_PATH}/virtualMachines/{{instance}}"
AVAILABILITY_SET_PATH = f"{COMPUTE_PATH}/availabilitySets/{{set}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmCall:
    """One HTTP request to the ARM facade, as its handlers receive it; its secrets are not in its repr."""

    method: str  # that of the route: GET also for HEAD
    path: str  # decoded, without doubled slashes and without one at its end
    path_params: Mapping[str, str] = field(default_factory=dict)  # of the route's template, in the client's spelling
    query: Mapping[str, str] = field(default_factory=dict)  # a parameter that occurs twice was rejected
    body: bytes = field(default=b"", repr=False)  # may contain a secret, like the fields below without repr
    base_url: str = ""  # https://host:port, as the client called us
    resource: str = ""  # the called one's id: the route's path, filled in with `path_params`, without an action
    form_fields: Mapping[str, str] = field(default_factory=dict, repr=False)  # of a form body; {}: another kind of body
    authorization: str = field(default="", repr=False)  # the header, for sign-in
    client_request_id: str = ""  # the header x-ms-client-request-id; "": none
    request_key: RequestKey | None = None  # gives the request that the handler creates its id; None: it gets a new one

    @property
    def api_version(self) -> str:
        """The query parameter `api-version` of the call, as the client sent it; "" if it has none."""
        return self.query.get("api-version", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmResponse:
    """A response of the ARM facade, as a handler returns it: status, body and headers."""

    status: int = 200  # the HTTP status
    body: Any = None  # encoded as JSON; None for an empty body
    headers: Mapping[str, str] = field(default_factory=dict)  # by name, in addition to Content-Type


ArmHandler = Callable[[RequestContext, ArmCall], Awaitable[ArmResponse]]
AnonymousArmHandler = Callable[[Any, ArmCall], Awaitable[ArmResponse]]  # gets Dependencies: there is no caller
ArmAuthorizer = Callable[[RequestContext, ArmCall, Right], None]  # raises Forbidden


def require_on_resource(context: RequestContext, call: ArmCall, right: Right) -> None:
    """Raise Forbidden unless the caller has the right over the called resource; a route's default.

    Checks only the id, so a caller without the right does not learn whether the resource exists.
    """
    context.require(right, call.resource)


def allow_listing(context: RequestContext, call: ArmCall, right: Right) -> None:
    """Allow every authenticated caller: the handler itself shows only what the caller may read."""


@dataclass(frozen=True)
class ArmRoute:
    """A route of the ARM facade: method and path, its handler, and the right that the caller needs.

    With `right` None no token is needed, and the handler is an AnonymousArmHandler.
    """

    method: str  # the HTTP method, in upper case; GET answers HEAD too
    path: str  # a template in Azure's spelling, such as `/subscriptions/{subscription}`
    handler: ArmHandler | AnonymousArmHandler
    right: Right | None = Right.READ  # None: no token is needed, only for discovery and sign-in
    authorize: ArmAuthorizer = require_on_resource  # called with `right` before the handler; raises Forbidden
    summary: str = ""  # for the generated pages

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """The route's path as a regular expression that ignores letter case; a parameter is one segment."""
        pieces = _PATH_PARAM.split(self.path)
        text = "".join(f"(?P<{p}>[^/]+)" if n % 2 else re.escape(p) for n, p in enumerate(pieces))
        return re.compile(text, re.IGNORECASE)

    def match_path(self, path: str) -> dict[str, str] | None:
        """Return the path parameters by name, in the client's spelling; None if the path does not match."""
        match = self.pattern.fullmatch(path)
        return match.groupdict() if match else None

    def resource_id(self, path_params: Mapping[str, str]) -> str:
        """Return the id of the called resource: the route's path with `path_params` filled in."""
        end = max((m.end() for m in _PATH_PARAM.finditer(self.path)), default=len(self.path))
        return _PATH_PARAM.sub(lambda m: path_params[m[1]], self.path[:end])
