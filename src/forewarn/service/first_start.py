"""What a service stores on its first start: initial fleet, tenant id, administrator client.

A fleet file is applied only to an empty store. In a cluster, a large one takes several commits, and a start that was
interrupted between them is continued by the next. The administrator client is created once; if an operator removes it,
it stays removed. Its secret is written to a file before it is committed, so that a crash in between leaves a usable
file.
"""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path

from forewarn.auth.client_secrets import hash_secret, new_secret, read_secret, write_secret
from forewarn.base.tomlfile import read_text_file
from forewarn.control.control_plane import ControlPlane
from forewarn.control.fleet import FleetChange
from forewarn.control.scope_transactions import group_by_scope
from forewarn.core.access import ADMIN_CLIENT_ID, Grant, RegisteredClient, Role, client_principal
from forewarn.core.commit import Commit
from forewarn.core.fleet import Vm
from forewarn.core.fleetfile.reader import DeclaredFleet, read_fleet_file
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.resource_ids import ROOT_RESOURCE
from forewarn.errors import Rejected
from forewarn.service.settings import Settings
from forewarn.store.interface import Store

log = logging.getLogger(__name__)
_FLEET_FILE_KEY = "fleet file"  # stores the digest of a fleet file whose VMs are all in the store
_BEGUN_FLEET_FILE_KEY = "fleet file begun"  # the digest of one that is stored only in part; b"" if there is none
# VMs in one commit to the record, whose calls have time limits; a scope with more VMs is not divided.
VMS_PER_RECORD_COMMIT = 2_000
_TENANT_KEY = "tenant"
_ADMIN_CREATED_KEY = "admin made"


def sample_fleet() -> str:
    """Return the TOML text of the sample fleet, which a lab without a fleet file starts with."""
    return resources.files("forewarn.service").joinpath("sample-fleet.toml").read_text(encoding="utf-8")


async def _warn_about_ignored_fleet_file(control: ControlPlane, settings: Settings) -> None:
    if not settings.fleet:
        if control.store.load(_BEGUN_FLEET_FILE_KEY):
            log.warning("only a part of the first fleet file was applied: name that file with --fleet to continue")
        return
    try:
        text = _fleet_text(settings)
        if control.store.load(_FLEET_FILE_KEY) == _fleet_digest(text):
            return  # checked before: a VM that it names and the store lacks was removed and pruned
        proposal = read_fleet_file(text, source=settings.fleet)
    except Rejected:
        return  # the file is not used, so its mistakes do not matter
    known = {vm.key for vm in control.store.vms(removed=True)}
    if all(vm.key in known for vm in proposal.vms):
        await _save_applied(control.store, _fleet_digest(text))
    else:
        log.warning(
            "%s was not applied, because %s already has a fleet: `forewarn fleet apply %s` shows the difference and "
            "applies it, or name an empty directory with --data",
            settings.fleet,
            settings.data,
            settings.fleet,
        )


async def apply_initial_fleet(
    control: ControlPlane, settings: Settings, *, vms_per_commit: int = VMS_PER_RECORD_COMMIT
) -> None:
    """Apply the fleet file, or the sample fleet of a lab without one, to an empty store, durably.

    If an earlier start has applied only a part of the same file, applies the rest, unless the store has got other VMs
    or hosts since. In a cluster, more than `vms_per_commit` VMs take several commits of about that many.
    """
    store = control.store
    counts = store.counts()
    is_empty = not (counts.scopes or counts.hosts)
    if not is_empty and not await _may_continue(store, settings):
        await _warn_about_ignored_fleet_file(control, settings)
        return
    if settings.fleet:
        text, source = _fleet_text(settings), settings.fleet
    elif settings.lab:
        text, source = sample_fleet(), "the sample fleet"
    else:
        return
    proposal, digest = read_fleet_file(text, source=source), _fleet_digest(text)
    known = set() if is_empty else {vm.key for vm in store.vms(removed=True)}
    missing = [vm for vm in proposal.vms if vm.key not in known]
    changes = list(_initial_changes(proposal, missing, source, vms_per_commit if settings.store else len(missing)))
    if is_empty and len(changes) > 1:
        await store.save(_BEGUN_FLEET_FILE_KEY, digest)
    for change in changes:
        await control.fleet.apply_change(change, who="forewarn")
    await _save_applied(store, digest)


