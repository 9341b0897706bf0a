"""A fake of the REST API of one Patroni member, with the calls that a switchover needs."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

PatroniAnswer = tuple[int, str]
_LEADER_FIELDS = {"role": "leader", "state": "running"}
_REPLICA_FIELDS = {"role": "replica", "state": "streaming"}


class FakePatroni:
    """Serves a cluster of `members` (name → fields of /cluster) and records the requested `switchovers`.

    `polls_until_switched` is the number of requests to /cluster before a switchover shows there.
    """

    def __init__(self, *others: str, own: str = "db-0", leader: str = "db-0") -> None:
        self.own = own
        self.members: dict[str, dict[str, Any]] = {name: {"lag": 0} for name in (own, *others)}
        self.switchovers: list[dict[str, Any]] = []
        self.authorization = ""  # the Authorization header that a switchover needs
        self.refusal = ""
        self.polls_until_switched = 0
        self.paused = False
        self.lead(leader)
        self._next = ""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> FakePatroni:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def leader(self) -> str:
        return next((name for name, member in self.members.items() if member["role"] == "leader"), "")

    def lead(self, leader: str) -> None:
        for name, member in self.members.items():
            member |= _LEADER_FIELDS if name == leader else _REPLICA_FIELDS

    def read(self, route: str) -> PatroniAnswer:
        if route != "/cluster":
            return 200, json.dumps({"state": "running", "patroni": {"name": self.own, "scope": "shop"}})
        self._complete_switchover()
        members = [{"name": name, **member} for name, member in self.members.items()]
        return 200, json.dumps({"members": members} | ({"pause": True} if self.paused else {}))

    def switch_over(self, body: bytes, authorization: str) -> PatroniAnswer:
        if authorization != self.authorization:
            return 401, "no auth header received"
        if self.refusal:
            return 412, self.refusal
        request = json.loads(body)
        if self.paused and "candidate" not in request:
            return 400, "Switchover is possible only to a specific candidate in a paused state"
        self.switchovers.append(request)
        self._next = request.get("candidate") or next(name for name in self.members if name != request["leader"])
        return 200, f"Successfully switched over to {self._next!r}"

    def _complete_switchover(self) -> None:
        if self._next and not self.polls_until_switched:
            self.lead(self._next)
            self._next = ""
        self.polls_until_switched = max(self.polls_until_switched - 1, 0)


def _handler(patroni: FakePatroni) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(*patroni.read(self.path))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            self._answer(*patroni.switch_over(body, self.headers.get("Authorization", "")))

        def _answer(self, status: int, text: str) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: Any) -> None:
            """Print no access log."""

    return Handler
