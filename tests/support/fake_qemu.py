"""A program that behaves like QEMU on its monitor, without a guest: states, migrations between two of them, errors.

It takes QEMU's options -qmp (several), -pidfile, -incoming, -S and -no-shutdown, and its own: `-fail TEXT` prints the
text and ends, `-refuse COMMAND` answers a QMP command with an error, `-hang COMMAND` does not answer it, `-deaf`
ignores the power button, `-disks A:B` opens files as a guest's disks, `-lock` with locks, `-stuck` never completes a
migration, and `-halt STATUS` has this status where a guest would run. Migrations to another one send one line, with the
status of the guest. All clients get an event when the VM is stopped, resumed or shut down.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

GREETING = {"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": ""}, "capabilities": ["oob"]}}


class CommandError(Exception):
    """A QMP command that is answered with an error."""


class FakeQemu:
    """The VM: its run state, and the migration to or from here."""

    def __init__(self, options: dict[str, str]) -> None:
        self.options = options
        running = options.get("-halt", "running")
        self.status = "inmigrate" if "-incoming" in options else "prelaunch" if "-S" in options else running
        self.migration: dict[str, Any] = {}
        self._listener: socket.socket | None = None
        self.clients: list[socket.socket] = []

    def report(self, event: str) -> None:
        """Send an event to all clients."""
        for client in self.clients:
            with suppress(OSError):
                client.sendall(json.dumps({"event": event, "timestamp": {"seconds": 1}}).encode() + b"\r\n")

    def execute(self, command: str, arguments: dict[str, Any]) -> Any:
        if command == self.options.get("-refuse"):
            raise CommandError(f"The command {command} is refused.")
        handler = getattr(self, f"on_{command.replace('-', '_')}", None)
        if handler is None:
            raise CommandError(f"The command {command} has not been found")
        return handler(**{name.replace("-", "_"): value for name, value in arguments.items()}) or {}

    def on_qmp_capabilities(self, enable: object = None) -> None:
        pass

    def on_query_status(self) -> dict[str, Any]:
        return {"status": self.status, "running": self.status == "running"}

    def on_query_migrate(self) -> dict[str, Any]:
        return self.migration

    def on_query_block(self) -> list[dict[str, Any]]:
        return [{"device": "disk0", "io-status": "ok"}, {"device": "disk1", "io-status": "nospace"}]

    def on_stop(self) -> None:
        self.status = "paused"
        self.report("STOP")

    def on_cont(self) -> None:
        self.status = self.options.get("-halt", "running")
        self.report("RESUME")

    def on_system_reset(self) -> None:
        self.status = "running" if self.status == "running" else "prelaunch"

    def on_system_powerdown(self) -> None:
        if "-deaf" not in self.options:
            self.status = "shutdown"
            self.report("SHUTDOWN")

    def on_migrate_set_capabilities(self, capabilities: object) -> None:
        pass

    def on_migrate_incoming(self, uri: str) -> None:
        path = uri.removeprefix("unix:")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        self.migration = {"socket-address": [{"type": "unix", "path": path}]}
        threading.Thread(target=self._receive, daemon=True).start()

    def _receive(self) -> None:
        assert self._listener is not None
        connection, _ = self._listener.accept()
        self.migration = {**self.migration, "status": "active"}
        status = connection.recv(100).decode()
        if not status:
            os._exit(1)
        self.status = "paused" if status == "running" else status
        self.migration = {"status": "completed"}

    def on_migrate(self, uri: str) -> None:
        self.migration = {"status": "active", "ram": {"transferred": 0, "remaining": 4096}}
        if "-stuck" in self.options:
            return
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(uri.removeprefix("unix:"))
                connection.sendall(self.status.encode())
        except OSError as error:
            self.migration = {"status": "failed", "error-desc": f"Failed to connect: {error.strerror}"}
            return
        self.status = "postmigrate"
        self.migration = {"status": "completed", "ram": {"transferred": 4096, "remaining": 0}, "downtime": 7}

    def on_migrate_cancel(self) -> None:
        self.migration = {"status": "cancelled"}


def serve(qemu: FakeQemu, server: socket.socket) -> None:
    while True:
        connection, _ = server.accept()
        with connection:
            try:
                answer_client(qemu, connection)
            except (BrokenPipeError, ConnectionResetError):
                continue
            finally:
                if connection in qemu.clients:
                    qemu.clients.remove(connection)


def requests_of(connection: socket.socket) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects that a client sends; nothing separates them."""
    decoder, text = json.JSONDecoder(), ""
    while received := connection.recv(65536):
        text += received.decode()
        while text := text.strip():
            try:
                request, end = decoder.raw_decode(text)
            except ValueError:
                break  # not complete yet
            text = text[end:]
            yield request


def answer_client(qemu: FakeQemu, connection: socket.socket) -> None:
    def send(message: dict[str, Any]) -> None:
        connection.sendall(json.dumps(message).encode() + b"\r\n")

    send(GREETING)
    qemu.clients.append(connection)
    for request in requests_of(connection):
        command = request["execute"]
        reply = {"id": request["id"]} if "id" in request else {}
        if command == qemu.options.get("-hang"):
            continue
        if command == "quit":
            send({**reply, "return": {}})
            Path(qemu.options["-pidfile"]).unlink()
            os._exit(0)
        try:
            send({**reply, "return": qemu.execute(command, request.get("arguments", {}))})
        except CommandError as error:
            send({**reply, "error": {"class": "GenericError", "desc": str(error)}})


def open_disk(path: str, *, is_locked: bool) -> None:
    """Open a disk until this process ends, with locks like those of QEMU."""
    descriptor = os.open(path, os.O_RDWR)
    if is_locked:
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 100, 2, 0))
        except OSError:
            sys.exit('Failed to get "write" lock')


def first_option(text: str) -> str:
    """Return the text before the first single comma; two commas stand for one in it, as in QEMU."""
    return text.replace(",,", "\0").partition(",")[0].replace("\0", ",")


def main(arguments: list[str]) -> None:
    options = {
        word: arguments[index + 1] if index + 1 < len(arguments) else ""
        for index, word in enumerate(arguments)
        if word.startswith("-")
    }
    if "-fail" in options:
        sys.exit(options["-fail"])
    for path in filter(None, options.get("-disks", "").split(":")):
        open_disk(path, is_locked="-lock" in options)
    Path(options["-pidfile"]).write_text(f"{os.getpid()}\n")
    qemu = FakeQemu(options)
    monitors = [arguments[index + 1] for index, word in enumerate(arguments) if word == "-qmp"]
    for monitor in reversed(monitors):  # the first one last: the driver waits for it
        server = socket.socket(socket.AF_UNIX)
        path = first_option(monitor).removeprefix("unix:")
        server.bind(f"{path}~")
        server.listen()
        os.rename(f"{path}~", path)  # tests wait until the socket exists
        threading.Thread(target=serve, args=(qemu, server), daemon=True).start()
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1:])
