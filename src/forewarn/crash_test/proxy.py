"""The proxy between a handler and the service: observes every request and gives substitute answers."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache, partial
from typing import Any

from forewarn.crash_test.answers import (
    AnswerReader,
    Concerns,
    InvalidAnswer,
    ServiceAnswer,
    SpoiledAnswer,
    encode_answer,
)
from forewarn.crash_test.timeline import (
    Approved,
    ConnectionOpened,
    DeliveredEvent,
    Observation,
    OtherRequest,
    Polled,
    Poller,
)
from forewarn.metadata.limits import Limits
from forewarn.metadata.request_parser import ParsedRequest, RefusedRequest, RequestParser
from forewarn.metadata.response_writer import CONTINUE
from forewarn.protocol.codec import InvalidDocument, Received, decode_document
from forewarn.protocol.exchange import InvalidApproval, has_metadata_header, parse_approval
from forewarn.protocol.http_message import HttpRequest, RequestTarget, parse_target
from forewarn.protocol.responses import request_timeout

_log = logging.getLogger(__name__)


# One request through the proxy with its answer, and what the timeline shows of it. No I/O.

_MAX_OTHER_EVENTS = 20  # of a huge substitute document, that the timeline shows beside the service's own events
_MAX_PATH_CHARACTERS = 200


class RequestKind(StrEnum):
    """What a handler's request is for."""

    POLL = "poll"  # GET of the scheduled events
    APPROVAL = "approval"  # POST to the scheduled events
    OTHER = "other"  # another path, or another method


@dataclass(slots=True, kw_only=True)
class Exchange:
    """One request of a handler through the proxy, and what it got; filled in while the answer is sent."""

    request: HttpRequest  # of invalid HTTP only method and target
    at: float  # when the request was complete
    is_valid: bool = True  # False: not valid HTTP, so that only the request line could be read
    substitute: str = ""  # the name of the substitute answer; "": the service's own
    status: int | None = None  # of the answer, once its first bytes are sent; None: nothing was sent
    body: bytes = b""  # of the answer, as far as it is meant to be sent
    service_body: bytes = b""  # of the service's own answer
    answered_at: float | None = None  # when the last byte was sent; None: it was not, or the client was gone
    was_prepared: bool | None = None  # of an approval: what the probe `prepared` said; None: no answer
    is_recorded: bool = False  # whether its observation was recorded

    @property
    def kind(self) -> RequestKind:
        """Whether this is a poll, an approval or another request; paths are compared ignoring letter case."""
        target = self._target
        if target is None or not _is_scheduled_events(target.lower_path()):
            return RequestKind.OTHER
        return {"GET": RequestKind.POLL, "POST": RequestKind.APPROVAL}.get(self.request.method, RequestKind.OTHER)

    @property
    def version(self) -> str:
        target = self._target
        return "" if target is None else target.parameter("api-version") or ""

    def concerns(self, answer: SpoiledAnswer) -> bool:
        """Return whether this substitute answer is for a request of this kind and api-version."""
        if self.version in answer.served_versions:
            return False
        match answer.concerns:
            case Concerns.POLLS:
                return self.kind is RequestKind.POLL
            case Concerns.APPROVALS:
                return self.kind is RequestKind.APPROVAL
            case Concerns.ALL:
                return True

    def observation(self, vm: str, by: Poller) -> Polled | Approved | OtherRequest:
        """Return what the timeline shows of this exchange: a poll, an approval, or another request."""
        match self.kind:
            case RequestKind.POLL:
                return self._poll(vm, by)
            case RequestKind.APPROVAL:
                return self._approval(vm, by)
            case RequestKind.OTHER:
                path = self.request.target.partition("?")[0][:_MAX_PATH_CHARACTERS]
                method = self.request.method[:_MAX_PATH_CHARACTERS]
                return OtherRequest(at=self.at, vm=vm, by=by, method=method, path=path, status=self.status)

    def _poll(self, vm: str, by: Poller) -> Polled:
        document = _received_document(self.body) if self.status == 200 else None
        return Polled(
            at=self.at,
            vm=vm,
            by=by,
            status=self.status,
            version=self.version,
            has_header=has_metadata_header(self.request),
            incarnation=None if document is None else document.incarnation,
            events=() if document is None else tuple(self._delivered_events(document)),
            answered_at=self.answered_at,
            substitute=self.substitute,
        )

    def _approval(self, vm: str, by: Poller) -> Approved:
        event_ids, problem = self._approved_events()
        return Approved(
            at=self.at,
            vm=vm,
            by=by,
            event_ids=event_ids,
            status=self.status,
            version=self.version,
            has_header=has_metadata_header(self.request),
            problem=problem,
            substitute=self.substitute,
            was_prepared=self.was_prepared,
        )

    def _approved_events(self) -> tuple[tuple[str, ...], str]:
        """The ids in the body, in upper case, and why it cannot be read ("": it can)."""
        if not self.is_valid:
            return (), "The request is not HTTP"
        try:
            return parse_approval(self.request.body), ""
        except InvalidApproval as error:
            return (), str(error)

    def _delivered_events(self, document: Received) -> Iterator[DeliveredEvent]:
        own = _received_document(self.service_body)
        own_ids = frozenset() if own is None else frozenset(event.id for event in own.events)
        others = 0
        for event in document.events:
            if event.id not in own_ids:
                others += 1
                if others > _MAX_OTHER_EVENTS:
                    continue
            kind = event.raw.get("EventType")
            yield DeliveredEvent(
                id=event.id,
                kind=kind if isinstance(kind, str) else event.kind,
                status=event.status,
                vms=event.resources,
            )

    @property
    def _target(self) -> RequestTarget | None:
        return parse_target(self.request.target)


