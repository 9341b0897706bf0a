"""The data directory: its file names, its lock, and whether a service may open its store.

The lock lets only one service use it. It is held by the process, so it ends with the process, even after SIGKILL.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from forewarn.errors import Refused, Rejected
from forewarn.machines.process.hypervisor import SupervisorRecords
from forewarn.store.commit_mark import MARK_SUFFIX
from forewarn.store.purpose import StorePurpose, read_purpose
from forewarn.store.sqlite_file import is_new_file

# Names inside the data directory; the properties of `DataDirectory` say what each is for.
DATABASE_FILE = "forewarn.db"
LEDGER_FILE = "simulated.db"
SOCKET_FILE = "forewarn.sock"
SUPERVISOR_SOCKET_FILE = "forewarn.vms"
VMS_DIRECTORY = "vms"
TLS_DIRECTORY = "tls"
TOKEN_KEY_FILE = "token.key"  # in TLS_DIRECTORY
ADMIN_SECRET_FILE = "admin.secret"
COMMANDS_DIRECTORY = "commands"
MACHINES_DIRECTORY = "machines"
_LOCK_FILE = "lock"
_PROBE_WAITS, _PROBE_WAIT_S = 100, 0.01
_NEW_STORE_FILE = "new-store"  # the store was removed on purpose: the next service may start with an empty one
# Files that a service makes after its database, so that with them a database must exist.
_FILES_AFTER_DATABASE = (ADMIN_SECRET_FILE, TLS_DIRECTORY, LEDGER_FILE, f"{DATABASE_FILE}-wal")
START_COMMANDS = {StorePurpose.LAB: "forewarn up", StorePurpose.PRODUCTION: "forewarn serve"}
_OWNERS = {
    StorePurpose.LAB: "a lab, whose time is not real time",
    StorePurpose.PRODUCTION: "a production service, whose clock must never move",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretFiles:
    """The paths of the secrets that a service's clients rely on; the files are equal on all control nodes."""

    authority: Path  # the directory of the CA: ca.pem and ca.key
    token_key: Path  # signs tokens and sessions
    admin_secret: Path  # the secret of the administrator client


