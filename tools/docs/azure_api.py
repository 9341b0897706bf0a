"""Generates docs/azure-api.md from the routes of the ARM facade (`make docs`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from forewarn.arm.routing import ArmRoute, allow_listing, require_on_resource
from forewarn.core.access import ROLE_RIGHTS, Right

COMPUTE_PATH = "/subscriptions/{subscription}/resourceGroups/{group}/providers/Microsoft.Compute"

# The first whose piece is in a path counts.
_SECTIONS: tuple[tuple[str, str], ...] = (
    ("/operations/", "Operations"),
    ("/availabilitySets", "Availability sets"),
    ("/virtualMachineScaleSets/{set}/virtualMachines", "Instances of scale sets"),
    ("/virtualMachineScaleSets", "Scale sets"),
    ("/virtualMachines", "VMs"),
)
_ANONYMOUS_SECTION, _CONTAINERS_SECTION = "Discovery and sign-in", "Where VMs are"
_ORDER = (_ANONYMOUS_SECTION, _CONTAINERS_SECTION, *(title for _, title in reversed(_SECTIONS)))

_PAGE = """\
# Azure's API

*Generated from `src/forewarn/arm/` by `make docs`; change the routes there, not this page.*

The console serves the part of Azure Resource Manager that concerns maintenance, over HTTPS at the address of the
setting `console` ([settings.md](settings.md)). The vendor's own libraries and `az` work with it unchanged; from
PowerShell see [powershell.md](powershell.md). What the operations do to VMs, and which notice they give, is in
[contract.md](contract.md).

## How calls are read

- **Paths** are matched without case; a doubled slash and one at the end do not matter. Names are kept as they were
  typed, and compared without case.
- **api-version**: any is accepted, also none. With the setting `strict_api_versions` a call without one is refused
  (400 `MissingApiVersionParameter`), and so is one that is not known (400 `InvalidApiVersionParameter`).
- **Who calls** is told by `Authorization: Bearer TOKEN`. A right is needed over the resource that the path names, and
  that is decided before the resource is looked for. Lists show what the caller may read, which may be nothing.
- **Bodies** are JSON. One that is not understood is refused whole, and nothing has changed.
- **PUT and PATCH** change tags, `scheduledEventsProfile` and `scheduledEventsPolicy`, at once. What a PUT leaves out is
  taken away; what a PATCH leaves out stays, but tags come as a whole.
- **Lists** are `{{"value": […]}}`, with a `nextLink` while there is more.

| right | roles that have it |
|---|---|
{rights}

## Errors

`{{"error": {{"code": "…", "message": "…"}}}}`: the message is one sentence that says what to do instead. Where it is
about one member of a body, `target` names that.

| status | code | when |
|---|---|---|
| 400 | `InvalidParameter` | the body, a parameter or a value is not understood |
| 400 | `MissingApiVersionParameter`, `InvalidApiVersionParameter` | only with `strict_api_versions` |
| 400 | `BadRequest` | only with `strict_api_versions`: a member is newer than the api-version |
| 400 | `LocationRequired` | a PUT without `location`: send the whole resource, or PATCH it |
| 401 | `AuthenticationFailed` | no token, or one that does not count; `WWW-Authenticate` says where to sign in |
| 403 | `AuthorizationFailed` | the caller lacks the right |
| 404 | `ResourceNotFound`, `ResourceGroupNotFound`, `SubscriptionNotFound` | there is no such thing, or no such path |
| 405 | `MethodNotAllowed` | the path is served for other methods: `Allow` names them |
| 409 | `OperationNotAllowed` | it cannot be done as things are, such as a second restart while one is pending |
| 409 | `PropertyChangeNotAllowed` | an update would change what only the fleet file changes |
| 409 | `Conflict` | something changed meanwhile: read again, decide again |
| 413 | `RequestEntityTooLarge` | the body is too long |
| 500 | `InternalServerError` | forewarn failed; its log says more |
| 503 | `ServiceUnavailable` | try again after `Retry-After` seconds |

The two token routes refuse as OAuth does: `{{"error": "invalid_client", "error_description": "AADSTS…", …}}`.

## Operations that take time

What is answered with 202 goes on for as long as its events do: until they are approved or their notice is over, and
what they announce is done. The answer has no body, and these headers:

| header | what it holds |
|---|---|
| `Azure-AsyncOperation` | the address of the operation, with the api-version of the call |
| `Location` | the same with `monitor=true` |
| `Retry-After` | after how many seconds to ask again: 1 |
| `x-ms-request-id` | the id of the request, which is the name of the operation |

`GET` of the first answers 200 with `name`, `status`, `startTime`, and when it is over `endTime`. `status` is
`InProgress`, with `Retry-After`, then `Succeeded`, `Failed` or `Canceled`; the last two come with an `error`.
`properties` says what was asked for and by whom, and lists the `events`: each with its id, kind, status, the VMs it
hits, what it `waitsFor`, and in `approval` who could approve it and who has seen it.

`GET` of the second answers 202 while it goes on, then 200 without a body, or 409 with the `error`.

An operation is shown to whoever asked for it and to those who may read every VM that it hits.

## Routes

`…` stands for `{compute}`.
The right is needed over what the path names, unless the table says otherwise.

{sections}"""


def azure_api_markdown(routes: Sequence[ArmRoute]) -> str:
    sections = (_section(title, of) for title, of in routes_by_section(routes))
    return _PAGE.format(compute=COMPUTE_PATH, rights=_lines(_right_rows()), sections="\n".join(sections))


def routes_by_section(routes: Sequence[ArmRoute]) -> list[tuple[str, list[ArmRoute]]]:
    """The routes under the titles of their sections; those of one path stand together."""
    found = [(title, [route for route in routes if section_of(route) == title]) for title in _ORDER]
    return [(title, of) for title, of in found if of]


def section_of(route: ArmRoute) -> str:
    if route.right is None:
        return _ANONYMOUS_SECTION
    return next((title for piece, title in _SECTIONS if piece in route.path), _CONTAINERS_SECTION)


def success_statuses(route: ArmRoute) -> tuple[int, ...]:
    """What a good call is answered with, the usual one first."""
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
    head = (f"### {title}", "", "| method | path | right | what it does | answer |", "|---|---|---|---|---|")
    return _lines((*head, *map(_row, routes), ""))


def _row(route: ArmRoute) -> str:
    path = route.path.replace(COMPUTE_PATH, "…")
    answers = ", ".join(map(str, success_statuses(route)))
    return f"| {route.method} | `{path}` | {_right_text(route)} | {route.summary} | {answers} |"


def _right_text(route: ArmRoute) -> str:
    """With what it is needed over, where that is not what the path names: the first clause of how that is decided."""
    if route.right is None:
        return "none"
    if route.authorize is require_on_resource:
        return str(route.right)
    if route.authorize is allow_listing:
        return f"{route.right}, of what is shown"
    clause = (route.authorize.__doc__ or "").partition(":")[0].strip().rstrip(".")
    return f"{route.right}, {clause[:1].lower()}{clause[1:]}"


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(lines)
