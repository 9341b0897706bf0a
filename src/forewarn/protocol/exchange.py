"""Reads a request to the metadata endpoint and builds the response to a poll, without I/O.

`read_request` makes every check that needs no state, in the order of spec §2.7. It returns either the response or
what is requested: a poll, an approval, an instance element or a token. The caller, which has the state, answers
those. Conditional polls are here too: ETag, If-None-Match, and our extension Prefer: wait (spec §4.3, §4.4).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from zlib import crc32

from forewarn.protocol.approval import InvalidApproval, parse_approval
from forewarn.protocol.codec import encode_document
from forewarn.protocol.document import Document
from forewarn.protocol.http_message import JSON_CONTENT_TYPE, HttpRequest, HttpResponse, RequestTarget, parse_target
from forewarn.protocol.managed_identity import TokenRequest, read_token_request
from forewarn.protocol.responses import (
    MAX_BODY_BYTES,
    bad_request,
    body_too_large,
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

_CACHED_HEADS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointRules:
    """What an operator may set about the endpoint."""

    versions: tuple[str, ...] = VERSIONS
    header_always: bool = False  # Metadata: true is required at 2017-03-01 too
    unknown_version: UnknownVersionPolicy = UnknownVersionPolicy.REFUSE
    iso_dates: bool = False
    max_wait_s: int = 300
    gives_tokens: bool = False  # of managed identities; not where anybody could pose as a VM (spec §2.8)


@dataclass(frozen=True, slots=True, kw_only=True)
class PollRequest:
    version: str
    if_none_match: str | None = None  # If-None-Match as it came
    wait_s: int | None = None  # only together with a tag


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequest:
    version: str
    event_ids: tuple[str, ...]  # upper case, each once, in the order given


@dataclass(frozen=True, slots=True, kw_only=True)
class _UnreadApproval:
    """An approval whose body is not read yet."""

    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceRequest:
    version: str
    path: tuple[str, ...] = ()  # below /metadata/instance
    as_text: bool = False


Headers = tuple[tuple[str, str], ...]
MetadataRequest = PollRequest | ApprovalRequest | InstanceRequest | TokenRequest


class _EarlyResponse(Exception):
    """Carries the answer of the first check that failed up to `read`."""

    def __init__(self, response: HttpResponse) -> None:
        self.response = response


def read_request(request: HttpRequest, *, known: bool, rules: EndpointRules) -> MetadataRequest | HttpResponse:
    """What a request asks, or its answer if that needs no state. `known`: the caller is one of our VMs."""
    try:
        return _read_known_caller(request, known=known, rules=rules)
    except _EarlyResponse as answered:
        return replace(answered.response, head_only=request.method == "HEAD")


def _read_known_caller(request: HttpRequest, *, known: bool, rules: EndpointRules) -> MetadataRequest | HttpResponse:
    if not known:
        raise _EarlyResponse(not_found())
    asked = _read_head(request.method, request.target, request.headers, rules)
    return _read_approval(request, asked.version) if isinstance(asked, _UnreadApproval) else asked


@lru_cache(maxsize=_CACHED_HEADS)
def _read_head(
    method: str, target: str, headers: Headers, rules: EndpointRules
) -> MetadataRequest | _UnreadApproval | HttpResponse:
    """What is asked, as far as no body says it. Requests are alike but for their bodies, so each is read once."""
    if method not in ("GET", "POST"):
        raise _EarlyResponse(unsupported_method(method))
    found = parse_target(target)
    if found is None:
        raise _EarlyResponse(not_found())
    return _reader_for(found, method)(HttpRequest(method=method, target=target, headers=headers), found, rules)


_PathReader = Callable[[HttpRequest, RequestTarget, EndpointRules], "MetadataRequest | _UnreadApproval | HttpResponse"]


def _reader_for(target: RequestTarget, method: str) -> _PathReader:
    """Who reads requests for this path (spec §2.1: without case).

    A POST to what can only be read is told that the verb is wrong, as PUT and HEAD are there in captures;
    elsewhere it meets an unknown path.
    """
    match target.lower_path():
        case ("metadata", "scheduledevents"):
            return _read_scheduled_events
        case ("metadata", "latest" | "{latest}", "scheduledevents"):
            return _read_latest
        case ("metadata", "versions"):
            room: _PathReader = _read_versions
        case ("metadata", "instance", *_):
            room = _read_instance
        case ("metadata", "identity", "oauth2", "token"):
            room = _read_token
        case _:
            raise _EarlyResponse(not_found())
    if method == "POST":
        raise _EarlyResponse(unsupported_method(method))
    return room


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


def _read_versions(request: HttpRequest, target: RequestTarget, rules: EndpointRules) -> HttpResponse:
    _check_caller(request, target, needs_header=True)
    body = json.dumps({"apiVersions": INSTANCE_VERSIONS}, separators=(",", ":")).encode("ascii")
    return HttpResponse(status=200, headers=(JSON_CONTENT_TYPE,), body=body)


def _read_instance(request: HttpRequest, target: RequestTarget, rules: EndpointRules) -> InstanceRequest:
    # The preview without a header was scheduled events' own (spec §2.2).
    _check_caller(request, target, needs_header=True)
    version = _served_version(target, INSTANCE_VERSIONS, rules.unknown_version)
    form = (target.parameter("format") or "json").lower()
    if form not in ("json", "text"):
        raise _EarlyResponse(bad_request("format must be json or text"))
    return InstanceRequest(version=version, path=target.path[2:], as_text=form == "text")


def _read_token(request: HttpRequest, target: RequestTarget, rules: EndpointRules) -> TokenRequest | HttpResponse:
    # That the header is missing is told in other words here.
    _check_caller(request, target, needs_header=False)
    return read_token_request(target, has_header=_has_metadata_header(request), is_given=rules.gives_tokens)


def _check_caller(request: HttpRequest, target: RequestTarget, *, needs_header: bool) -> None:
    """Refuse whoever was sent here by a browser, a proxy or a redirect instead of a program in the VM."""
    if request.header_values("origin"):
        raise _EarlyResponse(origin_not_allowed())
    if request.header_values("x-forwarded-for"):
        raise _EarlyResponse(forwarded_for_not_allowed())
    if (name := target.duplicate_parameter()) is not None:
        raise _EarlyResponse(duplicate_parameter(name))
    if needs_header and not _has_metadata_header(request):
        raise _EarlyResponse(metadata_header_missing())


def _has_metadata_header(request: HttpRequest) -> bool:
    """Sent more than once, the header must say true each time."""
    given = request.header_values("metadata")
    return bool(given) and all(value.strip().lower() == "true" for value in given)


def _served_version(target: RequestTarget, served: Sequence[str], unknown: UnknownVersionPolicy) -> str:
    asked = target.parameter("api-version")
    version = resolve_version(asked, served, unknown) if asked else None
    if version is not None:
        return version
    if asked and unknown is UnknownVersionPolicy.NOT_FOUND and asked.lower() not in ("latest", "{latest}"):
        raise _EarlyResponse(version_not_found())
    raise _EarlyResponse(unsupported_version(served))


def _read_poll(request: HttpRequest, version: str, rules: EndpointRules) -> PollRequest:
    tags = request.header_values("if-none-match")
    if not tags:
        return PollRequest(version=version)
    return PollRequest(
        version=version,
        if_none_match=", ".join(tags),
        wait_s=preferred_wait(request.header_values("prefer"), rules.max_wait_s),
    )


def _read_approval(request: HttpRequest, version: str) -> ApprovalRequest:
    if len(request.body) > MAX_BODY_BYTES:
        raise _EarlyResponse(body_too_large())
    try:
        return ApprovalRequest(version=version, event_ids=parse_approval(request.body))
    except InvalidApproval as bad:
        raise _EarlyResponse(bad_request(str(bad))) from bad


def client_has_document(poll: PollRequest, tag: str) -> bool:
    """Whether the caller has the document of this tag already: then it may be held, or is told 304."""
    return poll.if_none_match is not None and matches_etag(poll.if_none_match, tag)


def poll_response(
    poll: PollRequest, *, tag: str, document: Document, rules: EndpointRules, body: bytes | None = None
) -> HttpResponse:
    """200 with the document, or 304 to whoever has it. `body`: its bytes, if they are rendered already."""
    tagged = ("ETag", tag)
    if client_has_document(poll, tag):
        return HttpResponse(status=304, headers=(tagged,))
    if body is None:
        body = encode_document(document, poll.version, iso_dates=rules.iso_dates)
    return HttpResponse(status=200, headers=(JSON_CONTENT_TYPE, tagged), body=body)


def with_preference_applied(response: HttpResponse, wait_s: int) -> HttpResponse:
    """The answer to a poll that was held, or was ready to be, for up to `wait_s`."""
    return replace(response, headers=(*response.headers, ("Preference-Applied", f"wait={wait_s}")))


@lru_cache(maxsize=1024)
def etag(scope_id: str, epoch: int, incarnation: int) -> str:
    """Quoted. The epoch tells a scope that was enabled again from the one before; a VM that comes back in another scope

    has seen nothing of what is shown there, whatever the numbers.
    """
    return f'"{epoch}-{incarnation}-{crc32(scope_id.encode()):08x}"'


def matches_etag(condition: str, tag: str) -> bool:
    """Whether an If-None-Match names this tag, alone or in a list, weak or strong.

    `*` names none: a poller that sends it could never be told of an event, and one document too many does no
    harm. What is not a quoted tag is junk, and junk never matches.
    """
    return any(given.strip().removeprefix("W/") == tag for given in condition.split(","))


def preferred_wait(preferences: Sequence[str], most_s: int) -> int | None:
    """How long these Prefer headers (RFC 7240) ask to wait, at most `most_s`; None if not at all.

    Of several waits the first counts, as the RFC says, so a first one that is junk means none.
    """
    for preference in _split_unquoted(",".join(preferences), ","):
        name, _, value = next(_split_unquoted(preference, ";")).partition("=")
        if name.strip().lower() == "wait":
            return _wait_seconds(value.strip(), most_s)
    return None


def _wait_seconds(value: str, most_s: int) -> int | None:
    if len(value) > 1 and value[0] == value[-1] == '"':
        value = value[1:-1]
    if not (value.isascii() and value.isdigit()):
        return None
    digits = value.lstrip("0")
    wait_s = most_s if len(digits) > 9 else min(int(digits or "0"), most_s)
    return wait_s if wait_s > 0 else None


def _split_unquoted(text: str, separator: str) -> Iterator[str]:
    """The pieces between separators that stand outside quotes. One pass, however odd the text."""
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
