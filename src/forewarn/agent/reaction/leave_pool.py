"""The VM leaves a load balancer's pool by a call of that one's API, and comes back by another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from forewarn.agent.reaction.kind import BadOption, ReactionKind
from forewarn.agent.reaction.memory import recall, remember
from forewarn.agent.reaction.option import Raw, check_url, needed, only, path, seconds, table, text, text_table
from forewarn.agent.reaction.option import whole_numbers as numbers
from forewarn.agent.reaction.patience import until
from forewarn.agent.reaction.secret import NoSecret, secret_in
from forewarn.agent.reaction.template import check_places, filled_body, filled_url
from forewarn.agent.reaction.web import Call, Reply, Unreached, send, send_patiently
from forewarn.agent.value import Case, Outcome

_WELL = tuple(range(200, 300))
_CALL_KEYS = ("method", "url", "headers", "header_files", "body", "expect")
_WAIT_KEYS = ("url", "headers", "header_files", "expect", "contains", "lacks", "every")
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
        return Call(url=filled_url(self.url, case), method=self.method, headers=headers, body=body, ca_file=ca_file)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    leave: Errand
    back: Errand | None = None
    wait: Wait | None = None  # after leaving
    wait_back: Wait | None = None
    ca_file: Path | None = None


class LeavePool:
    """Coming back is asked for whenever leaving was tried: nobody knows what became of a call without an answer."""

    def __init__(self, options: Options) -> None:
        self._options = options

    async def do(self, case: Case) -> Outcome:
        remember(case, {"left": "tried"})
        return await self._run(self._options.leave, self._options.wait, case, "left the pool")

    async def undo(self, case: Case) -> Outcome:
        if self._options.back is None or "left" not in recall(case):
            return Outcome(ok=True, text="nothing to undo")
        return await self._run(self._options.back, self._options.wait_back, case, "back in the pool")

    async def check(self, case: Case) -> bool | None:
        if self._options.wait is None:
            return None
        try:
            return await self._is_met(self._options.wait, case)
        except NoSecret:
            return None

    async def _run(self, errand: Errand, wait: Wait | None, case: Case, text: str) -> Outcome:
        try:
            reply = await send_patiently(errand.call(case, self._options.ca_file), case)
            if reply.status not in errand.expect:
                return Outcome(ok=False, text=f"the answer to {errand.method} was {reply.brief}")
            if wait and not await until(case, lambda: self._is_met(wait, case), wait.every_s):
                return Outcome(ok=False, text=f"{text}, but what is waited for is not so when the time is over")
        except (Unreached, NoSecret) as error:
            return Outcome(ok=False, text=str(error))
        return Outcome(ok=True, text=text)

    async def _is_met(self, wait: Wait, case: Case) -> bool:
        try:
            return wait.is_met(await send(wait.errand.call(case, self._options.ca_file)))
        except Unreached:
            return False


def read_options(raw: Raw) -> Options:
    if "leave" not in raw:
        raise BadOption("", "leave is missing", 'write leave = { method = "DELETE", url = "https://…/$vm" }')
    return Options(
        leave=_errand(raw, "leave"),
        back=_errand(raw, "back") if "back" in raw else None,
        wait=_wait(raw, "wait") if "wait" in raw else None,
        wait_back=_wait(raw, "wait_back") if "wait_back" in raw else None,
        ca_file=path(raw, "ca_file"),
    )


def _errand(raw: Raw, key: str, known: tuple[str, ...] = _CALL_KEYS, method: str = "POST") -> Errand:
    given = table(raw, key)
    only(given, key, known)
    url = needed(given, "url", '"https://…"')
    check_url("url", url)
    for each in ("url", "body"):
        check_places(each, given.get(each))
    method = text(given, "method", method).upper()
    if method not in _METHODS:
        raise BadOption(key, f"method = {method!r} is not known", f"write one of {', '.join(_METHODS)}")
    files = text_table(given, "header_files")
    return Errand(
        url=url,
        method=method,
        headers=_plain(text_table(given, "headers"), key),
        header_files={name: file for name in _plain(files, key) if (file := path(files, name))},
        body=given.get("body"),
        expect=numbers(given, "expect", 100, 599) or _WELL,
    )


def _plain(headers: dict[str, str], key: str) -> dict[str, str]:
    for name, value in headers.items():
        if not name.isascii() or not f"{name}{value}".isprintable() or ":" in name or " " in name:
            raise BadOption(key, f"{name!r} is no header that can be sent", "write one line of plain text")
    return headers


def _wait(raw: Raw, key: str) -> Wait:
    given = table(raw, key)
    return Wait(
        errand=_errand(raw, key, _WAIT_KEYS, method="GET"),
        contains=text(given, "contains"),
        lacks=text(given, "lacks"),
        every_s=max(seconds(given, "every", 1.0), 0.1),
    )


LEAVE_POOL = ReactionKind(
    name="leave-pool",
    summary="leaves a load balancer's pool by HTTP calls, and comes back",
    options=("leave", "back", "wait", "wait_back", "ca_file"),
    read=read_options,
    make=LeavePool,
)
