"""Every call to libvirt's Python module, which has no types: operations on one open connection.

They block: call them only from threads that may block. All failures are `LibvirtFailure`, with libvirt's error number.
"""

from __future__ import annotations

import os
import threading
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import msgspec

from forewarn.errors import Rejected
from forewarn.machines.driver import FreeCapacity, MigrationProgress, VmNeeds
from forewarn.machines.libvirt.domain_state import (
    HALTED_REASONS,
    METADATA_PREFIX,
    MOVE_NAMESPACE,
    PAUSED_BY_DISK,
    DomainState,
    DomainStatus,
    ListedDomain,
    parse_domain,
    parse_move,
    parse_xml,
    pool_directory,
)

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


# Pure functions over the CPUs in the XML of domains and hosts: what a VM needs from another host.

_HOST_CPU_MODES = ("host-passthrough", "maximum")  # the guest sees the CPU of its host as it is


class CpuNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """What another host must have to take over a running VM. Either `cpu_xml` or `host_cpu` is set."""

    virt_type: str = ""  # such as kvm
    arch: str = ""  # such as x86_64
    machine: str = ""  # such as pc-q35-7.2
    cpu_xml: str = ""  # the CPU of the domain as libvirt's XML, which another host can be compared with
    host_cpu: str = ""  # the CPU of its host (`host_cpu_identity`), which another host must have exactly


def cpu_needs(domain: str, host_cpu: str) -> str:
    """Return what a running domain needs from the CPU of another host, as JSON; "": nothing, or not known.

    Pass the running XML: a stored one may name no CPU model. A domain that sees its host's CPU needs the same one.
    """
    root = parse_xml(domain)
    cpu, os_type = root.find("cpu"), root.find("os/type")
    if cpu is None:
        return ""
    if cpu.get("mode", "") in _HOST_CPU_MODES:
        return _encode(CpuNeeds(host_cpu=host_cpu)) if host_cpu else ""
    if cpu.find("model") is None:
        return ""
    return _encode(
        CpuNeeds(
            virt_type=root.get("type", ""),
            arch=os_type.get("arch", "") if os_type is not None else "",
            machine=os_type.get("machine", "") if os_type is not None else "",
            cpu_xml=ET.tostring(cpu, encoding="unicode"),
        )
    )


def parse_cpu_needs(text: str) -> CpuNeeds:
    return msgspec.json.decode(text, type=CpuNeeds)


def host_cpu_model(capabilities: str) -> str:
    """Return the CPU model that a host's capabilities XML names; "" if it names none."""
    return parse_xml(capabilities, root_tag="capabilities").findtext("host/cpu/model", "")


def host_cpu_identity(capabilities: str) -> str:
    """Return a text for the CPU of a host, which is equal for equal CPUs; "" if the CPU is not known."""
    cpu = parse_xml(capabilities, root_tag="capabilities").find("host/cpu")
    if cpu is None or not cpu.findtext("model"):
        return ""
    features = sorted(feature.get("name", "") for feature in cpu.findall("feature"))
    return " ".join([cpu.findtext("arch", ""), cpu.findtext("vendor", ""), cpu.findtext("model", ""), *features])


def _encode(needs: CpuNeeds) -> str:
    return msgspec.json.encode(needs).decode()


# Storage pools and volumes of one host, over an open connection to its libvirt. The calls block.


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


_ELEMENT_METADATA = 2  # VIR_DOMAIN_METADATA_ELEMENT
LIVE, STORED = 1, 2  # which definition of a domain: VIR_DOMAIN_AFFECT_LIVE, VIR_DOMAIN_AFFECT_CONFIG
_NO_JOB = 0  # virDomainJobType; a migration has a job, even a completed one, until its source has confirmed it
_NO_SPACE = 2  # virDomainDiskErrorCode
_MAX_LOOKS = 20  # at a domain that changes while it is looked at
_MIGRATION_OUT = 5  # virDomainJobOperation
_KEEPALIVE_INTERVAL_S, _KEEPALIVE_COUNT = 5, 3  # libvirt ends a connection that is silent for 20 s

OnLifecycle = Callable[[str, int, int], None]  # domain name, event, detail; called in libvirt's event loop thread
OnClose = Callable[[], None]  # the daemon ended the connection; called in libvirt's event loop thread


class FoundDomain(msgspec.Struct, frozen=True, kw_only=True):
    name: str  # the name of the domain
    is_active: bool  # it has a process, running or paused
    is_stored: bool  # False: transient, so the host forgets it when it ends
    xml: str  # its stored definition, without passwords; of a transient one, the running one


_event_loop_lock = threading.Lock()
_is_event_loop_running = False


def load_libvirt() -> Any:
    """Return libvirt's Python module, with its event loop running."""
    try:
        import libvirt
    except ImportError as error:
        raise Rejected(
            "libvirt's Python module is not installed: install Debian's python3-libvirt, or libvirt-dev, pkg-config "
            "and gcc, and then run pip install 'forewarn[libvirt]'"
        ) from error
    global _is_event_loop_running
    with _event_loop_lock:
        if not _is_event_loop_running:
            libvirt.registerErrorHandler(lambda _context, _error: None, None)  # else it prints them to stderr
            libvirt.virEventRegisterDefaultImpl()
            threading.Thread(target=_run_event_loop, args=(libvirt,), name="libvirt events", daemon=True).start()
            _is_event_loop_running = True
    return libvirt


def _run_event_loop(libvirt: Any) -> None:
    while True:
        libvirt.virEventRunDefaultImpl()


