"""Parses requests strictly: limited body and query, decoded into structs, or Rejected.

The request bodies here are used by the API and the portal; all others are beside their API handlers.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta
from starlette.requests import Request

from forewarn.base.times import decode_time
from forewarn.base.wording import did_you_mean
from forewarn.core.limits import DurationSeconds, Name, NonEmptyText, Number
from forewarn.core.request import RequestKey
from forewarn.errors import Rejected

T = TypeVar("T", bound=msgspec.Struct)
_ERROR_LOCATION = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<where>.*?)`)?$", re.DOTALL)
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field '(?P<name>[^']*)'")
MAX_BODY_BYTES = 16 * 1024 * 1024  # enough for the largest fleet file
MAX_FORM_BYTES = 64 * 1024  # for callers who are not authenticated yet

GROUP_PREFIX = "group:"  # before the name of a resource group, where a resource is expected


class StrictBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of request bodies and queries: a field that the struct does not have is an error."""


class EmptyBody(StrictBody, frozen=True, kw_only=True):
    """The body or query of a route that takes none: any field is an error."""


class NewFault(StrictBody, frozen=True, kw_only=True):
    """A fault to set, for exactly one of a VM, a scope or all.

    It ends after `count` requests or events, after `duration_s` seconds or when it is cleared, whichever is first.
    Without `duration_s` it lasts for the longest duration of its kind, if that has one. A kind that happens at once
    takes neither. Seconds are real time for faults on requests, lab time for faults on events. Letter case of kind, VM
    and scope is ignored.
    """

    kind: NonEmptyText  # a value of FaultKind, such as `slow-body`
    vm: Name = ""  # a present VM: name, `group/name` or key; "": not for one VM
    scope: Name = ""  # an id or name; "": not for one scope
    all: bool = False  # for the whole fleet
    count: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None  # of requests or events; None: no limit
    duration_s: DurationSeconds | None = (
        None  # above 0, and at most the longest duration of its kind; None: the longest
    )
    # Of its kind, by name, such as `delay_s`; a missing one has the kind's default.
    parameters: Annotated[dict[Name, Number], Meta(max_length=100)] = {}


class ClearFaultsBody(StrictBody, frozen=True, kw_only=True):
    """Which faults to clear: those that match every given field, of which at least one is given.

    `ids` and `all` clear storms too; with a kind, VM or scope storms stay. `scope` means faults of the scope itself,
    not of its VMs. Letter case of kind, VM and scope is ignored; `ids` are exact.
    """

    ids: Annotated[tuple[NonEmptyText, ...], Meta(max_length=10_000)] = ()  # of faults and storms
    kind: Name = ""  # a value of FaultKind
    vm: Name = ""  # a name, `group/name` or key, present or removed
    scope: Name = ""  # an id or name
    all: bool = False  # every fault and storm


class NewStorm(StrictBody, frozen=True, kw_only=True):
    """A fault storm to start: its seed, its VMs (none: all) and its duration in seconds of lab time.

    A storm sets faults at random moments. Letter case of names is ignored.
    """

    seed: Annotated[int, Meta(ge=0, le=2**53)]  # the same seed, VMs and duration give the same schedule
    vms: Annotated[tuple[NonEmptyText, ...], Meta(max_length=10_000)] = ()  # name, `group/name` or key, each VM once
    duration_s: DurationSeconds = 600  # seconds of lab time


class AdvanceClockBody(StrictBody, frozen=True, kw_only=True):
    """By how many seconds to advance the lab's clock: more than 0, at most 366 days.

    VMs that poll now count as polling throughout, unless `without_polls`: then scopes may become idle, if the setting
    enablement is on-request.
    """

    by_s: Number  # seconds of lab time
    without_polls: bool = False  # True: no VM counts as polling meanwhile


class ClockSpeedBody(StrictBody, frozen=True, kw_only=True):
    """How many seconds of lab time pass in one second of real time: 0 (stops the clock) to 100,000."""

    speed: Number  # 1: as fast as real time


