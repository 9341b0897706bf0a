"""A fake of HAProxy's runtime socket, with the commands that draining needs; a test sets the sessions."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import TracebackType

_ADMIN_STATE_BITS = {"ready": 0, "maint": 0x01, "drain": 0x08}
_STAT_HEAD = "# pxname,svname,qcur,qmax,scur,status,type,"
_STATE_HEAD = "# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight"


class FakeHaproxy:
    """States and sessions by backend/server, and the commands received. Use it with `async with`."""

    def __init__(self, path: Path, *servers: str) -> None:
        self.path = path
        self.admin_states = dict.fromkeys(servers, "ready")
        self.sessions = dict.fromkeys(servers, 0)
        self.commands: list[str] = []
        self.denies_commands = False
        self._command_received = asyncio.Condition()

    async def __aenter__(self) -> FakeHaproxy:
        self._server = await asyncio.start_unix_server(self._serve, self.path)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._server.close()
        await self._server.wait_closed()

    @property
    def set_commands(self) -> list[str]:
        return [command for command in self.commands if command.startswith("set ")]

    async def wait_for_command(self, command: str, times: int) -> None:
        """Wait until it received this command `times` more times."""
        async with asyncio.timeout(30), self._command_received:
            goal = self.commands.count(command) + times
            await self._command_received.wait_for(lambda: self.commands.count(command) >= goal)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        command = (await reader.readline()).decode().strip()
        writer.write(f"{self._answer(command)}\n".encode())
        writer.close()
        async with self._command_received:
            self.commands.append(command)
            self._command_received.notify_all()

    def _answer(self, command: str) -> str:
        if command == "show stat":
            return "\n".join([_STAT_HEAD, *(self._stat_line(name) for name in self.admin_states)]) + "\n"
        if command == "show servers state":
            return "\n".join(["1", _STATE_HEAD, *(self._state_line(name) for name in self.admin_states)]) + "\n"
        if self.denies_commands:
            return "Permission denied\n"
        _, _, name, _, admin = command.split()
        if name not in self.admin_states:
            return "No such server.\n"
        self.admin_states[name] = admin
        return ""

    def _stat_line(self, name: str) -> str:
        return f"{name.replace('/', ',')},0,0,{self.sessions[name]},UP,2,"

    def _state_line(self, name: str) -> str:
        backend, server = name.split("/")
        return f"3 {backend} 1 {server} 127.0.0.1 2 {_ADMIN_STATE_BITS[self.admin_states[name]]} 1"
