"""Connects standard input and output to a TCP server, for one connection of a guest without a tap.

QEMU runs it for each connection:

    python3 forward.py SOURCE ADDRESS PORT

SOURCE, a loopback address, identifies the guest to the service. Standard library only; it imports nothing of forewarn,
because it starts once per request.
"""

import os
import selectors
import socket
import sys


def main() -> None:
    """Connect to a TCP server and copy bytes between it and standard input and output."""
    source, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
    try:
        server = socket.create_connection((address, port), timeout=10, source_address=(source, 0))
    except OSError:
        return  # QEMU closes the guest's connection, as a server that is not there would
    with server, selectors.DefaultSelector() as selector:
        server.settimeout(None)
        selector.register(0, selectors.EVENT_READ)
        selector.register(server, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd == 0:
                    data = os.read(0, 65536)
                    server.sendall(data)
                    if not data:
                        return
                else:
                    data = server.recv(65536)
                    if not data:
                        return
                    while data:
                        data = data[os.write(1, data) :]


if __name__ == "__main__":
    main()
