"""Reaction `drain-haproxy`: drains HAProxy servers by the runtime socket, sets them ready again."""

from __future__ import annotations

import asyncio
import csv
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from forewarn.agent.model import StepContext, StepOutcome
from forewarn.agent.reactions.options import ReactionKind
from forewarn.agent.reactions.step_context import load_undo_notes, save_undo_notes, wait_until
from forewarn.base.tomlfile import BadValue, RawTable, read_flag, read_required_text, read_texts
from forewarn.errors import Unavailable

_HaproxyAdminState = Literal["ready", "drain", "maint"]  # as in `set server NAME state …`
_COMMAND_TIMEOUT_S = 5.0
_MAINT_BIT, _DRAIN_BIT = 0x01, 0x08  # of srv_admin_state, without the bits inherited from a tracked server
_SERVER_ROW_TYPE = "2"  # value of the column `type` of `show stat`


class _HaproxyError(Unavailable):
    """HAProxy cannot be reached, gives no answer in time, or refuses a command; the message is for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _HaproxyServer:
    name: str  # backend/server
    admin_state: _HaproxyAdminState  # ready: normal; drain: no new sessions; maint: out of use
    sessions: int  # number of current and queued ones


class _HaproxyRuntimeApi:
    """A client of HAProxy's runtime API; `address` is the absolute path of a unix socket, or host:port."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def servers(self) -> tuple[_HaproxyServer, ...]:
        sessions = dict(_parse_sessions(await self._run_command("show stat")))
        states = _parse_admin_states(await self._run_command("show servers state"))
        return tuple(
            _HaproxyServer(name=name, admin_state=admin, sessions=sessions.get(name, 0)) for name, admin in states
        )

    async def set_admin_state(self, server: str, admin: _HaproxyAdminState) -> None:
        """Sets the admin state of the server, named `backend/server`. Raises _HaproxyError, even if unknown."""
        if answer := (await self._run_command(f"set server {server} state {admin}")).strip():
            raise _HaproxyError(f"HAProxy does not set {server} to {admin}: {answer.splitlines()[0]}")

    async def _run_command(self, command: str) -> str:
        try:
            async with asyncio.timeout(_COMMAND_TIMEOUT_S):
                return await self._exchange(command)
        except TimeoutError:
            raise _HaproxyError(f"HAProxy at {self._address} gave no answer within {_COMMAND_TIMEOUT_S:g} s") from None
        except OSError as error:
            raise _HaproxyError(
                f"HAProxy at {self._address} cannot be reached ({error.strerror or 'no connection'})"
            ) from error

    async def _exchange(self, command: str) -> str:
        reader, writer = await self._connect()
        try:
            writer.write(f"{command}\n".encode())
            await writer.drain()
            return (await reader.read()).decode("utf-8", "replace")
        finally:
            writer.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._address.startswith("/"):
            return await asyncio.open_unix_connection(self._address)
        host, _, port = self._address.rpartition(":")
        return await asyncio.open_connection(host.strip("[]"), int(port))


def _parse_sessions(answer: str) -> Iterator[tuple[str, int]]:
    for row in csv.DictReader(answer.removeprefix("# ").splitlines()):
        if row.get("type") == _SERVER_ROW_TYPE:
            yield f"{row['pxname']}/{row['svname']}", int(row.get("scur") or 0) + int(row.get("qcur") or 0)


def _parse_admin_states(answer: str) -> list[tuple[str, _HaproxyAdminState]]:
    columns: list[str] = []
    found: list[tuple[str, _HaproxyAdminState]] = []
    for line in answer.splitlines():
        words = line.split()
        if words[:1] == ["#"]:
            columns = words[1:]
        elif columns and len(words) >= len(columns):
            row = dict(zip(columns, words, strict=False))
            found.append((f"{row['be_name']}/{row['srv_name']}", _admin_state_of_bits(int(row["srv_admin_state"]))))
    if not columns:
        raise _HaproxyError(f"HAProxy does not list its servers: {answer.strip()[:80] or 'no answer'}")
    return found


def _admin_state_of_bits(bits: int) -> _HaproxyAdminState:
    if bits & _MAINT_BIT:
        return "maint"
    return "drain" if bits & _DRAIN_BIT else "ready"


_HOST_AND_PORT = re.compile(r"[^/\s]+:\d{1,5}")
_SERVER_NAME = re.compile(r"[^/\s;]+/[^/\s;]+")  # no semicolon: it would begin another command
_SERVERS_EXAMPLE = '["web/web-0"]'


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainHaproxyOptions:
    socket: str  # HAProxy's runtime API: the path of a unix socket, or host:port
    servers: tuple[str, ...]  # patterns (`web/*`) of backend/server, case-sensitive; {vm} in them is this VM's name
    wait: bool = True  # True: `do` waits until the sessions of these servers have ended


