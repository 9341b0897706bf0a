"""A receiver of webhooks: a real HTTP server on loopback that keeps what it was sent and answers as it is told to.

with Receiver() as receiver:
    receiver.answer(500, 200)  # the first request so, the second so, all others 200
    ...
    first, *others = receiver.wait_for(3)
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    method: str
    target: str
    headers: Mapping[str, str]  # names in lower case
    body: bytes
    status: int  # what it was answered

    @property
    def event(self) -> Any:
        """The one event of either form."""
        form = json.loads(self.body)
        return form[0] if isinstance(form, list) else form

    @property
    def status_told(self) -> str:
        """The EventStatus in it."""
        told: str = self.event["data"]["resourceInfo"]["properties"]["EventStatus"]
        return told


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


Decide = Callable[[str, bytes], Answer]  # method and body → what is answered


class Receiver:
    """`stop` and `start` let it be away for a while, on the same port; `hang` lets it take requests and say nothing."""

    def __init__(self, decide: Decide | None = None, *, wrap: Callable[[Any], Any] | None = None) -> None:
        self._decide = decide
        self._wrap = wrap or (lambda sock: sock)
        self._statuses: deque[int] = deque()
        self._received: list[Received] = []
        self._news = threading.Condition()
        self._hanging = threading.Event()
        self._released = threading.Event()
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None
        self.scheme = "https" if wrap else "http"
        self.port = 0

    def __enter__(self) -> Receiver:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/hook"

    def start(self) -> None:
        self._released.clear()
        self._server = _Server(("127.0.0.1", self.port), _handler(self))
        self._server.socket = self._wrap(self._server.socket)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._released.set()
        if self._server is None or self._thread is None:
            return
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(PATIENCE_S)
        self._server = self._thread = None

    def hang(self) -> None:
        """Until it is stopped."""
        self._hanging.set()

    def answer(self, *statuses: int) -> None:
        self._statuses.extend(statuses)

    @property
    def received(self) -> list[Received]:
        with self._news:
            return list(self._received)

    @property
    def taken(self) -> list[Received]:
        """Those that were answered well."""
        return [received for received in self.received if received.status < 300]

    def wait_for(self, count: int) -> list[Received]:
        """Once that many were answered well: those."""
        self._wait(lambda: len(self.taken) >= count, f"{count} good answers")
        return self.taken

    def wait_for_requests(self, count: int) -> list[Received]:
        self._wait(lambda: len(self.received) >= count, f"{count} requests")
        return self.received

    def _wait(self, done: Callable[[], bool], what: str) -> None:
        with self._news:
            if not self._news.wait_for(done, PATIENCE_S):
                raise AssertionError(f"{what} were waited for, and there are {len(self._received)} requests")

    def take(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Answer:
        with self._news:
            answer = self._next_answer(method, body)
            given = Received(method=method, target=target, headers=headers, body=body, status=answer.status)
            self._received.append(given)
            self._news.notify_all()
        if self._hanging.is_set():
            self._released.wait(PATIENCE_S)
        return answer

    def _next_answer(self, method: str, body: bytes) -> Answer:
        if self._hanging.is_set():
            return Answer(status=504)
        if self._statuses:
            return Answer(status=self._statuses.popleft())
        return self._decide(method, body) if self._decide else Answer()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that hangs up is nothing to print."""


def _handler(receiver: Receiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _take(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = receiver.take(self.command, self.path, headers, body)
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        do_POST = do_OPTIONS = do_GET = do_PUT = do_PATCH = do_DELETE = _take

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler
