"""A call of somebody's HTTP API as it is configured, and a question that is asked until the answer is as wanted."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from forewarn.agent.reaction.kind import BadOption
from forewarn.agent.reaction.option import Raw, check_url, needed, only, path, seconds, table, text, text_table
from forewarn.agent.reaction.option import whole_numbers as numbers
from forewarn.agent.reaction.secret import secret_in
from forewarn.agent.reaction.template import check_places, filled_body, filled_url
from forewarn.agent.reaction.web import Call, Reply
from forewarn.agent.value import Case

T = TypeVar("T")
_WELL = tuple(range(200, 300))
_CALL_KEYS = ("method", "url", "headers", "header_files", "body", "expect")
_WAIT_KEYS = ("url", "headers", "header_files", "expect", "contains", "lacks", "every")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """One call, as configured."""

    url: str
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)
    header_files: Mapping[str, Path] = field(default_factory=dict)
    body: object = None
    expect: tuple[int, ...] = _WELL

    def call(self, case: Case, ca_file: Path | None) -> Call:
        """Raises NoSecret."""
        body = b"" if self.body is None else filled_body(self.body, case)
        kind = {} if self.body is None or isinstance(self.body, str) else {"Content-Type": "application/json"}
        secrets = {name: secret_in(file) for name, file in self.header_files.items()}
        headers = {**kind, **self.headers, **secrets}
        return Call(
            url=filled_url(self.url, case),
            method=self.method,
            headers=headers,
            body=body,
            ca_file=ca_file,
            secrets=tuple(secrets.values()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A question asked until the answer is as wanted."""

    errand: Errand
    contains: str = ""
    lacks: str = ""
    every_s: float = 1.0

    def is_met(self, reply: Reply) -> bool:
        is_text_fit = self.contains in reply.text and not (self.lacks and self.lacks in reply.text)
        return reply.status in self.errand.expect and is_text_fit


def within(raw: Raw, key: str, read: Callable[[Raw], T]) -> T:
    """Read a table of the step's; what is wrong in it is told as the fault of its key."""
    given = table(raw, key)
    try:
        return read(given)
    except BadOption as bad:
        raise BadOption(key, f"in {key}, {bad.what}", bad.remedy) from None


def read_errand(given: Raw, known: tuple[str, ...] = _CALL_KEYS, method: str = "POST") -> Errand:
    only(given, known)
    url = needed(given, "url", '"https://…"')
    check_url("url", url)
    for each in ("url", "body"):
        check_places(each, given.get(each))
    method = text(given, "method", method).upper()
    if method not in _METHODS:
        raise BadOption("method", f"method = {method!r} is not known", f"write one of {', '.join(_METHODS)}")
    files = text_table(given, "header_files")
    return Errand(
        url=url,
        method=method,
        headers=_plain(text_table(given, "headers")),
        header_files={name: file for name in _plain(files) if (file := path(files, name))},
        body=given.get("body"),
        expect=numbers(given, "expect", 100, 599) or _WELL,
    )


def _plain(headers: dict[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if not _HEADER.fullmatch(name) or not value.isprintable() or not _is_latin(value):
            raise BadOption("headers", f"{name!r} is no header that can be sent", "write one line of plain text")
    return headers


def _is_latin(value: str) -> bool:
    return all(ord(character) < 256 for character in value)


def read_wait(given: Raw) -> Wait:
    return Wait(
        errand=read_errand(given, _WAIT_KEYS, method="GET"),
        contains=text(given, "contains"),
        lacks=text(given, "lacks"),
        every_s=max(seconds(given, "every", 1.0), 0.1),
    )
