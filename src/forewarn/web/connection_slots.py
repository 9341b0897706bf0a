"""Divides the API's connections among its callers, so that none of them can use up all of them.

Before sign-in a connection counts for the address that it comes from, after sign-in for its principal. Some slots are
reserved for administrators and for callers on this machine. A connection that is not signed in and waits for its peer
may be closed for a new one: of the same address, or of any address when all general slots are in use. All numbers
derive from the process's limit of open files.
"""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from ipaddress import IPv6Address, ip_address, ip_network

from starlette.requests import Request

from forewarn.core.access import Principal, Right
from forewarn.core.resource_ids import ROOT_RESOURCE
from forewarn.errors import ForewarnError, Unavailable

EVICT_AFTER_S = 1.0  # a connection that waits for its peer may be closed for another one after this time
LOCAL_GROUP = "this machine"
_OPEN_FILES_DIVISOR = 4  # a socket has at most this fraction of the process's open files as connections
_UNLIMITED_FILES = 1_000_000
_SLOT_STATE = "connection_slot"  # its name in the state of a request


class ShareExceeded(Unavailable):
    """One caller has as many connections open as its share allows; others are not affected. The response is a 429."""


@dataclass(frozen=True, slots=True)
class ConnectionShares:
    """How many connections one socket may have, and how many of them each kind of caller may have."""

    total: int  # connections of the socket, of all kinds

    @classmethod
    def from_open_files(cls) -> ConnectionShares:
        """Return shares whose total is a quarter of the process's soft limit of open files, at least 1."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        total = _UNLIMITED_FILES if soft == resource.RLIM_INFINITY else soft // _OPEN_FILES_DIVISOR
        return cls(max(1, total))

    @property
    def refused(self) -> int:
        """How many refused connections may be open at once, to be answered with the reason for their refusal."""
        return self.total // 16

    @property
    def reserved(self) -> int:
        """How many connections are kept for administrators and callers on this machine."""
        return self.total // 8

    @property
    def general(self) -> int:
        """How many connections all callers share: the total without `refused` and `reserved`."""
        return self.total - self.refused - self.reserved

    @property
    def per_address(self) -> int:
        """How many connections of one address group (of another machine) may be open before sign-in."""
        return max(1, self.total // 8)

    @property
    def per_local_address(self) -> int:
        """How many connections from this machine may be open before sign-in: half of the total, at least 1."""
        # It is that many because a proxy here may serve many people.
        return max(1, self.total // 2)

    @property
    def per_principal(self) -> int:
        """How many connections one signed-in principal may have: a quarter of the total, at least 1."""
        return max(1, self.total // 4)

    @property
    def streams(self) -> int:
        """How many connections may be live streams of the portal: half of the general ones, at least 1."""
        return max(1, self.general // 2)

    @property
    def streams_per_principal(self) -> int:
        """How many live streams of the portal one principal may have: half of its connections, at least 1."""
        return max(1, self.per_principal // 2)


class _Pool(Enum):
    GENERAL = auto()
    RESERVED = auto()
    REFUSED = auto()


class ConnectionSlot:
    """The slot of one open connection: whom it counts for, and whether it may be closed for another one.

    At first it is not signed in, and waits for its first request. Its owner releases it when the connection is closed.
    `refusal`, if not None, is the error that answers its requests; `waits_since` is None while one is answered.
    """

    def __init__(self, slots: ConnectionSlots, group: str, pool: _Pool, now: float, evict: Callable[[], None]) -> None:
        self._slots = slots
        self.group = group  # of its peer's address, see `address_group`
        self.pool = pool  # the general, reserved or refused connections, among which it counts
        self.principal_id = ""  # "": not signed in
        self.refusal: ForewarnError | None = None  # if set, every request is answered with this error
        self.waits_since: float | None = now  # since when it waits for a whole request; None while one is answered
        self.evict = evict  # closes the connection at once

    @property
    def is_signed_in(self) -> bool:
        """Whether a request on this connection was authenticated and counted for its principal."""
        return bool(self.principal_id)

    def request_received(self) -> None:
        """Record that the peer has sent a whole request, so that its connection is not closed for another one."""
        self.waits_since = None

    def response_sent(self, now: float) -> None:
        """Record that the connection waits for its next request since `now` (time of the event loop)."""
        self.waits_since = now

    def claim(self, principal: Principal) -> None:
        """Count the connection for the principal of its current request, from now on."""
        try:
            self._slots.claim(self, principal)
        except Unavailable as error:
            self.refusal = error
            raise

    def release(self) -> None:
        """Free the slot, so that its connection no longer counts; does not close it. May be called twice."""
        self._slots.release(self)


class ConnectionSlots:
    """Counts the open connections of one listening socket and keeps them within `shares`.

    If no slot is free, `open` closes a connection that is not signed in and has waited for its peer for
    `EVICT_AFTER_S`. A signed-in connection is never closed for another. Release each slot when its connection is
    closed.
    """

    def __init__(self, shares: ConnectionShares) -> None:
        self.shares = shares
        self._slots: set[ConnectionSlot] = set()
        self._pool_sizes: Counter[_Pool] = Counter()
        self._pool_limits = {
            _Pool.GENERAL: shares.general,
            _Pool.RESERVED: shares.reserved,
            _Pool.REFUSED: shares.refused,
        }
        self._anonymous: dict[str, dict[ConnectionSlot, None]] = {}  # by group, oldest first
        self._by_principal: Counter[str] = Counter()
        self._refused: dict[ConnectionSlot, None] = {}  # oldest first

    def open(self, group: str, share: int, now: float, evict: Callable[[], None]) -> ConnectionSlot | None:
        """Return a slot for a new connection of this address group; if None, close it at once.

        If the slot's `refusal` is not None, the connection may only be answered with that error. May close another
        connection that waits for its peer: it releases that slot and calls its `evict`.
        """
        pool, refusal = self._choose_pool(group, share, now)
        if refusal is not None:
            return self.refuse(group, refusal, now, evict)
        slot = self._add(ConnectionSlot(self, group, pool, now, evict))
        self._anonymous.setdefault(group, {})[slot] = None
        return slot

    def refuse(
        self, group: str, refusal: ForewarnError, now: float, evict: Callable[[], None]
    ) -> ConnectionSlot | None:
        """Return a slot for a new connection whose requests are only answered with the error `refusal`."""
        if self._is_full(_Pool.REFUSED) and not self._evict_one(self._refused, now, after_s=0):
            return None
        slot = self._add(ConnectionSlot(self, group, _Pool.REFUSED, now, evict))
        slot.refusal = refusal
        self._refused[slot] = None
        return slot

    def claim(self, slot: ConnectionSlot, principal: Principal) -> None:
        """Count a slot's connection for this principal from now on. Call `ConnectionSlot.claim` instead."""
        if slot not in self._slots or slot.principal_id == principal.id:
            return
        if self._by_principal[principal.id] >= self.shares.per_principal:
            raise ShareExceeded(
                f"{principal.name} has {self.shares.per_principal} connections open, which is the limit of one caller: "
                "close some, or try again in a moment"
            )
        is_administrator = principal.may(Right.ADMINISTER, ROOT_RESOURCE)
        if slot.pool is _Pool.RESERVED and not is_administrator and slot.group != LOCAL_GROUP:
            if self._is_full(_Pool.GENERAL):
                raise _all_in_use()
            self._pool_sizes[_Pool.RESERVED] -= 1
            self._pool_sizes[_Pool.GENERAL] += 1
            slot.pool = _Pool.GENERAL
        self._uncount_caller(slot)
        slot.principal_id = principal.id
        self._by_principal[principal.id] += 1

    def release(self, slot: ConnectionSlot) -> None:
        """Free a slot, so that its connection no longer counts; does nothing if it is free already."""
        if slot in self._slots:
            self._slots.remove(slot)
            self._pool_sizes[slot.pool] -= 1
            self._refused.pop(slot, None)
            self._uncount_caller(slot)

    def _add(self, slot: ConnectionSlot) -> ConnectionSlot:
        self._slots.add(slot)
        self._pool_sizes[slot.pool] += 1
        return slot

    def _choose_pool(self, group: str, share: int, now: float) -> tuple[_Pool, Unavailable | None]:
        """Return the pool for a new connection, and why it is refused or None; may evict another connection."""
        own = self._anonymous.get(group, {})
        if len(own) >= share and not self._evict_one(own, now):
            return _Pool.REFUSED, _address_share_exceeded(group, share)
        if not self._is_full(_Pool.GENERAL) or self._evict_one(self._anonymous_in_general(), now):
            return _Pool.GENERAL, None
        if not self._is_full(_Pool.RESERVED) and self._may_use_reserved(group):
            return _Pool.RESERVED, None
        return _Pool.REFUSED, _all_in_use()

    def _is_full(self, pool: _Pool) -> bool:
        return self._pool_sizes[pool] >= self._pool_limits[pool]

    def _may_use_reserved(self, group: str) -> bool:
        """Whether a new connection may wait in a reserved slot until it proves to be an administrator's."""
        held = sum(slot.pool is _Pool.RESERVED for slot in self._anonymous.get(group, ()))
        return group == LOCAL_GROUP or held < max(1, self.shares.reserved // 4)

    def _anonymous_in_general(self) -> Iterable[ConnectionSlot]:
        return (slot for group in self._anonymous.values() for slot in group if slot.pool is _Pool.GENERAL)

    def _evict_one(self, candidates: Iterable[ConnectionSlot], now: float, after_s: float = EVICT_AFTER_S) -> bool:
        """Close the connection that waits longest for its peer, if it has waited long enough."""
        waiting = [(slot.waits_since, slot) for slot in candidates if slot.waits_since is not None]
        if not waiting:
            return False
        since, oldest = min(waiting, key=lambda found: found[0])
        if now - since < after_s:
            return False
        oldest.release()
        oldest.evict()
        return True

    def _uncount_caller(self, slot: ConnectionSlot) -> None:
        if slot.is_signed_in:
            self._by_principal[slot.principal_id] -= 1
            if not self._by_principal[slot.principal_id]:
                del self._by_principal[slot.principal_id]
        elif slot in (group := self._anonymous.get(slot.group, {})):
            del group[slot]
            if not group:
                del self._anonymous[slot.group]


def _address_share_exceeded(group: str, share: int) -> ShareExceeded:
    return ShareExceeded(
        f"{group} has {share} connections open that are not signed in, which is the limit of one address: "
        "close some, or try again in a moment"
    )


def _all_in_use() -> Unavailable:
    return Unavailable("all connections are in use: try again in a moment")


def address_group(address: str) -> str:
    """Return the name of the group of addresses whose connections count together before sign-in."""
    # An IPv6 address counts as its network of 64 bits, since one machine may use all of it.
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    parsed = getattr(parsed, "ipv4_mapped", None) or parsed
    if parsed.is_loopback:
        return LOCAL_GROUP
    return str(ip_network((parsed, 64), strict=False)) if isinstance(parsed, IPv6Address) else str(parsed)


def slot_state(slot: ConnectionSlot) -> dict[str, ConnectionSlot]:
    """Return the ASGI state for requests of a connection, in which `claim_connection` finds its slot."""
    return {_SLOT_STATE: slot}


def claim_connection(request: Request, principal: Principal) -> None:
    """Count the connection of this request for its authenticated principal, from now on."""
    slot: ConnectionSlot | None = request.scope.get("state", {}).get(_SLOT_STATE)
    if slot is not None:
        slot.claim(principal)