def unreadable_request(raw: bytes) -> HttpRequest:
    """Return the method and target that the first line of invalid HTTP names, "" where it has none."""
    words = raw.lstrip(b"\r\n").partition(b"\n")[0].decode("latin-1").split()
    return HttpRequest(method=words[0] if words else "", target=words[1] if len(words) > 1 else "")


def _is_scheduled_events(path: tuple[str, ...]) -> bool:
    match path:
        case ("metadata", "scheduledevents") | ("metadata", "latest" | "{latest}", "scheduledevents"):
            return True
        case _:
            return False


@lru_cache(maxsize=4)  # handlers poll the same document again and again
def _received_document(body: bytes) -> Received | None:
    try:
        return decode_document(body)
    except InvalidDocument:
        return None


# One connection of a client to the proxy, with its own connection to the service.
#
# The bytes of both sides are passed on as they are. Requests and answers are parsed only to see where they end, and to
# record them. Bytes that are not HTTP go to the service too, which refuses them in its own words.

_PIECE_BYTES = 64 * 1024  # read at a time
_MAX_PIPELINED_BYTES = 64 * 1024  # received while a request is answered; beyond, nothing is read until then
_INCOMPLETE_REQUEST_S = 5.0  # after which the service gets an incomplete request, to apply its own time limit
_LINGER_S = 2.0  # for a refused client to read the error before the connection closes
_MAX_LINGER_BYTES = 1024 * 1024
_HALF_CLOSED_S = 60.0  # that a client without a sending side is kept waiting if it gets no answer
_RESET_NOTICE_S = 0.02  # within which the reset of a client that is gone arrives, on one machine
_TCP_CLOSED = 7  # the state in TCP_INFO of a connection that was reset
_WITHHELD = ServiceAnswer(200, (), b"")  # transformed if the service does not get the request


AskPrepared = Callable[[float], Awaitable[bool | None]]  # takes when an approval arrived; None: there is no answer


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedEndpoint:
    """The metadata endpoint that a proxy serves: which VM's, who calls it, and where observations go."""

    upstream: tuple[str, int]  # address and port of the service, for this VM
    vm: str  # the VM's name, for observations
    by: Poller  # who calls it, for observations
    now: Callable[[], float]  # seconds since the start of the case
    record: Callable[[Observation], None]  # gets each observation
    ask_prepared: AskPrepared | None = None  # awaited before an approval is passed on; None: nobody is asked


@dataclass(slots=True)
class ActiveSubstitute:
    """The substitute answer of a proxy that is set now, and how often it may still be given; connections share it."""

    answer: SpoiledAnswer | None = None  # None: none is set, and `times_left` means nothing
    times_left: int | None = None  # how often it may still be given; None: without a limit

    def for_exchange(self, exchange: Exchange) -> SpoiledAnswer | None:
        """Return the substitute if it is for this request and may still be given, else None."""
        if self.answer is None or self.times_left == 0 or not exchange.concerns(self.answer):
            return None
        return self.answer

    def count(self) -> None:
        """Count that the substitute is given once; does nothing without a limit. Call it after `for_exchange`."""
        if self.times_left is not None:
            self.times_left -= 1


