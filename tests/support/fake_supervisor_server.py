"""The service's end of the supervisor protocol, for tests of namespace VMs.

    with FakeSupervisorServer(tmp_path) as service:
        …start `forewarn vm run web-0 -- …`…
        service.order("web-0", "freeze", duration_s=1.0)

It accepts every VM, answers any HTTP request on the VM's socket with the VM's name, and keeps all messages.
"""

from __future__ import annotations

import http.server
import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any
from uuid import uuid4

from forewarn.core.cause import Verb
from forewarn.core.event import Act
from forewarn.machines.process.messages import order_message

Message = dict[str, Any]
TIMEOUT_S = 30.0


class FakeSupervisorServer:
    """Accepts supervisors; may be stopped as if it had crashed, and started again on the same data."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.received: list[tuple[str, Message]] = []  # (VM, message) of all supervisors
        self.refusals: dict[str, str] = {}  # VM → why its supervisor is refused
        self._message_received = threading.Condition()
        self._connections: dict[str, _SupervisorConnection] = {}
        self._all_connections: list[_SupervisorConnection] = []
        self._listener: socket.socket | None = None

    def __enter__(self) -> FakeSupervisorServer:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        path = self.data / "forewarn.vms"
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(256)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def stop(self) -> None:
        """Close every connection at once, as when a process is killed."""
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        while self._all_connections:
            self._all_connections.pop().close()
        self._connections.clear()

    def order(
        self, vm: str, verb: str, *, act: str = "", duration_s: float = 0.0, host: str = "host-1", abrupt: bool = False
    ) -> str:
        """Send an order; returns the act's id."""
        act = act or str(uuid4())
        to = Act(id=act, vm=vm, name=vm, verb=Verb(verb), event_id="", to_host=host, abrupt=abrupt)
        self._connection(vm).send(order_message(to, duration_s))
        return act

    def order_unknown_effect(self, vm: str, act: str) -> None:
        """Send an order that only a later service can send."""
        self._connection(vm).send({"order": {"act": act, "verb": "defragment", "effect": "defragment"}})

    def thaw(self, vm: str, act: str) -> None:
        self._connection(vm).send({"thaw": act})

    def perform(
        self, vm: str, verb: str, *, duration_s: float = 0.0, host: str = "host-1", abrupt: bool = False
    ) -> Message:
        """Send an order and wait for its outcome."""
        return self.outcome(vm, self.order(vm, verb, duration_s=duration_s, host=host, abrupt=abrupt))

    def outcome(self, vm: str, act: str, *, times: int = 1) -> Message:
        """The outcome of an act, once it was reported `times` times."""
        found: Message = self.wait_for(lambda: self._outcomes(vm, act)[times - 1 :])[0]
        return found

    def wait_for_message(self, vm: str, key: str, *, times: int = 1) -> Message:
        """The message number `times` from a VM's supervisor that has this key."""
        found: list[Message] = self.wait_for(lambda: [m for m in self.messages_from(vm) if key in m][times - 1 :])
        return found[0]

    def messages_from(self, vm: str) -> list[Message]:
        return [message for name, message in tuple(self.received) if name == vm]

    def wait_for(self, condition: Callable[[], Any]) -> Any:
        """The value of `condition` once it is true; it is checked after each message."""
        with self._message_received:
            assert self._message_received.wait_for(condition, TIMEOUT_S), f"timed out; received {self.received[-5:]}"
        return condition()

    def directory_of(self, vm: str) -> Path:
        return self.data / "vms" / vm

    def handle_message(self, connection: _SupervisorConnection, message: Message, descriptors: list[int]) -> None:
        if "hello" in message:
            self._welcome(connection, message["hello"]["vm"])
        if "listener" in message:
            connection.serve(socket.socket(fileno=descriptors[0]))
            connection.send({"listening": True})
        with self._message_received:
            self.received.append((connection.vm, message))
            self._message_received.notify_all()

    def handle_disconnect(self, connection: _SupervisorConnection) -> None:
        """Record that a supervisor hung up, and close its VM's socket."""
        connection.close()
        with self._message_received:
            if self._connections.get(connection.vm) is connection:
                del self._connections[connection.vm]
            self.received.append((connection.vm, {"gone": True}))
            self._message_received.notify_all()

    def _welcome(self, connection: _SupervisorConnection, vm: str) -> None:
        connection.vm = vm
        if vm in self.refusals:
            connection.send({"refused": self.refusals[vm]})
            connection.close()
            return
        self._connections[vm] = connection
        directory = self.directory_of(vm)
        (directory / "ephemeral").mkdir(parents=True, exist_ok=True)
        places = {"ephemeral": str(directory / "ephemeral"), "directory": str(directory)}
        names = {"name": vm, "key": f"lab/{vm}", "computer_name": f"{vm}-computer", "host": "host-0"}
        connection.send({"welcome": {"vm": {**names, **places}}})

    def _outcomes(self, vm: str, act: str) -> list[Message]:
        return [message for message in self.messages_from(vm) if message.get("act") == act and "ok" in message]

    def _connection(self, vm: str) -> _SupervisorConnection:
        connection: _SupervisorConnection = self.wait_for(lambda: self._connections.get(vm))
        return connection

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            connection = _SupervisorConnection(sock, self)
            self._all_connections.append(connection)
            threading.Thread(target=connection.read_messages, daemon=True).start()


class _SupervisorConnection:
    """The connection of one supervisor, and the HTTP servers on the sockets that it passed."""

    def __init__(self, sock: socket.socket, service: FakeSupervisorServer) -> None:
        self.vm = ""
        self._sock = sock
        self._service = service
        self._servers: list[_VmHttpServer] = []
        self._is_closed = False
        self._lock = threading.Lock()

    def send(self, message: Message) -> None:
        try:
            self._sock.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            pass  # it is gone, and will connect again

    def read_messages(self) -> None:
        buffer, descriptors = b"", list[int]()
        while (read := self._read()) is not None and not self._is_closed:
            buffer += read[0]
            descriptors += read[1]
            *lines, buffer = buffer.split(b"\n")
            for line in lines:
                message = json.loads(line)
                count = message.get("fds", 0)
                given, descriptors = descriptors[:count], descriptors[count:]
                self._service.handle_message(self, message, given)
        self._service.handle_disconnect(self)

    def _read(self) -> tuple[bytes, list[int]] | None:
        try:
            read, descriptors, _, _ = socket.recv_fds(self._sock, 65536, 4)
        except OSError:
            return None
        return (read, descriptors) if read else None

    def serve(self, sock: socket.socket) -> None:
        with self._lock:
            if self._is_closed:
                sock.close()
                return
            server = _VmHttpServer(sock, self.vm)
            self._servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            servers, self._servers = self._servers, []
        for server in servers:
            server.shutdown()
            server.server_close()
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._sock.close()


class _VmHttpServer(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, sock: socket.socket, vm: str) -> None:
        super().__init__(sock.getsockname(), _VmRequestHandler, bind_and_activate=False)
        self.socket.close()
        self.socket = sock
        self.vm = vm


class _VmRequestHandler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, _VmHttpServer)
        body = json.dumps({"vm": self.server.vm, "path": self.path}).encode()
        self.send_response_only(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Print no access log."""
