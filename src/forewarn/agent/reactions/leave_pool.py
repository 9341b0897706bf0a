"""Reaction `leave-pool`: takes the VM out of a load balancer's pool by HTTP calls, and back."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from forewarn.agent.model import StepContext, StepOutcome
from forewarn.agent.reactions.event_text import check_placeholders, fill_body, fill_url
from forewarn.agent.reactions.http_client import HttpCall, HttpCallFailed, HttpReply, send_call, send_with_retries
from forewarn.agent.reactions.options import (
    BadOption,
    RawOptions,
    ReactionKind,
    SecretUnavailable,
    check_known_keys,
    check_url,
    read_path,
    read_required_text,
    read_seconds,
    read_secret,
    read_table,
    read_text,
    read_text_table,
)
from forewarn.agent.reactions.options import read_whole_numbers as numbers
from forewarn.agent.reactions.step_context import load_undo_notes, save_undo_notes, wait_until

T = TypeVar("T")
_SUCCESS_STATUSES = tuple(range(200, 300))
_CALL_KEYS = ("method", "url", "headers", "header_files", "body", "expect")
_WAIT_KEYS = ("url", "headers", "header_files", "expect", "contains", "lacks", "every")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredCall:
    """One call, as configured."""

    url: str
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)
    header_files: Mapping[str, Path] = field(default_factory=dict)
    body: object = None
    expect: tuple[int, ...] = _SUCCESS_STATUSES

    def to_http_call(self, case: StepContext, ca_file: Path | None) -> HttpCall:
        """Raises NoSecret."""
        body = b"" if self.body is None else fill_body(self.body, case)
        kind = {} if self.body is None or isinstance(self.body, str) else {"Content-Type": "application/json"}
        secrets = {name: read_secret(file) for name, file in self.header_files.items()}
        headers = {**kind, **self.headers, **secrets}
        return HttpCall(
            url=fill_url(self.url, case),
            method=self.method,
            headers=headers,
            body=body,
            ca_file=ca_file,
            secrets=tuple(secrets.values()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredWait:
    """A question asked until the answer is as wanted."""

    call: ConfiguredCall
    contains: str = ""
    lacks: str = ""
    every_s: float = 1.0

    def is_met(self, reply: HttpReply) -> bool:
        is_text_fit = self.contains in reply.text and not (self.lacks and self.lacks in reply.text)
        return reply.status in self.call.expect and is_text_fit


def read_subtable(raw: RawOptions, key: str, read: Callable[[RawOptions], T]) -> T:
    """Read a table of the step's; what is wrong in it is told as the fault of its key."""
    given = read_table(raw, key)
    try:
        return read(given)
    except BadOption as bad:
        raise BadOption(key, f"in {key}, {bad.what}", bad.remedy) from None


def read_call(given: RawOptions, known: tuple[str, ...] = _CALL_KEYS, method: str = "POST") -> ConfiguredCall:
    check_known_keys(given, known)
    url = read_required_text(given, "url", '"https://…"')
    check_url("url", url)
    for each in ("url", "body"):
        check_placeholders(each, given.get(each))
    method = read_text(given, "method", method).upper()
    if method not in _METHODS:
        raise BadOption("method", f"method = {method!r} is not known", f"write one of {', '.join(_METHODS)}")
    files = read_text_table(given, "header_files")
    return ConfiguredCall(
        url=url,
        method=method,
        headers=_checked_headers(read_text_table(given, "headers")),
        header_files={name: file for name in _checked_headers(files) if (file := read_path(files, name))},
        body=given.get("body"),
        expect=numbers(given, "expect", 100, 599) or _SUCCESS_STATUSES,
    )


def _checked_headers(headers: dict[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or not value.isprintable() or not _is_latin1(value):
            raise BadOption("headers", f"{name!r} is no header that can be sent", "write one line of plain text")
    return headers


def _is_latin1(value: str) -> bool:
    return all(ord(character) < 256 for character in value)


def read_wait(given: RawOptions) -> ConfiguredWait:
    return ConfiguredWait(
        call=read_call(given, _WAIT_KEYS, method="GET"),
        contains=read_text(given, "contains"),
        lacks=read_text(given, "lacks"),
        every_s=max(read_seconds(given, "every", 1.0), 0.1),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LeavePoolOptions:
    leave: ConfiguredCall
    back: ConfiguredCall | None = None
    wait: ConfiguredWait | None = None  # after leaving
    wait_back: ConfiguredWait | None = None
    ca_file: Path | None = None


class LeavePoolReaction:
    """Coming back is asked for whenever leaving was tried: nobody knows what became of a call without an answer."""

    def __init__(self, options: LeavePoolOptions) -> None:
        self._options = options

    async def do(self, case: StepContext) -> StepOutcome:
        save_undo_notes(case, {"left": "tried"})
        return await self._call_and_wait(self._options.leave, self._options.wait, case, "left the pool")

    async def undo(self, case: StepContext) -> StepOutcome:
        if self._options.back is None or "left" not in load_undo_notes(case):
            return StepOutcome(ok=True, text="nothing to undo")
        return await self._call_and_wait(self._options.back, self._options.wait_back, case, "back in the pool")

    async def check(self, case: StepContext) -> bool | None:
        if self._options.wait is None:
            return None
        try:
            return await self._is_met(self._options.wait, case)
        except SecretUnavailable:
            return None

    async def _call_and_wait(
        self, errand: ConfiguredCall, wait: ConfiguredWait | None, case: StepContext, text: str
    ) -> StepOutcome:
        try:
            reply = await send_with_retries(errand.to_http_call(case, self._options.ca_file), case)
            if reply.status not in errand.expect:
                return StepOutcome(ok=False, text=f"the answer to {errand.method} was {reply.summary}")
            if wait and not await wait_until(case, lambda: self._is_met(wait, case), wait.every_s):
                return StepOutcome(ok=False, text=f"{text}, but what is waited for is not so when the time is over")
        except (HttpCallFailed, SecretUnavailable) as error:
            return StepOutcome(ok=False, text=str(error))
        return StepOutcome(ok=True, text=text)

    async def _is_met(self, wait: ConfiguredWait, case: StepContext) -> bool:
        try:
            return wait.is_met(await send_call(wait.call.to_http_call(case, self._options.ca_file)))
        except HttpCallFailed:
            return False


def read_options(raw: RawOptions) -> LeavePoolOptions:
    if "leave" not in raw:
        raise BadOption("", "leave is missing", 'write leave = { method = "DELETE", url = "https://…/$vm" }')
    return LeavePoolOptions(
        leave=read_subtable(raw, "leave", read_call),
        back=read_subtable(raw, "back", read_call) if "back" in raw else None,
        wait=read_subtable(raw, "wait", read_wait) if "wait" in raw else None,
        wait_back=read_subtable(raw, "wait_back", read_wait) if "wait_back" in raw else None,
        ca_file=read_path(raw, "ca_file"),
    )


LEAVE_POOL_REACTION = ReactionKind(
    name="leave-pool",
    summary="leaves a load balancer's pool by HTTP calls, and comes back",
    options=("leave", "back", "wait", "wait_back", "ca_file"),
    read=read_options,
    make=LeavePoolReaction,
)
