"""One run of an operator's command, with a time limit, and the durable journal of all runs.

A command runs in its own session and writes to a file, so that it outlives the service. The journal says that a run
began, which process it is, and how it ended. A lock on the output file shows that a command still runs, as long
as the journal does not have its process yet.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from forewarn.base.times import LabSeconds, LabTime
from forewarn.machines.interface import process_start_time, wait_for_process_exit
from forewarn.machines.journal import SqliteJournal

_OUTPUT_TAIL_BYTES = 4096
_KILL_WAIT_S = 10.0  # until a killed process must be gone
_LOCK_INTERVAL_S = 0.05
_MAX_OUTPUT_BYTES = 1024 * 1024  # of a running command, which writes to the file itself; checked several times a second
_DEFAULT_SIGNALS = (
    signal.SIGPIPE,
    signal.SIGXFSZ,
    signal.SIGINT,
    signal.SIGTERM,
)  # commands get the default action of these
_RETENTION_S: LabSeconds = 30 * 24 * 3600.0  # by then the outcome has long been in the history
_SCHEMA = (
    "CREATE TABLE attempt (act_id TEXT PRIMARY KEY, begun_at REAL NOT NULL, pid INTEGER NOT NULL,"
    " started TEXT NOT NULL, ok INTEGER, note TEXT NOT NULL) WITHOUT ROWID",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """How a command ended, and the end of its output; `CommandRun.wait` returns it."""

    code: int | None  # the exit code; -N: signal N ended it; None: it was killed after its timeout
    output: str  # the last 4096 bytes of stdout and stderr, or why they cannot be read


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRun:
    """A started command. It does not depend on this object, and runs on if the service ends."""

    pid: int  # also the id of its session and process group
    started: str  # the process's start time, in clock ticks since boot; "": it had already ended
    output: Path  # the file with its stdout and stderr

    @classmethod
    def start(cls, argv: tuple[str, ...], *, environment: Mapping[str, str], stdin: bytes, output: Path) -> CommandRun:
        """Start the command in a session of its own, and return at once.

        `stdin` must fit into a pipe's buffer (64 KiB): a longer one blocks for ever. The command and its children hold
        a lock on the file `output`, which shows, even to a restarted service, that one of them still runs.
        """
        with ExitStack() as stack:
            read_end, write_end = os.pipe()
            stack.callback(os.close, read_end)
            stack.callback(os.close, write_end)
            os.write(write_end, stdin)
            output_file = _open_locked(output)
            stack.callback(os.close, output_file)
            actions = [
                (os.POSIX_SPAWN_DUP2, read_end, 0),
                (os.POSIX_SPAWN_DUP2, output_file, 1),
                (os.POSIX_SPAWN_DUP2, output_file, 2),
            ]
            pid = os.posix_spawnp(
                argv[0], argv, environment, file_actions=actions, setsid=True, setsigdef=_DEFAULT_SIGNALS, setsigmask=()
            )
        return cls(pid=pid, started=process_start_time(pid), output=output)

    async def wait(self, *, within_s: float) -> CommandResult:
        """Wait for the end of the command, and return its exit code and the end of its output.

        After `within_s` seconds the command is killed with its process group (`code` None). If the wait is cancelled,
        the command goes on, and its starter may wait again.
        """
        deadline = asyncio.get_running_loop().time() + within_s
        interval_s = 0.005
        while (code := self._exit_code()) is None:
            if asyncio.get_running_loop().time() >= deadline:
                await self._kill()
                return CommandResult(code=None, output=self._read_output_tail())
            self._shorten_output()
            await asyncio.sleep(interval_s)
            interval_s = min(0.2, interval_s * 1.5)
        return CommandResult(code=code, output=self._read_output_tail())

    def _exit_code(self) -> int | None:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None

    async def _kill(self) -> None:
        kill_process_group(self.pid)
        while self._exit_code() is None:
            await asyncio.sleep(0.01)

    def _shorten_output(self) -> None:
        """Replace an output that became too long by its end, so that a command cannot fill the disk."""
        with suppress(OSError):
            if self.output.stat().st_size > _MAX_OUTPUT_BYTES:
                tail = self._output_tail()
                os.truncate(self.output, 0)  # the command keeps its lock on the file, and appends
                with self.output.open("ab") as file:
                    file.write(tail)

    def _output_tail(self) -> bytes:
        with self.output.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _OUTPUT_TAIL_BYTES))
            return file.read(_OUTPUT_TAIL_BYTES)

    def _read_output_tail(self) -> str:
        try:
            text = self._output_tail().decode(errors="replace").strip()
            self.output.unlink(missing_ok=True)
        except OSError as error:
            return f"its output cannot be read: {error.strerror}"
        return text


def kill_process_group(pid: int) -> None:
    """Kill (SIGKILL) a command and its children that stayed in its process group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _open_locked(output: Path) -> int:
    """Return the descriptor of a new locked output file; every process that inherits it holds the lock."""
    output.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    output.unlink(missing_ok=True)  # a process that an earlier command left behind may still hold the old one
    file = os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return file


