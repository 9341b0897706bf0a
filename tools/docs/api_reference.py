"""Generates docs/reference/api.md from the API's route table (`make docs`)."""

from __future__ import annotations

from forewarn.api.openapi import openapi_path, required_right_text
from forewarn.api.routes import ROUTES
from forewarn.web.routing import API_PREFIX, ApiRoute

_HEAD = f"""# The API

*Generated from `src/forewarn/api/` by `make docs`; change the routes there, not this page.*

The API is under `{API_PREFIX}/`. Our command line uses it on the unix socket `forewarn.sock` in the data directory,
where the caller may do everything. Other clients use it over TLS with a bearer token (`Authorization: Bearer …`); their
roles decide what they may do. `GET {API_PREFIX}/openapi.json` describes bodies, queries and responses.

Bodies and responses are JSON. Times are POSIX seconds in lab time, durations are seconds. An unknown field or parameter
is an error. An error changes nothing, and its message says what to do:

```json
{{"error": {{"code": "NotFound", "message": "VM 'wbe-0' does not exist: did you mean 'web-0'? …"}}}}
```

| status | code | what to do |
|---|---|---|
| 400 | `Rejected` | correct the request as the message says |
| 401 | `Unauthenticated` | sign in |
| 403 | `Forbidden` | ask an administrator for a role |
| 404 | `NotFound` | it does not exist, or the caller may not see it |
| 409 | `Refused` | its state does not allow this now |
| 409 | `Conflict` | another change came first: send the request again |
| 413 | `Rejected` | send a shorter body |
| 429 | `TooManyRequests` | too many connections: wait for `Retry-After` ([limits](access.md#limits-of-connections)) |
| 503 | `Unavailable` | try again later |

Responses never list, count or name what the caller may not read. A caller who may read one VM of a scope sees all
events of that scope, as the VM does.

| method | path | does | right needed |
|---|---|---|---|
"""


def api_reference_markdown() -> str:
    """The page docs/reference/api.md."""
    return _HEAD + "".join(map(_row, ROUTES))


def _row(route: ApiRoute) -> str:
    path, right = openapi_path(route.path), required_right_text(route)
    return f"| {route.method} | `{path}` | {route.signature.summary} | {right} |\n"
