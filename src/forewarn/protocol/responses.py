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

# Reconstructed from captures, which give its length: 322 bytes for PUT.
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
    # The blanks inside the braces are the vendor's.
    return HttpResponse(
        status=status, headers=(JSON_CONTENT_TYPE,), body=f'{{ "error": {json.dumps(text)} }}'.encode("ascii")
    )


def bad_request(reason: str) -> HttpResponse:
    return _json_error(400, f"Bad request. {reason}")


def malformed_request() -> HttpResponse:
    return bad_request("The request is not HTTP")


def not_found() -> HttpResponse:
    """For callers, paths and elements alike, so that nobody learns which of them is unknown."""
    return _json_error(404, "Not found")


def unsupported_method(method: str) -> HttpResponse:
    body = _INVALID_VERB_BODY.format(method=html.escape(method, quote=False)).encode("utf-8", "replace")
    return HttpResponse(status=400, headers=(XML_CONTENT_TYPE,), body=body, head_only=method == "HEAD")


def origin_not_allowed() -> HttpResponse:
    return bad_request("Origin header not allowed")


def forwarded_for_not_allowed() -> HttpResponse:
    return bad_request("X-Forwarded-For header not allowed")


def duplicate_parameter(name: str) -> HttpResponse:
    return bad_request(f"Duplicate query parameter: {name}")


def metadata_header_missing() -> HttpResponse:
    return _json_error(400, "Bad request: . Required metadata header not specified")


def unsupported_version(served: Sequence[str]) -> HttpResponse:
    text = {"error": _INVALID_VERSION_MESSAGE, "newest-versions": newest_three_versions(served)}
    return HttpResponse(
        status=400, headers=(JSON_CONTENT_TYPE,), body=json.dumps(text, separators=(",", ":")).encode("ascii")
    )


def version_not_found() -> HttpResponse:
    return _json_error(404, "Not found. Invalid version requested")


def unknown_event(event_id: str) -> HttpResponse:
    return bad_request(f"Unknown EventId: {event_id}")


def approval_accepted() -> HttpResponse:
    return _APPROVAL_ACCEPTED


def too_many_requests() -> HttpResponse:
    return HttpResponse(status=429, headers=(TEXT_CONTENT_TYPE,), body=b"Throttle Result: Too Many Requests")


def service_unavailable(retry_after_s: int = 5) -> HttpResponse:
    refusal = _json_error(503, f"Service unavailable. Nothing was changed, retry after {retry_after_s} seconds")
    return replace(refusal, headers=(*refusal.headers, ("Retry-After", str(retry_after_s))))


def body_too_large() -> HttpResponse:
    return _json_error(413, f"Content too large. A body may have at most {MAX_BODY_BYTES} bytes")


def header_too_large() -> HttpResponse:
    return _json_error(431, f"Request header fields too large. They may have at most {MAX_HEAD_BYTES} bytes")


def request_timeout() -> HttpResponse:
    return _json_error(408, "Request timeout. The request was not whole in time")
