"""Runs a call with a request key once: a repeated call finds the request that the first one created.

The request itself is the record of its key, so this holds after a restart and on another machine with the same store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar
from weakref import WeakValueDictionary

from forewarn.core.request import MaintenanceRequest, RequestKey
from forewarn.core.request_key import next_request_key
from forewarn.errors import ForewarnError, Rejected, Remedy
from forewarn.store.interface import Store

T = TypeVar("T")


class RequestKeys:
    """Makes calls with a request key idempotent: a second call with a key makes no second request.

    It finds the request of the first call in `store`, so this holds after a restart.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by request id

    async def run_once(
        self,
        key: RequestKey,
        create: Callable[[RequestKey], Awaitable[T]],
        show: Callable[[MaintenanceRequest], Awaitable[T]],
    ) -> T:
        """Return `create(key)` for the first call with this key, and `show(request)` for each repeated one.

        `create` creates a request with the id and digest of the key that it is given, which has another id than `key`
        if an earlier request of that has expired. If it raises, the next call with the key tries again; but if the
        request exists by then, as when an earlier call was cancelled, it is shown.
        """
        async with self._locks.setdefault(key.request_id, asyncio.Lock()):
            key, known = self._resolve(key)
            if known is not None:
                return await show(known)
            try:
                return await create(key)
            except ForewarnError:
                # An earlier call with this key was cancelled while its request was being written, and that is why this
                # one conflicts, or is refused as a second operation on the same VM.
                _, known = self._resolve(key)
                if known is None:
                    raise
                return await show(known)

    def find(self, key: RequestKey) -> MaintenanceRequest | None:
        """Return the request that a call with this key has made; None if there is none that has not expired."""
        return self._resolve(key)[1]

    def _resolve(self, key: RequestKey) -> tuple[RequestKey, MaintenanceRequest | None]:
        known = self._store.request(key.request_id)
        while known is not None and key.has_expired(known.called_at):
            key = next_request_key(key)
            known = self._store.request(key.request_id)
        if known is not None and known.call_digest != key.digest:
            raise Rejected(
                f"the key of this call is that of request {known.id}, which asked for something else",
                Remedy.USE_NEW_KEY,
            )
        return key, known
