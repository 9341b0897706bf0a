"""Parses requests strictly: limited body and query, decoded into structs, or Rejected.

The request bodies here are those that the API reads and the portal previews; all others stand beside their API
handlers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta
from starlette.requests import Request

from forewarn.errors import Rejected

NonEmptyText = Annotated[str, Meta(min_length=1)]
DurationSeconds = Annotated[float, Meta(ge=0, le=10 * 366 * 86400)]
ResultLimit = Annotated[int, Meta(ge=1, le=1_000_000)]
HistorySeq = Annotated[int, Meta(ge=0, le=2**62)]


class StrictBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class EmptyBody(StrictBody, frozen=True, kw_only=True):
    """Neither a body nor a query is expected."""


class NewFault(StrictBody, frozen=True, kw_only=True):
    kind: NonEmptyText
    vm: str = ""
    scope: str = ""
    all: bool = False
    count: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    for_s: DurationSeconds | None = None
    parameters: dict[str, float] = {}


class ClearFaultsBody(StrictBody, frozen=True, kw_only=True):
    """Which faults: all that every given member fits."""

    ids: tuple[NonEmptyText, ...] = ()
    kind: str = ""
    vm: str = ""
    scope: str = ""
    all: bool = False


class NewStorm(StrictBody, frozen=True, kw_only=True):
    seed: Annotated[int, Meta(ge=0, le=2**53)]
    vms: Annotated[tuple[NonEmptyText, ...], Meta(max_length=10_000)] = ()
    for_s: DurationSeconds = 600


class AdvanceClockBody(StrictBody, frozen=True, kw_only=True):
    by_s: float


class ClockSpeedBody(StrictBody, frozen=True, kw_only=True):
    speed: float


MAX_BODY_BYTES = 16 * 1024 * 1024  # a fleet file is the longest there is
MAX_FORM_BYTES = 64 * 1024  # of somebody who has not proven yet who they are


async def read_limited_body(request: Request, longest: int = MAX_BODY_BYTES) -> bytes | None:
    """The body; None if it is too long."""
    parts: list[bytes] = []
    length = 0
    async for part in request.stream():
        length += len(part)
        if length > longest:
            return None
        parts.append(part)
    return b"".join(parts)


def unique_query_params(request: Request) -> dict[str, str]:
    query: dict[str, str] = {}
    for name, text in request.query_params.multi_items():
        if name in query:
            raise Rejected(f"the query has {name!r} more than once: give it once")
        query[name] = text
    return query


T = TypeVar("T", bound=msgspec.Struct)
_ERROR_LOCATION = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<where>.*?)`)?$", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerCall:
    path_params: Mapping[str, str] = field(default_factory=dict)  # from the path
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    for_export: bool = False  # everything that fits is wanted, for a file: no caller says so, the app does

    def parse_body(self, shape: type[T]) -> T:
        try:
            return msgspec.json.decode(self.body or b"{}", type=shape)
        except msgspec.ValidationError as error:
            raise Rejected(f"the body cannot be taken: {_validation_message(error)}") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Rejected(f"the body is not JSON ({error}): send an object such as {{}}") from error

    def parse_query(self, shape: type[T]) -> T:
        try:
            return msgspec.convert(dict(self.query), type=shape, strict=False)
        except msgspec.ValidationError as error:
            raise Rejected(f"the query cannot be taken: {_validation_message(error)}") from error


def _validation_message(error: msgspec.ValidationError) -> str:
    """The member first, then what is wrong with it."""
    where, what = split_validation_error(error)
    return f"{where}: {what}" if where else what


def split_validation_error(error: msgspec.ValidationError) -> tuple[str, str]:
    """The member that cannot be taken, "" for the whole, and what is wrong with it."""
    match = _ERROR_LOCATION.match(str(error))
    assert match is not None
    return match["where"] or "", match["what"].replace("`", "'")


def reject_duplicates(names: tuple[str, ...], keys: list[str]) -> None:
    for number, key in enumerate(keys):
        if key in keys[:number]:
            raise Rejected(f"{names[number]!r} is named twice: name each once")