def _is_locked(output: Path) -> bool:
    try:
        with output.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


async def end_orphaned_command(record: CommandRunRecord, output: Path, *, within_s: float) -> bool:
    """Wait for a command that an earlier service started, or kill it; return whether it is gone."""
    if not record.pid:
        return await _wait_until_unlocked(output, within_s=within_s)
    if await wait_for_process_exit(record.pid, record.started, within_s=within_s):
        return True
    kill_process_group(record.pid)
    return await wait_for_process_exit(record.pid, record.started, within_s=_KILL_WAIT_S)


async def _wait_until_unlocked(output: Path, *, within_s: float) -> bool:
    deadline = asyncio.get_running_loop().time() + within_s
    while _is_locked(output):
        if asyncio.get_running_loop().time() >= deadline:
            return False
        await asyncio.sleep(_LOCK_INTERVAL_S)
    return True


class CommandRunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The journal's entry about the latest run of the operator's command for one act."""

    act_id: str  # of the act, or `ACT/STEP` for a step of a move
    begun_at: LabTime
    pid: int = 0  # 0: the command is not known to have started
    started: str = ""  # the process's start time, in clock ticks since boot; "": not known
    ok: bool | None = None  # whether the act succeeded; None: its end was not seen
    note: str = ""  # of the outcome, for people


class CommandRunJournal(SqliteJournal):
    """The journal of the commands that performed acts."""

    # For each run, call `begin`, then `record_process`, then `end`. Entries that ended are deleted 30 days of lab time
    # after they began.

    title = "journal of commands"
    schema = _SCHEMA

    def find(self, act_id: str) -> CommandRunRecord | None:
        rows = self._execute("SELECT act_id, begun_at, pid, started, ok, note FROM attempt WHERE act_id = ?", act_id)
        values = dict(zip(CommandRunRecord.__struct_fields__, rows[0], strict=True)) if rows else None
        return msgspec.convert(values, CommandRunRecord, strict=False) if values else None

    def begin(self, act_id: str, now: float) -> None:
        """Record at lab time `now` that the command is about to start: from then on it may have an effect."""
        self._execute("DELETE FROM attempt WHERE ok IS NOT NULL AND begun_at < ?", now - _RETENTION_S)
        self._execute("INSERT OR REPLACE INTO attempt VALUES (?, ?, 0, '', NULL, '')", act_id, now)

    def record_process(self, act_id: str, pid: int, started: str) -> None:
        """Record the process (`pid`) of the command of this act. Does nothing if the act has no entry."""
        self._execute("UPDATE attempt SET pid = ?, started = ? WHERE act_id = ?", pid, started, act_id)

    def end(self, act_id: str, *, ok: bool, note: str) -> None:
        self._execute("UPDATE attempt SET ok = ?, note = ? WHERE act_id = ?", ok, note, act_id)

    def fail_without_run(self, act_id: str, now: float, *, note: str) -> None:
        """Record at lab time `now` that the act has failed, although no command ran for it now."""
        self._execute(
            "INSERT INTO attempt VALUES (?, ?, 0, '', 0, ?)"
            " ON CONFLICT (act_id) DO UPDATE SET ok = excluded.ok, note = excluded.note",
            act_id,
            now,
            note,
        )
