"""`LibvirtFailure`: what libvirt refused or could not do, with its error number."""

from __future__ import annotations

# libvirt's error numbers (virErrorNumber), which are stable
NOT_SUPPORTED = 3
INVALID_ARGUMENT = 8
NO_DOMAIN = 42
NO_VOLUME = 50
OPERATION_INVALID = 55
OPERATION_TIMEOUT = 68
NO_METADATA = 80
UNSAFE_MIGRATION = 81
OPERATION_UNSUPPORTED = 84
ACCESS_DENIED = frozenset({29, 45, 79, 88})


class LibvirtFailure(Exception):
    """libvirt refused or could not do something; `code` is its error number (virErrorNumber), else 0."""

    def __init__(self, message: str, code: int = 0, *, is_connection_lost: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.is_connection_lost = is_connection_lost
