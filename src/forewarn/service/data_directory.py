"""The data directory: file names inside it, and the lock that lets only one service use it.

The lock is held by the process, so it ends with the process, even after SIGKILL.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from forewarn.errors import Refused, Rejected
from forewarn.hypervisor.process.registry import SupervisorRecords

DATABASE_FILE = "forewarn.db"
LEDGER_FILE = "simulated.db"
SOCKET_FILE = "forewarn.sock"
SUPERVISOR_SOCKET_FILE = "forewarn.vms"
VMS_DIRECTORY = "vms"
TLS_DIRECTORY = "tls"
ADMIN_SECRET_FILE = "admin.secret"
COMMANDS_DIRECTORY = "commands"
_LOCK_FILE = "lock"


class DataDirectory:
    """An open data directory; held until closed, or until the process is gone, however it goes."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock: int | None = lock

    @classmethod
    def acquire(cls, path: Path) -> DataDirectory:
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = os.open(path / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Rejected(
                f"data directory {str(path)!r} cannot be used: {error.strerror}; name another with --data"
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(lock)
            raise Refused(
                f"data directory {str(path)!r} is in use by another forewarn (process {holder}): "
                "stop that one first, or name another directory with --data"
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        return cls(path, lock)

    @property
    def database(self) -> Path:
        return self.path / DATABASE_FILE

    @property
    def ledger(self) -> Path:
        return self.path / LEDGER_FILE

    @property
    def socket(self) -> Path:
        return self.path / SOCKET_FILE

    @property
    def supervisor_socket(self) -> Path:
        """The socket on which the keepers of VMs call."""
        return self.path / SUPERVISOR_SOCKET_FILE

    @property
    def vms(self) -> Path:
        """Where VMs with a keeper have their directories."""
        return self.path / VMS_DIRECTORY

    @property
    def commands(self) -> Path:
        """Where the command hypervisor keeps what it tried."""
        return self.path / COMMANDS_DIRECTORY

    @property
    def tls(self) -> Path:
        """Certificates and keys."""
        return self.path / TLS_DIRECTORY

    @property
    def admin_secret(self) -> Path:
        """What the first client signs in with."""
        return self.path / ADMIN_SECRET_FILE

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def live_supervisor_pids(data: Path) -> list[int]:
    """The processes that keep VMs of this data directory, whether or not its service runs."""
    return SupervisorRecords(data / VMS_DIRECTORY).live_pids
