"""The data directory: one service at a time, and nobody else's to read."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from forewarn.errors import Refused, Rejected

DATABASE = "forewarn.db"
LEDGER = "simulated.db"
SOCKET = "forewarn.sock"
KEEPERS = "forewarn.vms"
VMS = "vms"
TLS = "tls"
ADMIN_SECRET = "admin.secret"
COMMANDS = "commands"
_LOCK = "lock"


class DataDirectory:
    """An open data directory; held until closed, or until the process is gone, however it goes."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock: int | None = lock

    @classmethod
    def take(cls, path: Path) -> DataDirectory:
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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
        return self.path / DATABASE

    @property
    def ledger(self) -> Path:
        return self.path / LEDGER

    @property
    def socket(self) -> Path:
        return self.path / SOCKET

    @property
    def keepers(self) -> Path:
        """The socket on which the keepers of VMs call."""
        return self.path / KEEPERS

    @property
    def vms(self) -> Path:
        """Where VMs with a keeper have their directories."""
        return self.path / VMS

    @property
    def commands(self) -> Path:
        """Where the command hypervisor keeps what it tried."""
        return self.path / COMMANDS

    @property
    def tls(self) -> Path:
        """Certificates and keys."""
        return self.path / TLS

    @property
    def admin_secret(self) -> Path:
        """What the first client signs in with."""
        return self.path / ADMIN_SECRET

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
