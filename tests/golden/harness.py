"""The harness of the golden tests: a real service as a process, calls over real sockets, masks, and golden files.

Nothing here imports forewarn. The tests know the service only as its users do: by its commands, sockets and files.
`FOREWARN_WRITE_GOLDEN=1` writes the golden files again instead of comparing; a missing golden file fails.
"""

from __future__ import annotations

import difflib
import http.client
import json
import os
import random
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import urlencode

HERE = Path(__file__).parent
GOLDEN = HERE / "expected"
WRITE = bool(os.environ.get("FOREWARN_WRITE_GOLDEN"))
START_AT = 2_051_222_400.5  # Monday, 1 January 2035, 00:00:00.5 UTC: the lab's clock is moved there and stopped
SUBSCRIPTION = "00000000-0000-0000-0000-000000000001"  # the one of fleet files that name none
_STEPS = 10  # a clock can be advanced by up to 366 days at a time
API = "/forewarn/v1"
NOTHING: Mapping[str, str] = {}
_PORTS = range(20_000, 32_000)  # below the ports that systems give to outgoing connections

T = TypeVar("T")


# Golden files


def check_golden(name: str, text: str) -> None:
    """Compares a text with the golden file of this name, or writes that file."""
    path = GOLDEN / name
    if WRITE:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return
    assert path.exists(), f"the golden file {path} is missing: write it with FOREWARN_WRITE_GOLDEN=1"
    expected = path.read_text(encoding="utf-8")
    if text != expected:
        changes = difflib.unified_diff(expected.splitlines(), text.splitlines(), "golden", "now", lineterm="")
        raise AssertionError(f"{path.name} differs from what was frozen:\n" + "\n".join(changes))


def check_golden_json(name: str, value: Any) -> None:
    check_golden(name, json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


# Masks

_GUID = re.compile(r"(?i)\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
_MAC = re.compile(r"\b000D3A[0-9A-F]{6}\b")  # it follows from the id of a VM
# The digits after the scope's are random, made with the store; those of the content follow from ids and times.
_ETAG = re.compile(r'("\d+-\d+-[0-9a-f]{8})[0-9a-f]{8}-[0-9a-f]{16}(?=")')
_USER = re.compile(r"\blocal user [\w.-]+")
_ISO = re.compile(r"\b20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)")
HUMAN_KEYS = {
    "message",
    "text",
    "description",
    "error_description",
    "summary",
    "remedy",
    "note",
    "symptom",
    "detail",
}
HUMAN_KEYS |= {"title", "scope_title", "waitsfor", "waits_for", "shown_document"}
SENTENCE_LISTS = {"now", "summary", "lines", "problems"}  # shown as one sentence, however many there are
SECRET_KEYS = {"secret", "access_token", "id_token", "x5c", "x5t", "n", "kid", "client_secret"}
MEASURED_KEYS = {"pid", "version", "python", "platform", "bytes", "left_s", "remaining_s", "silent_s"}
LIFETIME_KEYS = frozenset({"expires_in", "ext_expires_in"})
_FULL_LIFETIME_S = 3599


class Masks:
    """Replaces what differs from run to run by names that count: `<id-1>`, `<real-time-1>`, `<port>`, `<data>`."""

    def __init__(self, replaced: Mapping[str, str] = NOTHING) -> None:
        self._replaced = dict(replaced)
        self._ids: dict[str, str] = {}

    def replace(self, text: str, mask: str) -> None:
        """From now on this text is shown as the mask."""
        self._replaced[text] = mask

    def text(self, text: str) -> str:
        for known in sorted(self._replaced, key=len, reverse=True):
            text = text.replace(known, self._replaced[known])
        text = _ETAG.sub(r"\1<store>-<content>", _GUID.sub(self._id, text))
        return _USER.sub("local user <user>", _MAC.sub("<mac>", text))

    def _id(self, found: re.Match[str]) -> str:
        guid = found[0]
        if guid == SUBSCRIPTION:
            return guid
        number = self._ids.setdefault(guid.lower(), f"id-{len(self._ids) + 1}")
        return f"<{number.upper() if guid == guid.upper() else number}>"

    def value(self, value: Any, key: str = "") -> Any:
        """A JSON value, masked. Sentences become `<text>`; keys, types, codes, numbers and words stay."""
        if isinstance(value, dict):
            return {self.text(name): self.value(inner, name) for name, inner in value.items()}
        if isinstance(value, list) and value and key in SENTENCE_LISTS and isinstance(value[0], str):
            return ["<text>"]
        if isinstance(value, list):
            return [self.value(inner, key) for inner in value]
        return self._leaf(value, key)

    def _leaf(self, value: Any, key: str) -> Any:
        if isinstance(value, str) and value and key.casefold() in HUMAN_KEYS:
            return "<text>"
        if isinstance(value, str) and value and key.casefold() in SECRET_KEYS:
            return "<secret>"
        if key in LIFETIME_KEYS and str(value).isdigit() and _FULL_LIFETIME_S - int(value) in range(60):
            return type(value)(_FULL_LIFETIME_S)  # a slow machine takes seconds to answer
        if value is not None and not isinstance(value, bool) and key in MEASURED_KEYS:
            return f"<measured {type(value).__name__}>"
        if isinstance(value, bool) or value is None:
            return value
        if isinstance(value, int | float):
            return self._number(value)
        return self._instants(self.text(value)) if isinstance(value, str) else value

    def _number(self, value: float) -> Any:
        if f":{value}" in self._replaced:
            return self._replaced[f":{value}"].removeprefix(":")
        if abs(value - time.time()) < 400 * 86_400:
            return f"<real time {type(value).__name__}>"
        return round(value, 3) if isinstance(value, float) else value

    def _instants(self, text: str) -> str:
        """Instants of lab time stay, since the lab's clock stands at a fixed one; those of real time are masked."""
        year = time.gmtime().tm_year
        return _ISO.sub(lambda found: "<real time>" if abs(int(found[0][:4]) - year) <= 1 else found[0], text)


# Processes


def environment(extra: Mapping[str, str] = NOTHING) -> dict[str, str]:
    """The variables of a child: none of forewarn's but these, and no API over TLS unless one is asked for."""
    plain = {name: text for name, text in os.environ.items() if not name.startswith(("FOREWARN_", "SCHEDULEDEVENTS"))}
    return plain | {"FOREWARN_API": "", "NO_COLOR": "1", "COLUMNS": "120"} | dict(extra)


def run_command(*words: str, extra: Mapping[str, str] = NOTHING, typed: str = "") -> subprocess.CompletedProcess[str]:
    """`forewarn WORDS`, from beginning to end."""
    line = [sys.executable, "-m", "forewarn", *words]
    return subprocess.run(
        line, capture_output=True, text=True, timeout=60, check=False, env=environment(extra), input=typed
    )


def eventually(condition: Callable[[], T], within_s: float = 30.0) -> T:
    """Asks again until the condition holds, and returns what it gave; AssertionError if it never holds."""
    deadline = time.monotonic() + within_s
    while not (given := condition()):
        assert time.monotonic() < deadline, f"still {given!r} after {within_s:g} s"
        time.sleep(0.02)
    return given


def free_port(count: int = 1) -> int:
    """The first of `count` ports in a row that nothing listens on, on any loopback address."""
    chance = random.SystemRandom()
    while True:
        first = chance.choice(_PORTS)
        if all(_is_free(port) for port in range(first, first + count)):
            return first


def _is_free(port: int) -> bool:
    with socket.socket() as sock:
        try:
            sock.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body) if self.body else None

    def header(self, name: str) -> str:
        return next((text for known, text in self.headers if known.casefold() == name.casefold()), "")


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def call(
    connection: http.client.HTTPConnection,
    method: str,
    target: str,
    body: bytes | None = None,
    headers: Mapping[str, str] = NOTHING,
) -> Answer:
    try:
        connection.request(method, target, body, dict(headers))
        response = connection.getresponse()
        return Answer(response.status, tuple(response.getheaders()), response.read())
    finally:
        connection.close()


class Service:
    """`forewarn up` on a data directory, with a port of its own; the process ends with the block."""

    def __init__(
        self,
        data: Path,
        *,
        fleet: str = "",
        has_api: bool = False,
        extra: Mapping[str, str] = NOTHING,
        config: str = "",
    ) -> None:
        self.data, self.port = data, free_port()
        self.api_port = free_port() if has_api else 0
        self._extra = dict(extra) | ({"FOREWARN_API": f"127.0.0.1:{self.api_port}"} if has_api else {})
        data.mkdir(parents=True, exist_ok=True)
        self._words = ["--data", str(data), "up", "--port", str(self.port)]
        for option, text in (("fleet", fleet), ("config", config)):
            if text:
                (data / f"{option}.toml").write_text(text, encoding="utf-8")
                self._words += [f"--{option}", str(data / f"{option}.toml")]
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Service:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end(signal.SIGKILL)

    def start(self) -> None:
        log = self.data.parent / f"{self.data.name}.log"
        with log.open("ab") as out:
            line = [sys.executable, "-m", "forewarn", *self._words]
            self._child = subprocess.Popen(line, stdout=out, stderr=out, env=environment(self._extra))
        try:
            eventually(self._is_up_or_gone, within_s=60)
            assert self._child.poll() is None, f"the service did not start:\n{log.read_text()}"
        except BaseException:
            self.end(signal.SIGKILL)
            raise

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self._child is not None:
            if self._child.poll() is None:
                self._child.send_signal(number)
            self._child.wait(30)
            self._child = None

    def _is_up_or_gone(self) -> bool:
        assert self._child is not None
        return self._child.poll() is not None or self._answers()

    def _answers(self) -> bool:
        try:
            if self.api("GET", "/service").status != 200:
                return False
            if self.api_port:
                socket.create_connection(("127.0.0.1", self.api_port), timeout=5).close()
        except (OSError, http.client.HTTPException):
            return False
        return True

    def local(self, method: str, target: str, body: Any = None) -> Answer:
        """One call on the local socket, as the owner of the data directory."""
        headers = {"Content-Type": "application/json"}
        raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        return call(_UnixConnection(self.data / "forewarn.sock"), method, target, raw, headers)

    def api(self, method: str, path: str, body: Any = None) -> Answer:
        return self.local(method, API + path, body)

    def good(self, method: str, path: str, body: Any = None) -> Any:
        answer = self.api(method, path, body)
        assert answer.status < 300, (method, path, answer.status, answer.body)
        return answer.json

    def stop_the_clock(self, at: float = START_AT) -> None:
        """The lab's clock stands, at an instant that is the same in every run.

        The steps are always as many, so that the history has as many entries. Times are shown to the millisecond, so it
        is up to a millisecond later: START_AT is far from a whole second.
        """
        self.good("POST", "/clock/speed", {"speed": 0})
        for left in range(_STEPS, 0, -1):
            now = datetime.fromisoformat(self.good("GET", "/clock")["now"]).timestamp()
            self.good("POST", "/clock/advance", {"by_s": (at - now) / left})

    def advance(self, by_s: float) -> None:
        self.good("POST", "/clock/advance", {"by_s": by_s})

    def ask(self, ask: str, *vms: str, **more: Any) -> Any:
        return self.good("POST", "/requests", {"operation": ask, "vms": list(vms), **more})

    def endpoint(self, vm: str) -> tuple[str, int]:
        shown = self.good("GET", f"/vms/{vm}")
        address, _, port = shown["url"].split("/")[2].rpartition(":")
        return address, int(port)

    def url(self, vm: str) -> str:
        address, port = self.endpoint(vm)
        return f"http://{address}:{port}"

    def guest(self, vm: str, method: str, target: str, body: bytes | None = None) -> Answer:
        connection = http.client.HTTPConnection(*self.endpoint(vm), timeout=30)
        return call(connection, method, target, body, {"Metadata": "true"})

    def poll(self, vm: str, version: str = "2020-07-01") -> Any:
        return self.guest(vm, "GET", f"/metadata/scheduledevents?api-version={version}").json

    def command(self, *words: str, typed: str = "", extra: Mapping[str, str] = NOTHING) -> Any:
        return run_command("--data", str(self.data), *words, typed=typed, extra=extra)

    def masks(self) -> Masks:
        shown = {str(self.data): "<data>", f":{self.port}": ":<port>"}
        if self.api_port:
            shown[f":{self.api_port}"] = ":<console port>"
        return Masks(shown)


class Console:
    """The API of a service over TLS: sign-in, and calls with a bearer token."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.shown: dict[str, str] = service.good("GET", "/service")["api"]
        self._tls = ssl.create_default_context(cafile=self.shown["ca"])

    def connection(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection("localhost", self.service.api_port, context=self._tls, timeout=60)

    def call(self, method: str, target: str, body: Any = None, token: str = "", **headers: str) -> Answer:
        raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        sent = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        return call(self.connection(), method, target, raw, sent | headers)

    def form(self, target: str, fields: Mapping[str, str]) -> Answer:
        sent = {"Content-Type": "application/x-www-form-urlencoded"}
        return call(self.connection(), "POST", target, urlencode(fields).encode(), sent)

    def token(self, client_id: str = "", secret: str = "") -> str:
        answer = self.form("/adfs/oauth2/token", self.fields(client_id, secret))
        assert answer.status == 200, answer.body
        token: str = answer.json["access_token"]
        return token

    def fields(self, client_id: str = "", secret: str = "") -> dict[str, str]:
        """The form by which a client signs in; the administrator's unless another is given."""
        known = Path(self.shown["admin_secret"]).read_text(encoding="utf-8").strip()
        return {
            "grant_type": "client_credentials",
            "client_id": client_id or self.shown["client_id"],
            "client_secret": secret or known,
            "resource": "https://management.azure.com/",
        }


# Walks: calls that are noted down, one after the other

_UNSTABLE_HEADERS = {"forewarn-now", "date", "content-length", "server", "connection", "cache-control"}


class Walk:
    """Calls in a fixed order, each noted with its route; golden files hold them by area."""

    def __init__(self, masks: Masks) -> None:
        self.masks = masks
        self.noted: dict[str, list[Any]] = {}
        self.routes: set[str] = set()

    def note(self, area: str, route: str, answer: Answer, title: str = "", body: Any = None) -> Answer:
        """Notes an answer; `body` is shown instead of its own where that says too much."""
        self.routes.add(route)
        shown: dict[str, Any] = {"call": f"{route}: {title}" if title else route, "status": answer.status}
        headers = {name.lower(): text for name, text in answer.headers if name.lower() not in _UNSTABLE_HEADERS}
        shown["headers"] = {name: self.masks.value(text) for name, text in sorted(headers.items())}
        if "allow" in headers:
            shown["headers"]["allow"] = ", ".join(sorted(headers["allow"].split(", ")))
        told = body if body is not None else answer.json
        shown["body"] = self.masks.value(told)
        self.noted.setdefault(area, []).append(shown)
        return answer

    def check(self, folder: str, area: str) -> None:
        check_golden_json(f"{folder}/{area}.json", self.noted[area])


# Bytes on the wire


def exchange(at: tuple[str, int], request: bytes, source: str = "") -> bytes:
    """The exact bytes of the answer to these bytes, up to its end."""
    with socket.create_connection(at, timeout=30, source_address=(source, 0) if source else None) as sock:
        sock.sendall(request)
        return read_answer(sock, is_head=request.startswith(b"HEAD "))


def read_answer(sock: socket.socket, *, is_head: bool = False) -> bytes:
    raw = b""
    while b"\r\n\r\n" not in raw:
        got = sock.recv(65_536)
        if not got:
            return raw
        raw += got
    head, _, body = raw.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    whole = 0 if is_head or length is None else int(length[1])
    while len(body) < whole:
        body += sock.recv(65_536)
    return head + b"\r\n\r\n" + body
