"""The service's end of the link to keepers, as small as can be: for tests of VMs made of namespaces.

with Keeping(tmp_path) as service:
    …start `forewarn vm run web-0 -- …`…
    service.order("web-0", "freeze", duration_s=1.0)

It welcomes every VM, answers any request on the socket it is given with the VM's name, and remembers what it heard.
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

Message = dict[str, Any]
PATIENCE_S = 30.0


class Keeping:
    """A service that may be stopped, as if it had died, and started again on the same data."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.heard: list[tuple[str, Message]] = []  # (VM, what its keeper said), of all keepers
        self.refusals: dict[str, str] = {}  # VM → why it is not welcome
        self._news = threading.Condition()
        self._lines: dict[str, _Line] = {}
        self._all: list[_Line] = []
        self._door: socket.socket | None = None

    def __enter__(self) -> Keeping:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        path = self.data / "forewarn.vms"
        path.unlink(missing_ok=True)
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(str(path))
        self._door.listen(256)
        threading.Thread(target=self._accept, args=(self._door,), daemon=True).start()

    def stop(self) -> None:
        """Everything closes at once, as when a process is killed."""
        if self._door is not None:
            self._door.shutdown(socket.SHUT_RDWR)
            self._door.close()
            self._door = None
        while self._all:
            self._all.pop().close()
        self._lines.clear()

    def order(
        self, vm: str, verb: str, *, act: str = "", duration_s: float = 0.0, host: str = "host-1", abrupt: bool = False
    ) -> str:
        """Order an act; its id."""
        act = act or str(uuid4())
        order = {"act": act, "verb": verb, "duration_s": duration_s, "host": host, "abrupt": abrupt}
        self._line(vm).say({"order": order})
        return act

    def thaw(self, vm: str, act: str) -> None:
        self._line(vm).say({"thaw": act})

    def perform(
        self, vm: str, verb: str, *, duration_s: float = 0.0, host: str = "host-1", abrupt: bool = False
    ) -> Message:
        """Order an act and wait for its outcome."""
        return self.outcome(vm, self.order(vm, verb, duration_s=duration_s, host=host, abrupt=abrupt))

    def outcome(self, vm: str, act: str, *, times: int = 1) -> Message:
        """The final answer to an act, once it was given so many times."""
        found: Message = self.wait(lambda: self._finals(vm, act)[times - 1 :])[0]
        return found

    def hear(self, vm: str, word: str, *, times: int = 1) -> Message:
        """What the keeper of a VM said under this word, the so-manieth time."""
        found: Message = self.wait(lambda: [said for said in self.said(vm) if word in said][times - 1 :])[0]
        return found

    def said(self, vm: str) -> list[Message]:
        return [message for name, message in tuple(self.heard) if name == vm]

    def wait(self, condition: Callable[[], Any]) -> Any:
        """What `condition` gives once that is true; it is asked whenever something was heard."""
        with self._news:
            assert self._news.wait_for(condition, PATIENCE_S), f"in vain; heard {self.heard[-5:]}"
        return condition()

    def directory_of(self, vm: str) -> Path:
        return self.data / "vms" / vm

    def take(self, line: _Line, message: Message, descriptors: list[int]) -> None:
        if "hello" in message:
            self._welcome(line, message["hello"]["vm"])
        if "listener" in message:
            line.serve(socket.socket(fileno=descriptors[0]))
            line.say({"listening": True})
        with self._news:
            self.heard.append((line.vm, message))
            self._news.notify_all()

    def leave(self, line: _Line) -> None:
        """A keeper has gone, and with it its VM's socket."""
        line.close()
        with self._news:
            if self._lines.get(line.vm) is line:
                del self._lines[line.vm]
            self.heard.append((line.vm, {"gone": True}))
            self._news.notify_all()

    def _welcome(self, line: _Line, vm: str) -> None:
        line.vm = vm
        if vm in self.refusals:
            line.say({"refused": self.refusals[vm]})
            line.close()
            return
        self._lines[vm] = line
        directory = self.directory_of(vm)
        (directory / "ephemeral").mkdir(parents=True, exist_ok=True)
        places = {"ephemeral": str(directory / "ephemeral"), "directory": str(directory)}
        names = {"name": vm, "key": f"lab/{vm}", "computer_name": f"{vm}-computer", "host": "host-0"}
        line.say({"welcome": {"vm": {**names, **places}}})

    def _finals(self, vm: str, act: str) -> list[Message]:
        return [said for said in self.said(vm) if said.get("act") == act and "ok" in said]

    def _line(self, vm: str) -> _Line:
        line: _Line = self.wait(lambda: self._lines.get(vm))
        return line

    def _accept(self, door: socket.socket) -> None:
        while True:
            try:
                connection, _ = door.accept()
            except OSError:
                return
            line = _Line(connection, self)
            self._all.append(line)
            threading.Thread(target=line.follow, daemon=True).start()


class _Line:
    """The line to one keeper, and the HTTP server on the socket that it brought."""

    def __init__(self, sock: socket.socket, service: Keeping) -> None:
        self.vm = ""
        self._sock = sock
        self._service = service
        self._server: _Server | None = None
        self._is_closed = False
        self._changing = threading.Lock()

    def say(self, message: Message) -> None:
        try:
            self._sock.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            pass  # it has gone, and comes back with a hello

    def follow(self) -> None:
        buffer, descriptors = b"", list[int]()
        while (read := self._read()) is not None and not self._is_closed:
            buffer += read[0]
            descriptors += read[1]
            *lines, buffer = buffer.split(b"\n")
            for line in lines:
                message = json.loads(line)
                count = message.get("fds", 0)
                given, descriptors = descriptors[:count], descriptors[count:]
                self._service.take(self, message, given)
        self._service.leave(self)

    def _read(self) -> tuple[bytes, list[int]] | None:
        try:
            read, descriptors, _, _ = socket.recv_fds(self._sock, 65536, 4)
        except OSError:
            return None
        return (read, descriptors) if read else None

    def serve(self, sock: socket.socket) -> None:
        with self._changing:
            if self._is_closed:
                sock.close()
                return
            self._server = _Server(sock, self.vm)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        with self._changing:
            self._is_closed = True
            server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._sock.close()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, sock: socket.socket, vm: str) -> None:
        super().__init__(sock.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = sock
        self.vm = vm


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, _Server)
        body = json.dumps({"vm": self.server.vm, "path": self.path}).encode()
        self.send_response_only(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody reads it."""
