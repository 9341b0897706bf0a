"""The helper that opens sockets goes on handing them over, whatever one visitor met."""

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
        entrance = ListenerSpec(identify_by=IdentifyBy.SOURCE, address="127.0.0.1")
        shelf = SocketDistributor()
        with socket.create_server(("127.0.0.1", 0)) as served:
            shelf.update(ListenerChange(entrance, listener_for_socket(entrance, served)))
            with _door(tmp_path / "door") as door, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as visitor:
                receiving = asyncio.create_task(accept_clients(door, shelf, os.geteuid()))
                with no_more_files():
                    visitor.connect(str(tmp_path / "door"))
                    for _ in range(10):
                        await asyncio.sleep(0)
                visitor.setblocking(False)
                packet = await asyncio.wait_for(receive_packet(visitor), 10)
                assert packet is not None
                assert packet.sock is not None
                assert packet.listener_name == entrance.name
                packet.sock.close()
                receiving.cancel()
                await asyncio.gather(receiving, return_exceptions=True)

    asyncio.run(scenario())


def _door(path: Path) -> socket.socket:
    door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    door.bind(str(path))
    door.listen()
    door.setblocking(False)
    return door
