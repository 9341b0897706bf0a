"""One call of the API, read strictly: what it names, its query and its body as values, or Rejected in one sentence."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from forewarn.errors import Rejected

T = TypeVar("T", bound=msgspec.Struct)
_PATH = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<where>.*?)`)?$", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    names: Mapping[str, str] = field(default_factory=dict)  # from the path
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    whole: bool = False  # everything that fits is wanted, for a file: no caller says so, the app does

    def read_body(self, shape: type[T]) -> T:
        try:
            return msgspec.json.decode(self.body or b"{}", type=shape)
        except msgspec.ValidationError as error:
            raise Rejected(f"the body cannot be taken: {_sentence(error)}") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Rejected(f"the body is not JSON ({error}): send an object such as {{}}") from error

    def read_query(self, shape: type[T]) -> T:
        try:
            return msgspec.convert(dict(self.query), type=shape, strict=False)
        except msgspec.ValidationError as error:
            raise Rejected(f"the query cannot be taken: {_sentence(error)}") from error


def _sentence(error: msgspec.ValidationError) -> str:
    """The member first, then what is wrong with it."""
    where, what = fault_in(error)
    return f"{where}: {what}" if where else what


def fault_in(error: msgspec.ValidationError) -> tuple[str, str]:
    """The member that cannot be taken, "" for the whole, and what is wrong with it."""
    match = _PATH.match(str(error))
    assert match is not None
    return match["where"] or "", match["what"].replace("`", "'")
