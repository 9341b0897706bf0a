"""An awaited connection, and one exchange over it."""

from __future__ import annotations

import asyncio
from types import TracebackType

from forewarn.client.endpoint import Endpoint
from forewarn.client.move import Broken, Send, broken, unreachable
from forewarn.client.wire import Incoming, written
from forewarn.protocol.message import Response


class Line:
    """A connection that is kept from one request of a talk to the next."""

    def __init__(self) -> None:
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._endpoint: Endpoint | None = None

    def __enter__(self) -> Line:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None

    async def send(self, move: Send) -> Response:
        is_kept = self._streams is not None and self._endpoint == move.endpoint
        incoming = Incoming()
        reader, writer = self._streams if is_kept and self._streams else await self._connect(move)
        try:
            async with asyncio.timeout(move.patience_s + move.body_s):
                writer.write(written(move.request, move.endpoint))
                await writer.drain()
                response = await _received(reader, incoming, move.patience_s)
        except (OSError, Broken) as error:
            self.close()
            raise broken(move.endpoint, error, may_be_stale=is_kept and not incoming.began) from error
        except BaseException:
            self.close()
            raise
        if not incoming.keeps:
            self.close()
        return response

    async def _connect(self, move: Send) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self.close()
        try:
            async with asyncio.timeout(min(move.connect_s, move.patience_s)):
                self._streams = await asyncio.open_connection(move.endpoint.host, move.endpoint.port)
        except (OSError, UnicodeError) as error:
            raise unreachable(move.endpoint, error) from error
        self._endpoint = move.endpoint
        return self._streams


async def _received(reader: asyncio.StreamReader, incoming: Incoming, patience_s: float) -> Response:
    while True:
        async with asyncio.timeout(patience_s):
            data = await reader.read(65536)
        response = incoming.feed(data)
        if response is not None:
            return response
