"""Generates docs/reference/azure-api.md from the routes of the ARM facade (`make docs`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from forewarn.core.access import ROLE_RIGHTS, Right
from forewarn.web.arm.routing import COMPUTE_PATH, ArmAuthorizer, ArmRoute, allow_listing, require_on_resource
from forewarn.web.arm.targets import authorize_instances, authorize_scale_set
from forewarn.web.arm.updates import authorize_set_and_vms

MAINTENANCE_SECTION = "Maintenance configurations"
# The section of a route: the first whose segment is in its path.
_SECTIONS: tuple[tuple[str, str], ...] = (
    ("/maintenanceConfigurations", MAINTENANCE_SECTION),
    ("/publicMaintenanceConfigurations", MAINTENANCE_SECTION),
    ("/configurationAssignments", MAINTENANCE_SECTION),
    ("/applyUpdates", MAINTENANCE_SECTION),
    ("/Microsoft.Maintenance/updates", MAINTENANCE_SECTION),
    ("/Microsoft.Maintenance/operations", MAINTENANCE_SECTION),
    ("/operations/", "Operations"),
    ("/availabilitySets", "Availability sets"),
    ("/virtualMachineScaleSets/{set}/virtualMachines", "Instances of scale sets"),
    ("/virtualMachineScaleSets", "Scale sets"),
    ("/virtualMachines", "VMs"),
)
_ANONYMOUS_SECTION, _CONTAINERS_SECTION = "Discovery and sign-in", "Subscriptions and groups"
_TITLES = dict.fromkeys(title for _, title in reversed(_SECTIONS))
_ORDER = (_ANONYMOUS_SECTION, _CONTAINERS_SECTION, *_TITLES)
# Summaries that repeat the method and the path.
_SAYS_NOTHING = re.compile(r"(shows|lists|changes|assigns|deletes an?) |requests [\w-]+$")
# Over what the right of a route is needed, as the page explains above the routes.
_NEEDS: dict[ArmAuthorizer, tuple[str, ...]] = {
    require_on_resource: (),
    allow_listing: ("filtered",),
    authorize_instances: ("instances",),
    authorize_scale_set: ("flexible VMs",),
    authorize_set_and_vms: ("set and VMs",),
}

_PAGE = """\
# Azure's API

<!-- from src/forewarn/web/arm, by `make docs` -->

