"""A request, read off the wire: its whole body within bounds, and a query in which each name stands once."""

from __future__ import annotations

from starlette.requests import Request

from forewarn.errors import Rejected

LONGEST_BODY = 16 * 1024 * 1024  # a fleet file is the longest there is
LONGEST_FORM = 64 * 1024  # of somebody who has not proven yet who they are


async def read_whole(request: Request, longest: int = LONGEST_BODY) -> bytes | None:
    """The body; None if it is too long."""
    parts: list[bytes] = []
    length = 0
    async for part in request.stream():
        length += len(part)
        if length > longest:
            return None
        parts.append(part)
    return b"".join(parts)


def read_query(request: Request) -> dict[str, str]:
    query: dict[str, str] = {}
    for name, text in request.query_params.multi_items():
        if name in query:
            raise Rejected(f"the query has {name!r} more than once: give it once")
        query[name] = text
    return query