class BodyTooLarge(Rejected):
    """Raised by `read_body` if the body of a request is longer than `max_bytes`; the response is a 413."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"the body is longer than {max_bytes} bytes: send less")


async def read_limited_body(request: Request, max_bytes: int = MAX_BODY_BYTES) -> bytes | None:
    """Read the whole body of a request; None as soon as more than `max_bytes` have arrived."""
    parts: list[bytes] = []
    length = 0
    async for part in request.stream():
        length += len(part)
        if length > max_bytes:
            return None
        parts.append(part)
    return b"".join(parts)


def unique_query_params(request: Request) -> dict[str, str]:
    """Return the query parameters of a request by name."""
    query: dict[str, str] = {}
    for name, text in request.query_params.multi_items():
        if name in query:
            raise Rejected(f"the query has {name!r} more than once: give it once")
        query[name] = text
    return query


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerCall:
    """The call of one route: path parameters, query and body, not yet decoded."""

    path_params: Mapping[str, str] = field(default_factory=dict)  # by the names in the route's path
    query: Mapping[str, str] = field(default_factory=dict)  # by name
    body: bytes = b""  # JSON; empty: none was sent
    for_export: bool = False  # the portal sets it to get all rows of a page for a file
    surface_header: str | None = None  # of the request; `surface_of` reads it, for errors that a response contains
    request_key: RequestKey | None = None  # gives the request that the handler creates its id; None: it gets a new one

    def parse_body(self, body_type: type[T]) -> T:
        """Decode the JSON body into this struct and return it; an empty body counts as {}."""
        try:
            return msgspec.json.decode(self.body or b"{}", type=body_type, dec_hook=decode_time)
        except msgspec.ValidationError as error:
            raise Rejected(f"the body is not valid: {_validation_message(error, body_type)}") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Rejected(f"the body is not JSON ({error}): send an object such as {{}}") from error

    def parse_query(self, query_type: type[T]) -> T:
        """Decode the query into this struct and return it, with texts converted to its types (`true`, `10`)."""
        try:
            return msgspec.convert(dict(self.query), type=query_type, strict=False)
        except msgspec.ValidationError as error:
            raise Rejected(f"the query is not valid: {_validation_message(error, query_type)}") from error


def _validation_message(error: msgspec.ValidationError, wanted: type) -> str:
    """The field first, then what is wrong with it; for an unknown field of `wanted`, the known ones."""
    where, what = split_validation_error(error)
    if not where and (unknown := _UNKNOWN_FIELD.fullmatch(what)):
        known = [field.encode_name for field in msgspec.structs.fields(wanted)]
        remedy = did_you_mean(unknown["name"], known) or (
            f": the fields are {', '.join(known)}" if known else ": leave it out, there are no fields"
        )
        return f"field {unknown['name']!r} is unknown{remedy}"
    return f"{where}: {what}" if where else what


def split_validation_error(error: msgspec.ValidationError) -> tuple[str, str]:
    """Return the path of the invalid field, such as `vms[...]`, and what is wrong with it."""
    match = _ERROR_LOCATION.match(str(error))
    assert match is not None
    return match["where"] or "", match["what"].replace("`", "'")


class InvalidValue(Rejected):
    """Raised by `convert_values`; `field` is the field of the struct whose value is wrong."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


def convert_values(values: Mapping[str, object], wanted: type[T]) -> T:
    """Return this struct with values that were not read from a JSON body, within the limits of its fields."""
    try:
        return msgspec.convert(values, type=wanted, dec_hook=decode_time)
    except msgspec.ValidationError as error:
        where, what = split_validation_error(error)
        field = re.split(r"[\[.]", where)[0]
        value = reprlib.repr(values.get(field))
        raise InvalidValue(f"{field} is {value}, which is not possible ({what}): give another value", field) from error


def reject_duplicates(names: tuple[str, ...], keys: list[str]) -> None:
    """Raise Rejected if two of `names` stand for the same key; the message names the second one."""
    seen: set[str] = set()
    for number, key in enumerate(keys):
        if key in seen:
            raise Rejected(f"{names[number]!r} is named twice: name each once")
        seen.add(key)
