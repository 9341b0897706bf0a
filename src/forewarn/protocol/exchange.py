"""Request in, answer out, without I/O: what may be asked of the endpoint, and what each question is told.

`read` makes every check that needs no state, in the order of spec §2.7, and gives the answer or what is
asked: a poll, an approval, an element of the instance, or a token. Whoever has the state answers those.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from forewarn.protocol.answer import (
    MAX_BODY,
    MAX_HEAD,
    approved,
    bad_request,
    forwarded_refused,
    header_missing,
    header_too_large,
    malformed,
    not_found,
    origin_refused,
    repeated_parameter,
    throttled,
    timed_out,
    too_large,
    unavailable,
    unknown_event,
    version_not_found,
    wrong_verb,
    wrong_version,
)
from forewarn.protocol.approval import Bad, read_approval
from forewarn.protocol.codec import encode
from forewarn.protocol.condition import etag, names_tag, wait_of
from forewarn.protocol.document import Document
from forewarn.protocol.identity import GetToken, read_get_token
from forewarn.protocol.message import JSON, Request, Response
from forewarn.protocol.target import Target, read_target
from forewarn.protocol.versions import INSTANCE_VERSIONS, VERSIONS, UnknownVersion, enforces_header, settle

__all__ = [
    "MAX_BODY",
    "MAX_HEAD",
    "Approve",
    "Ask",
    "GetToken",
    "Poll",
    "ReadInstance",
    "Request",
    "Response",
    "Rules",
    "UnknownVersion",
    "answer_poll",
    "applied_wait",
    "approved",
    "etag",
    "has_document",
    "header_too_large",
    "malformed",
    "read",
    "throttled",
    "timed_out",
    "too_large",
    "unavailable",
    "unknown_event",
]

_KEPT_HEADS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What an operator may set about the endpoint."""

    versions: tuple[str, ...] = VERSIONS
    header_always: bool = False  # Metadata: true is required at 2017-03-01 too
    unknown_version: UnknownVersion = UnknownVersion.REFUSE
    iso_dates: bool = False
    max_wait_s: int = 300
    gives_tokens: bool = False  # of managed identities; not where anybody could pose as a VM (spec §2.8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    version: str
    tag: str | None = None  # If-None-Match as it came
    wait_s: int | None = None  # only together with a tag


@dataclass(frozen=True, slots=True, kw_only=True)
class Approve:
    version: str
    event_ids: tuple[str, ...]  # upper case, each once, in the order given


@dataclass(frozen=True, slots=True, kw_only=True)
class _Approval:
    """An approval whose body is not read yet."""

    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadInstance:
    version: str
    path: tuple[str, ...] = ()  # below /metadata/instance
    text: bool = False


Headers = tuple[tuple[str, str], ...]
Ask = Poll | Approve | ReadInstance | GetToken


class _Answered(Exception):
    """Carries the answer of the first check that failed up to `read`."""

    def __init__(self, response: Response) -> None:
        self.response = response


def read(request: Request, *, known: bool, rules: Rules) -> Ask | Response:
    """What a request asks, or its answer if that needs no state. `known`: the caller is one of our VMs."""
    try:
        return _read(request, known=known, rules=rules)
    except _Answered as answered:
        return replace(answered.response, head_only=request.method == "HEAD")


def _read(request: Request, *, known: bool, rules: Rules) -> Ask | Response:
    if not known:
        raise _Answered(not_found())
    asked = _head_of(request.method, request.target, request.headers, rules)
    return _approve(request, asked.version) if isinstance(asked, _Approval) else asked


@lru_cache(maxsize=_KEPT_HEADS)
def _head_of(method: str, target: str, headers: Headers, rules: Rules) -> Ask | _Approval | Response:
    """What is asked, as far as no body says it. Requests are alike but for their bodies, so each is read once."""
    if method not in ("GET", "POST"):
        raise _Answered(wrong_verb(method))
    found = read_target(target)
    if found is None:
        raise _Answered(not_found())
    return _room(found, method)(Request(method=method, target=target, headers=headers), found, rules)


_Room = Callable[[Request, Target, Rules], "Ask | _Approval | Response"]


def _room(target: Target, method: str) -> _Room:
    """Who reads requests for this path (spec §2.1: without case).

    A POST to what can only be read is told that the verb is wrong, as PUT and HEAD are there in captures;
    elsewhere it meets an unknown path.
    """
    match target.lowered():
        case ("metadata", "scheduledevents"):
            return _scheduled_events
        case ("metadata", "latest" | "{latest}", "scheduledevents"):
            return _latest
        case ("metadata", "versions"):
            room: _Room = _versions
        case ("metadata", "instance", *_):
            room = _instance
        case ("metadata", "identity", "oauth2", "token"):
            room = _token
        case _:
            raise _Answered(not_found())
    if method == "POST":
        raise _Answered(wrong_verb(method))
    return room


