"""The terminal side of `vm console`: shows what a guest writes, and sends it what is typed."""

from __future__ import annotations

import os
import selectors
import socket
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from forewarn.errors import Rejected, Unavailable

_DETACH_KEY = b"\x1d"  # Ctrl-]
_BACKLOG_BYTES = 4096


def read_backlog(log: Path, limit: int = _BACKLOG_BYTES) -> bytes:
    """Return the end of a guest's console log, from the beginning of a line, up to `limit` bytes."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - limit))
            data = file.read()
    except OSError:
        return b""
    return data if size <= limit else data.partition(b"\n")[2]


def attach(path: Path, vm: str, *, on_connected: Callable[[], None] = lambda: None) -> None:
    """Connect this terminal to the console at the unix socket `path` until Ctrl-], or until it closes."""
    with socket.socket(socket.AF_UNIX) as console:
        try:
            console.connect(str(path))
        except FileNotFoundError:
            raise Rejected(f"VM {vm!r} has no console: only VMs that run in `forewarn lab vms` have one") from None
        except OSError as error:
            raise Unavailable(f"the console of VM {vm!r} does not answer ({error.strerror}): is it running?") from error
        on_connected()
        with _raw_terminal(), selectors.PollSelector() as selector:  # epoll does not accept files as input
            selector.register(console, selectors.EVENT_READ)
            selector.register(sys.stdin, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is console:
                        data = console.recv(65536)
                        if not data:
                            return
                        _write(data)
                    else:
                        typed = os.read(sys.stdin.fileno(), 1024)
                        if not typed or _DETACH_KEY in typed:
                            return
                        console.sendall(typed)


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(sys.stdout.fileno(), data) :]


@contextmanager
def _raw_terminal() -> Iterator[None]:
    """Pass every key to the guest, if this is a terminal; restores its mode at the end."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setraw(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
