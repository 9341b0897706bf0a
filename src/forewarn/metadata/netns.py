"""Runs functions inside a Linux network namespace. A socket created there belongs to it for life."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias, TypeVar

NETNS_DIRECTORY = Path("/run/netns")  # where `ip netns` keeps them
_CLONE_NEWNET = 0x40000000

T = TypeVar("T")
NamespaceId: TypeAlias = "tuple[int, int] | None"


def namespace_path(namespace: str) -> Path:
    """A name as `ip netns` knows it, or a path."""
    return NETNS_DIRECTORY / namespace


def namespace_id(namespace: str) -> NamespaceId:
    """Tells a namespace from another one made later under the same name; None: there is none."""
    try:
        seen = namespace_path(namespace).stat()
    except OSError:
        return None
    return seen.st_dev, seen.st_ino


def run_in_namespace(namespace: str, function: Callable[[], T]) -> T:
    """What the function gives inside the namespace; "" is ours. Raises OSError where that cannot be entered.

    A thread enters and is thrown away afterwards, so that nobody else is ever moved.
    """
    if not namespace:
        return function()
    results: list[T] = []
    errors: list[BaseException] = []

    def visit() -> None:
        try:
            _enter_namespace(namespace_path(namespace))
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=visit)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _enter_namespace(path: Path) -> None:
    # os.setns came with Python 3.12.
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(fd, _CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
    finally:
        os.close(fd)
