"""HAProxy's runtime socket: one command per connection, and what it says of its servers as values."""

from __future__ import annotations

import asyncio
import csv
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from forewarn.errors import Unavailable

Admin = Literal["ready", "drain", "maint"]
_ONE_COMMAND_S = 5.0
_MAINT, _DRAIN = 0x01, 0x08  # of srv_admin_state: set by somebody, not inherited from a tracked server
_A_SERVER = "2"  # of show stat's column `type`


class Trouble(Unavailable):
    """HAProxy is not there, or does not do what it was told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    name: str  # backend/server
    admin: Admin
    sessions: int


class Runtime:
    """`address` is the path of a unix socket, or host:port."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def servers(self) -> tuple[Server, ...]:
        sessions = dict(_sessions(await self._ask("show stat")))
        states = _admin_states(await self._ask("show servers state"))
        return tuple(Server(name=name, admin=admin, sessions=sessions.get(name, 0)) for name, admin in states)

    async def put(self, server: str, admin: Admin) -> None:
        if answer := (await self._ask(f"set server {server} state {admin}")).strip():
            raise Trouble(f"HAProxy does not put {server} into {admin}: {answer.splitlines()[0]}")

    async def _ask(self, command: str) -> str:
        try:
            async with asyncio.timeout(_ONE_COMMAND_S):
                return await self._exchange(command)
        except TimeoutError:
            raise Trouble(f"HAProxy at {self._address} gave no answer within {_ONE_COMMAND_S:g} s") from None
        except OSError as error:
            raise Trouble(
                f"HAProxy at {self._address} cannot be asked ({error.strerror or 'no connection'})"
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


def _sessions(answer: str) -> Iterator[tuple[str, int]]:
    """Current and queued sessions by server, out of CSV with a head of `# pxname,svname,…`."""
    for row in csv.DictReader(answer.removeprefix("# ").splitlines()):
        if row.get("type") == _A_SERVER:
            yield f"{row['pxname']}/{row['svname']}", int(row.get("scur") or 0) + int(row.get("qcur") or 0)


def _admin_states(answer: str) -> list[tuple[str, Admin]]:
    """A version, a head of `# be_id be_name …`, and a line of words for each server."""
    head: list[str] = []
    found: list[tuple[str, Admin]] = []
    for line in answer.splitlines():
        words = line.split()
        if words[:1] == ["#"]:
            head = words[1:]
        elif head and len(words) >= len(head):
            row = dict(zip(head, words, strict=False))
            found.append((f"{row['be_name']}/{row['srv_name']}", _admin(int(row["srv_admin_state"]))))
    if not head:
        raise Trouble(f"HAProxy does not show its servers: {answer.strip()[:80] or 'no answer'}")
    return found


def _admin(bits: int) -> Admin:
    if bits & _MAINT:
        return "maint"
    return "drain" if bits & _DRAIN else "ready"
