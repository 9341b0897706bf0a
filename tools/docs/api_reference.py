"""Generates docs/reference/api.md from the API's route table (`make docs`)."""

from __future__ import annotations

from forewarn.api.openapi import openapi_path, required_right_text
from forewarn.api.routes import ROUTES
from forewarn.web.request_keys import MAX_KEY_LENGTH
from forewarn.web.routing import API_PREFIX, ApiRoute

_HEAD = f"""# The API

*Generated from `src/forewarn/api/` by `make docs`; change the routes there, not this page.*

The API is under `{API_PREFIX}/`. Our command line uses it on the unix socket `forewarn.sock` in the data directory,
where the caller may do everything. Other clients use it over TLS with a bearer token (`Authorization: Bearer …`); their
roles decide what they may do. `GET {API_PREFIX}/openapi.json` describes bodies, queries and responses.

Bodies and responses are JSON. Times are ISO 8601 text in UTC (`2026-11-18T21:08:06.123Z`), by the service's clock;
durations are seconds. In a lab, that clock may be ahead of real time. An unknown field or parameter is an error.
An error changes nothing, and its message says what to do:

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
| 428 | `ConfirmationRequired` | let a person confirm it: see below |
| 429 | `TooManyRequests` | too many connections: wait for `Retry-After` ([limits](access.md#limits-of-connections)) |
| 503 | `Unavailable` | try again later |

Responses never list, count or name what the caller may not read. A caller who may read one VM of a scope sees all
events of that scope, as the VM does.

## Calls that are repeated

After a lost connection or a 503, a client does not know whether its request was accepted. A call that creates a request
may have the header `Idempotency-Key`: a text of 1 to {MAX_KEY_LENGTH} printable ASCII characters, new for each
request, such as a GUID. If the same caller repeats the call with the same key, no second request is created, and the
response shows the first one as it is now, also after a restart of the service, and while the first call is still being
answered. The same key with another path or body is a 400. A call that was rejected or refused created nothing, so its
key may be used again. The key is known as long as the request is stored ([history_days](settings.md)).

These calls create requests: {{keyed}}. The others ignore the header.

## Changes that a person confirms

With the header `Forewarn-Confirm: ask`, a service that is no lab does not make a change that would interrupt VMs at
once, or lose something for good. It answers 428 with the `preview` of the route `…/preview`, in which `confirm` has
the reasons. Any other change is made. To confirm a change, send the call again without the header. `forewarn` sends
the header unless it is called with `--yes`. These paths know it: {{previewed}}.

## Routes

| method | path | does | right needed |
|---|---|---|---|
"""


def api_reference_markdown() -> str:
    """The page docs/reference/api.md."""
    keyed = ", ".join(f"`{openapi_path(route.path)}`" for route in ROUTES if route.show_repeated is not None)
    paths = [route.path for route in ROUTES if route.path.endswith("/preview")]
    previewed = ", ".join(f"`{openapi_path(path.removesuffix('/preview'))}`" for path in paths)
    return _HEAD.replace("{keyed}", keyed).replace("{previewed}", previewed) + "".join(map(_row, ROUTES))


def _row(route: ApiRoute) -> str:
    path, right = openapi_path(route.path), required_right_text(route)
    return f"| {route.method} | `{path}` | {route.signature.summary} | {right} |\n"