class DrainHaproxyReaction:
    """The reaction `drain-haproxy`: sets servers of HAProxy to drain, so that they get no new sessions."""

    # Before it acts it notes which servers were ready, and its undo sets only those back to ready.

    def __init__(self, options: DrainHaproxyOptions) -> None:
        self._options = options
        self._runtime = _HaproxyRuntimeApi(options.socket)

    async def do(self, context: StepContext) -> StepOutcome:
        try:
            servers = await self._matching_servers(context)
            if not servers:
                return StepOutcome(ok=False, text=f"HAProxy has no server {' or '.join(self._patterns(context))}")
            await self._drain(context, servers)
            return await self._wait_until_idle(context)
        except _HaproxyError as error:
            return StepOutcome(ok=False, text=str(error))

    async def _drain(self, context: StepContext, servers: Iterable[_HaproxyServer]) -> None:
        ready = [server.name for server in servers if server.admin_state == "ready"]
        save_undo_notes(context, dict.fromkeys(ready, "ready"))
        for name in ready:
            await self._runtime.set_admin_state(name, "drain")

    async def _wait_until_idle(self, context: StepContext) -> StepOutcome:
        names = ", ".join(server.name for server in await self._matching_servers(context))
        if not self._options.wait:
            return StepOutcome(ok=True, text=f"{names}: no new connections", notes=load_undo_notes(context))
        if await wait_until(context, lambda: self._is_idle(context)):
            return StepOutcome(ok=True, text=f"{names}: drained", notes=load_undo_notes(context))
        left = [server for server in await self._matching_servers(context) if server.sessions]
        sessions_text = ", ".join(f"{server.name} has {server.sessions}" for server in left)
        return StepOutcome(
            ok=False, text=f"sessions remain at the end of the step's time: {sessions_text or 'none any more'}"
        )

    async def undo(self, context: StepContext) -> StepOutcome:
        found = load_undo_notes(context)
        try:
            now = {server.name: server.admin_state for server in await self._runtime.servers()}
            ours = [name for name in found if now.get(name) == "drain"]
            for name in ours:
                await self._runtime.set_admin_state(name, "ready")
        except _HaproxyError as error:
            return StepOutcome(ok=False, text=str(error))
        return StepOutcome(ok=True, text=_undo_text(ours, {name: now.get(name, "gone") for name in found}))

    async def check(self, context: StepContext) -> bool | None:
        try:
            servers = await self._matching_servers(context)
            is_idle = not self._options.wait or await self._is_idle(context)
        except _HaproxyError:
            return None
        return bool(servers) and is_idle and all(server.admin_state != "ready" for server in servers)

    async def _is_idle(self, context: StepContext) -> bool:
        return not any(server.sessions for server in await self._matching_servers(context))

    async def _matching_servers(self, context: StepContext) -> list[_HaproxyServer]:
        patterns = self._patterns(context)
        return [
            server
            for server in await self._runtime.servers()
            if any(fnmatchcase(server.name, pattern) for pattern in patterns)
        ]

    def _patterns(self, context: StepContext) -> list[str]:
        return [pattern.replace("{vm}", context.vm) for pattern in self._options.servers]


def _undo_text(ours: list[str], found: dict[str, str]) -> str:
    if not found:
        return "nothing to undo: no server was ready before"
    parts = [f"{', '.join(ours)}: ready again"] if ours else []
    parts += [
        f"{name} is {admin}, set by someone else, and stays so" for name, admin in found.items() if name not in ours
    ]
    return "; ".join(parts)


def _read_options(raw: RawTable) -> DrainHaproxyOptions:
    socket = read_required_text(raw, "socket", '"/run/haproxy/admin.sock"')
    if not socket.startswith("/") and not _HOST_AND_PORT.fullmatch(socket):
        raise BadValue(
            "socket", f"socket = {socket!r} is neither a path nor host:port", 'write socket = "/run/haproxy/admin.sock"'
        )
    servers = read_texts(raw, "servers", _SERVERS_EXAMPLE)
    for pattern in servers:
        if not _SERVER_NAME.fullmatch(pattern):
            raise BadValue("servers", f"{pattern!r} is not backend/server", f"write servers = {_SERVERS_EXAMPLE}")
    return DrainHaproxyOptions(socket=socket, servers=servers, wait=read_flag(raw, "wait", default=True))


DRAIN_HAPROXY_REACTION = ReactionKind(
    name="drain-haproxy",
    summary="drains servers of HAProxy through its runtime socket",
    options=("socket", "servers", "wait"),
    read=_read_options,
    make=DrainHaproxyReaction,
)
