"""An errand: one run of an operator's command, in a session of its own, with a limit of real time.

What it writes goes to a file and not to a pipe, so that a command outlives the service that sent it undisturbed.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from forewarn.hypervisor.life import started_of, until_gone

_TAIL = 4096
_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM)  # Python and we ignore or catch some


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How a command ended. `code` is negative for a signal, None when it was ended for taking too long."""

    code: int | None
    output: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """A command that was started."""

    pid: int
    started: str
    output: Path

    @classmethod
    def send(cls, argv: tuple[str, ...], *, environment: Mapping[str, str], given: bytes, output: Path) -> Errand:
        """Start it; OSError if it cannot be. `given` is what it reads, and must be short."""
        output.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        ours, theirs = os.pipe()
        try:
            os.write(theirs, given)
            written = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            actions = [
                (os.POSIX_SPAWN_DUP2, ours, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(output), written, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ]
            pid = os.posix_spawnp(
                argv[0], argv, environment, file_actions=actions, setsid=True, setsigdef=_SIGNALS, setsigmask=()
            )
        finally:
            os.close(ours)
            os.close(theirs)
        return cls(pid=pid, started=started_of(pid), output=output)

    async def come_back(self, *, within_s: float) -> Ran:
        """Wait for its end; after that time, end it with all that it started."""
        deadline = asyncio.get_running_loop().time() + within_s
        nap_s = 0.005
        while (code := self._code()) is None:
            if asyncio.get_running_loop().time() >= deadline:
                await self._kill()
                return Ran(code=None, output=self._tail())
            await asyncio.sleep(nap_s)
            nap_s = min(0.2, nap_s * 1.5)
        return Ran(code=code, output=self._tail())

    def _code(self) -> int | None:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None

    async def _kill(self) -> None:
        kill_session(self.pid)
        while self._code() is None:
            await asyncio.sleep(0.01)

    def _tail(self) -> str:
        with self.output.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            text = file.read().decode(errors="replace").strip()
        self.output.unlink(missing_ok=True)
        return text


def kill_session(pid: int) -> None:
    """End the command and what it started, as far as that stayed in its group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


async def end_left_over(pid: int, started: str, *, within_s: float) -> None:
    """A command that a service before us sent: let it finish, and end it if it does not."""
    if not await until_gone(pid, started, within_s=within_s):
        kill_session(pid)
        await until_gone(pid, started, within_s=10.0)
