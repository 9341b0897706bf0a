"""How the console's connections are divided: by address before sign-in, by principal after it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.core.access import Grant, Principal, Role
from forewarn.errors import ForewarnError, Unavailable
from forewarn.web.connection_slots import (
    EVICT_AFTER_S,
    LOCAL_GROUP,
    ConnectionShares,
    ConnectionSlot,
    ConnectionSlots,
    ShareExceeded,
    address_group,
)

TOTAL = 64  # at a limit of 256 open files


def principal(name: str, role: Role = Role.READER) -> Principal:
    return Principal(
        id=f"client:{name}", name=f"client {name}", grants=(Grant(id=name, role=role, principal=name, resource="/"),)
    )


class Console:
    """The slots of one socket, and the connections that it was told to close."""

    def __init__(self, total: int = TOTAL) -> None:
        self.slots = ConnectionSlots(ConnectionShares(total))
        self.shares = self.slots.shares
        self.now = 100.0
        self.evicted: list[str] = []

    def connect(self, address: str) -> ConnectionSlot | None:
        group = address_group(address)
        share = self.shares.per_local_address if group == LOCAL_GROUP else self.shares.per_address
        return self.slots.open(group, share, self.now, lambda: self.evicted.append(address))

    def accepted(self, address: str) -> ConnectionSlot:
        slot = self.connect(address)
        assert slot is not None
        assert slot.refusal is None
        return slot

    def busy(self, address: str) -> ConnectionSlot:
        """A connection with a request that is being answered."""
        slot = self.accepted(address)
        slot.request_received()
        return slot

    def fill_with_readers(self) -> None:
        """Takes all general connections with requests of several readers, of several addresses."""
        for number in range(self.shares.general):
            self.busy(f"192.0.2.{number}").claim(principal(f"reader-{number // self.shares.per_principal}"))


@pytest.fixture
def console() -> Console:
    return Console()


def refusal(console: Console, address: str) -> ForewarnError:
    slot = console.connect(address)
    assert slot is not None
    assert slot.refusal is not None
    return slot.refusal


def test_the_shares_are_parts_of_a_quarter_of_the_open_files() -> None:
    shares = ConnectionShares(TOTAL)
    assert shares.general + shares.reserved + shares.refused == TOTAL
    assert shares.per_address < shares.per_principal < shares.general
    assert shares.streams_per_principal < shares.per_principal
    assert shares.streams < shares.general


def test_one_address_cannot_take_all_connections_before_sign_in(console: Console) -> None:
    for _ in range(console.shares.per_address):
        console.accepted("192.0.2.1")
    assert isinstance(refusal(console, "192.0.2.1"), ShareExceeded)
    assert "192.0.2.1 has 8 connections open that are not signed in" in str(refusal(console, "192.0.2.1"))
    console.accepted("192.0.2.2")


def test_connections_that_wait_for_their_peer_make_way_for_new_ones_of_their_address(console: Console) -> None:
    for _ in range(console.shares.per_address):
        console.accepted("192.0.2.1")
    console.now += EVICT_AFTER_S
    console.accepted("192.0.2.1")
    assert console.evicted == ["192.0.2.1"]


def test_a_request_that_is_answered_does_not_make_way(console: Console) -> None:
    for _ in range(console.shares.per_address):
        console.busy("192.0.2.1")
    console.now += 3600
    assert isinstance(refusal(console, "192.0.2.1"), ShareExceeded)
    assert console.evicted == []


def test_half_sent_requests_from_many_addresses_make_way_for_a_new_caller(console: Console) -> None:
    for number in range(console.shares.general):
        console.accepted(f"192.0.2.{number}")
    console.now += EVICT_AFTER_S
    console.accepted("198.51.100.1")
    assert console.evicted == ["192.0.2.0"]


def test_one_principal_cannot_take_all_connections(console: Console) -> None:
    for number in range(console.shares.per_principal):
        console.busy(f"192.0.2.{number}").claim(principal("reader"))
    one_more = console.busy("192.0.2.99")
    with pytest.raises(ShareExceeded, match="client reader has 16 connections open, which is the limit of one caller"):
        one_more.claim(principal("reader"))
    assert one_more.refusal is not None  # it is closed after the response
    console.busy("192.0.2.99").claim(principal("other"))


def test_a_signed_in_connection_no_longer_counts_for_its_address(console: Console) -> None:
    for _ in range(console.shares.per_principal):
        console.busy("192.0.2.1").claim(principal("proxy"))
    console.accepted("192.0.2.1")


def test_a_connection_counts_for_the_principal_of_its_latest_request(console: Console) -> None:
    slot = console.busy("192.0.2.1")
    for name in ("ann", "joe", "joe"):
        slot.claim(principal(name))
    for _ in range(console.shares.per_principal):
        console.busy("192.0.2.2").claim(principal("ann"))
    for _ in range(console.shares.per_principal - 1):
        console.busy("192.0.2.2").claim(principal("joe"))
    with pytest.raises(ShareExceeded):
        console.busy("192.0.2.2").claim(principal("joe"))


def test_administrators_have_connections_when_all_others_are_in_use(console: Console) -> None:
    console.fill_with_readers()
    administrator = console.accepted("198.51.100.1")
    administrator.claim(principal("admin", Role.ADMINISTRATOR))
    assert administrator.refusal is None


def test_reserved_connections_are_not_for_other_callers(console: Console) -> None:
    console.fill_with_readers()
    reader = console.accepted("198.51.100.1")
    with pytest.raises(Unavailable, match="all connections are in use: try again in a moment") as error:
        reader.claim(principal("late"))
    assert not isinstance(error.value, ShareExceeded)


def test_one_address_cannot_take_all_reserved_connections(console: Console) -> None:
    console.fill_with_readers()
    for _ in range(console.shares.reserved // 4):
        console.accepted("198.51.100.1")
    assert not isinstance(refusal(console, "198.51.100.1"), ShareExceeded)
    console.accepted("198.51.100.2").claim(principal("admin", Role.ADMINISTRATOR))


def test_callers_on_this_machine_have_connections_when_all_others_are_in_use(console: Console) -> None:
    console.fill_with_readers()
    for _ in range(console.shares.reserved):
        console.busy("127.0.0.1").claim(principal("owner"))


def test_refused_connections_that_send_nothing_make_way_for_those_that_do(console: Console) -> None:
    for _ in range(console.shares.per_address):
        console.accepted("192.0.2.1")
    for _ in range(console.shares.refused):
        refusal(console, "192.0.2.1")
    assert console.evicted == []
    assert isinstance(refusal(console, "192.0.2.1"), ShareExceeded)
    assert console.evicted == ["192.0.2.1"]


def test_a_connection_that_cannot_even_be_refused_is_closed(console: Console) -> None:
    for _ in range(console.shares.per_address):
        console.accepted("192.0.2.1")
    for _ in range(console.shares.refused):
        slot = console.connect("192.0.2.1")
        assert slot is not None
        slot.request_received()
    assert console.connect("192.0.2.1") is None


def test_a_closed_connection_frees_its_slot_once(console: Console) -> None:
    slots = [console.accepted("192.0.2.1") for _ in range(console.shares.per_address)]
    slots[0].release()
    slots[0].release()
    console.accepted("192.0.2.1")
    assert isinstance(refusal(console, "192.0.2.1"), ShareExceeded)


@pytest.mark.parametrize(
    ("address", "group"),
    [
        ("127.0.0.1", LOCAL_GROUP),
        ("127.9.9.9", LOCAL_GROUP),
        ("::1", LOCAL_GROUP),
        ("::ffff:127.0.0.1", LOCAL_GROUP),
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_addresses_that_one_machine_may_use_count_together(address: str, group: str) -> None:
    assert address_group(address) == group


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("connect"), st.sampled_from(["127.0.0.1", "192.0.2.1", "192.0.2.2", "2001:db8::1"])),
        st.tuples(st.sampled_from(["claim", "administer", "busy", "release"]), st.integers(0, 200)),
        st.tuples(st.just("wait"), st.floats(0, 3)),
    ),
    max_size=200,
)


@given(STEPS, st.integers(1, 64))
def test_after_any_steps_no_more_connections_are_open_than_allowed(
    steps: list[tuple[str, str | int | float]], total: int
) -> None:
    console, slots = Console(total), list[ConnectionSlot]()
    changes: dict[str, Callable[[ConnectionSlot], None]] = {
        "claim": lambda slot: slot.claim(principal(f"p{id(slot) % 3}")),
        "administer": lambda slot: slot.claim(principal("admin", Role.ADMINISTRATOR)),
        "busy": lambda slot: slot.request_received(),
        "release": lambda slot: slot.release(),
    }
    for what, argument in steps:
        if what == "connect":
            slot = console.connect(str(argument))
            slots += [slot] if slot is not None else []
        elif what == "wait":
            console.now += float(argument)
        elif slots:
            try:
                changes[what](slots[int(argument) % len(slots)])
            except Unavailable:
                pass
        assert len(console.slots._slots) <= total
        assert all(count <= console.shares.per_principal for count in console.slots._by_principal.values())
    for slot in slots:
        slot.release()
    assert not console.slots._anonymous
    assert not console.slots._by_principal
    assert not any(console.slots._pool_sizes.values())