class DataDirectory:
    """A data directory that this process has locked, until `close` or its end; its properties are paths of files."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock: int | None = lock

    @classmethod
    def acquire(cls, path: Path) -> DataDirectory:
        """Create the directory and its parents if needed, and lock it for this process."""
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = os.open(path / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Rejected(
                f"data directory {str(path)!r} cannot be used: {error.strerror}; name another with --data"
            ) from error
        if not _lock_alone(lock):
            holder = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(lock)
            raise Refused(
                f"data directory {str(path)!r} is in use by another service (process {holder}): "
                "stop that one first, or name another directory with --data"
            )
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        return cls(path, lock)

    @property
    def database(self) -> Path:
        """The path of the SQLite database with the store, or with a control node's copy of the record."""
        return self.path / DATABASE_FILE

    @property
    def ledger(self) -> Path:
        """The path of the SQLite file in which the simulated hypervisor records the acts on its VMs."""
        return self.path / LEDGER_FILE

    @property
    def socket(self) -> Path:
        """The path of the unix socket on which the service serves its owner; the command line uses it."""
        return self.path / SOCKET_FILE

    @property
    def supervisor_socket(self) -> Path:
        """The path of the unix socket on which supervisors of namespace VMs connect."""
        return self.path / SUPERVISOR_SOCKET_FILE

    @property
    def vms(self) -> Path:
        return self.path / VMS_DIRECTORY

    @property
    def secrets(self) -> SecretFiles:
        """The paths of the secrets of a service that runs alone, all in this data directory."""
        return SecretFiles(authority=self.tls, token_key=self.tls / TOKEN_KEY_FILE, admin_secret=self.admin_secret)

    @property
    def commands(self) -> Path:
        """The path of the directory with the command hypervisor's journal and output files."""
        return self.path / COMMANDS_DIRECTORY

    @property
    def machines(self) -> Path:
        """The path of the directory with the journal of acts on real VMs, and copies of the VMs' definitions."""
        return self.path / MACHINES_DIRECTORY

    @property
    def tls(self) -> Path:
        """The path of the directory with the API's certificates and keys, and the CA of a service alone."""
        return self.path / TLS_DIRECTORY

    @property
    def admin_secret(self) -> Path:
        """The path of the file with the administrator client's secret, for a service that runs alone."""
        return self.path / ADMIN_SECRET_FILE

    def check_store(self, purpose: StorePurpose, *, new_store: bool = False) -> None:
        """Check that a service for this purpose (a lab or production) may open or create the store here.

        Refuses a store of the other purpose, and a missing or empty one beside files of an earlier service, unless
        `new_store` is True or `allow_new_store` was called.
        """
        if is_new_file(self.database):
            if not new_store and not (self.path / _NEW_STORE_FILE).exists():
                self._require_no_earlier_service()
            return
        (self.path / _NEW_STORE_FILE).unlink(missing_ok=True)  # that permission was used
        if new_store:
            raise Rejected(
                f"data directory {str(self.path)!r} has a store already, and --new-store replaces none: "
                "leave the option out, or name another directory with --data"
            )
        found = read_purpose(self.database)
        if found is not None and found is not purpose:
            raise Refused(
                f"data directory {str(self.path)!r} holds the store of {_OWNERS[found]}, and "
                f"`{START_COMMANDS[purpose]}` does not open it: "
                f"start it with `{START_COMMANDS[found]}`, or name another directory with --data"
            )

    def allow_new_store(self) -> None:
        """Let the next service start with an empty store beside the files of an earlier one."""
        (self.path / _NEW_STORE_FILE).touch(mode=0o600)

    def check_restore(self, backup: Path) -> None:
        """Check that the store here may be replaced by the one in the file `backup`. Changes nothing."""
        found, restored = read_purpose(self.database), read_purpose(backup)
        if found is not None and restored is not None and found is not restored:
            raise Refused(
                f"data directory {str(self.path)!r} holds the store of {_OWNERS[found]}, and the backup "
                f"{str(backup)!r} is of {_OWNERS[restored]}: name another directory with --data, or replace the store "
                "all the same with --change-purpose"
            )

    def _require_no_earlier_service(self) -> None:
        if found := files_of_earlier_service(self.path):
            state = "is empty" if self.database.exists() else "is missing"
            raise Refused(
                f"the database {str(self.database)!r} {state}, but the directory has files of an earlier service "
                f"({', '.join(found)}): put the database back, restore a backup with `forewarn restore FILE`, or start "
                "with an empty store with --new-store"
            )

    def close(self) -> None:
        """Release the lock, so that another service may use the directory; may be called twice."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _lock_alone(lock: int) -> bool:
    # `running_service_pid` holds a shared lock for an instant, for which this waits, up to a second.
    for _ in range(_PROBE_WAITS):
        if _try_lock(lock, fcntl.LOCK_EX):
            return True
        if not _try_lock(lock, fcntl.LOCK_SH):
            return False
        fcntl.flock(lock, fcntl.LOCK_UN)
        time.sleep(_PROBE_WAIT_S)
    return False


def _try_lock(lock: int, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def running_service_pid(data: Path) -> int | None:
    """Return the process id of the service that has locked this data directory; None if none has."""
    try:
        lock = os.open(data / _LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if _try_lock(lock, fcntl.LOCK_SH):
            return None
        text = os.pread(lock, 32, 0).decode(errors="replace").strip()
        return int(text) if text.isdecimal() else None
    finally:
        os.close(lock)


def files_of_earlier_service(data: Path) -> list[str]:
    """Return the names of what a service that ran here has left beside its database; empty if none ran."""
    return [name for name in _FILES_AFTER_DATABASE if _has_content(data / name)]


def _has_content(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() else path.exists() and path.stat().st_size > 0


def live_supervisor_pids(data: Path) -> list[int]:
    """Return the process ids, sorted, of the live supervisors of namespace VMs of this data directory."""
    return SupervisorRecords(data / VMS_DIRECTORY).live_pids


# Removes what a lab has stored, so that its next start applies the first fleet again.

_SQLITE_SUFFIXES = ("", "-wal", "-shm", "-journal", MARK_SUFFIX)


def require_lab(data: Path) -> None:
    """Raise Refused if this data directory holds the store of a production service, not of a lab."""
    if read_purpose(data / DATABASE_FILE) is StorePurpose.PRODUCTION:
        raise Refused(
            f"data directory {str(data)!r} holds the store of a production service, and only labs can be reset: "
            "name the directory of a lab with --data"
        )


def wipe_lab(directory: DataDirectory) -> None:
    """Delete a lab's store, its simulated hypervisor's ledger, and its files of VMs, commands and acts.

    Certificates and the administrator's secret stay: clients trust the one and know the other.
    """
    require_lab(directory.path)
    directory.allow_new_store()  # first: a crash in between must not leave a directory that no service opens
    for name in (DATABASE_FILE, LEDGER_FILE):
        for suffix in _SQLITE_SUFFIXES:
            (directory.path / f"{name}{suffix}").unlink(missing_ok=True)
    for name in (VMS_DIRECTORY, COMMANDS_DIRECTORY, MACHINES_DIRECTORY):
        shutil.rmtree(directory.path / name, ignore_errors=True)