async def _may_continue(store: Store, settings: Settings) -> bool:
    """Whether an earlier start has applied a part of this fleet file, and the fleet is still its own."""
    # If somebody has changed the fleet since, the rest of the file is never applied by itself.
    begun = store.load(_BEGUN_FLEET_FILE_KEY)
    if not begun or not settings.fleet:
        return False
    text = _fleet_text(settings)
    if begun != _fleet_digest(text):
        return False
    fleet = read_fleet_file(text, source=settings.fleet)
    vms, hosts = {vm.key for vm in fleet.vms}, {host.name.casefold() for host in fleet.hosts}
    stored_hosts = {host.name.casefold() for host in store.hosts()}
    if stored_hosts == hosts and all(vm.key in vms for vm in store.vms(removed=True)):
        return True
    log.warning(
        "only a part of %s was applied at the first start, and the fleet was changed since: the rest is not applied",
        settings.fleet,
    )
    await store.save(_BEGUN_FLEET_FILE_KEY, b"")
    return False


async def _save_applied(store: Store, digest: bytes) -> None:
    await store.save(_FLEET_FILE_KEY, digest)
    if store.load(_BEGUN_FLEET_FILE_KEY):
        await store.save(_BEGUN_FLEET_FILE_KEY, b"")


def _initial_changes(
    fleet: DeclaredFleet, missing: Sequence[Vm], source: str, vms_per_commit: int
) -> Iterator[FleetChange]:
    text, done = f"fleet set up from {source}", len(fleet.vms) - len(missing)
    batches = list(_batches(missing, vms_per_commit)) or [[]]
    for number, vms in enumerate(batches):
        first, hosts = done + 1, () if number or done else fleet.hosts
        done += len(vms)
        is_all = len(vms) == len(fleet.vms)
        part = "" if is_all else f", VMs {first} to {done} of {len(fleet.vms)}"
        yield FleetChange(hosts=hosts, vms=tuple(vms), text=text + part)


def _batches(vms: Sequence[Vm], size: int) -> Iterator[list[Vm]]:
    batch: list[Vm] = []
    for members in group_by_scope(list(vms), lambda vm: vm.scope_id).values():
        batch += members
        if len(batch) >= size:
            yield batch
            batch = []
    if batch:
        yield batch


def _fleet_digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _fleet_text(settings: Settings) -> str:
    return read_text_file(Path(settings.fleet), "fleet file", "name another with --fleet")


async def load_or_create_tenant_id(store: Store) -> str:
    """Return the tenant id of this service, a GUID in lower case; create and store it at the first call."""
    if (stored := store.load(_TENANT_KEY)) is not None:
        return stored.decode()
    tenant_id = str(uuid.uuid4())
    await store.save(_TENANT_KEY, tenant_id.encode())
    return tenant_id


async def ensure_admin_client(store: Store, path: Path, now: float) -> None:
    """Create the administrator client and its secret file at the first call; later calls do nothing.

    A client that an operator has removed is not created again. The file is written before the commit, so a crash in
    between leaves a file whose secret the next start uses.
    """
    if store.load(_ADMIN_CREATED_KEY) is not None:
        return
    if store.client(ADMIN_CLIENT_ID) is None:
        if not path.exists():
            write_secret(path, new_secret())
        await store.commit(_admin_client_commit(read_secret(path), now))
    await store.save(_ADMIN_CREATED_KEY, b"yes")


def _admin_client_commit(secret: str, now: float) -> Commit:
    client = RegisteredClient(
        id=ADMIN_CLIENT_ID,
        secret_hash=hash_secret(secret),
        name="local administrator",
        created_by="forewarn",
        created_at=now,
    )
    grant = Grant(
        id="admin",
        role=Role.ADMINISTRATOR,
        principal=client_principal(ADMIN_CLIENT_ID),
        resource=ROOT_RESOURCE,
        granted_by="forewarn",
        granted_at=now,
    )
    text = f"client {ADMIN_CLIENT_ID} created, with role {Role.ADMINISTRATOR} on everything"
    entry = HistoryEntry(at=now, kind=EntryKind.ACCESS, actor="forewarn", text=text)
    return Commit(clients=(client,), grants=(grant,), entries=(entry,))
