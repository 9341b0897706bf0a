"""One connection of a client to the proxy, with its own connection to the service.

The bytes of both sides are passed on as they are. Requests and answers are parsed only to see where they end, and to
record them. Bytes that are not HTTP go to the service too, which refuses them in its own words.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from forewarn.crash_test.answer_bytes import AnswerReader, InvalidAnswer, encode_answer
from forewarn.crash_test.answers import ServiceAnswer, SpoiledAnswer
from forewarn.crash_test.exchanges import Exchange, RequestKind, unreadable_request
from forewarn.crash_test.timeline import Observation, Poller
from forewarn.metadata.limits import Limits
from forewarn.metadata.request_parser import ParsedRequest, RefusedRequest, RequestParser
from forewarn.metadata.response_writer import CONTINUE
from forewarn.protocol.responses import request_timeout

_log = logging.getLogger(__name__)

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
