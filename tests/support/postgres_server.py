"""PostgreSQL servers for tests: Debian's programs, a temporary directory, a free loopback port.

PostgreSQL does not run as root, so root starts it as user `postgres`. A server with a `NetworkPart` is in that network
namespace, at the part's address.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.network_parts import NetworkPart
from tests.support.service_process import free_port

PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
LIMIT_S = 60.0
_SETTINGS = """
listen_addresses = '{address}'
unix_socket_directories = ''
fsync = {fsync}
shared_buffers = 32MB
max_connections = 60
max_wal_senders = 6
wal_level = replica
hot_standby = on
wal_keep_size = 64MB
log_min_messages = warning
"""


def is_installed() -> bool:
    """Return whether PostgreSQL is on this machine."""
    return bool(PROGRAMS)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition, for a minute at most."""
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, f"not within {LIMIT_S:g} s: {what}"
        time.sleep(0.02)


def owner() -> str | None:
    """Return the user that runs the servers; None: this user."""
    return "postgres" if os.geteuid() == 0 else None


def _run(program: str, *arguments: str) -> str:
    """Run one of PostgreSQL's programs, as the user that owns the servers."""
    user = owner()
    path = PROGRAMS[-1].with_name(program)
    done = subprocess.run(
        [str(path), *arguments], capture_output=True, text=True, user=user, cwd="/", timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, f"{program} {arguments}: {done.stdout}{done.stderr}"
    return done.stdout


def new_directory() -> Path:
    """Return a new directory of the user that owns the servers."""
    directory = Path(tempfile.mkdtemp(prefix="forewarn-postgres-"))
    if (user := owner()) is not None:
        found = pwd.getpwnam(user)
        os.chown(directory, found.pw_uid, found.pw_gid)
    return directory


class PostgresServer:
    """One server. Make it with `create` or `standby_of`, then `start` it; `remove` ends it and deletes its files."""

    def __init__(self, directory: Path, part: NetworkPart | None = None, port: int = 0) -> None:
        self.directory = directory
        self.data = directory / "data"
        self.part = part
        self.address = part.address if part is not None else "127.0.0.1"
        self.port = 5432 if part is not None else port or free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def create(cls, *, fsync: bool = False, part: NetworkPart | None = None) -> PostgresServer:
        """Return a new server without databases of its own; its superuser `postgres` has the password `secret`."""
        server = cls(new_directory(), part)
        password = server.directory / "password"
        password.write_text("secret\n")
        options = ("--username=postgres", "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync")
        password.chmod(0o644)
        _run("initdb", f"--pgdata={server.data}", *options, f"--pwfile={password}")
        server.configure(_SETTINGS.format(fsync="on" if fsync else "off", address=server.address))
        with (server.data / "pg_hba.conf").open("a") as file:
            file.write("host all,replication all 10.77.0.0/24 scram-sha-256\n")
        return server

    def new_standby(self, name: str, part: NetworkPart | None = None, port: int = 0) -> PostgresServer:
        """Return a standby of this running server, not started yet; `name` is what the primary calls it."""
        standby = PostgresServer(new_directory(), part, port)
        source = f"host={self.address} port={self.port} user=postgres password=secret application_name={name}"
        options = (f"--pgdata={standby.data}", f"--dbname={source}", "-R", "--no-sync", "-c", "fast")
        if part is None:
            _run("pg_basebackup", *options)
        else:
            part.call(_run, "pg_basebackup", *options)
        standby.configure(f"primary_conninfo = '{source}'\nlisten_addresses = '{standby.address}'\n")
        return standby

    def url(self, database: str, **parameters: str) -> str:
        """Return the URL of a database on this server."""
        query = "&".join(f"{name}={value}" for name, value in parameters.items())
        return f"postgresql://postgres:secret@{self.address}:{self.port}/{database}{'?' if query else ''}{query}"

    def configure(self, settings: str) -> None:
        """Add lines to the settings; a running server reads them with `reload`."""
        with (self.data / "postgresql.conf").open("a") as file:
            file.write(settings)

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        if self.part is None:
            self._start()
        else:
            self.part.call(self._start)
        wait_until(self._is_ready, f"{self.data} starts")

    def _start(self) -> None:
        program = PROGRAMS[-1].with_name("postgres")
        log = (self.directory / "log").open("ab")
        self._process = subprocess.Popen(
            [str(program), "-D", str(self.data), "-p", str(self.port)], stdout=log, stderr=log, user=owner(), cwd="/"
        )
        log.close()

    def stop(self) -> None:
        """Stop the server as for a restart: connections are ended."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """Stop the server at once, as a loss of power would."""
        self._end(signal.SIGQUIT)

    def pause(self) -> None:
        """Let all processes of the server stand still."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal_all(signal.SIGCONT)

    def reload(self) -> None:
        """Read the settings again."""
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)

    def promote(self) -> None:
        """Make a standby a primary."""
        _run("pg_ctl", "promote", f"--pgdata={self.data}")

    def remove(self) -> None:
        """End the server and delete its files."""
        if self._process is not None:
            self.resume()
            self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.directory / "log").read_text()
        status = self.data / "postmaster.pid"
        lines = status.read_text().splitlines() if status.exists() else []
        return len(lines) == 8 and lines[7].strip() in ("ready", "standby")  # written step by step

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(LIMIT_S)
            self._process = None

    def _signal_all(self, number: signal.Signals) -> None:
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        for pid in (self._process.pid, *map(int, children)):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass
