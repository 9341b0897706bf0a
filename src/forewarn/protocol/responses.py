"""Ready-made responses: every error, byte for byte (spec §10), and the 200 to an approval."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import replace

from forewarn.protocol.http_message import JSON_CONTENT_TYPE, TEXT_CONTENT_TYPE, XML_CONTENT_TYPE, HttpResponse
from forewarn.protocol.versions import newest_three_versions

MAX_BODY_BYTES = 64 * 1024  # spec §5.2
MAX_HEAD_BYTES = 16 * 1024  # spec §10

# Reconstructed from captured responses, which show its length: 322 bytes for PUT.
_INVALID_VERB_BODY = """<?xml version="1.0" encoding="utf-8"?>
<Error xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xmlns:xsd="http://www.w3.org/2001/XMLSchema">
    <Code>InvalidHttpVerb</Code>
    <Message>The HTTP verb specified was not recognized by the server.</Message>
    <Details>'{method}' is not a supported verb.</Details>
</Error>"""

_INVALID_VERSION_MESSAGE = (
    "Bad request. api-version is invalid or was not specified in the request. "
    "For more information refer to aka.ms/azureimds"
)

_APPROVAL_ACCEPTED = HttpResponse(status=200)


def _json_error(status: int, text: str) -> HttpResponse:
    # Azure has spaces inside the braces too.
    return HttpResponse(
        status=status, headers=(JSON_CONTENT_TYPE,), body=f'{{ "error": {json.dumps(text)} }}'.encode("ascii")
    )


def bad_request(reason: str) -> HttpResponse:
    """Return a 400 with a JSON body in Azure's form, whose `error` is "Bad request. " and this reason."""
    return _json_error(400, f"Bad request. {reason}")


def malformed_request() -> HttpResponse:
    """Return a 400 as JSON: the bytes are not an HTTP request."""
    return bad_request("The request is not HTTP")


def not_found() -> HttpResponse:
    """Return a 404 as JSON, for unknown callers, paths and elements; it does not say which is unknown."""
    return _json_error(404, "Not found")


def unsupported_method(method: str) -> HttpResponse:
    """Return a 400 in XML: the path does not support this HTTP method."""
    body = _INVALID_VERB_BODY.format(method=html.escape(method, quote=False)).encode("utf-8", "replace")
    return HttpResponse(status=400, headers=(XML_CONTENT_TYPE,), body=body, head_only=method == "HEAD")


def origin_not_allowed() -> HttpResponse:
    """Return a 400 as JSON: the request has an Origin header, so a browser sent it."""
    return bad_request("Origin header not allowed")


def cross_site_not_allowed() -> HttpResponse:
    """Return a 400 as JSON: `Sec-Fetch-Site` says that a page of another origin sent the request."""
    return bad_request("Cross-site request not allowed")


def host_header_invalid() -> HttpResponse:
    """Return a 400 as JSON: an HTTP/1.1 request has no Host header, or a request has several."""
    return bad_request("Exactly one Host header is required")


def transfer_coding_not_supported() -> HttpResponse:
    """Return a 400 as JSON: the body has a transfer coding other than `chunked`, or any in HTTP/1.0."""
    return bad_request("The only supported Transfer-Encoding is chunked")


def forwarded_for_not_allowed() -> HttpResponse:
    """Return a 400 as JSON: the request has an X-Forwarded-For header, so a proxy sent it."""
    return bad_request("X-Forwarded-For header not allowed")


def duplicate_parameter(name: str) -> HttpResponse:
    """Return a 400 as JSON: the query has the parameter `name` twice; the reason names it."""
    return bad_request(f"Duplicate query parameter: {name}")


def metadata_header_missing() -> HttpResponse:
    """Return a 400 as JSON: the request has no `Metadata: true` header."""
    return _json_error(400, "Bad request: . Required metadata header not specified")


def unsupported_version(served: Sequence[str]) -> HttpResponse:
    """Return a 400 as JSON: the api-version is missing or not served."""
    text = {"error": _INVALID_VERSION_MESSAGE, "newest-versions": newest_three_versions(served)}
    return HttpResponse(
        status=400, headers=(JSON_CONTENT_TYPE,), body=json.dumps(text, separators=(",", ":")).encode("ascii")
    )


def version_not_found() -> HttpResponse:
    """Return a 404 as JSON: the api-version is not served, under `UnknownVersionPolicy.NOT_FOUND`."""
    return _json_error(404, "Not found. Invalid version requested")


def unknown_event(event_id: str) -> HttpResponse:
    """Return a 400 as JSON: the approval names an id that is not (or no longer) known in the VM's scope."""
    return bad_request(f"Unknown EventId: {event_id}")


def approval_accepted() -> HttpResponse:
    """Return a 200 without a body: the approval is stored. It stores nothing itself."""
    return _APPROVAL_ACCEPTED


def too_many_requests() -> HttpResponse:
    """Return a 429 as plain text, without Retry-After: the VM exceeds its rate limit."""
    return HttpResponse(status=429, headers=(TEXT_CONTENT_TYPE,), body=b"Throttle Result: Too Many Requests")


def service_unavailable(retry_after_s: int = 5) -> HttpResponse:
    """Return a 503 as JSON, with a Retry-After of this many seconds: the store is out of reach."""
    response = _json_error(503, f"Service unavailable. Nothing was changed, retry after {retry_after_s} seconds")
    return replace(response, headers=(*response.headers, ("Retry-After", str(retry_after_s))))


def body_too_large() -> HttpResponse:
    """Return a 413 as JSON: the body of the request has more than MAX_BODY_BYTES (64 KiB)."""
    return _json_error(413, f"Content too large. A body may have at most {MAX_BODY_BYTES} bytes")


def header_too_large() -> HttpResponse:
    """Return a 431 as JSON: request line and headers have more than MAX_HEAD_BYTES (16 KiB) together."""
    return _json_error(431, f"Request header fields too large. They may have at most {MAX_HEAD_BYTES} bytes")


def request_timeout() -> HttpResponse:
    """Return a 408 as JSON: the request was not complete within the time limit."""
    return _json_error(408, "Request timeout. The request was not whole in time")
