"""The ready answers: every error of the wire, byte for byte (spec §10), and the plain yes to an approval."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import replace

from forewarn.protocol.message import JSON, TEXT, XML, Response
from forewarn.protocol.versions import newest_three

MAX_BODY = 64 * 1024  # spec §5.2
MAX_HEAD = 16 * 1024  # spec §10

# Reconstructed from captures, which give its length: 322 bytes for PUT.
_WRONG_VERB = """<?xml version="1.0" encoding="utf-8"?>
<Error xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xmlns:xsd="http://www.w3.org/2001/XMLSchema">
    <Code>InvalidHttpVerb</Code>
    <Message>The HTTP verb specified was not recognized by the server.</Message>
    <Details>'{method}' is not a supported verb.</Details>
</Error>"""

_WRONG_VERSION = (
    "Bad request. api-version is invalid or was not specified in the request. "
    "For more information refer to aka.ms/azureimds"
)

_APPROVED = Response(status=200)


def _error(status: int, text: str) -> Response:
    # The blanks inside the braces are the vendor's.
    return Response(status=status, headers=(JSON,), body=f'{{ "error": {json.dumps(text)} }}'.encode("ascii"))


def bad_request(reason: str) -> Response:
    return _error(400, f"Bad request. {reason}")


def malformed() -> Response:
    return bad_request("The request is not HTTP")


def not_found() -> Response:
    """For callers, paths and elements alike, so that nobody learns which of them is unknown."""
    return _error(404, "Not found")


def wrong_verb(method: str) -> Response:
    body = _WRONG_VERB.format(method=html.escape(method, quote=False)).encode("utf-8", "replace")
    return Response(status=400, headers=(XML,), body=body, head_only=method == "HEAD")


def origin_refused() -> Response:
    return bad_request("Origin header not allowed")


def forwarded_refused() -> Response:
    return bad_request("X-Forwarded-For header not allowed")


def repeated_parameter(name: str) -> Response:
    return bad_request(f"Duplicate query parameter: {name}")


def header_missing() -> Response:
    return _error(400, "Bad request: . Required metadata header not specified")


def wrong_version(served: Sequence[str]) -> Response:
    text = {"error": _WRONG_VERSION, "newest-versions": newest_three(served)}
    return Response(status=400, headers=(JSON,), body=json.dumps(text, separators=(",", ":")).encode("ascii"))


def version_not_found() -> Response:
    return _error(404, "Not found. Invalid version requested")


def unknown_event(event_id: str) -> Response:
    return bad_request(f"Unknown EventId: {event_id}")


def approved() -> Response:
    return _APPROVED


def throttled() -> Response:
    return Response(status=429, headers=(TEXT,), body=b"Throttle Result: Too Many Requests")


def unavailable(retry_after_s: int = 5) -> Response:
    refusal = _error(503, f"Service unavailable. Nothing was changed, retry after {retry_after_s} seconds")
    return replace(refusal, headers=(*refusal.headers, ("Retry-After", str(retry_after_s))))


def too_large() -> Response:
    return _error(413, f"Content too large. A body may have at most {MAX_BODY} bytes")


def header_too_large() -> Response:
    return _error(431, f"Request header fields too large. They may have at most {MAX_HEAD} bytes")


def timed_out() -> Response:
    return _error(408, "Request timeout. The request was not whole in time")
