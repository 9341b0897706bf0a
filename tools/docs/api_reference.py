"""Generates docs/reference/api.md from the API's route table (`make docs`)."""

from __future__ import annotations

from forewarn.web.api_routes import ROUTES
from forewarn.web.openapi import openapi_path, required_right_text
from forewarn.web.request_keys import MAX_KEY_LENGTH
from forewarn.web.routing import API_PREFIX, ApiRoute

_HEAD = f"""# The API

<!-- from src/forewarn/web, by `make docs` -->

The API is under `{API_PREFIX}/`: on the unix socket `forewarn.sock` in the data directory, where the caller may do
everything, and over TLS with a bearer token (`Authorization: Bearer …`), whose roles decide.
`GET {API_PREFIX}/openapi.json` describes bodies, queries and responses.

Times are ISO 8601 text in UTC (`2026-11-18T21:08:06.123Z`), by the service's clock, which a lab can move; durations are
seconds. An unknown field or parameter is an error. An error changes nothing, and its message says what to do:

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
| 428 | `ConfirmationRequired` | [let a person confirm it](#changes-that-a-person-confirms) |
| 429 | `TooManyRequests` | too many connections: wait for `Retry-After` ([limits](access.md#limits-of-connections)) |
| 503 | `Unavailable` | try again later |

A caller who may read one VM of a scope sees all events of that scope, as the VM does.

## Calls that are repeated

These calls take the header `Idempotency-Key`, 1 to {MAX_KEY_LENGTH} printable ASCII characters, such as a GUID:
{{keyed}}. If the same caller repeats a call with the same key, nothing is created, and the response shows the first
request as it is now, as long as it is stored ([history_days](settings.md)). The same key with another path or body is a
400. The key of a refused call may be used again.

## Changes that a person confirms

With the header `Forewarn-Confirm: ask`, a service that is no lab does not interrupt VMs at once, or lose something
for good: it answers 428 with the `preview` of the route `…/preview`, in which `confirm` has the reasons. To confirm,
send the call again without the header. These paths know it, and have a route `…/preview` (POST) with the same right:
{{previewed}}.

## Routes

In brackets is the right: by default platform, over everything. *filtered*: over anything; the response has what the
caller may read.

"""


def api_reference_markdown() -> str:
    """The page docs/reference/api.md."""
    keyed = ", ".join(f"`{openapi_path(route.path)}`" for route in ROUTES if route.show_repeated is not None)
    paths = [route.path for route in ROUTES if route.path.endswith("/preview")]
    previewed = ", ".join(f"`{openapi_path(path.removesuffix('/preview'))}`" for path in paths)
    return _HEAD.replace("{keyed}", keyed).replace("{previewed}", previewed) + "".join(
        _item(route) for route in ROUTES if not route.path.endswith("/preview")
    )


def _item(route: ApiRoute) -> str:
    right = required_right_text(route).replace(" over everything", "")
    right = right.replace(" over anything: the response shows what the caller may read", ", filtered")
    right = right.replace("none: any authenticated caller may", "no right")
    note = "" if right == "platform" else f" ({right})"
    return f"- `{route.method} {openapi_path(route.path)}` {route.signature.summary}{note}\n"
