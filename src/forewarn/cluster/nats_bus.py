"""`NatsBus`: the bus over plain NATS subjects, with no stream or store in NATS.

The defaults of nats-py are not safe here: it would notice a silent partition after minutes, give up after 60
reconnects, keep messages to send them late, and talk to a server without TLS although the URL asks for it.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from forewarn.cluster.bus import BusMessage, DoubtHandler, MessageHandler, NoAnswer, NoResponders
from forewarn.errors import Refused, Rejected, Unavailable

log = logging.getLogger(__name__)
_PING_INTERVAL_S, _MAX_MISSED_PINGS = 2, 2  # a dead connection is noticed after about six seconds
_CONNECT_TIMEOUT_S = 2
_RECONNECT_S = 0.25
_FLUSH_TIMEOUT_S = 2
_REOPEN_S = 1.0  # after nats-py has closed the connection for good
_MAX_PENDING_BYTES = 64 * 1024 * 1024  # of one subscription, before messages are lost
_CREDENTIALS_FILE = "-----BEGIN NATS USER JWT-----"
_SUBSCRIPTION_VIOLATION, _PUBLISH_VIOLATION = "violation for subscription to", "violation for publish to"


class NatsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the NATS servers are, and how to sign in there. A path is "" if there is no such file."""

    url: str  # `nats://HOST:PORT` or `tls://HOST:PORT`; several are separated by commas
    credentials: str = ""  # a file with USER:PASSWORD in its first line, or a credentials file of NATS
    ca: str = ""  # a PEM file with the CA of the servers; "": those of the system
    certificate: str = ""  # a PEM file with this client's certificate
    key: str = ""  # a PEM file with the key of `certificate`; given with it, or neither

    @property
    def servers(self) -> list[str]:
        """The server URLs of `url`, one by one, in its order and without blanks; [] if `url` is empty."""
        return [part.strip() for part in self.url.split(",") if part.strip()]

    @property
    def needs_tls(self) -> bool:
        """Whether a server without TLS must be refused: a CA, a certificate or a URL with tls:// is set."""
        return bool(self.ca or self.certificate) or any(server.startswith("tls://") for server in self.servers)


def check_nats(settings: NatsSettings, *, setting: str = "bus") -> None:
    """Check settings for NATS without connecting; raise Rejected if they cannot work."""
    if not settings.servers:
        raise Rejected(f"setting {setting!r} is empty: give the URL of a NATS server, such as nats://127.0.0.1:4222")
    for server in settings.servers:
        parts = urlsplit(server)
        if parts.scheme not in ("nats", "tls") or not parts.hostname:
            raise Rejected(f"setting {setting!r}: {server!r} is not nats://HOST:PORT or tls://HOST:PORT")
        if parts.username or parts.password:
            raise Rejected(
                f"setting {setting!r} has a password in its URL, which other users can see: write USER:PASSWORD to a "
                f"file, and name that with '{setting}_credentials'"
            )
    if bool(settings.certificate) != bool(settings.key):
        raise Rejected(f"settings '{setting}_certificate' and '{setting}_key' go together: give both, or neither")
    for name in ("credentials", "ca", "certificate", "key"):
        path = getattr(settings, name)
        if path and not Path(path).is_file():
            raise Rejected(f"setting '{setting}_{name}': file {path!r} does not exist")