class LibvirtSession:
    """One open connection to a host's libvirt. Use `open_session`; several threads may call it at once."""

    def __init__(self, libvirt: Any, connection: Any) -> None:
        self._libvirt = libvirt
        self._connection = connection
        self.storage = LibvirtStorage(connection, self._failures)

    def close(self) -> None:
        """Close the connection; VMs and migrations under way are left as they are."""
        with self._failures():
            self._connection.close()

    def watch(self, on_lifecycle: OnLifecycle, on_close: OnClose) -> None:
        """Call these functions, in libvirt's thread, when a domain changes or the connection ends."""

        def lifecycle(_connection: Any, domain: Any, event: int, detail: int, _opaque: Any) -> None:
            on_lifecycle(domain.name(), event, detail)

        with self._failures():
            self._connection.domainEventRegisterAny(None, self._libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, lifecycle, None)
            self._connection.registerCloseCallback(lambda _connection, _reason, _opaque: on_close(), None)

    def hostname(self) -> str:
        """Return the host's own name."""
        with self._failures():
            return str(self._connection.getHostname())

    def domains(self) -> list[FoundDomain]:
        """Return all domains of the host, sorted by name, except any that vanish."""
        found = []
        with self._failures():
            listed = self._connection.listAllDomains()
        for domain in listed:
            try:
                with self._failures():
                    is_stored = bool(domain.isPersistent())
                    found.append(
                        FoundDomain(
                            name=domain.name(),
                            is_active=bool(domain.isActive()),
                            is_stored=is_stored,
                            xml=domain.XMLDesc(self._libvirt.VIR_DOMAIN_XML_INACTIVE if is_stored else 0),
                        )
                    )
            except LibvirtFailure as failure:
                if failure.code != NO_DOMAIN:
                    raise
        return sorted(found, key=lambda domain: domain.name)

    def listing(self) -> list[ListedDomain]:
        """Return the states of all domains of the host, unordered, from one call."""
        with self._failures():
            found = self._connection.getAllDomainStats(self._libvirt.VIR_DOMAIN_STATS_STATE)
        return [
            ListedDomain(
                name=domain.name(),  # this and the id came with the list
                number=domain.ID(),
                state=stats.get("state.state", 0),
                reason=stats.get("state.reason", 0),
            )
            for domain, stats in found
        ]

    def status(self, name: str) -> DomainStatus | None:
        """Return what the host reports about a domain; None if it has none of this name."""
        # Repeats its several libvirt calls, up to 20 times, until nothing changes between them.
        if (domain := self._domain_or_none(name)) is None:
            return None
        for _ in range(_MAX_LOOKS):
            if (before := self._life(domain)) is None:
                return None
            status = self._status(domain, name, before)
            if self._life(domain) == before:
                return status
        raise LibvirtFailure(f"domain {name} changes all the time", OPERATION_TIMEOUT)

    def stop_reason(self, name: str) -> str:
        """Return why the host has halted a domain, with the disks that have failed; "" if it has not."""
        domain = self._domain(name)
        with self._failures():
            state, reason = domain.state()
            if state != DomainState.PAUSED or reason not in HALTED_REASONS:
                return ""
            errors = domain.diskErrors() if reason == PAUSED_BY_DISK else {}
        problems = [
            f"no space is left for disk {disk}" if error == _NO_SPACE else f"disk {disk} cannot be read or written"
            for disk, error in sorted(errors.items())
        ]
        return ", ".join(problems) or HALTED_REASONS[reason]

    def _life(self, domain: Any) -> tuple[int, int, bool, bool] | None:
        try:
            with self._failures():
                state, reason = domain.state()
                return state, reason, bool(domain.isActive()), bool(domain.isPersistent())
        except LibvirtFailure as failure:
            if failure.code == NO_DOMAIN:
                return None
            raise

    def _status(self, domain: Any, name: str, life: tuple[int, int, bool, bool]) -> DomainStatus:
        state, reason, is_active, is_stored = life
        has_job, is_incoming = self._job(domain) if is_active else (False, False)
        return DomainStatus(
            state=state,
            reason=reason,
            has_job=has_job,
            is_incoming=is_incoming,
            live_move=parse_move(self.metadata(name, MOVE_NAMESPACE, LIVE)) if is_active else None,
            stored_move=parse_move(self.metadata(name, MOVE_NAMESPACE, STORED)) if is_stored else None,
        )

    def _job(self, domain: Any) -> tuple[bool, bool]:
        try:
            with self._failures():
                return domain.jobInfo()[0] != _NO_JOB, False
        except LibvirtFailure as failure:
            if failure.code in (NOT_SUPPORTED, OPERATION_INVALID, NO_DOMAIN):  # it has just ended, or there are no jobs
                return False, False
            if failure.code == OPERATION_UNSUPPORTED:  # only the source of a migration has numbers
                return False, True
            raise

    def is_active(self, name: str) -> bool:
        """Return whether the domain has a process now, running or paused. LibvirtFailure if it is not known."""
        with self._failures():
            return bool(self._domain(name).isActive())

    def is_stored(self, name: str) -> bool:
        """Return whether the host keeps the domain's definition when it ends. LibvirtFailure if it is unknown."""
        with self._failures():
            return bool(self._domain(name).isPersistent())

    def suspend(self, name: str) -> None:
        """Stop the CPUs of a running domain."""
        with self._failures():
            self._domain(name).suspend()

    def resume(self, name: str) -> None:
        """Let a paused domain continue."""
        with self._failures():
            self._domain(name).resume()

    def reset(self, name: str) -> None:
        """Reset the domain, as its reset button does."""
        with self._failures():
            self._domain(name).reset()

    def press_power_button(self, name: str) -> None:
        """Ask the guest to shut down, through ACPI where the driver lets one choose; does not wait for it."""
        domain = self._domain(name)
        try:
            with self._failures():
                domain.shutdownFlags(self._libvirt.VIR_DOMAIN_SHUTDOWN_ACPI_POWER_BTN)
        except LibvirtFailure as failure:
            if failure.code not in (INVALID_ARGUMENT, NOT_SUPPORTED):
                raise
            with self._failures():
                domain.shutdown()

    def create(self, name: str) -> None:
        """Start a domain that is off."""
        with self._failures():
            self._domain(name).create()

    def destroy(self, name: str) -> None:
        """End a domain at once, without asking the guest."""
        with self._failures():
            self._domain(name).destroy()

    def undefine(self, name: str) -> None:
        """Make the host forget a domain that is off, with its saved memory, firmware variables and snapshots."""
        flags = self._libvirt
        domain = self._domain(name)
        try:
            with self._failures():
                domain.undefineFlags(
                    flags.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE
                    | flags.VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
                    | flags.VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA
                    | flags.VIR_DOMAIN_UNDEFINE_NVRAM
                )
        except LibvirtFailure as failure:
            if failure.code not in (INVALID_ARGUMENT, NOT_SUPPORTED):
                raise
            with self._failures():
                domain.undefine()

    def stored_xml(self, name: str) -> str:
        """Return the definition with which the domain starts next, with its passwords."""
        flags = self._libvirt.VIR_DOMAIN_XML_INACTIVE | self._libvirt.VIR_DOMAIN_XML_SECURE
        with self._failures():
            return str(self._domain(name).XMLDesc(flags))

    def migratable_xml(self, name: str) -> str:
        """Return the running definition, with passwords, as a destination accepts it."""
        flags = self._libvirt.VIR_DOMAIN_XML_MIGRATABLE | self._libvirt.VIR_DOMAIN_XML_SECURE
        with self._failures():
            return str(self._domain(name).XMLDesc(flags))

    def define(self, xml: str) -> None:
        """Store this definition, in place of an earlier one of the same name and UUID."""
        with self._failures():
            self._connection.defineXML(xml)

    def metadata(self, name: str, namespace: str, which: int) -> str | None:
        """Return our metadata element of a domain's LIVE or STORED definition (`which`); None if it has none."""
        try:
            with self._failures():
                return str(self._domain(name).metadata(_ELEMENT_METADATA, namespace, which))
        except LibvirtFailure as failure:
            if failure.code in (NO_METADATA, NO_DOMAIN, OPERATION_INVALID):
                return None
            raise

    def set_metadata(self, name: str, namespace: str, element: str | None, which: int) -> None:
        """Store an element, or remove it (None), in a domain's LIVE or STORED definition, or both (`|`)."""
        selected = [one for one in (LIVE, STORED) if which & one]
        if element is None and all(self.metadata(name, namespace, one) is None for one in selected):
            return
        with self._failures():
            self._domain(name).setMetadata(_ELEMENT_METADATA, element, METADATA_PREFIX, namespace, which)

    def migrate(
        self, name: str, target: LibvirtSession, *, dest_xml: str, stored_xml: str, migrate_uri: str, peer_uri: str
    ) -> None:
        """Migrate a domain live, so that it ends paused on the target and off here; blocks until it is over.

        With `peer_uri` the source's daemon calls the target's, and continues when this process ends; without it this
        process passes the messages between the two. Disks are not copied. After a lost connection the outcome is
        unknown; after any other failure the domain goes on here.
        """
        constants = self._libvirt
        flags = constants.VIR_MIGRATE_LIVE | constants.VIR_MIGRATE_PAUSED | constants.VIR_MIGRATE_PERSIST_DEST
        parameters = {
            constants.VIR_MIGRATE_PARAM_DEST_XML: dest_xml,
            constants.VIR_MIGRATE_PARAM_PERSIST_XML: stored_xml,
            **({constants.VIR_MIGRATE_PARAM_URI: migrate_uri} if migrate_uri else {}),
        }
        with self._failures():
            domain = self._domain(name)
            if peer_uri:
                domain.migrateToURI3(peer_uri, parameters, flags | constants.VIR_MIGRATE_PEER2PEER)
            else:
                domain.migrate3(target._connection, parameters, flags)

    def progress(self, name: str) -> MigrationProgress:
        """Return how the migration of a domain from here is going, or how one that completed went; else zeros."""
        completed = self._libvirt.VIR_DOMAIN_JOB_STATS_COMPLETED | self._libvirt.VIR_DOMAIN_JOB_STATS_KEEP_COMPLETED
        for flags in (0, completed):
            try:
                with self._failures():
                    numbers = self._domain(name).jobStats(flags)
            except LibvirtFailure as failure:
                if failure.code in (OPERATION_INVALID, NOT_SUPPORTED, OPERATION_UNSUPPORTED, NO_DOMAIN):
                    continue
                raise
            is_outgoing = numbers.get("operation", _MIGRATION_OUT) == _MIGRATION_OUT
            if is_outgoing and (flags or numbers["type"] != _NO_JOB):
                return MigrationProgress(
                    is_active=not flags,
                    transferred_bytes=int(numbers.get("data_processed", 0)),
                    remaining_bytes=int(numbers.get("data_remaining", 0)),
                    downtime_ms=int(numbers["downtime"]) if "downtime" in numbers else None,
                )
        return MigrationProgress(is_active=False)

    def abort_job(self, name: str) -> None:
        """Abort the active job of a domain, such as its migration; nothing without one."""
        try:
            with self._failures():
                self._domain(name).abortJob()
        except LibvirtFailure as failure:
            if failure.code not in (OPERATION_INVALID, NOT_SUPPORTED, NO_DOMAIN):
                raise

    def capacity(self) -> FreeCapacity:
        """Return free memory, CPU model, and what VMs with a readable definition need."""
        with self._failures():
            capabilities = self._connection.getCapabilities()
        vms = self._vm_needs(host_cpu_identity(capabilities))
        return FreeCapacity(memory_mib=self.free_memory_mib(), cpu_model=host_cpu_model(capabilities), vms=vms)

    def free_memory_mib(self) -> int:
        """Return the memory in MiB that the host could give to more VMs, its page cache included."""
        try:
            with self._failures():
                kib = self._connection.getMemoryStats(-1)
            return int(sum(kib.get(name, 0) for name in ("free", "buffers", "cached"))) // 1024
        except LibvirtFailure as failure:
            if failure.code != NOT_SUPPORTED:
                raise
            with self._failures():
                active = self._connection.listAllDomains(self._libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE)
                used_kib = sum(domain.info()[1] for domain in active)
                return max(0, int(self._connection.getInfo()[1]) - int(used_kib) // 1024)

    def _vm_needs(self, host_cpu: str) -> dict[str, VmNeeds]:
        """What each domain needs; a CPU only if it runs: otherwise it moves without its memory."""
        needs = {}
        for domain in self.domains():
            with suppress(LibvirtFailure, Rejected), self._failures():
                # While a domain runs, libvirt shows a model instead of the mode host-model.
                xml = str(self._domain(domain.name).XMLDesc(0)) if domain.is_active else domain.xml
                cpu = cpu_needs(xml, host_cpu) if domain.is_active else ""
                needs[domain.name] = VmNeeds(memory_mib=parse_domain(xml).memory_mib, cpu=cpu)
        return needs

    def can_run_cpu(self, cpu: str) -> bool:
        """Return whether the host can continue a running domain with this CPU (from `cpu_needs`)."""
        needs = parse_cpu_needs(cpu)
        try:
            with self._failures():
                if needs.host_cpu:
                    return host_cpu_identity(self._connection.getCapabilities()) == needs.host_cpu
                result = self._connection.compareHypervisorCPU(
                    None, needs.arch or None, needs.machine or None, needs.virt_type or None, needs.cpu_xml, 0
                )
        except LibvirtFailure as failure:
            if failure.is_connection_lost:
                raise
            return True
        return bool(result != self._libvirt.VIR_CPU_COMPARE_INCOMPATIBLE)

    def _domain(self, name: str) -> Any:
        with self._failures():
            return self._connection.lookupByName(name)

    def _domain_or_none(self, name: str) -> Any | None:
        try:
            return self._domain(name)
        except LibvirtFailure as failure:
            if failure.code == NO_DOMAIN:
                return None
            raise

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except self._libvirt.libvirtError as error:
            raise self._failure(error) from error

    def _failure(self, error: Any) -> LibvirtFailure:
        code = error.get_error_code() or 0
        return LibvirtFailure(_message(error), code, is_connection_lost=not self._is_alive())

    def _is_alive(self) -> bool:
        try:
            return bool(self._connection.isAlive())
        except self._libvirt.libvirtError:
            return False


def open_session(uri: str) -> LibvirtSession:
    """Open a session, which the caller closes; blocks."""
    libvirt = load_libvirt()
    try:
        connection = libvirt.open(uri)
    except libvirt.libvirtError as error:
        code = error.get_error_code() or 0
        raise LibvirtFailure(_message(error), code, is_connection_lost=True) from error
    try:
        connection.setKeepAlive(_KEEPALIVE_INTERVAL_S, _KEEPALIVE_COUNT)
    except libvirt.libvirtError:
        pass  # a driver inside this process needs none
    return LibvirtSession(libvirt, connection)


def _message(error: Any) -> str:
    return " ".join(str(error.get_error_message() or error).split())
