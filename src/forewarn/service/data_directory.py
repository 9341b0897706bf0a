"""The data directory: file names inside it, and the lock that lets only one service use it.

The lock is held by the process, so it ends with the process, even after SIGKILL.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from forewarn.errors import Refused, Rejected
from forewarn.hypervisor.process.registry import SupervisorRecords

# Names inside the data directory; the properties of `DataDirectory` say what each is for.
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
    """An open data directory. Its lock is held until `close` or until the process ends."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock: int | None = lock

    @classmethod
    def acquire(cls, path: Path) -> DataDirectory:
        """Create the directory if needed, for its owner only, and lock it.

        Raises Refused if another service uses it, Rejected if it cannot be created or opened.
        """
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
                f"data directory {str(path)!r} is in use by another service (process {holder}): "
                "stop that one first, or name another directory with --data"
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        return cls(path, lock)

    @property
    def database(self) -> Path:
        """The SQLite database of the store."""
        return self.path / DATABASE_FILE

    @property
    def ledger(self) -> Path:
        """The effect ledger of the simulated hypervisor."""
        return self.path / LEDGER_FILE

    @property
    def socket(self) -> Path:
        """The unix socket on which the service serves its owner; the command line uses it."""
        return self.path / SOCKET_FILE

    @property
    def supervisor_socket(self) -> Path:
        """The unix socket on which supervisors of namespace VMs connect."""
        return self.path / SUPERVISOR_SOCKET_FILE

    @property
    def vms(self) -> Path:
        """The parent of the directories of namespace VMs."""
        return self.path / VMS_DIRECTORY

    @property
    def commands(self) -> Path:
        """The journal and the output files of the command hypervisor."""
        return self.path / COMMANDS_DIRECTORY

    @property
    def tls(self) -> Path:
        """Certificates and keys."""
        return self.path / TLS_DIRECTORY

    @property
    def admin_secret(self) -> Path:
        """The file with the secret of the administrator client; it may not exist."""
        return self.path / ADMIN_SECRET_FILE

    def close(self) -> None:
        """Release the lock; may be called twice."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def live_supervisor_pids(data: Path) -> list[int]:
    """The process ids of the live supervisors of this data directory, whether its service runs or not."""
    return SupervisorRecords(data / VMS_DIRECTORY).live_pids