@dataclass(slots=True)
class _ClientInput:
    received: bytearray = field(default_factory=bytearray)
    has_ended: bool = False  # it closed the connection, or only its sending side
    is_reset: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # set with every change of the three
    may_grow: asyncio.Event = field(default_factory=asyncio.Event)  # cleared while a request is answered


class ProxyConnection:
    """Serves one accepted connection: passes requests on, records them, and gives substitute answers."""

    def __init__(self, endpoint: ObservedEndpoint, substitutes: ActiveSubstitute, client: socket.socket) -> None:
        self._endpoint = endpoint
        self._substitutes = substitutes
        self._socket = client
        self._input = _ClientInput()
        self._parser = RequestParser(Limits())
        self._parsed_bytes = 0  # of `_input.received`: given to the parser
        self._has_passed_end = False  # the service knows that the client's side has ended
        self._client: asyncio.StreamWriter
        self._service: asyncio.StreamWriter
        self._service_reader: asyncio.StreamReader
        self._service_read: asyncio.Task[bytes]  # the next bytes of the service; done with b"" once it has closed

    async def run(self) -> None:
        """Serve the connection until the client or the service closes it, then close both sides."""
        try:
            reader, self._client = await asyncio.open_connection(sock=self._socket, limit=_PIECE_BYTES)
        except OSError:
            self._socket.close()
            return
        try:
            self._client.transport.set_write_buffer_limits(high=0)  # so that drain waits until everything is sent
            self._service_reader, self._service = await asyncio.open_connection(*self._endpoint.upstream)
        except OSError as error:
            _log.warning("the service at %s does not answer the proxy: %s", self._endpoint.upstream, error)
            self._reset_on_close()
            return
        except BaseException:
            self._client.transport.abort()
            raise
        await self._run_connected(reader)

    async def _run_connected(self, reader: asyncio.StreamReader) -> None:
        reading = asyncio.create_task(self._read_client(reader))
        self._service_read = asyncio.create_task(self._service_reader.read(_PIECE_BYTES))
        try:
            while await self._serve_next():
                pass
        except (OSError, InvalidAnswer) as error:
            _log.debug("a connection of VM %s ended: %s", self._endpoint.vm, error)
            self._reset_on_close()
        except Exception:
            _log.exception("a connection of VM %s failed", self._endpoint.vm)
            self._reset_on_close()
        finally:
            await self._close(reading, self._service_read)

    async def _read_client(self, reader: asyncio.StreamReader) -> None:
        received = self._input.received
        try:
            while data := await reader.read(_PIECE_BYTES):
                received += data
                self._input.changed.set()
                if len(received) > _MAX_PIPELINED_BYTES:
                    await self._input.may_grow.wait()
        except OSError:
            self._input.is_reset = True
        finally:
            self._input.has_ended = True
            self._input.changed.set()

    async def _serve_next(self) -> bool:
        self._input.may_grow.set()
        parsed = await self._next_request()
        self._input.may_grow.clear()
        if parsed is None:
            return False
        if isinstance(parsed, RefusedRequest):
            await self._relay_refused()
            return False
        size = len(self._input.received) - self._parser.buffered_bytes
        raw = bytes(self._input.received[:size])
        del self._input.received[:size]
        self._parsed_bytes -= size
        exchange = Exchange(request=parsed.request, at=self._endpoint.now())
        try:
            if exchange.kind is RequestKind.APPROVAL and self._endpoint.ask_prepared is not None:
                exchange.was_prepared = await self._endpoint.ask_prepared(exchange.at)
            return await self._answer(exchange, parsed, raw)
        finally:
            self._record(exchange)

    async def _next_request(self) -> ParsedRequest | RefusedRequest | None:
        """Return the next request; None if none follows. One that is incomplete for long counts as refused."""
        try:
            async with asyncio.timeout(None) as deadline:
                while True:
                    self._input.changed.clear()
                    self._parser.feed(bytes(self._input.received[self._parsed_bytes :]))
                    self._parsed_bytes = len(self._input.received)
                    parsed = self._parser.next_request()
                    if parsed is not None or self._input.has_ended or self._service_read.done():
                        return parsed
                    if self._parser.take_continue():
                        await self._send(CONTINUE)
                    if self._parser.has_partial_request and deadline.when() is None:
                        deadline.reschedule(asyncio.get_running_loop().time() + _INCOMPLETE_REQUEST_S)
                    await self._wait_for_either_side()
        except TimeoutError:
            return RefusedRequest(response=request_timeout())

    async def _answer(self, exchange: Exchange, parsed: ParsedRequest, raw: bytes) -> bool:
        substitute = self._substitutes.for_exchange(exchange)
        if substitute is not None and substitute.withholds_request:
            answer = substitute.transform(_WITHHELD)
            return await self._send_substitute(exchange, parsed, substitute, answer)

        self._service.write(raw)
        await self._service.drain()
        reader = AnswerReader(is_head_request=exchange.request.method == "HEAD")
        own = bytearray(await self._answer_bytes(reader))
        # Now, not when the request came: a long poll that the service has held gets the substitute of this moment.
        if self._substitutes.for_exchange(exchange) is not None:
            while not reader.is_complete:
                own += await self._answer_bytes(reader)
        substitute = self._substitutes.for_exchange(exchange)
        if substitute is None:
            return await self._pass_on(exchange, reader, bytes(own))
        exchange.service_body = reader.body
        answer = substitute.transform(reader.answer)
        if answer == reader.answer and not _changes_delivery(substitute):
            return await self._pass_on(exchange, reader, bytes(own))
        return await self._send_substitute(exchange, parsed, substitute, answer)

    async def _pass_on(self, exchange: Exchange, reader: AnswerReader, received: bytes) -> bool:
        await self._send(received)
        exchange.status = reader.status
        while not reader.is_complete:
            await self._send(await self._answer_bytes(reader))
        exchange.body = exchange.service_body = reader.body
        await self._note_answered(exchange)
        return reader.keeps_connection

    async def _send_substitute(
        self, exchange: Exchange, parsed: ParsedRequest, substitute: SpoiledAnswer, answer: ServiceAnswer
    ) -> bool:
        self._substitutes.count()
        exchange.substitute = substitute.name
        if substitute.never_answers:
            self._record(exchange)
            await self._wait_for_client_to_leave(None)
            return False
        if substitute.delay_s and await self._wait_for_client_to_leave(substitute.delay_s):
            return False
        if substitute.resets:
            self._reset_on_close()
            return False
        encoded = encode_answer(
            answer,
            keep_alive=parsed.keep_alive and not self._service_read.done(),
            is_http10=parsed.is_http10,
            is_head_request=exchange.request.method == "HEAD",
            is_slow=substitute.body_s > 0,
        )
        await self._send(encoded.head if substitute.body_s else encoded.head + b"".join(encoded.pieces))
        exchange.status, exchange.body = answer.status, answer.body
        if substitute.body_s:
            for piece in encoded.pieces:
                if await self._wait_for_client_to_leave(substitute.body_s / len(encoded.pieces)):
                    return False
                await self._send(piece)
        await self._note_answered(exchange)
        return encoded.keeps_connection

    async def _relay_refused(self) -> None:
        """Give the service what the client sends, and the client what it answers, until the service closes."""
        request = unreadable_request(bytes(self._input.received))
        exchange = Exchange(request=request, at=self._endpoint.now(), is_valid=False)
        reader = AnswerReader()
        self._input.may_grow.set()
        try:
            while data := await self._service_bytes(passes_input=True):
                answer = reader.feed(data)
                await self._send(answer)
                exchange.status = reader.status
            exchange.body = reader.body
            if exchange.status is not None:
                await self._note_answered(exchange)
        finally:
            self._record(exchange)
        await self._linger()

    async def _answer_bytes(self, reader: AnswerReader) -> bytes:
        while True:
            data = await self._service_bytes(passes_input=False)
            if not data:
                reader.end()
                return b""
            if answer := reader.feed(data):
                return answer

    async def _service_bytes(self, *, passes_input: bool) -> bytes:
        """Wait for the next bytes of the service; b"" if it has closed. Tells it if the client's side ends."""
        while not self._service_read.done():
            self._input.changed.clear()
            if self._input.is_reset:
                raise ConnectionResetError("the client reset the connection")
            if passes_input and self._input.received:
                self._service.write(bytes(self._input.received))
                self._input.received.clear()
                await self._service.drain()
            if self._input.has_ended and not self._input.received and not self._has_passed_end:
                self._has_passed_end = True
                self._service.write_eof()
            await self._wait_for_either_side()
        data = self._service_read.result()
        if data:
            self._service_read = asyncio.create_task(self._service_reader.read(_PIECE_BYTES))
        return data

    async def _wait_for_either_side(self) -> None:
        waiting: set[asyncio.Task[Any]] = {self._service_read}
        client = None if self._input.has_ended else asyncio.create_task(self._input.changed.wait())
        if client is not None:
            waiting.add(client)
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if client is not None:
                client.cancel()

    async def _wait_for_client_to_leave(self, seconds: float | None) -> bool:
        """Wait this long (None: without end); returns True as soon as the client closes the connection."""
        # A client that has closed only its sending side, with its request, waits for an answer: it has not left.
        if self._input.has_ended and not self._input.is_reset:
            await asyncio.sleep(_HALF_CLOSED_S if seconds is None else seconds)
            return False
        try:
            async with asyncio.timeout(seconds):
                while not self._input.has_ended:
                    self._input.changed.clear()
                    await self._input.changed.wait()
            return True
        except TimeoutError:
            return False

    async def _send(self, data: bytes) -> None:
        self._client.write(data)
        await self._client.drain()

    async def _note_answered(self, exchange: Exchange) -> None:
        """Note the time, unless the client was gone: then its system answers the last bytes with a reset."""
        at = self._endpoint.now()
        if self._input.has_ended:
            await asyncio.sleep(_RESET_NOTICE_S)
            if self._input.is_reset or _is_reset(self._socket):
                exchange.status = None
                return
        exchange.answered_at = at

    def _record(self, exchange: Exchange) -> None:
        if not exchange.is_recorded:
            exchange.is_recorded = True
            self._endpoint.record(exchange.observation(self._endpoint.vm, self._endpoint.by))

    async def _linger(self) -> None:
        """Read on for a while after the last answer: closing with unread bytes would discard it."""
        with suppress(OSError):
            self._client.write_eof()
        discarded = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                while not self._input.has_ended and discarded < _MAX_LINGER_BYTES:
                    discarded += len(self._input.received)
                    self._input.received.clear()
                    self._input.changed.clear()
                    await self._input.changed.wait()

    def _reset_on_close(self) -> None:
        with suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._client.transport.abort()

    async def _close(self, *tasks: asyncio.Task[Any]) -> None:
        """End these tasks and close both sides; what a peer does not read within two seconds is discarded."""
        writers = (self._service, self._client)
        for task in tasks:
            task.cancel()
        for writer in writers:
            writer.close()
        try:
            async with asyncio.timeout(_LINGER_S):
                closed = (writer.wait_closed() for writer in writers)
                await asyncio.gather(*tasks, *closed, return_exceptions=True)
        except TimeoutError:
            pass
        finally:
            for writer in writers:
                writer.transport.abort()


