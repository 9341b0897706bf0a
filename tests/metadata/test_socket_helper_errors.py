"""The socket helper keeps running after errors of one client."""

import asyncio
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forewarn.metadata import ListenerChange, ListenerSpec, listener_for_socket
from forewarn.metadata.listeners import IdentifyBy
from forewarn.metadata.socket_helper import SocketDistributor, accept_clients
from forewarn.metadata.socket_passing import receive_packet


@contextmanager
def no_more_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_socket_helper_recovers_from_too_many_open_files(tmp_path: Path) -> None:
    async def scenario() -> None:
        spec = ListenerSpec(identify_by=IdentifyBy.SOURCE, address="127.0.0.1")
        distributor = SocketDistributor()
        with socket.create_server(("127.0.0.1", 0)) as served:
            distributor.update(ListenerChange(spec, listener_for_socket(spec, served)))
            with (
                _listen(tmp_path / "helper.sock") as server,
                socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client,
            ):
                receiving = asyncio.create_task(accept_clients(server, distributor, os.geteuid()))
                with no_more_files():
                    client.connect(str(tmp_path / "helper.sock"))
                    for _ in range(10):
                        await asyncio.sleep(0)
                client.setblocking(False)
                packet = await asyncio.wait_for(receive_packet(client), 10)
                assert packet is not None
                assert packet.sock is not None
                assert packet.listener_name == spec.name
                packet.sock.close()
                receiving.cancel()
                await asyncio.gather(receiving, return_exceptions=True)

    asyncio.run(scenario())


def _listen(path: Path) -> socket.socket:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.bind(str(path))
    server.listen()
    server.setblocking(False)
    return server
