"""Deletes the disks of a VM, empties them, or creates them again from their image.

libvirt can do this only to volumes of its active storage pools. It does not know the volumes of an inactive pool, which
must not be taken for deleted. The functions block, and raise ActNotTried if a copy cannot be read or written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from forewarn.errors import Refused
from forewarn.machines.libvirt.definition_copies import DefinitionCopies
from forewarn.machines.libvirt.domain_state import DomainDisk, backing_image, new_volume, parse_domain
from forewarn.machines.libvirt.session import LibvirtSession


def owned_disks(definition: str) -> list[str]:
    """Return the locations of the disks that only this domain's VM uses, in the order of the XML."""
    return [disk.source for disk in parse_domain(definition).disks if disk.is_owned and disk.source]


def ephemeral_disks(definition: str) -> list[str]:
    """Return the locations of the disks that this domain XML calls ephemeral, in the order of the XML."""
    return [disk.source for disk in parse_domain(definition).disks if disk.is_ephemeral and disk.source]


def delete_disks(session: LibvirtSession, host: str, vm: str, paths: Sequence[str]) -> list[str]:
    """Delete these disks of a VM from the host's storage pools; return those that the host had."""
    _require_pools(session, host, vm, paths)
    return [path for path in paths if session.storage.delete_volume(path)]


def volumes_of(session: LibvirtSession, paths: Sequence[str]) -> dict[str, str]:
    found = {path: session.storage.volume_xml(path) for path in paths if _has_active_pool(session, path)}
    return {path: volume for path, volume in found.items() if volume is not None}


def require_new_disks(
    session: LibvirtSession,
    copies: DefinitionCopies,
    host: str,
    vm: str,
    paths: Sequence[str],
    volumes: Mapping[str, str],
) -> None:
    """Refuse if the host cannot create these disks. Creates none.

    `volumes` has the XML of the disks on another host; what this host lacks is saved in `copies`, from which
    `empty_ephemeral_disks` creates them.
    """
    _require_pools(session, host, vm, paths)
    for path in paths:
        if session.storage.volume_xml(path) is not None:
            continue
        if path in volumes:
            copies.save(host, path, volumes[path])
        elif copies.load(host, path) is None:
            raise _missing(host, path)


def empty_ephemeral_disks(session: LibvirtSession, copies: DefinitionCopies, host: str, vm: str) -> None:
    """Replace the VM's ephemeral disks with empty ones: delete and create each of them.

    The next call finishes a call that was interrupted. The VM must be off, which is not checked.
    """
    paths = ephemeral_disks(session.stored_xml(vm))
    _require_pools(session, host, vm, paths)
    for path in paths:
        _renew(session, copies, host, path, keep_backing=False)


def restore_ephemeral_disks(session: LibvirtSession, copies: DefinitionCopies, host: str, vm: str) -> None:
    """Create the VM's missing ephemeral disks, such as after a failed move; they are empty."""
    for path in ephemeral_disks(session.stored_xml(vm)):
        volume = copies.load_from_any_host(host, path)
        if volume is None or not _has_active_pool(session, path):
            continue
        if session.storage.volume_xml(path) is None:
            session.storage.create_volume(path, new_volume(volume, keep_backing=False))


def renew_os_disk(session: LibvirtSession, copies: DefinitionCopies, host: str, vm: str) -> None:
    """Replace the VM's OS disk (its first own disk that is not ephemeral) with a new copy of its image.

    A call that was interrupted may leave the VM without the disk; the next call finishes the work, from `copies`. The
    VM must be off, which is not checked.
    """
    disk = _os_disk(session, host, vm)
    _require_pools(session, host, vm, [disk.source])
    volume = session.storage.volume_xml(disk.source) or copies.load(host, disk.source)
    if volume is None or not backing_image(volume):
        raise Refused(
            f"disk {disk.source} of VM {vm!r} on host {host} is not a copy of an image, so it cannot be recreated: "
            "create it with a backing file"
        )
    _renew(session, copies, host, disk.source, keep_backing=True)


def _os_disk(session: LibvirtSession, host: str, vm: str) -> DomainDisk:
    for disk in parse_domain(session.stored_xml(vm)).disks:
        if disk.is_owned and disk.source and not disk.is_ephemeral:
            return disk
    raise Refused(f"VM {vm!r} on host {host} has no disk of its own that could be recreated")


def _renew(session: LibvirtSession, copies: DefinitionCopies, host: str, path: str, *, keep_backing: bool) -> None:
    """Delete the volume and create it again; a copy of its XML lets a repeated call finish that."""
    if (volume := session.storage.volume_xml(path)) is not None:
        copies.save(host, path, volume)
        session.storage.delete_volume(path)
    if (kept := copies.load(host, path) or volume) is None:
        raise _missing(host, path)
    session.storage.create_volume(path, new_volume(kept, keep_backing=keep_backing))
    copies.delete(host, path)


def _missing(host: str, path: str) -> Refused:
    return Refused(f"disk {path} does not exist on host {host}: create it")


def _has_active_pool(session: LibvirtSession, path: str) -> bool:
    pool = session.storage.find_pool(path)
    return pool is not None and pool.is_active


def _require_pools(session: LibvirtSession, host: str, vm: str, paths: Sequence[str]) -> None:
    for path in paths:
        pool = session.storage.find_pool(path)
        if pool is None:
            raise Refused(
                f"disk {path} of VM {vm!r} is in no storage pool of host {host}, so libvirt cannot replace or delete "
                "it: define a pool for its directory with `virsh pool-define-as`"
            )
        if not pool.is_active:
            raise Refused(
                f"disk {path} of VM {vm!r} is in the storage pool {pool.name!r} of host {host}, which is not active: "
                f"start it with `virsh pool-start {pool.name}`"
            )
