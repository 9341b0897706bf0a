"""Runs functions inside a Linux network namespace. A socket created there belongs to it for life."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias, TypeVar

NETNS_DIRECTORY = Path("/run/netns")  # where `ip netns` has the named ones
_CLONE_NEWNET = 0x40000000

T = TypeVar("T")
NamespaceId: TypeAlias = "tuple[int, int] | None"


def namespace_path(namespace: str) -> Path:
    """Return the path of a network namespace: /run/netns/NAME for a name, an absolute path as it is."""
    return NETNS_DIRECTORY / namespace


def namespace_id(namespace: str) -> NamespaceId:
    """Return an id of the network namespace (a name or path), which changes if it is created again."""
    try:
        status = namespace_path(namespace).stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def run_in_namespace(namespace: str, function: Callable[[], T]) -> T:
    """Run the function inside the network namespace and return its result; blocks."""
    # A new thread enters it, runs the function and ends; other threads stay in their namespace.
    if not namespace:
        return function()
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            _enter_namespace(namespace_path(namespace))
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _enter_namespace(path: Path) -> None:
    # os.setns exists since Python 3.12.
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(fd, _CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
    finally:
        os.close(fd)