def _changes_delivery(substitute: SpoiledAnswer) -> bool:
    return bool(substitute.delay_s or substitute.body_s or substitute.never_answers or substitute.resets)


def _is_reset(client: socket.socket) -> bool:
    try:
        return client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 8)[0] == _TCP_CLOSED
    except OSError:  # asyncio has closed it because of the reset
        return True


_BACKLOG = 128
_MAX_CONNECTIONS = 256  # open at a time; each needs two descriptors
_ACCEPT_PAUSE_S = 0.1  # after accepting has failed, such as without free descriptors


class Proxy:
    """An HTTP proxy in front of the metadata endpoint of one VM, which observes one client's requests.

    It passes on the bytes of requests and answers as they are, and keeps connections alive. A request is recorded when
    its answer was sent or the client has left, with the time at which it arrived. `ask_prepared` is awaited with the
    time of each approval before the approval is passed on.
    """

    def __init__(
        self,
        *,
        listener: socket.socket,
        upstream: tuple[str, int],
        vm: str,
        by: Poller,
        now: Callable[[], float],
        record: Callable[[Observation], None],
        ask_prepared: AskPrepared | None = None,
    ) -> None:
        self._listener = listener
        self._address = listener.getsockname()
        self._endpoint = ObservedEndpoint(
            upstream=upstream, vm=vm, by=by, now=now, record=record, ask_prepared=ask_prepared
        )
        self._substitutes = ActiveSubstitute()
        self._connections: set[asyncio.Task[None]] = set()
        self._is_started = self._is_closed = False
        self._is_accepting = False  # the event loop watches the listener
        self._is_refusing = False  # the listener does not listen
        self._resets_connections = False  # instead of refusing them, where the listener cannot stop listening
        self._resume_timer: asyncio.TimerHandle | None = None

    @property
    def open_connections(self) -> int:
        """How many connections of clients are open now."""
        return len(self._connections)

    @property
    def substitute_times_left(self) -> int | None:
        """How often the substitute answer may still be given (0: no more); None: no limit, or none is set."""
        return self._substitutes.times_left

    async def start(self) -> None:
        """Begin to accept connections, unless a substitute that refuses them is set; returns at once."""
        self._listener.setblocking(False)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._is_started = True
        if self._must_refuse:
            self._refuse()
        else:
            self._accept_connections()

    async def close(self) -> None:
        """Close the listener and every connection; may be called twice."""
        self._is_closed = True
        self._stop_accepting()
        self._listener.close()
        await self._close_connections()

    def substitute(self, answer: SpoiledAnswer | None, times: int | None = None) -> None:
        """Give this answer in place of the service's from now on; None: the service's own.

        Which answer a request gets is decided when the service has answered it, so that a long poll that is held now
        gets the new one too; only `withholds_request` applies from the next request on. An edit that leaves an answer
        as it is does not count.

        `refuses_connections` lasts until the next call, ignoring `times`. Open connections close, and the listener
        stops listening (shutdown), so that the system refuses new ones; then the same socket listens again, even one of
        another network namespace. Where the system does not allow that, new connections are accepted and reset.
        """
        self._substitutes.answer, self._substitutes.times_left = answer, times
        if not self._is_started or self._is_closed:
            return
        if self._must_refuse and not self._is_refusing and not self._resets_connections:
            self._refuse()
        elif not self._must_refuse:
            self._listen_again()

    @property
    def _must_refuse(self) -> bool:
        answer = self._substitutes.answer
        return answer is not None and answer.refuses_connections

    def _refuse(self) -> None:
        self._stop_accepting()
        for connection in self._connections:
            connection.cancel()
        try:
            # On Linux this ends listening and keeps the socket, with its namespace, for another listen().
            self._listener.shutdown(socket.SHUT_RD)
        except OSError:
            self._resets_connections = True
            self._accept_connections()
            return
        self._is_refusing = True
        try:
            self._listener.bind(self._address)  # Linux has freed the port if it had chosen it itself
        except OSError as error:
            if error.errno != errno.EINVAL:  # it is bound still
                raise

    def _listen_again(self) -> None:
        self._resets_connections = False
        if self._is_refusing:
            self._is_refusing = False
            self._listener.listen(_BACKLOG)
            self._accept_connections()

    def _accept_connections(self) -> None:
        self._resume_timer = None
        if not self._is_accepting and not self._is_refusing and not self._is_closed:
            self._is_accepting = True
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _stop_accepting(self) -> None:
        if self._resume_timer is not None:
            self._resume_timer.cancel()
            self._resume_timer = None
        if self._is_accepting:
            self._is_accepting = False
            asyncio.get_running_loop().remove_reader(self._listener)

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            _log.warning("the proxy of VM %s cannot accept a connection: %s", self._endpoint.vm, error)
            self._stop_accepting()
            loop = asyncio.get_running_loop()
            self._resume_timer = loop.call_later(_ACCEPT_PAUSE_S, self._accept_connections)
            return
        opened = ConnectionOpened(at=self._endpoint.now(), vm=self._endpoint.vm, by=self._endpoint.by)
        self._endpoint.record(opened)
        if self._resets_connections or len(self._connections) >= _MAX_CONNECTIONS:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
            return
        client.setblocking(False)
        connection = ProxyConnection(self._endpoint, self._substitutes, client)
        task = asyncio.get_running_loop().create_task(connection.run())
        self._connections.add(task)
        task.add_done_callback(partial(self._forget_connection, client))

    def _forget_connection(self, client: socket.socket, task: asyncio.Task[None]) -> None:
        self._connections.discard(task)
        client.close()  # open still if the task was cancelled before it ran

    async def _close_connections(self) -> None:
        connections = list(self._connections)
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
