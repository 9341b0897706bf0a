"""Request keys of calls: from the header `Idempotency-Key` in the API, from forms in the portal."""

from __future__ import annotations

from starlette.datastructures import Headers

from forewarn.core.request import RequestKey, canonical_body, make_request_key
from forewarn.errors import Rejected
from forewarn.web.context import RequestContext
from forewarn.web.request_parsing import HandlerCall
from forewarn.web.routing import ApiRoute

IDEMPOTENCY_KEY_HEADER = "Idempotency-Key"
MAX_KEY_LENGTH = 255


def read_idempotency_key(headers: Headers) -> str:
    values = headers.getlist(IDEMPOTENCY_KEY_HEADER)
    if not values:
        return ""
    key = values[0]
    if len(values) > 1 or not 1 <= len(key) <= MAX_KEY_LENGTH or not (key.isascii() and key.isprintable()):
        raise Rejected(
            f"the header {IDEMPOTENCY_KEY_HEADER} is not valid: send it once, with 1 to {MAX_KEY_LENGTH} printable "
            "ASCII characters, such as a new GUID"
        )
    return key


def request_key(context: RequestContext, route: ApiRoute, call: HandlerCall, key: str) -> RequestKey:
    """Return the key that is stored with the request of this call, so that a repeated call finds it.

    With another route, path, query or body, the same key has the same request id and another digest: it asks for
    something else.
    """
    asked = {
        "method": route.method,
        "path": route.path,
        "names": dict(call.path_params),
        "query": dict(call.query),
        "body": canonical_body(call.body),
    }
    return make_request_key(context.principal.id, key, asked, at=context.dependencies.real_time())
