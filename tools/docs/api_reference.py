"""Generates docs/api.md from the API's route table (`make docs`)."""

from __future__ import annotations

from forewarn.api.openapi import openapi_path, required_right_text
from forewarn.api.routes import ROUTES
from forewarn.web.routing import API_PREFIX, ApiRoute

_HEAD = f"""# The API

What `forewarn` asks of a running service it asks here, under `{API_PREFIX}/`: on the unix socket `forewarn.sock` in
the data directory, where the owner may do everything, and over TLS with a bearer token (`Authorization: Bearer …`),
where the roles of whoever holds it decide. `GET {API_PREFIX}/openapi.json` describes bodies, queries and answers.

Bodies and answers are JSON. Instants are POSIX seconds in lab time, spans are seconds. A member or parameter that is
not known is refused by its name. A refusal changes nothing and says why:

```json
{{"error": {{"code": "NotFound", "message": "VM 'wbe-0' does not exist: did you mean 'web-0'? …"}}}}
```

| status | code | what to do |
|---|---|---|
| 400 | `Rejected` | ask otherwise: the message says how |
| 401 | `Unauthenticated` | sign in |
| 403 | `Forbidden` | ask an administrator for a role |
| 404 | `NotFound` | there is no such thing, or none that the caller may see |
| 409 | `Refused` | its state forbids it now |
| 409 | `Conflict` | somebody else was quicker: try again |
| 413 | `Rejected` | send less |
| 503 | `Unavailable` | try later |

What a caller may not read does not exist to them: it is neither listed, nor counted, nor named. Whoever may read one
VM of a scope sees all events of that scope, as the VM does.

| method | path | does | right needed |
|---|---|---|---|
"""


def api_reference_markdown() -> str:
    return _HEAD + "".join(map(_row, ROUTES))


def _row(line: ApiRoute) -> str:
    return f"| {line.method} | `{openapi_path(line.path)}` | {line.signature.summary} | {required_right_text(line)} |\n"
