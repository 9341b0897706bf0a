"""Reaction `leave-pool`: takes the VM out of a load balancer's pool by HTTP calls, and back."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from forewarn.agent.model import StepContext, StepOutcome
from forewarn.agent.reactions.http_client import HttpCall, HttpCallFailed, HttpReply, send_call, send_with_retries
from forewarn.agent.reactions.options import ReactionKind, SecretUnavailable, read_secret
from forewarn.agent.reactions.step_context import (
    check_placeholders,
    fill_body,
    fill_url,
    load_undo_notes,
    save_undo_notes,
    wait_until,
)
from forewarn.base.tomlfile import (
    BadValue,
    RawTable,
    check_known_keys,
    check_url,
    read_path,
    read_required_text,
    read_seconds,
    read_table,
    read_text,
    read_text_table,
    read_whole_numbers,
)

T = TypeVar("T")
_SUCCESS_STATUSES = tuple(range(200, 300))
_CALL_KEYS = ("method", "url", "headers", "header_files", "body", "expect")
_WAIT_KEYS = ("url", "headers", "header_files", "expect", "contains", "lacks", "every")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


@dataclass(frozen=True, slots=True, kw_only=True)
class _ConfiguredCall:
    """An HTTP call as configured, with placeholders such as `$vm` in URL and body not filled yet."""

    url: str
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)  # values by name
    header_files: Mapping[str, Path] = field(default_factory=dict)  # files with the secret values, by header
    body: object = None  # a string is sent as it is, another value as JSON; None: no body
    expect: tuple[int, ...] = _SUCCESS_STATUSES  # the statuses that mean success

    def to_http_call(self, context: StepContext, ca_file: Path | None) -> HttpCall:
        body = b"" if self.body is None else fill_body(self.body, context)
        kind = {} if self.body is None or isinstance(self.body, str) else {"Content-Type": "application/json"}
        secrets = {name: read_secret(file) for name, file in self.header_files.items()}
        headers = {**kind, **self.headers, **secrets}
        return HttpCall(
            url=fill_url(self.url, context),
            method=self.method,
            headers=headers,
            body=body,
            ca_file=ca_file,
            secrets=tuple(secrets.values()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _ConfiguredWait:
    """A GET as configured, to be repeated until its reply meets the condition (`wait` or `wait_back`)."""

    call: _ConfiguredCall  # its `expect` is part of the condition
    contains: str = ""  # text that the body must contain; "": any
    lacks: str = ""  # text that it must not contain; "": none
    every_s: float = 1.0  # seconds between two calls

    def is_met(self, reply: HttpReply) -> bool:
        is_text_fit = self.contains in reply.text and not (self.lacks and self.lacks in reply.text)
        return reply.status in self.call.expect and is_text_fit


def _read_subtable(raw: RawTable, key: str, read: Callable[[RawTable], T]) -> T:
    raw_call = read_table(raw, key)
    try:
        return read(raw_call)
    except BadValue as bad:
        raise BadValue(key, f"in {key}, {bad.what}", bad.remedy) from None


def _read_call(raw_call: RawTable, known: tuple[str, ...] = _CALL_KEYS, method: str = "POST") -> _ConfiguredCall:
    check_known_keys(raw_call, known)
    url = read_required_text(raw_call, "url", '"https://…"')
    check_url("url", url)
    for each in ("url", "body"):
        check_placeholders(each, raw_call.get(each))
    method = read_text(raw_call, "method", method).upper()
    if method not in _METHODS:
        raise BadValue("method", f"method = {method!r} is unknown", f"write one of {', '.join(_METHODS)}")
    files = read_text_table(raw_call, "header_files")
    return _ConfiguredCall(
        url=url,
        method=method,
        headers=_checked_headers(read_text_table(raw_call, "headers")),
        header_files={name: file for name in _checked_headers(files) if (file := read_path(files, name))},
        body=raw_call.get("body"),
        expect=read_whole_numbers(raw_call, "expect", 100, 599) or _SUCCESS_STATUSES,
    )


def _checked_headers(headers: dict[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or not value.isprintable() or not _is_latin1(value):
            raise BadValue("headers", f"{name!r} is not a valid header", "write one line of plain text")
    return headers


def _is_latin1(value: str) -> bool:
    return all(ord(character) < 256 for character in value)


def _read_wait(raw_call: RawTable) -> _ConfiguredWait:
    return _ConfiguredWait(
        call=_read_call(raw_call, _WAIT_KEYS, method="GET"),
        contains=read_text(raw_call, "contains"),
        lacks=read_text(raw_call, "lacks"),
        every_s=max(read_seconds(raw_call, "every", 1.0), 0.1),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LeavePoolOptions:
    leave: _ConfiguredCall  # the HTTP call that takes the VM out of the pool
    back: _ConfiguredCall | None = None  # the one that takes it back when the event is gone; None: nothing to undo
    wait: _ConfiguredWait | None = None  # a GET to repeat after `leave` until its condition is met; None: do not wait
    wait_back: _ConfiguredWait | None = None  # likewise after `back`
    ca_file: Path | None = None  # the CAs to trust; None: the system's


class LeavePoolReaction:
    """The reaction `leave-pool`: takes the VM out of a load balancer's pool by HTTP calls, and back."""

    # Its undo sends the `back` call whenever leaving was tried, even if that failed.

    def __init__(self, options: LeavePoolOptions) -> None:
        self._options = options

    async def do(self, context: StepContext) -> StepOutcome:
        save_undo_notes(context, {"left": "tried"})
        return await self._call_and_wait(self._options.leave, self._options.wait, context, "left the pool")

    async def undo(self, context: StepContext) -> StepOutcome:
        if self._options.back is None or "left" not in load_undo_notes(context):
            return StepOutcome(ok=True, text="nothing to undo")
        return await self._call_and_wait(self._options.back, self._options.wait_back, context, "back in the pool")

    async def check(self, context: StepContext) -> bool | None:
        if self._options.wait is None:
            return None
        try:
            return await self._is_met(self._options.wait, context)
        except SecretUnavailable:
            return None

    async def _call_and_wait(
        self, call: _ConfiguredCall, wait: _ConfiguredWait | None, context: StepContext, text: str
    ) -> StepOutcome:
        try:
            reply = await send_with_retries(call.to_http_call(context, self._options.ca_file), context)
            if reply.status not in call.expect:
                return StepOutcome(ok=False, text=f"the answer to {call.method} was {reply.summary}")
            if wait and not await wait_until(context, lambda: self._is_met(wait, context), wait.every_s):
                return StepOutcome(
                    ok=False, text=f"{text}, but the condition of wait is not met at the end of the step's time"
                )
        except (HttpCallFailed, SecretUnavailable) as error:
            return StepOutcome(ok=False, text=str(error))
        return StepOutcome(ok=True, text=text)

    async def _is_met(self, wait: _ConfiguredWait, context: StepContext) -> bool:
        try:
            return wait.is_met(await send_call(wait.call.to_http_call(context, self._options.ca_file)))
        except HttpCallFailed:
            return False


def _read_options(raw: RawTable) -> LeavePoolOptions:
    if "leave" not in raw:
        raise BadValue("", "leave is missing", 'write leave = { method = "DELETE", url = "https://…/$vm" }')
    return LeavePoolOptions(
        leave=_read_subtable(raw, "leave", _read_call),
        back=_read_subtable(raw, "back", _read_call) if "back" in raw else None,
        wait=_read_subtable(raw, "wait", _read_wait) if "wait" in raw else None,
        wait_back=_read_subtable(raw, "wait_back", _read_wait) if "wait_back" in raw else None,
        ca_file=read_path(raw, "ca_file"),
    )


LEAVE_POOL_REACTION = ReactionKind(
    name="leave-pool",
    summary="takes the VM out of a load balancer's pool by HTTP calls, and back",
    options=("leave", "back", "wait", "wait_back", "ca_file"),
    read=_read_options,
    make=LeavePoolReaction,
)
