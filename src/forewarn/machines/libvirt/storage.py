"""Storage pools and volumes of one host, over an open connection to its libvirt. The calls block."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from forewarn.machines.libvirt.domain_xml import pool_directory
from forewarn.machines.libvirt.failure import NO_VOLUME, NOT_SUPPORTED, LibvirtFailure


class StoragePool(msgspec.Struct, frozen=True, kw_only=True):
    """A storage pool of a libvirt host: a directory or device that libvirt manages, with volumes."""

    name: str  # the name of the pool
    is_active: bool  # False: libvirt does not know its volumes


class LibvirtStorage:
    """The storage pools of one libvirt host. A path names a file or device, or is POOL/VOLUME. Calls block."""

    def __init__(self, connection: Any, failures: Callable[[], AbstractContextManager[None]]) -> None:
        self._connection = connection
        self._failures = failures

    def find_pool(self, path: str) -> StoragePool | None:
        with self._failures():
            found = [StoragePool(name=pool.name(), is_active=bool(pool.isActive())) for pool in self._pools(path)]
        return max(found, key=lambda pool: pool.is_active, default=None)

    def delete_volume(self, path: str) -> bool:
        """Delete the volume with this path from its storage pool; return whether there was one."""
        if not self._has_volume(path):
            return False
        with self._failures():
            self._volume(path).delete()
        return True

    def volume_xml(self, path: str) -> str | None:
        if not self._has_volume(path):
            return None
        with self._failures():
            return str(self._volume(path).XMLDesc(0))

    def create_volume(self, path: str, xml: str) -> None:
        """Create a volume in the storage pool that manages this path; does nothing without an active one."""
        with self._failures():
            for pool in self._pools(path):
                if pool.isActive():
                    pool.createXML(xml)
                    return

    def _pools(self, path: str) -> list[Any]:
        try:
            with self._failures():
                pools = self._connection.listAllStoragePools()
        except LibvirtFailure as failure:
            if failure.code != NOT_SUPPORTED:
                raise
            return []
        if path.startswith("/"):
            return [pool for pool in pools if pool_directory(pool.XMLDesc(0)) == os.path.dirname(path)]
        return [pool for pool in pools if pool.name() == path.partition("/")[0]]

    def _has_volume(self, path: str) -> bool:
        """Return whether a pool has the volume, also one that another host has created in a shared directory."""
        if self._is_listed(path):
            return True
        with self._failures():
            for pool in self._pools(path):
                if pool.isActive():
                    pool.refresh()
        return self._is_listed(path)

    def _is_listed(self, path: str) -> bool:
        """Return whether a pool lists the volume; a pool looks into its directory only when it is refreshed."""
        try:
            with self._failures():
                self._volume(path)
        except LibvirtFailure as failure:
            if failure.code == NO_VOLUME:
                return False
            raise
        return True

    def _volume(self, path: str) -> Any:
        if path.startswith("/"):
            return self._connection.storageVolLookupByPath(path)
        pool, _, volume = path.partition("/")
        return self._connection.storagePoolLookupByName(pool).storageVolLookupByName(volume)
