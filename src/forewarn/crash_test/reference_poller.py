"""The reference poller beside the handler, which tells a slow machine from a slow handler."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from forewarn.protocol.versions import NEWEST_VERSION

POLL_INTERVAL_S = 1.0  # real time between the starts of two polls
_TIMEOUT_S = 10.0
_READ_BYTES = 65536
_REQUEST = (
    f"GET /metadata/scheduledevents?api-version={NEWEST_VERSION} HTTP/1.1\r\n"
    "Host: 169.254.169.254\r\nMetadata: true\r\nUser-Agent: forewarn-reference\r\nConnection: close\r\n\r\n"
).encode()


async def poll_forever(address: tuple[str, int]) -> None:
    """Poll the endpoint at this address (IP, port) once a second until cancelled; errors are ignored."""
    loop = asyncio.get_running_loop()
    while True:
        next_at = loop.time() + POLL_INTERVAL_S
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_TIMEOUT_S):
                await _poll_once(address)
        await asyncio.sleep(max(0.0, next_at - loop.time()))


async def _poll_once(address: tuple[str, int]) -> bytes:
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(_REQUEST)
        answer = bytearray()
        while data := await reader.read(_READ_BYTES):
            answer += data
        return bytes(answer)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