The maintenance part of Azure Resource Manager, over HTTPS at the address of the setting [`api`](settings.md).
[Use Azure's clients](../how-to/azure.md) is the guide; [the contract](contract/index.md) says what operations do to
VMs, and which notice they give.

## Requests

- **Paths** and names are compared without case; doubled slashes and a slash at the end are ignored.
- **api-version**: any, or none; the setting `strict_api_versions` requires a known one.
- **Authorization**: `Authorization: Bearer TOKEN`. The right over the resource of the path is checked before the
  resource is looked up.
- **Bodies** are JSON. An invalid body changes nothing.
- **PUT and PATCH** change tags, `scheduledEventsProfile` and `scheduledEventsPolicy`, at once. A PUT removes what it
  leaves out; a PATCH keeps it, but replaces all tags.
- **x-ms-client-request-id**: an action or DELETE with the id, caller, path, query and body of one within the last
  hour creates nothing, and has the same response, even after a restart of the service.
- **Lists** are `{{"value": […]}}`, with a `nextLink` if there is another page.

| right | roles that have it |
|---|---|
{rights}

## Errors

`{{"error": {{"code": "…", "message": "…"}}}}`: the message says what to do instead, `target` names the invalid member.

| status | code | when |
|---|---|---|
| 400 | `InvalidParameter` | the body, a parameter or a value is invalid |
| 400 | `MissingApiVersionParameter`, `InvalidApiVersionParameter` | only with `strict_api_versions` |
| 400 | `BadRequest` | only with `strict_api_versions`: a member is newer than the api-version |
| 400 | `LocationRequired` | a PUT has no `location`: send the whole resource, or PATCH it |
| 401 | `AuthenticationFailed` | the token is missing or invalid; `WWW-Authenticate` says where to sign in |
| 403 | `AuthorizationFailed` | the caller lacks the right |
| 404 | `ResourceNotFound`, `ResourceGroupNotFound`, `SubscriptionNotFound` | it does not exist |
| 405 | `MethodNotAllowed` | the path has other methods: `Allow` names them |
| 409 | `OperationNotAllowed` | its state does not allow it, such as a second restart |
| 409 | `PropertyChangeNotAllowed` | only the fleet file changes this member |
| 409 | `Conflict` | another change came first: read again, then send the request again |
| 413 | `RequestEntityTooLarge` | the body is too long |
| 429 | `TooManyRequests` | too many open connections: try again after `Retry-After` seconds |
| 500 | `InternalServerError` | see the log of the service |
| 503 | `ServiceUnavailable` | try again after `Retry-After` seconds |

The two token routes return OAuth errors: `{{"error": "invalid_client", "error_description": "AADSTS…", …}}`.

## Operations that take time

A request that is answered with 202 is over when its events are. The response has no body, and these headers:

| header | what it holds |
|---|---|
| `Azure-AsyncOperation` | the address of the operation, with the api-version of the request |
| `Location` | the same with `monitor=true`: 202 while it runs, then 200 without a body, or 409 with the `error` |
| `Retry-After` | the seconds until the next poll: 1 |
| `x-ms-request-id` | the id of the request, which is the name of the operation |

The operation has `name`, `startTime`, at the end `endTime`, and `status`: `InProgress`, then `Succeeded`, `Failed` or
`Canceled`; the last two have an `error`. `properties` has the requested operation, the requester, what it `waitsFor`,
why parts were `skipped`, and its `events`: id, kind, status, VMs, `waitsFor`, and in `approval` who can approve and
which VMs were given the event. The requester and callers who may read all its VMs see an operation.

## Routes

`…` stands for `{compute}`. GET shows or lists what the path names, PUT and PATCH create or change it, DELETE deletes
it, POST requests the operation at the end of the path. Success is 200, for a requested operation 202, unless the route
names others. GET needs the right *read*, other methods *operate* unless the route names *approve*; over the resource of
the path, and with *instances* over the set or each named instance, with *flexible VMs* over the set and each VM of a
flexible one, with *set and VMs* over each VM too. *filtered*: the response has what the caller may read.

{sections}"""


def azure_api_markdown(routes: Sequence[ArmRoute]) -> str:
    """The page docs/reference/azure-api.md."""
    sections = (_section(title, section) for title, section in routes_by_section(routes))
    return _PAGE.format(compute=COMPUTE_PATH, rights=_lines(_right_rows()), sections="\n".join(sections))


def routes_by_section(routes: Sequence[ArmRoute]) -> list[tuple[str, list[ArmRoute]]]:
    """The titles of the sections with routes, in page order, each with its routes."""
    sections = [(title, [route for route in routes if section_of(route) == title]) for title in _ORDER]
    return [(title, section) for title, section in sections if section]


def section_of(route: ArmRoute) -> str:
    """The title of the section that lists the route."""
    if route.right is None:
        return _ANONYMOUS_SECTION
    return next((title for segment, title in _SECTIONS if segment in route.path), _CONTAINERS_SECTION)


def success_statuses(route: ArmRoute) -> tuple[int, ...]:
    """The statuses of successful responses, the usual one first."""
    if section_of(route) == MAINTENANCE_SECTION:
        return {"PUT": (201, 200), "DELETE": (200, 204)}.get(route.method, (200,))
    if "/operations/" in route.path:
        return (200, 202)
    if route.method == "DELETE":
        return (202, 204)
    if route.path.endswith("/simulateEviction"):
        return (204,)
    is_action = route.method == "POST" and route.right is Right.OPERATE
    return (202,) if is_action else (200,)


def _right_rows() -> Iterable[str]:
    used = (Right.READ, Right.OPERATE, Right.APPROVE)
    return (f"| {right} | {', '.join(role for role, held in ROLE_RIGHTS.items() if right in held)} |" for right in used)


def _section(title: str, routes: Sequence[ArmRoute]) -> str:
    about = ["These need no token.", ""] if title == _ANONYMOUS_SECTION else []
    items: dict[tuple[str, str], list[str]] = {}
    for route in routes:
        paths = items.setdefault((_call(route), "" if _SAYS_NOTHING.match(route.summary) else route.summary), [])
        paths.append(f"`{route.path.replace(COMPUTE_PATH, '…')}`")
    shown = (f"- {call} {', '.join(paths)} {summary}".rstrip() for (call, summary), paths in items.items())
    return _lines((f"### {title}", "", *about, *shown, ""))


def _call(route: ArmRoute) -> str:
    """The method, in brackets what is unusual about the right and the statuses."""
    usual = Right.READ if route.method == "GET" else Right.OPERATE
    notes = [*([] if route.right in (None, usual) else [str(route.right)]), *_NEEDS[route.authorize]]
    statuses = ", ".join(map(str, success_statuses(route)))
    is_usual = statuses == ("202" if route.summary.startswith("requests") else "200")
    note = "; ".join([*notes, *([] if is_usual else [statuses])])
    return f"{route.method}{f' ({note})' if note else ''}"


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(lines)