def _scheduled_events(request: Request, target: Target, rules: Rules) -> Ask | _Approval:
    needs_header = rules.header_always or enforces_header(target.parameter("api-version"))
    _check_caller(request, target, needs_header=needs_header)
    version = _version(target, rules.versions, rules.unknown_version)
    return _poll(request, version, rules) if request.method == "GET" else _Approval(version=version)


def _latest(request: Request, target: Target, rules: Rules) -> Response:
    needs_header = rules.header_always or enforces_header(target.parameter("api-version"))
    _check_caller(request, target, needs_header=needs_header)
    return wrong_version(rules.versions)


def _versions(request: Request, target: Target, rules: Rules) -> Response:
    _check_caller(request, target, needs_header=True)
    body = json.dumps({"apiVersions": INSTANCE_VERSIONS}, separators=(",", ":")).encode("ascii")
    return Response(status=200, headers=(JSON,), body=body)


def _instance(request: Request, target: Target, rules: Rules) -> ReadInstance:
    # The preview without a header was scheduled events' own (spec §2.2).
    _check_caller(request, target, needs_header=True)
    version = _version(target, INSTANCE_VERSIONS, rules.unknown_version)
    form = (target.parameter("format") or "json").lower()
    if form not in ("json", "text"):
        raise _Answered(bad_request("format must be json or text"))
    return ReadInstance(version=version, path=target.path[2:], text=form == "text")


def _token(request: Request, target: Target, rules: Rules) -> GetToken | Response:
    # That the header is missing is told in other words here.
    _check_caller(request, target, needs_header=False)
    return read_get_token(target, has_header=_says_metadata(request), is_given=rules.gives_tokens)


def _check_caller(request: Request, target: Target, *, needs_header: bool) -> None:
    """Refuse whoever was sent here by a browser, a proxy or a redirect instead of a program in the VM."""
    if request.values("origin"):
        raise _Answered(origin_refused())
    if request.values("x-forwarded-for"):
        raise _Answered(forwarded_refused())
    if (name := target.repeated()) is not None:
        raise _Answered(repeated_parameter(name))
    if needs_header and not _says_metadata(request):
        raise _Answered(header_missing())


def _says_metadata(request: Request) -> bool:
    """Sent more than once, the header must say true each time."""
    given = request.values("metadata")
    return bool(given) and all(value.strip().lower() == "true" for value in given)


def _version(target: Target, served: Sequence[str], unknown: UnknownVersion) -> str:
    asked = target.parameter("api-version")
    version = settle(asked, served, unknown) if asked else None
    if version is not None:
        return version
    if asked and unknown is UnknownVersion.NOT_FOUND and asked.lower() not in ("latest", "{latest}"):
        raise _Answered(version_not_found())
    raise _Answered(wrong_version(served))


def _poll(request: Request, version: str, rules: Rules) -> Poll:
    tags = request.values("if-none-match")
    if not tags:
        return Poll(version=version)
    return Poll(version=version, tag=", ".join(tags), wait_s=wait_of(request.values("prefer"), rules.max_wait_s))


def _approve(request: Request, version: str) -> Approve:
    if len(request.body) > MAX_BODY:
        raise _Answered(too_large())
    try:
        return Approve(version=version, event_ids=read_approval(request.body))
    except Bad as bad:
        raise _Answered(bad_request(str(bad))) from bad


def has_document(poll: Poll, tag: str) -> bool:
    """Whether the caller has the document of this tag already: then it may be held, or is told 304."""
    return poll.tag is not None and names_tag(poll.tag, tag)


def answer_poll(poll: Poll, *, tag: str, document: Document, rules: Rules, body: bytes | None = None) -> Response:
    """200 with the document, or 304 to whoever has it. `body`: its bytes, if they are rendered already."""
    tagged = ("ETag", tag)
    if has_document(poll, tag):
        return Response(status=304, headers=(tagged,))
    if body is None:
        body = encode(document, poll.version, iso_dates=rules.iso_dates)
    return Response(status=200, headers=(JSON, tagged), body=body)


def applied_wait(response: Response, wait_s: int) -> Response:
    """The answer to a poll that was held, or was ready to be, for up to `wait_s`."""
    return replace(response, headers=(*response.headers, ("Preference-Applied", f"wait={wait_s}")))
