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
        open_lab_listeners(lambda: ["127.0.0.1"], taken, modes=[mode], setting="lab.port")
    assert str(caught.value) == (
        f"{address}:{taken} is in use by another program: stop it, or set another 'lab.port' than {taken}"
    )


def test_vms_that_share_an_address_have_consecutive_ports() -> None:
    base = free_port(2)
    lab = open_lab_listeners(lambda: ["127.0.0.2"], base, modes=[LabListenMode.PORTS])
    with closing(lab.listener):
        more = lab.add_address("127.0.0.3")
        assert more is not None
        with closing(more):
            assert lab.endpoint("127.0.0.2") == ("127.0.0.1", base)
            # The next port, or a later one if another program uses it.
            address, port = lab.endpoint("127.0.0.3")
            assert (address, port > base) == ("127.0.0.1", True)


def test_one_socket_for_all_loopback_addresses_needs_none_of_them() -> None:
    def find_addresses() -> list[str]:
        raise AssertionError("a large fleet takes long to read")

    lab = open_lab_listeners(find_addresses, 0, modes=[LabListenMode.DEVICE])
    with closing(lab.listener):
        assert lab.endpoint("127.0.0.9") == ("127.0.0.9", lab.port)


def test_a_lab_falls_back_to_ports_if_its_addresses_do_not_exist() -> None:
    """As on a machine whose only loopback address is 127.0.0.1."""
    # No machine has an address of TEST-NET-1 (RFC 5737).
    lab = open_lab_listeners(
        lambda: ["192.0.2.1", "192.0.2.2"], 0, modes=[LabListenMode.ADDRESSES, LabListenMode.PORTS]
    )
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
        open_lab_listeners(lambda: ["192.0.2.1"], 0, modes=[LabListenMode.ADDRESSES])


def test_the_error_for_another_vm_whose_address_does_not_exist_names_it() -> None:
    """As on a machine whose only loopback address is 127.0.0.1."""
    lab = open_lab_listeners(lambda: ["127.0.0.2"], 0, modes=[LabListenMode.ADDRESSES])
    with closing(lab.listener), pytest.raises(Rejected) as caught:
        lab.add_address("192.0.2.1")
    assert str(caught.value) == (
        f"cannot listen on 192.0.2.1:{lab.port}: this machine does not have the address 192.0.2.1"
    )


def test_a_port_that_another_program_takes_between_bind_and_listen_is_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.socket() as rival:
        rival.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        rival.bind(("127.0.0.1", 0))
        port = rival.getsockname()[1]

        class LateSocket(socket.socket):
            def bind(self, address: tuple[str, int]) -> None:  # type: ignore[override]
                super().bind(address)
                rival.listen()

        monkeypatch.setattr(socket, "socket", LateSocket)
        with pytest.raises(Rejected, match=f"127.0.0.1:{port} is in use by another program"):
            open_network_listener("127.0.0.1", port)


def test_the_error_for_an_ipv6_port_in_use_writes_the_address_in_brackets() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Rejected, match=rf"\[::1\]:{port} is in use"):
            open_network_listener("::1", port)