class NatsBus:
    """A connection to NATS: implements `Bus`. It connects again by itself, for ever."""

    def __init__(self, settings: NatsSettings, *, name: str, inbox: str) -> None:
        self.problem = ""
        self.max_payload_bytes = 1 << 20
        self._settings, self._name, self._inbox = settings, name, inbox
        self._client: Any = None
        self._subscriptions: dict[int, tuple[str, MessageHandler]] = {}
        self._client_subscriptions: dict[int, Any] = {}
        self._refusals: dict[str, str] = {}  # subject that may not be subscribed to, in lower case → why
        self._doubt_handlers: list[DoubtHandler] = []
        self._outbox: deque[tuple[str, bytes]] = deque()
        self._has_mail = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._next_id = 0
        self._is_closing = False
        self._last_error = ""
        self._fatal: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def connect(
        cls, settings: NatsSettings, *, name: str, inbox: str, on_waiting: Callable[[str], None] = lambda text: None
    ) -> NatsBus:
        """Connect to the first server that answers, and wait for one without a time limit; return the bus."""
        bus = cls(settings, name=name, inbox=inbox)
        try:
            await bus._open(on_waiting)
        except BaseException:
            await bus.close()
            raise
        bus._spawn(bus._send_outbox())
        return bus

    @property
    def is_connected(self) -> bool:
        return self._client is not None and bool(self._client.is_connected)

    def publish(self, subject: str, payload: bytes) -> None:
        if self.is_connected:
            self._outbox.append((subject, payload))
            self._has_mail.set()

    async def request(self, subject: str, payload: bytes, *, timeout_s: float) -> bytes:
        from nats import errors

        if not self.is_connected:
            raise NoResponders(f"NATS at {self._settings.url} is out of reach")
        try:
            answer = await self._client.request(subject, payload, timeout=timeout_s)
        except errors.NoRespondersError:
            raise NoResponders(f"nobody is subscribed to {subject!r}") from None
        except errors.TimeoutError:
            raise NoAnswer(f"no answer on {subject!r} within {timeout_s:g} s") from None
        except (errors.Error, OSError) as error:
            raise NoResponders(f"NATS at {self._settings.url} is out of reach: {error}") from error
        return bytes(answer.data)

    async def subscribe(self, subject: str, handler: MessageHandler) -> Callable[[], None]:
        refused_before = self._refusals.pop(subject.lower(), "")
        self._next_id += 1
        number = self._next_id
        self._subscriptions[number] = (subject, handler)
        if self._client is not None:
            await self._subscribe_client(number)

        def unsubscribe() -> None:
            self._subscriptions.pop(number, None)
            subscription = self._client_subscriptions.pop(number, None)
            if subscription is not None and not self._is_closing:
                self._spawn(_unsubscribe(subscription))

        try:
            await self.flush()
        except NoAnswer:
            if refused_before:  # nothing is known yet: a later call may find it permitted
                self._refusals.setdefault(subject.lower(), refused_before)
            return unsubscribe
        refusal = self._refusals.get(subject.lower(), "")
        if self.problem == refused_before:
            self.problem = refusal
        if refusal:
            unsubscribe()
            raise Refused(refusal)
        return unsubscribe

    def subscribe_doubts(self, handler: DoubtHandler) -> Callable[[], None]:
        self._doubt_handlers.append(handler)

        def unsubscribe() -> None:
            with suppress(ValueError):  # it was called before
                self._doubt_handlers.remove(handler)

        return unsubscribe

    async def flush(self) -> None:
        from nats import errors

        if not self.is_connected:
            raise NoAnswer(f"NATS at {self._settings.url} is out of reach")
        client = self._client
        while self._outbox or (client.pending_data_size and client.is_connected):  # its PING would overtake these
            await asyncio.sleep(0)
        try:
            await client.flush(timeout=_FLUSH_TIMEOUT_S)
        except (errors.Error, OSError) as error:
            raise NoAnswer(f"NATS at {self._settings.url} does not answer: {error}") from error

    async def close(self) -> None:
        self._is_closing = True
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._client is not None:
            client, self._client = self._client, None
            with suppress(Exception):
                await client.close()

    async def _open(self, on_waiting: Callable[[str], None]) -> None:
        """Open a connection, unless the server refuses this client for good."""
        try:
            from nats.aio.client import Client
        except ImportError as error:
            raise Rejected("a bus needs nats-py: install forewarn[cluster]") from error
        client = Client()
        options = self._options(client)
        connecting = asyncio.create_task(client.connect(**options))
        has_waited = False
        while True:
            done, _ = await asyncio.wait(
                {connecting, self._fatal}, timeout=_CONNECT_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED
            )
            if self._fatal.done():
                connecting.cancel()
                await asyncio.gather(connecting, return_exceptions=True)
                self._fatal.result()
            if done:
                break
            if not has_waited:
                has_waited = True
                on_waiting(f"NATS at {self._settings.url} is out of reach ({self._last_error}): trying again")
        connecting.result()
        if self._lacks_tls(client):
            await client.close()
            raise Refused(self._no_tls_text)
        self._client = client
        self.max_payload_bytes = client.max_payload
        for number in self._subscriptions:
            await self._subscribe_client(number)

    def _options(self, client: Any) -> dict[str, Any]:
        settings = self._settings
        options: dict[str, Any] = {
            "servers": settings.servers,
            "name": self._name,
            "inbox_prefix": self._inbox,
            "allow_reconnect": True,
            "max_reconnect_attempts": -1,
            "reconnect_time_wait": _RECONNECT_S,
            "connect_timeout": _CONNECT_TIMEOUT_S,
            "ping_interval": _PING_INTERVAL_S,
            "max_outstanding_pings": _MAX_MISSED_PINGS,
            "error_cb": self._on_error,
            "reconnected_cb": self._on_reconnected,
            "closed_cb": self._on_closed,
        }
        if settings.needs_tls:
            options["tls"] = _tls_context(settings)
        if settings.credentials:
            options |= _credential_options(settings, lambda: self._check_tls(client))
        return options

    def _lacks_tls(self, client: Any) -> bool:
        return self._settings.needs_tls and not client._server_info.get("tls_required")

    @property
    def _no_tls_text(self) -> str:
        return f"NATS at {self._settings.url} does not use TLS, but the settings ask for it: no credentials were sent"

    def _check_tls(self, client: Any) -> None:
        """Raise before credentials are sent to a server without TLS, although TLS was asked for."""
        if self._lacks_tls(client):
            self._fail(Refused(self._no_tls_text))
            raise ConnectionError(self._no_tls_text)

    def _fail(self, error: Exception) -> None:
        if not self._fatal.done() and self._client is None:
            self._fatal.set_exception(error)

    async def _on_error(self, error: Exception) -> None:
        text = str(error) or type(error).__name__
        self._last_error = text
        lowered = text.lower()
        if _SUBSCRIPTION_VIOLATION in lowered or _PUBLISH_VIOLATION in lowered:
            verb = "subscribe to" if _SUBSCRIPTION_VIOLATION in lowered else "publish on"
            subject = text.rpartition(" to ")[2].strip('"')
            problem = f"NATS does not permit {self._name!r} to {verb} {subject!r}: give its user the permissions that "
            problem += "`forewarn cluster init` writes"
            if _SUBSCRIPTION_VIOLATION in lowered:
                self._refusals[subject.lower()] = problem
            self._note_problem(problem)
        elif "authorization violation" in lowered or "authentication" in lowered:
            self._fail(
                Refused(f"NATS at {self._settings.url} does not accept the credentials of {self._name!r}: correct them")
            )
        elif isinstance(error, ssl.SSLError):
            self._fail(Refused(f"NATS at {self._settings.url} cannot be trusted: {text}"))
        elif type(error).__name__ == "SlowConsumerError":
            self._doubt("too slow")

    def _note_problem(self, text: str) -> None:
        if text != self.problem:
            self.problem = text
            log.error("%s", text)

    async def _on_reconnected(self) -> None:
        self._doubt("reconnected")

    async def _on_closed(self) -> None:
        """Open a new connection after nats-py has given up, such as when its user was removed for a while."""
        if self._client is not None and not self._is_closing:
            self._client = None
            self._spawn(self._reopen())

    async def _reopen(self) -> None:
        while not self._is_closing:
            await asyncio.sleep(_REOPEN_S)
            self._fatal = asyncio.get_running_loop().create_future()
            try:
                await self._open(lambda text: log.warning("%s", text))
            except (Rejected, Unavailable) as error:
                log.warning("%s", error)
                continue
            self._doubt("reconnected")
            return

    def _doubt(self, reason: str) -> None:
        for handler in tuple(self._doubt_handlers):
            handler(reason)

    async def _subscribe_client(self, number: int) -> None:
        subject, handler = self._subscriptions[number]

        async def on_message(message: Any) -> None:
            reply = message.reply
            try:
                handler(BusMessage(message.subject, message.data, lambda data: self._respond(reply, data)))
            except Exception:
                log.exception("a message on %s could not be handled", message.subject)

        self._client_subscriptions[number] = await self._client.subscribe(
            subject, cb=on_message, pending_msgs_limit=0, pending_bytes_limit=_MAX_PENDING_BYTES
        )

    def _respond(self, reply: str, payload: bytes) -> None:
        if reply:
            self.publish(reply, payload)

    async def _send_outbox(self) -> None:
        from nats import errors

        while True:
            await self._has_mail.wait()
            self._has_mail.clear()
            while self._outbox:
                subject, payload = self._outbox.popleft()
                try:
                    if self.is_connected:
                        await self._client.publish(subject, payload)
                except (errors.Error, OSError) as error:
                    log.warning("a message on %s could not be sent: %s", subject, error)

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _unsubscribe(subscription: Any) -> None:
    with suppress(Exception):
        await subscription.unsubscribe()


def _tls_context(settings: NatsSettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.ca or None)
        if settings.certificate:
            context.load_cert_chain(settings.certificate, settings.key)
    except (OSError, ssl.SSLError) as error:
        raise Rejected(f"the certificates for NATS cannot be used: {error}") from error
    return context


def _credential_options(settings: NatsSettings, check_tls: Callable[[], None]) -> dict[str, Any]:
    path = settings.credentials
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Rejected(f"the credentials for NATS in {path!r} cannot be read: {error}") from error
    if text.startswith(_CREDENTIALS_FILE):
        return {"user_credentials": path}
    user, colon, password = text.partition("\n")[0].strip().partition(":")
    if not colon or not user:
        raise Rejected(f"file {path!r} has no credentials for NATS: write USER:PASSWORD to its first line")

    def checked_user() -> str:
        check_tls()
        return user

    return {"user": checked_user, "password": lambda: password}
