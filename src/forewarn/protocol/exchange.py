"""Reads a request to the metadata endpoint and builds the response to a poll, without I/O.

`read_request` makes every check that needs no state, in the order of spec §2.7. It returns either the response or
what is requested: a poll, an approval, an instance element or a token. The caller, which has the state, answers
those. Conditional polls are here too: ETag, If-None-Match, and our extension Prefer: wait (spec §4.3, §4.4).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from typing import NoReturn
from zlib import crc32

from forewarn.protocol.codec import encode_document
from forewarn.protocol.document import Document
from forewarn.protocol.http_message import (
    JSON_CONTENT_TYPE,
    HttpRequest,
    HttpResponse,
    RequestTarget,
    is_foreign_name,
    parse_target,
)
from forewarn.protocol.managed_identity import TokenRequest, read_token_request
from forewarn.protocol.responses import (
    MAX_BODY_BYTES,
    bad_request,
    body_too_large,
    cross_site_not_allowed,
    duplicate_parameter,
    forwarded_for_not_allowed,
    metadata_header_missing,
    not_found,
    origin_not_allowed,
    unsupported_method,
    unsupported_version,
    version_not_found,
)
from forewarn.protocol.versions import (
    INSTANCE_VERSIONS,
    VERSIONS,
    UnknownVersionPolicy,
    requires_metadata_header,
    resolve_version,
)

# Parses the body of a POST that approves events (spec §5.1) and says what is wrong with it.


class InvalidApproval(ValueError):
    """The body is not a valid approval; `str(error)` is the sentence that the response shows."""


# Nearly every client sends one event and nothing else. This regular expression reads that body faster than JSON.
_COMMON_BODY_TOKENS = rb'\{ "StartRequests" : \[ \{ "EventId" : "([0-9A-Za-z-]*)" \} \] \}'.split(b" ")
_COMMON_BODY = re.compile(rb"[ \t\r\n]*".join((b"", *_COMMON_BODY_TOKENS, b"")))
_DUPLICATE = object()  # replaces the value of a member that the object has twice


def parse_approval(body: bytes) -> tuple[str, ...]:
    """Return the approved event ids in upper case, without duplicates, in the order of the body.

    Does not check what an id looks like. Names of members are case-sensitive; unknown members are ignored.
    """
    common = _COMMON_BODY.fullmatch(body)
    if common is not None:
        return (common[1].decode("ascii").upper(),)

    content = _parse_json(body)
    if not isinstance(content, dict):
        raise InvalidApproval("The body must be a JSON object")

    entries = _required_member(content, "StartRequests", "StartRequests")
    if not isinstance(entries, list):
        raise InvalidApproval("StartRequests must be a list")

    ids = (_entry_event_id(entry, f"StartRequests[{index}]") for index, entry in enumerate(entries))
    return tuple(dict.fromkeys(ids))


def _entry_event_id(entry: object, where: str) -> str:
    if not isinstance(entry, dict):
        raise InvalidApproval(f"{where} must be an object")
    event_id = _required_member(entry, "EventId", f"{where}.EventId")
    if not isinstance(event_id, str):
        raise InvalidApproval(f"{where}.EventId must be a string")
    return event_id.upper()


def _required_member(parent: dict[str, object], name: str, where: str) -> object:
    if name not in parent:
        raise InvalidApproval(f"{where} is missing")
    if parent[name] is _DUPLICATE:
        raise InvalidApproval(f"{where} is given twice")
    return parent[name]


def _parse_json(body: bytes) -> object:
    if not body.strip():
        raise InvalidApproval("The body is empty, it must be a JSON object with StartRequests")
    try:
        # No number matters here. `parse_int=len` skips the conversion, which Python refuses for very long ones.
        return json.loads(
            body.decode("utf-8-sig"), object_pairs_hook=_collect_members, parse_int=len, parse_constant=_reject_constant
        )
    except UnicodeDecodeError as error:
        raise InvalidApproval(f"The body is not UTF-8 at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise InvalidApproval(f"The body is not JSON at line {error.lineno} column {error.colno}") from error
    except RecursionError as error:
        raise InvalidApproval("The body is nested too deeply") from error


def _collect_members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members: dict[str, object] = {}
    for name, value in pairs:
        members[name] = _DUPLICATE if name in members else value
    return members


def _reject_constant(name: str) -> NoReturn:
    raise InvalidApproval(f"The body is not JSON: it may not contain {name}")


_CACHED_HEADS = 512
_REFUSED_FETCH_SITES = frozenset({"cross-site", "same-site"})  # a page of another origin sent the request


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointRules:
    """How the metadata endpoint behaves: settings of the operator, adjusted for the listener."""

    versions: tuple[str, ...] = VERSIONS  # api-versions of scheduled events that are served
    header_always: bool = False  # `Metadata: true` is required at 2017-03-01 too
    unknown_version: UnknownVersionPolicy = UnknownVersionPolicy.REFUSE  # for versions that are not served
    iso_dates: bool = False  # NotBefore as an ISO date in api-versions up to 2017-08-01
    max_wait_s: int = 300  # longest hold of a long poll, in seconds; 0: none is held
    imds_headers: bool = False  # responses have Azure's Server and x-ms-request-id; the same for all locations
    gives_tokens: bool = False  # managed identity tokens; not where any program can pose as a VM (spec §2.8)


@dataclass(frozen=True, slots=True, kw_only=True)
class PollRequest:
    """GET of the scheduled events document, checked; with `wait_s` a long poll, which may be held."""

    version: str  # the api-version that serves it
    if_none_match: str | None = None  # the header, several joined by commas; None: it had none
    wait_s: int | None = None  # seconds, from Prefer: wait, at most EndpointRules.max_wait_s; only with if_none_match


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequest:
    """POST that approves events (spec §5), checked and parsed; whether they exist is not checked yet."""

    version: str  # the api-version that serves it
    event_ids: tuple[str, ...]  # upper case, no duplicates, in the order of the body


@dataclass(frozen=True, slots=True, kw_only=True)
class _UnreadApproval:
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceRequest:
    """GET of an element below /metadata/instance, checked; whether the element exists is not (spec §2.6)."""

    version: str  # the api-version that serves it
    path: tuple[str, ...] = ()  # segments below /metadata/instance, in the letter case of the request
    as_text: bool = False  # True: format=text was requested; else JSON


Headers = tuple[tuple[str, str], ...]
MetadataRequest = PollRequest | ApprovalRequest | InstanceRequest | TokenRequest


class _EarlyResponse(Exception):
    """Carries the response of the first check that failed up to `read_request`."""

    def __init__(self, response: HttpResponse) -> None:
        self.response = response


def read_request(
    request: HttpRequest, *, is_known_caller: bool, rules: EndpointRules
) -> MetadataRequest | HttpResponse:
    """Check a request and return what it requests, or the response if that needs no state.

    `is_known_caller`: one of our VMs sent it; every other caller gets 404.
    """
    try:
        return _read_checked(request, is_known_caller=is_known_caller, rules=rules)
    except _EarlyResponse as early:
        return replace(early.response, head_only=request.method == "HEAD")


def _read_checked(
    request: HttpRequest, *, is_known_caller: bool, rules: EndpointRules
) -> MetadataRequest | HttpResponse:
    if not is_known_caller:
        raise _EarlyResponse(not_found())
    head = _read_head(request.method, request.target, request.headers, rules)
    return _read_approval(request, head.version) if isinstance(head, _UnreadApproval) else head


@lru_cache(maxsize=_CACHED_HEADS)
def _read_head(
    method: str, target: str, headers: Headers, rules: EndpointRules
) -> MetadataRequest | _UnreadApproval | HttpResponse:
    """Read a request without its body. Cached, because clients repeat the same head."""
    if method not in ("GET", "POST"):
        raise _EarlyResponse(unsupported_method(method))
    parsed = parse_target(target)
    if parsed is None:
        raise _EarlyResponse(not_found())
    return _reader_for(parsed, method)(HttpRequest(method=method, target=target, headers=headers), parsed, rules)


_PathReader = Callable[[HttpRequest, RequestTarget, EndpointRules], "MetadataRequest | _UnreadApproval | HttpResponse"]


def _reader_for(target: RequestTarget, method: str) -> _PathReader:
    """Return the function that reads requests for this path, compared without case (spec §2.1)."""
    # A POST to a read-only path gets "unsupported verb", as PUT and HEAD do in captures of Azure. A POST to any other
    # path gets 404.
    match target.lower_path():
        case ("metadata", "scheduledevents"):
            return _read_scheduled_events
        case ("metadata", "latest" | "{latest}", "scheduledevents"):
            return _read_latest
        case ("metadata",):
            reader: _PathReader = _read_root
        case ("metadata", "versions"):
            reader = _read_versions
        case ("metadata", "instance", *_):
            reader = _read_instance
        case ("metadata", "identity", "oauth2", "token"):
            reader = _read_token
        case _:
            raise _EarlyResponse(not_found())
    if method == "POST":
        raise _EarlyResponse(unsupported_method(method))
    return reader


def _read_scheduled_events(
    request: HttpRequest, target: RequestTarget, rules: EndpointRules
) -> MetadataRequest | _UnreadApproval:
    needs_header = rules.header_always or requires_metadata_header(target.parameter("api-version"))
    _check_caller(request, target, needs_header=needs_header)
    version = _served_version(target, rules.versions, rules.unknown_version)
    return _read_poll(request, version, rules) if request.method == "GET" else _UnreadApproval(version=version)


def _read_latest(request: HttpRequest, target: RequestTarget, rules: EndpointRules) -> HttpResponse:
    needs_header = rules.header_always or requires_metadata_header(target.parameter("api-version"))
    _check_caller(request, target, needs_header=needs_header)
    return unsupported_version(rules.versions)


def _read_root(request: HttpRequest, target: RequestTarget, rules: EndpointRules) -> HttpResponse:
    """400 that lists the newest instance versions, as Azure does; 404 with a version that is served."""
    _check_caller(request, target, needs_header=True)
    _served_version(target, INSTANCE_VERSIONS, rules.unknown_version)
    return not_found()


def _read_versions(request: HttpRequest, target: RequestTarget, rules: EndpointRules) -> HttpResponse:
    _check_caller(request, target, needs_header=True)
    body = json.dumps({"apiVersions": INSTANCE_VERSIONS}, separators=(",", ":")).encode("ascii")
    return HttpResponse(status=200, headers=(JSON_CONTENT_TYPE,), body=body)


def _read_instance(request: HttpRequest, target: RequestTarget, rules: EndpointRules) -> InstanceRequest:
    # Only scheduled events had a preview version without the header (spec §2.2).
    _check_caller(request, target, needs_header=True)
    version = _served_version(target, INSTANCE_VERSIONS, rules.unknown_version)
    form = (target.parameter("format") or "json").lower()
    if form not in ("json", "text"):
        raise _EarlyResponse(bad_request("format must be json or text"))
    return InstanceRequest(version=version, path=target.path[2:], as_text=form == "text")


def _read_token(request: HttpRequest, target: RequestTarget, rules: EndpointRules) -> TokenRequest | HttpResponse:
    # read_token_request checks the header, because its error has OAuth's shape.
    _check_caller(request, target, needs_header=False)
    authorities = (target.authority,) if target.authority else request.header_values("host")
    return read_token_request(
        target,
        has_header=has_metadata_header(request),
        has_foreign_host=any(map(is_foreign_name, authorities)),
        tokens_allowed=rules.gives_tokens,
    )


def _check_caller(request: HttpRequest, target: RequestTarget, *, needs_header: bool) -> None:
    """Refuse requests that a browser, a proxy or a redirect sent instead of a program in the VM."""
    if request.header_values("origin"):
        raise _EarlyResponse(origin_not_allowed())
    if any(value.strip().lower() in _REFUSED_FETCH_SITES for value in request.header_values("sec-fetch-site")):
        raise _EarlyResponse(cross_site_not_allowed())
    if request.header_values("x-forwarded-for"):
        raise _EarlyResponse(forwarded_for_not_allowed())
    if (name := target.duplicate_parameter()) is not None:
        raise _EarlyResponse(duplicate_parameter(name))
    if needs_header and not has_metadata_header(request):
        raise _EarlyResponse(metadata_header_missing())


def has_metadata_header(request: HttpRequest) -> bool:
    """Whether `Metadata: true` is there; if the header is repeated, every value must be true."""
    values = request.header_values("metadata")
    return bool(values) and all(value.strip().lower() == "true" for value in values)


def _served_version(target: RequestTarget, served: Sequence[str], policy: UnknownVersionPolicy) -> str:
    requested = target.parameter("api-version")
    version = resolve_version(requested, served, policy) if requested else None
    if version is not None:
        return version
    if requested and policy is UnknownVersionPolicy.NOT_FOUND and requested.lower() not in ("latest", "{latest}"):
        raise _EarlyResponse(version_not_found())
    raise _EarlyResponse(unsupported_version(served))


def _read_poll(request: HttpRequest, version: str, rules: EndpointRules) -> PollRequest:
    tags = request.header_values("if-none-match")
    if not tags:
        return PollRequest(version=version)
    return PollRequest(
        version=version,
        if_none_match=", ".join(tags),
        wait_s=_preferred_wait(request.header_values("prefer"), rules.max_wait_s),
    )


def _read_approval(request: HttpRequest, version: str) -> ApprovalRequest:
    if len(request.body) > MAX_BODY_BYTES:
        raise _EarlyResponse(body_too_large())
    try:
        return ApprovalRequest(version=version, event_ids=parse_approval(request.body))
    except InvalidApproval as error:
        raise _EarlyResponse(bad_request(str(error))) from error


def client_has_document(poll: PollRequest, tag: str) -> bool:
    """Return whether the poll's If-None-Match names this ETag, so that the poll gets a 304 or is held.

    `*` names no ETag, because a client that always sends it would never receive an event.
    """
    return poll.if_none_match is not None and _matches_etag(poll.if_none_match, tag)


def poll_response(
    poll: PollRequest, *, tag: str, document: Document, rules: EndpointRules, body: bytes | None = None
) -> HttpResponse:
    """Build the response to a poll: 200 with the document, or 304 if the client has it."""
    etag_header = ("ETag", tag)
    if client_has_document(poll, tag):
        return HttpResponse(status=304, headers=(etag_header,))
    if body is None:
        body = encode_document(document, poll.version, iso_dates=rules.iso_dates)
    return HttpResponse(status=200, headers=(JSON_CONTENT_TYPE, etag_header), body=body)


def with_preference_applied(response: HttpResponse, wait_s: int) -> HttpResponse:
    """Return a copy of the response with `Preference-Applied: wait=N`, for a poll that asked to be held."""
    return replace(response, headers=(*response.headers, ("Preference-Applied", f"wait={wait_s}")))


@lru_cache(maxsize=1024)
def etag(scope_id: str, epoch: int, incarnation: int, digest: str, store_tag: str = "") -> str:
    """Return the ETag of a scope's document, with its quotes: `"EPOCH-INCARNATION-CHECKSUM-DIGEST"`.

    The checksum of the scope id distinguishes scopes: a VM that moves to another scope with equal numbers must not get
    304. `store_tag`, random hexadecimal digits of the store that follow the checksum, distinguishes stores: a new store
    counts from 1 again. `digest` is the body's, so that one ETag never names two bodies, even if a damaged store counts
    from an older number: a VM that gets 304 has missed nothing.
    """
    return f'"{epoch}-{incarnation}-{crc32(scope_id.encode()):08x}{store_tag}-{digest}"'


def body_digest(body: bytes) -> str:
    """Return the digest of an encoded document for its ETag: 16 hexadecimal digits."""
    return blake2b(body, digest_size=8).hexdigest()


def _matches_etag(condition: str, tag: str) -> bool:
    """Whether an If-None-Match header names this ETag, alone or in a list, weak or strong."""
    return any(item.strip().removeprefix("W/") == tag for item in condition.split(","))


def _preferred_wait(preferences: Sequence[str], max_s: int) -> int | None:
    """Return the seconds that the first `wait` of Prefer headers asks for (RFC 7240); None for no wait."""
    for preference in _split_unquoted(",".join(preferences), ","):
        name, _, value = next(_split_unquoted(preference, ";")).partition("=")
        if name.strip().lower() == "wait":
            return _wait_seconds(value.strip(), max_s)
    return None


def _wait_seconds(value: str, max_s: int) -> int | None:
    if len(value) > 1 and value[0] == value[-1] == '"':
        value = value[1:-1]
    if not (value.isascii() and value.isdigit()):
        return None
    digits = value.lstrip("0")
    wait_s = max_s if len(digits) > 9 else min(int(digits or "0"), max_s)
    return wait_s if wait_s > 0 else None


def _split_unquoted(text: str, separator: str) -> Iterator[str]:
    """Split at separators outside quotes, in one pass."""
    start, quoted, escaped = 0, False, False
    for index, char in enumerate(text):
        if escaped:
            escaped = False
        elif char == "\\" and quoted:
            escaped = True
        elif char == '"':
            quoted = not quoted
        elif char == separator and not quoted:
            yield text[start:index]
            start = index + 1
    yield text[start:]
