"""Servers of HAProxy get no new connections, and those they have come to their end."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from forewarn.agent.reaction.haproxy_socket import Runtime, Server, Trouble
from forewarn.agent.reaction.kind import BadOption, ReactionKind
from forewarn.agent.reaction.memory import recall, remember
from forewarn.agent.reaction.option import Raw, flag, needed, texts
from forewarn.agent.reaction.patience import until
from forewarn.agent.value import Case, Outcome

_TCP = re.compile(r"[^/\s]+:\d{1,5}")
_NAME = re.compile(r"[^/\s;]+/[^/\s;]+")  # a semicolon would begin another command
_EXAMPLE = '["web/web-0"]'


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    socket: str
    servers: tuple[str, ...]  # patterns of backend/server
    wait: bool = True  # until their sessions are gone


class DrainHaproxy:
    """Which servers were ready is remembered before they are touched; only those are ever set back."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._runtime = Runtime(options.socket)

    async def do(self, case: Case) -> Outcome:
        try:
            servers = await self._servers(case)
            if not servers:
                return Outcome(ok=False, text=f"HAProxy has no server {' or '.join(self._patterns(case))}")
            await self._drain(case, servers)
            return await self._waited(case)
        except Trouble as error:
            return Outcome(ok=False, text=str(error))

    async def _drain(self, case: Case, servers: Iterable[Server]) -> None:
        ready = [server.name for server in servers if server.admin == "ready"]
        remember(case, dict.fromkeys(ready, "ready"))
        for name in ready:
            await self._runtime.put(name, "drain")

    async def _waited(self, case: Case) -> Outcome:
        names = ", ".join(server.name for server in await self._servers(case))
        if not self._options.wait:
            return Outcome(ok=True, text=f"{names}: no new connections", notes=recall(case))
        if await until(case, lambda: self._is_idle(case)):
            return Outcome(ok=True, text=f"{names}: drained", notes=recall(case))
        left = [server for server in await self._servers(case) if server.sessions]
        told = ", ".join(f"{server.name} has {server.sessions}" for server in left)
        return Outcome(ok=False, text=f"sessions are left when the time is over: {told or 'just gone'}")

    async def undo(self, case: Case) -> Outcome:
        found = recall(case)
        try:
            now = {server.name: server.admin for server in await self._runtime.servers()}
            ours = [name for name in found if now.get(name) == "drain"]
            for name in ours:
                await self._runtime.put(name, "ready")
        except Trouble as error:
            return Outcome(ok=False, text=str(error))
        return Outcome(ok=True, text=_undone(ours, {name: now.get(name, "gone") for name in found}))

    async def check(self, case: Case) -> bool | None:
        try:
            servers = await self._servers(case)
            is_idle = not self._options.wait or await self._is_idle(case)
        except Trouble:
            return None
        return bool(servers) and is_idle and all(server.admin != "ready" for server in servers)

    async def _is_idle(self, case: Case) -> bool:
        return not any(server.sessions for server in await self._servers(case))

    async def _servers(self, case: Case) -> list[Server]:
        patterns = self._patterns(case)
        return [
            server
            for server in await self._runtime.servers()
            if any(fnmatchcase(server.name, pattern) for pattern in patterns)
        ]

    def _patterns(self, case: Case) -> list[str]:
        return [pattern.replace("{vm}", case.vm) for pattern in self._options.servers]


def _undone(ours: list[str], found: dict[str, str]) -> str:
    """Somebody else's hand is left where it is, and named."""
    if not found:
        return "nothing to undo: no server was ready before"
    told = [f"{', '.join(ours)}: ready again"] if ours else []
    told += [f"{name} is {admin}, which is somebody else's doing" for name, admin in found.items() if name not in ours]
    return "; ".join(told)


def read_options(raw: Raw) -> Options:
    socket = needed(raw, "socket", '"/run/haproxy/admin.sock"')
    if not socket.startswith("/") and not _TCP.fullmatch(socket):
        raise BadOption(
            "socket", f"socket = {socket!r} is neither a path nor host:port", 'write socket = "/run/haproxy/admin.sock"'
        )
    servers = texts(raw, "servers", _EXAMPLE)
    for pattern in servers:
        if not _NAME.fullmatch(pattern):
            raise BadOption("servers", f"{pattern!r} is no backend/server", f"write servers = {_EXAMPLE}")
    return Options(socket=socket, servers=servers, wait=flag(raw, "wait", default=True))


DRAIN_HAPROXY = ReactionKind(
    name="drain-haproxy",
    summary="drains servers of HAProxy through its runtime socket",
    options=("socket", "servers", "wait"),
    read=read_options,
    make=DrainHaproxy,
)
