"""A webhook receiver on loopback that keeps every request and answers with scripted statuses.

with WebhookReceiver() as receiver:
    receiver.answer(500, 200)  # the first two requests; all later ones get 200
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

TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedNotification:
    method: str
    target: str
    headers: Mapping[str, str]  # names in lower case
    body: bytes
    status: int  # of the answer

    @property
    def event(self) -> Any:
        """The event in the body, of either schema."""
        form = json.loads(self.body)
        return form[0] if isinstance(form, list) else form

    @property
    def event_status(self) -> str:
        """The EventStatus of the event."""
        status: str = self.event["data"]["resourceInfo"]["properties"]["EventStatus"]
        return status


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverAnswer:
    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


AnswerFunction = Callable[[str, bytes], ReceiverAnswer]  # method and body → answer


class WebhookReceiver:
    """Receives until stopped; may be started again on the same port, or accept requests without answering."""

    def __init__(self, decide: AnswerFunction | None = None, *, wrap: Callable[[Any], Any] | None = None) -> None:
        self._decide = decide
        self._wrap = wrap or (lambda sock: sock)
        self._statuses: deque[int] = deque()
        self._received: list[ReceivedNotification] = []
        self._request_received = threading.Condition()
        self._is_silent = threading.Event()
        self._stopped = threading.Event()
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None
        self.scheme = "https" if wrap else "http"
        self.port = 0

    def __enter__(self) -> WebhookReceiver:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/hook"

    def start(self) -> None:
        self._stopped.clear()
        self._server = _ReceiverHttpServer(("127.0.0.1", self.port), _handler(self))
        self._server.socket = self._wrap(self._server.socket)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._server is None or self._thread is None:
            return
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(TIMEOUT_S)
        self._server = self._thread = None

    def stop_answering(self) -> None:
        """Accept requests but answer none until `stop`."""
        self._is_silent.set()

    def answer(self, *statuses: int) -> None:
        """Answer the next requests with these statuses, later ones with 200."""
        self._statuses.extend(statuses)

    @property
    def received(self) -> list[ReceivedNotification]:
        with self._request_received:
            return list(self._received)

    @property
    def accepted(self) -> list[ReceivedNotification]:
        """The requests that were answered with a status below 300."""
        return [received for received in self.received if received.status < 300]

    def wait_for(self, count: int) -> list[ReceivedNotification]:
        """The accepted requests, once there are `count`."""
        self._wait(lambda: len(self.accepted) >= count, f"{count} good answers")
        return self.accepted

    def wait_for_requests(self, count: int) -> list[ReceivedNotification]:
        self._wait(lambda: len(self.received) >= count, f"{count} requests")
        return self.received

    def _wait(self, done: Callable[[], bool], what: str) -> None:
        with self._request_received:
            if not self._request_received.wait_for(done, TIMEOUT_S):
                raise AssertionError(f"expected {what}, but there are {len(self._received)} requests")

    def handle_request(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> ReceiverAnswer:
        with self._request_received:
            answer = self._next_answer(method, body)
            notification = ReceivedNotification(
                method=method, target=target, headers=headers, body=body, status=answer.status
            )
            self._received.append(notification)
            self._request_received.notify_all()
        if self._is_silent.is_set():
            self._stopped.wait(TIMEOUT_S)
        return answer

    def _next_answer(self, method: str, body: bytes) -> ReceiverAnswer:
        if self._is_silent.is_set():
            return ReceiverAnswer(status=504)
        if self._statuses:
            return ReceiverAnswer(status=self._statuses.popleft())
        return self._decide(method, body) if self._decide else ReceiverAnswer()


class _ReceiverHttpServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing when a caller hangs up."""


def _handler(receiver: WebhookReceiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _receive(self) -> None:
            length = int(self.headers.get("Content-Length", "0"))
            body = self.rfile.read(length)
            if len(body) < length:  # the sender was killed before it had sent all: nothing was received
                self.close_connection = True
                return
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = receiver.handle_request(self.command, self.path, headers, body)
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        do_POST = do_OPTIONS = do_GET = do_PUT = do_PATCH = do_DELETE = _receive

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler
