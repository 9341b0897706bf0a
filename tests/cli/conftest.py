"""Runs the command against a real web app on a real unix socket, with a service in virtual time."""

from __future__ import annotations

import asyncio
import io
import json
import shutil
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl

import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives.asymmetric import rsa

from forewarn.auth import ServiceCertificates, SigningKey, TokenIssuer, write_secret
from forewarn.auth.sessions import SignInLinks
from forewarn.auth.token_service import TokenService
from forewarn.base.clock import SystemClock, read_real_time
from forewarn.cli.api_client import ApiClient
from forewarn.cli.root_command import forewarn
from forewarn.cli.service_address import SOCKET_NAME
from forewarn.cli.transport import LocalTransport
from forewarn.core.decision import Policy
from forewarn.core.fleet import AutoApproval, Priority
from forewarn.protocol.http_message import HttpRequest
from forewarn.service.web_server import build_web_app
from forewarn.web.dependencies import Dependencies
from forewarn.web.server import serve_unix
from tests.support.scripted_server import ScriptedReply, ScriptedServer, json_reply
from tests.support.world import World, a_host, a_vm

SECRET = "it's-a-$ecret-of-the-administrator"
TENANT = "11111111-2222-3333-4444-555555555555"
HOSTS = [a_host("h1"), a_host("h2"), a_host("h3")]
VMS = [
    a_vm("web", address="127.0.1.1"),
    a_vm("db-0", host="h1", availability_set="db", update_domain=0),
    a_vm("db-1", host="h2", availability_set="db", update_domain=1),
    a_vm("spot", host="h2", priority=Priority.SPOT),
    a_vm("quick", host="h3", auto_approve=AutoApproval(restart=True)),
]
REMOTE_VARIABLES = ("FOREWARN_SERVER", "FOREWARN_PROFILE", "FOREWARN_CA", "FOREWARN_CLIENT_ID", "FOREWARN_SECRET_FILE")


@pytest.fixture
def data() -> Iterator[Path]:
    """A data directory with a path short enough for a socket."""
    path = Path(tempfile.mkdtemp(prefix="fw"))
    yield path
    shutil.rmtree(path)


class _Terminal(io.BytesIO):
    """A standard input at which a person types."""

    def isatty(self) -> bool:
        return True


class Command:
    """Runs the command in this process, as a script would: no terminal, a clean environment."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.env: dict[str, str | None] = {
            "FOREWARN_DATA": str(data),
            "XDG_CONFIG_HOME": str(data / "config"),
            **dict.fromkeys(REMOTE_VARIABLES),
            "NO_COLOR": None,
            "COLUMNS": "120",
            "TERM": "xterm",
        }

    def at_terminal(self, *arguments: str, typed: str, **env: str | None) -> Result:
        """Run the command as a person does, who types this."""
        terminal = {"FORCE_COLOR": "1", "COLUMNS": "200", **env}
        return self(*arguments, typed=_Terminal(typed.encode()), **terminal)

    def __call__(self, *arguments: str, typed: str | bytes | io.BytesIO = "", **env: str | None) -> Result:
        runner = CliRunner(env={**self.env, **env})
        return runner.invoke(forewarn, arguments, input=typed, prog_name="forewarn", catch_exceptions=False)

    def good(self, *arguments: str, **env: str) -> str:
        result = self(*arguments, **env)
        assert result.exit_code == 0, result.output
        assert result.stderr == ""
        return result.stdout

    def json(self, *arguments: str) -> Any:
        """The document that a command prints with --json."""
        return json.loads(self.good(*arguments, "--json"))

    def refused(self, *arguments: str, code: int = 2, **env: str) -> str:
        """The error message of a command that fails with this exit code and prints nothing to stdout."""
        result = self(*arguments, **env)
        assert result.exit_code == code, result.output
        assert result.stdout == ""
        return result.stderr.rstrip("\n")


@pytest.fixture
def command(data: Path) -> Command:
    """The command, with no service running."""
    return Command(data)


class Lab(Command):
    """The command, with a running service whose clock moves only when it is advanced."""

    def __init__(self, data: Path) -> None:
        super().__init__(data)
        self.api = ApiClient(LocalTransport(data))

    def when(self, what: str, then: Callable[[ApiClient], object]) -> threading.Thread:
        """Call `then` in a thread once the history has an entry of kind `what`."""
        after = self.api.get("history", query={"limit": 1})["seq"]
        api = ApiClient(LocalTransport(self.data))

        def watch() -> None:
            seq, seen = after, False
            while not seen:
                page = api.get("history", query={"after": seq, "wait_s": 20})
                seq, seen = page["seq"], any(entry["kind"] == what for entry in page["entries"])
            then(api)

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        return thread


class _ServiceThread:
    """Serves the operator API of a `World` from an event loop in its own thread."""

    def __init__(self, data: Path, *, is_lab: bool = True) -> None:
        self._data = data
        self._is_lab = is_lab
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(60)

    def stop(self) -> None:
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)

    def _run(self) -> None:
        production: dict[str, Any] = {"policy": Policy(), "system_clock": SystemClock()}
        world = World(hosts=HOSTS, vms=VMS, **({} if self._is_lab else production))
        if not self._is_lab:
            world.do(world.control.guests.enable_scope_of(world.vm("db-0").key))
        try:
            world.do(self._serve(world))
        finally:
            world.close()

    async def _serve(self, world: World) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        loop = asyncio.create_task(world.control.reconciler.run())
        async with serve_unix(build_web_app(_dependencies(world, self._data)), self._data / SOCKET_NAME):
            self._ready.set()
            await self._stop.wait()
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)


def _dependencies(world: World, data: Path) -> Dependencies:
    is_lab = world.system_clock is None

    def info() -> dict[str, Any]:
        tls, secret = data / "tls", data / "admin.secret"
        certificates = ServiceCertificates.load_or_create(tls, (), read_real_time())
        write_secret(secret, SECRET)
        facts = {"url": "https://localhost:8443", "tenant_id": TENANT, "client_id": "admin", "issuer": ""}
        console = {**facts, "ca": str(certificates.ca.certificate), "admin_secret": str(secret)}
        return {"version": "0.1.0", "lab": is_lab, "api": console, "identity_on_loopback": False}

    async def doctor() -> list[Any]:
        return [SimpleNamespace(name="disk", ok=True, text="plenty of room", remedy="")]

    return Dependencies(
        control=world.control,
        service_info=info,
        run_health_checks=doctor,
        owner_name="local user ann",
        endpoint_of=lambda vm: f"http://{vm.address}:8080" if vm.address else "",
        sign_in_links=SignInLinks("http://localhost:8443/portal/sign-in/once/", read_real_time),
        sign_in=_sign_in(),
    )


@cache
def _sign_in() -> TokenService:
    key = SigningKey(rsa.generate_private_key(public_exponent=65537, key_size=2048))
    return TokenService(issuer=TokenIssuer("https://localhost:8443/adfs", key), tenant_id=TENANT)


@pytest.fixture
def lab(data: Path) -> Iterator[Lab]:
    thread = _ServiceThread(data)
    thread.start()
    yield Lab(data)
    thread.stop()


@pytest.fixture
def production(data: Path) -> Iterator[Lab]:
    """A service that is no lab: VMs of the set db poll, the others have never polled."""
    thread = _ServiceThread(data, is_lab=False)
    thread.start()
    yield Lab(data)
    thread.stop()


class ScriptedRemoteService(ScriptedServer):
    """A TLS service where client `ci` signs in with SECRET; its API answers are scripted."""

    def __init__(self, tls: ssl.SSLContext, *replies: ScriptedReply) -> None:
        super().__init__(*replies, tls=tls)
        self.sign_ins: list[dict[str, str]] = []  # the forms that were sent
        self.lifetime_s: object = 3600
        self.max_uses_per_token = 1_000_000
        self.issuer = ""  # an external issuer
        self.uses: dict[str, int] = {}  # token → requests made with it

    def set_replies(self, *replies: ScriptedReply) -> None:
        self._replies = replies

    def next_reply(self, request: HttpRequest) -> ScriptedReply:
        path = request.target.partition("?")[0]
        if path == "/metadata/endpoints":
            known = {"loginEndpoint": self.issuer or f"{self.url}/adfs", "audiences": [f"{self.url}/"]}
            return json_reply({"name": "Local", "authentication": known})
        if path == "/adfs/.well-known/openid-configuration":
            return json_reply({"token_endpoint": f"{self.url}/adfs/oauth2/token"})
        if path == "/adfs/oauth2/token":
            return self._sign_in(dict(parse_qsl(request.body.decode())))
        return super().next_reply(request) if self._admits(request) else refusal("Unauthenticated", 401)

    def _sign_in(self, form: dict[str, str]) -> ScriptedReply:
        self.sign_ins.append(form)
        if (form["client_id"], form["client_secret"]) != ("ci", SECRET):
            return json_reply({"error": "invalid_client", "error_description": "the secret is wrong."}, status=401)
        token = f"token-{len(self.sign_ins)}"
        self.uses[token] = 0
        return json_reply({"access_token": token, "expires_in": self.lifetime_s})

    def _admits(self, request: HttpRequest) -> bool:
        token = dict(request.headers).get("authorization", "").removeprefix("Bearer ")
        self.uses[token] = self.uses.get(token, self.max_uses_per_token) + 1
        return self.uses[token] <= self.max_uses_per_token


def refusal(code: str, status: int) -> ScriptedReply:
    return json_reply({"error": {"code": code, "message": f"a sentence about {code}"}}, status=status)


ME = {"id": "client:ci", "name": "client ci", "grants": [{"id": "g", "role": "Reader", "resource": "/"}]}


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> ServiceCertificates:
    return ServiceCertificates.load_or_create(tmp_path_factory.mktemp("tls"), (), read_real_time())


@pytest.fixture
def tls(certificates: ServiceCertificates) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server.certificate, certificates.server.key)
    return context


@pytest.fixture
def remote_service(tls: ssl.SSLContext) -> Iterator[ScriptedRemoteService]:
    """A remote service that answers every request with the caller's identity."""
    with ScriptedRemoteService(tls, json_reply(ME)) as server:
        yield server


class SignedInCommand(Command):
    """The command, with a profile `lab` for the remote service and no local service."""

    def __init__(self, data: Path, server: str, ca: Path) -> None:
        super().__init__(data)
        arguments = ["login", "--server", server, "--ca", str(ca), "--client-id", "ci", "--profile", "lab"]
        result = self(*arguments, typed=SECRET)
        assert result.exit_code == 0, result.output


@pytest.fixture
def signed_in(data: Path, remote_service: ScriptedRemoteService, certificates: ServiceCertificates) -> SignedInCommand:
    command = SignedInCommand(data, remote_service.url, certificates.ca.certificate)
    remote_service.sign_ins.clear()
    remote_service.requests.clear()
    return command
