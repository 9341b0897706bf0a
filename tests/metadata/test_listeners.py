"""Opening sockets: in the best way a machine allows, with a clear sentence where it does not."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest

from forewarn.errors import Rejected
from forewarn.metadata import LabListenMode, open_lab_listeners, open_network_listener
from tests.support.service_process import free_port


@pytest.fixture
def taken():
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock.getsockname()[1]


@pytest.mark.parametrize(
    ("way", "address"),
    [(LabListenMode.DEVICE, "0.0.0.0"), (LabListenMode.ADDRESSES, "127.0.0.1"), (LabListenMode.PORTS, "127.0.0.1")],
    ids=lambda given: given.name if isinstance(given, LabListenMode) else None,
)
def test_a_port_in_use_is_said_in_one_sentence_that_names_the_setting(taken, way, address):
    with pytest.raises(Rejected) as caught:
        open_lab_listeners(["127.0.0.1"], taken, ways=[way], setting="lab.port")
    assert str(caught.value) == (
        f"{address}:{taken} is in use by another program: stop it, or set another 'lab.port' than {taken}"
    )


def test_where_vms_share_an_address_each_has_the_next_port():
    base = free_port(2)
    lab = open_lab_listeners(["127.0.0.2"], base, ways=[LabListenMode.PORTS])
    with closing(lab.listener):
        more = lab.add_address("127.0.0.3")
        assert more is not None
        with closing(more):
            assert lab.endpoint("127.0.0.2") == ("127.0.0.1", base)
            # The next one, or a later one where somebody else has that.
            address, port = lab.endpoint("127.0.0.3")
            assert (address, port > base) == ("127.0.0.1", True)


def test_a_lab_falls_back_where_its_addresses_do_not_exist():
    """As on a machine whose only loopback address is 127.0.0.1."""
    # TEST-NET-1 (RFC 5737) is no machine's own.
    lab = open_lab_listeners(["192.0.2.1", "192.0.2.2"], 0, ways=[LabListenMode.ADDRESSES, LabListenMode.PORTS])
    assert lab.mode is LabListenMode.PORTS
    assert {lab.endpoint(vm)[0] for vm in ("192.0.2.1", "192.0.2.2")} == {"127.0.0.1"}
    lab.listener.close()


def test_an_address_that_is_not_ours_is_refused_by_name():
    with pytest.raises(Rejected, match=r"cannot listen on 192\.0\.2\.1:80: the address 192\.0\.2\.1 is not one"):
        open_network_listener("192.0.2.1", 80)


def test_a_device_that_does_not_exist_is_refused_by_name():
    with pytest.raises(Rejected, match="'nosuchtap'"):
        open_network_listener("127.0.0.1", 0, device="nosuchtap")


def test_a_lab_with_no_way_left_says_so():
    with pytest.raises(Rejected, match=r"192\.0\.2\.1 in no way that was allowed: one socket per loopback"):
        open_lab_listeners(["192.0.2.1"], 0, ways=[LabListenMode.ADDRESSES])
