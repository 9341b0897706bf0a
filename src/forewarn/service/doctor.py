"""Is everything as it should be on this machine? Each check says what it found and, if that is bad, what to do."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forewarn.assembly.settings import Settings
from forewarn.errors import ForewarnError
from forewarn.store.file import examine as examine_file

_NEEDED = ("msgspec", "httptools", "starlette", "uvicorn", "sqlalchemy", "alembic", "click", "rich")
_ROOM = 100 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    name: str
    ok: bool
    text: str
    remedy: str = ""


def examine(settings: Settings, database: Path) -> list[Check]:
    checks: list[Callable[[], Iterator[Check]]] = [
        _python,
        _packages,
        lambda: _directory(settings.directory),
        lambda: _database(database),
        lambda: _loopback(settings),
    ]
    return [found for check in checks for found in check()]


def workers_seen(workers: Sequence[Mapping[str, Any]]) -> Iterator[Check]:
    """Of a service that has them."""
    if workers:
        ready = sum(bool(worker["ready"]) for worker in workers)
        text = f"{ready} of {len(workers)} workers answer VMs"
        yield Check(
            name="workers", ok=ready == len(workers), text=text, remedy="the service's log says why one is away"
        )


def _python() -> Iterator[Check]:
    text = f"Python {sys.version.split()[0]}"
    yield Check(name="python", ok=sys.version_info >= (3, 11), text=text, remedy="install Python 3.11 or newer")


def _packages() -> Iterator[Check]:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    text = f"{', '.join(missing)} missing" if missing else "everything the service needs is installed"
    yield Check(name="packages", ok=not missing, text=text, remedy="pip install 'forewarn[server]'")
    fast = importlib.util.find_spec("uvloop") is not None
    yield Check(
        name="speed", ok=True, text="uvloop is used" if fast else "uvloop is not installed: slower, but it works"
    )


def _directory(path: Path) -> Iterator[Check]:
    if not path.exists():
        yield Check(name="data", ok=True, text=f"{path} does not exist yet: the first start makes it")
        return
    writable = os.access(path, os.W_OK | os.X_OK)
    text = f"{path} is {'writable' if writable else 'not writable'}"
    yield Check(name="data", ok=writable, text=text, remedy="give this user the directory, or name another with --data")
    free = shutil.disk_usage(path).free
    remedy = "make room: approvals fail with 503 while the disk is full"
    yield Check(name="disk", ok=free >= _ROOM, text=f"{free // (1024 * 1024)} MiB free", remedy=remedy)
    private = not path.stat().st_mode & 0o077
    text = "only its owner can reach the service's socket" if private else f"{path} can be entered by others"
    yield Check(name="privacy", ok=private, text=text, remedy=f"chmod 700 {path}")


def _database(path: Path) -> Iterator[Check]:
    if not path.exists():
        yield Check(name="database", ok=True, text="there is none yet: the first start makes it")
        return
    try:
        revision = examine_file(path)
        yield Check(name="database", ok=True, text=f"{path.name} is sound, schema {revision}")
    except ForewarnError as error:
        yield Check(name="database", ok=False, text=str(error), remedy="restore a backup with `forewarn restore FILE`")


def _loopback(settings: Settings) -> Iterator[Check]:
    if not settings.lab:
        return
    try:
        with socket.socket() as sock:
            sock.bind(("127.0.0.2", 0))
        yield Check(name="loopback", ok=True, text="every VM of a lab can have its own loopback address")
    except OSError:
        text = "this machine has one loopback address only: each VM of a lab gets a port of its own"
        yield Check(name="loopback", ok=True, text=text)
