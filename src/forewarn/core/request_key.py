"""Request keys: a caller's name for one request, so that a repeated call is the same request.

The id of the request follows from the caller and the key. So a repeated call cannot store a second request: a second
row with the same id is a Conflict. The key is known as long as the request is stored.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from forewarn.core.request import RequestKey

_UUID_VERSION, _UUID_VARIANT = 0x80, 0x80  # bits of RFC 9562: version 8, whose content the application defines


def make_request_key(
    caller: str, key: str, call: Mapping[str, Any], *, at: float, lifetime_s: float | None = None
) -> RequestKey:
    """Return the request key of a call by `caller` (the id of a principal), who gave it the text `key`.

    The request id follows from caller and key alone; only the digest depends on `call`. `at` is real time; after
    `lifetime_s` seconds the key is free again (None: never).
    """
    digest = hashlib.sha256(msgspec.json.encode(call, order="deterministic")).hexdigest()
    return RequestKey(request_id=_derived_guid(caller, key), digest=digest, at=at, lifetime_s=lifetime_s)


def next_request_key(key: RequestKey) -> RequestKey:
    """Return the same key with the next request id, for a new call after the old request has expired."""
    return replace(key, request_id=_derived_guid(key.request_id))


def canonical_body(body: bytes) -> Any:
    """Return the decoded JSON of a request body, so that blanks do not matter; {} for an empty body."""
    try:
        return msgspec.json.decode(body or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return hashlib.sha256(body).hexdigest()


def _derived_guid(*names: str) -> str:
    octets = bytearray(hashlib.sha256(msgspec.json.encode(["forewarn request", *names])).digest()[:16])
    octets[6] = octets[6] & 0x0F | _UUID_VERSION
    octets[8] = octets[8] & 0x3F | _UUID_VARIANT
    return str(uuid.UUID(bytes=bytes(octets)))
