"""Opening listening sockets: the best mode that the machine supports, and clear errors."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from forewarn.errors import Rejected
from forewarn.metadata import LabListenMode, open_lab_listeners, open_network_listener
from tests.support.service_process import free_port


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock.getsockname()[1]


@pytest.mark.parametrize(
    ("mode", "address"),
    [(LabListenMode.DEVICE, "0.0.0.0"), (LabListenMode.ADDRESSES, "127.0.0.1"), (LabListenMode.PORTS, "127.0.0.1")],
    ids=lambda given: given.name if isinstance(given, LabListenMode) else None,
)
def test_the_error_for_a_port_in_use_names_the_setting(taken: int, mode: LabListenMode, address: str) -> None:
    with pytest.raises(Rejected) as caught:
        open_lab_listeners(["127.0.0.1"], taken, modes=[mode], setting="lab.port")
    assert str(caught.value) == (
        f"{address}:{taken} is in use by another program: stop it, or set another 'lab.port' than {taken}"
    )


def test_vms_that_share_an_address_have_consecutive_ports() -> None:
    base = free_port(2)
    lab = open_lab_listeners(["127.0.0.2"], base, modes=[LabListenMode.PORTS])
    with closing(lab.listener):
        more = lab.add_address("127.0.0.3")
        assert more is not None
        with closing(more):
            assert lab.endpoint("127.0.0.2") == ("127.0.0.1", base)
            # The next port, or a later one if another program uses it.
            address, port = lab.endpoint("127.0.0.3")
            assert (address, port > base) == ("127.0.0.1", True)


def test_a_lab_falls_back_to_ports_if_its_addresses_do_not_exist() -> None:
    """As on a machine whose only loopback address is 127.0.0.1."""
    # No machine has an address of TEST-NET-1 (RFC 5737).
    lab = open_lab_listeners(["192.0.2.1", "192.0.2.2"], 0, modes=[LabListenMode.ADDRESSES, LabListenMode.PORTS])
    assert lab.mode is LabListenMode.PORTS
    assert {lab.endpoint(vm)[0] for vm in ("192.0.2.1", "192.0.2.2")} == {"127.0.0.1"}
    lab.listener.close()


def test_the_error_for_an_address_of_another_machine_names_it() -> None:
    with pytest.raises(Rejected, match=r"cannot listen on 192\.0\.2\.1:80: this machine does not have the address"):
        open_network_listener("192.0.2.1", 80)


def test_the_error_for_a_missing_device_names_it() -> None:
    with pytest.raises(Rejected, match="'nosuchtap'"):
        open_network_listener("127.0.0.1", 0, device="nosuchtap")


def test_the_error_for_a_lab_without_a_working_mode_lists_the_modes() -> None:
    with pytest.raises(Rejected, match=r"cannot serve 192\.0\.2\.1 in an allowed mode: one socket per loopback"):
        open_lab_listeners(["192.0.2.1"], 0, modes=[LabListenMode.ADDRESSES])
