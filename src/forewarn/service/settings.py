"""Settings of a service: flags over environment (`FOREWARN_…`) over the TOML file over defaults.

`load_settings` merges, checks and returns them. A `Rejected` names the setting and what to write instead.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Collection, Mapping
from enum import StrEnum
from ipaddress import ip_address
from pathlib import Path
from types import UnionType
from typing import Any
from urllib.parse import urlsplit

import msgspec

from forewarn.base.http_client import HttpClient, LocalTargets
from forewarn.cluster.bus import DEFAULT_PREFIX
from forewarn.cluster.nats_bus import NatsSettings, check_nats
from forewarn.core.decision import EnablementMode, Policy
from forewarn.errors import Rejected
from forewarn.machines.acts import MachinePolicy
from forewarn.machines.command import CommandSpec, check_commands
from forewarn.machines.libvirt.connection import LibvirtSettings, check_libvirt
from forewarn.machines.qemu.definition import QemuSettings, check_qemu
from forewarn.metadata import ListenerSpec
from forewarn.metadata.listener_config import is_ip_address, parse_listen_address, parse_listeners
from forewarn.protocol.versions import ALL_VERSIONS, VERSIONS, UnknownVersionPolicy, check_location_versions

ENVIRONMENT_PREFIX = "FOREWARN_"  # of environment variables that are settings
_LIST_SETTINGS = ("listen", "api_names", "oidc_audience")
FILE_ONLY_SETTINGS = ("versions", "simulate", "listeners", "commands", "machines", "qemu", "libvirt")  # tables

_MAX_WORKERS = 64
_NODE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?", re.ASCII)


class SocketOwner(StrEnum):
    """Which process opens the sockets that VMs call: the service (OWN), or `forewarn sockets` (HELPER)."""

    OWN = "own"  # the service itself
    HELPER = "helper"  # `forewarn sockets`, so that the service needs no privilege


class HypervisorKind(StrEnum):
    """Which hypervisor performs acts on VMs."""

    SIMULATED = "simulated"
    PROCESS = "process"  # namespace VMs by their supervisors; simulated for all other VMs
    COMMAND = "command"  # the operator's own commands
    QEMU = "qemu"  # real QEMU VMs
    LIBVIRT = "libvirt"  # the domains of libvirt hosts
    NODES = "nodes"  # the host nodes of a cluster, each with its own hypervisor

    @property
    def description(self) -> str:
        """The VMs that this hypervisor acts on, for people: `simulated processes`."""
        return _HYPERVISOR_DESCRIPTIONS[self]


_HYPERVISOR_DESCRIPTIONS = {
    HypervisorKind.SIMULATED: "no real VMs, only a ledger of acts",
    HypervisorKind.PROCESS: "simulated processes",
    HypervisorKind.COMMAND: "real VMs, through your own commands",
    HypervisorKind.QEMU: "real VMs, through QEMU's monitors",
    HypervisorKind.LIBVIRT: "real VMs, through libvirt",
    HypervisorKind.NODES: "the VMs of each host, through its node",
}
NODE_HYPERVISORS = tuple(kind for kind in HypervisorKind if kind not in ("process", "nodes"))  # of host nodes


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of a service; `load_settings` merges them from all sources and checks them.

    The environment variable of a setting is FOREWARN_ and its name in capitals; `lab` and tables have none.
    """

    data: str = ""  # the data directory: database, sockets, ledger, certificates
    lab: bool = False  # a lab: movable clock, a sample fleet if there is no `fleet`, and some other defaults
    store: str = ""  # `postgresql://…`: the record that the control nodes of a cluster share; "": only in `data`
    name: str = ""  # the name of this control node, unique in its cluster
    advertise: str = ""  # URL at which the other control nodes reach this one's API; "": follows from `api`
    secrets: str = ""  # directory that `forewarn cluster init` made, the same on all control nodes; "": in `data`
    fleet: str = ""  # a fleet file, applied once, to an empty store
    listen: tuple[str, ...] = ()  # addresses that VMs call, `ADDRESS:PORT`; a lab also listens on loopback
    listeners: tuple[dict[str, Any], ...] = ()  # listeners that identify VMs by device, namespace, mark or source
    sockets: SocketOwner = SocketOwner.OWN  # which process opens the sockets of `listen` and `listeners`
    workers: int = 0  # processes that answer VMs; 0: the owner process answers them itself
    port: int = 8254  # of the loopback addresses of a lab
    one_port_per_vm: bool = False  # in a lab: a port per VM, for machines with only one loopback address
    enablement: EnablementMode = EnablementMode.ON_REQUEST  # the default in a lab is `always`
    start_grace_s: float = 60  # wait of events whose notice ended while the service or a host node was down
    event_settle_s: float = 0  # an event stays listed this long after its last outcome (spec §6.5)
    max_user_operations: int = 100  # scheduled per scope (spec §8.4)
    first_answer_delay_s: float = 0  # up to 120 (spec §8.1)
    requests_per_s: int = 0  # limit per VM, in each worker; 0: no limit (spec §8.5; Azure allows 5)
    history_days: float = 90  # what ended or was removed longer ago is deleted; 0 keeps everything
    unknown_version: UnknownVersionPolicy = UnknownVersionPolicy.REFUSE  # what polls with an unknown api-version get
    iso_dates: bool = False  # NotBefore in ISO form up to 2017-08-01 (spec §4.2)
    preview_versions: bool = False  # serve api-version 2024-07-09, with Spot rebalance recommendations (spec §14.4)
    imds_headers: bool = False  # Server and x-ms-request-id, as Azure's metadata service sends them
    require_header: bool = False  # require the Metadata header for 2017-03-01 too, also on loopback
    versions: dict[str, tuple[str, ...]] = {}  # location → the api-versions served there
    metrics: str = ""  # plain HTTP port for metrics, `ADDRESS:PORT`, where VMs cannot call; "": only at the API
    api: str = "127.0.0.1:8443"  # HTTPS port for operators, `ADDRESS:PORT`; "": only the unix socket
    api_url: str = ""  # URL at which clients reach the API, the same for all control nodes; "": as bound
    api_certificate: str = ""  # PEM file with the chain; "": a certificate of the local CA
    api_key: str = ""  # PEM file with the key of `api_certificate`
    api_names: tuple[str, ...] = ()  # more host names for the local CA's certificate
    token_minutes: float = 60  # lifetime of access tokens
    identity_on_loopback: bool = False  # issue VM tokens on loopback, where any program can pose as a VM (spec §2.8)
    oidc_issuer: str = ""  # URL of an external issuer, where clients sign in instead
    oidc_audience: tuple[str, ...] = ()  # the audiences that its tokens must have
    oidc_jwks: str = ""  # URL of its keys; "": the one in its openid-configuration
    oidc_client_id: str = ""  # the portal's client id at that issuer; "": no sign-in to the portal there
    oidc_client_secret_file: str = ""  # the portal's secret at that issuer; "": a public client without one
    local_targets: LocalTargets = LocalTargets.NONE  # local addresses of webhooks and issuers; in a lab `loopback`
    allow_command_checks: bool = False  # health checks of rollouts may run commands, as the user of the service
    strict_api_versions: bool = False  # reject calls of Azure's API with an unknown api-version
    hypervisor: HypervisorKind | None = None  # None: not chosen, and only a lab has a default, which is `process`
    simulate: tuple[dict[str, Any], ...] = ()  # rules for how the simulated hypervisor misbehaves: its `from_rules`
    commands: dict[str, CommandSpec] = {}  # verb → its command; "*" for all other verbs
    machines: MachinePolicy = MachinePolicy()  # how long acts on real VMs wait
    qemu: QemuSettings = QemuSettings()  # the hosts of the hypervisor `qemu`
    libvirt: LibvirtSettings = LibvirtSettings()  # the hosts of the hypervisor `libvirt`
    bus: str = ""  # URLs of NATS servers, with which host nodes answer VMs and perform acts; "": this machine does
    bus_prefix: str = DEFAULT_PREFIX  # of all subjects, if several clusters share the NATS servers
    bus_credentials: str = ""  # a file with USER:PASSWORD, or a credentials file of NATS
    bus_ca: str = ""  # a PEM file with the CA of the NATS servers; "": those of the system
    bus_certificate: str = ""  # a PEM file with a client certificate for the NATS servers
    bus_key: str = ""  # a PEM file with the key of `bus_certificate`
    host: str = ""  # for a host node: the name of its host in the fleet
    stale_minutes: float = 10  # for a host node: after this time without the service, polls get 503

    @property
    def nats(self) -> NatsSettings:
        """How to connect to the bus, from the settings `bus` and `bus_…`; its `url` is "" without a bus."""
        certificate = {"certificate": self.bus_certificate, "key": self.bus_key}
        return NatsSettings(url=self.bus, credentials=self.bus_credentials, ca=self.bus_ca, **certificate)

    @property
    def directory(self) -> Path:
        return Path(self.data)

    @property
    def chosen_hypervisor(self) -> HypervisorKind:
        """The hypervisor that performs the acts of this service or host node; NODES for a service with a bus."""
        if self.bus and not self.host:
            return HypervisorKind.NODES
        if self.hypervisor is None:
            kinds = NODE_HYPERVISORS if self.host else [kind for kind in HypervisorKind if kind != HypervisorKind.NODES]
            choices = "; ".join(f"{kind} ({kind.description})" for kind in kinds)
            raise Rejected(
                "setting 'hypervisor' is missing, so nothing would perform the acts on VMs: choose one with "
                f"--hypervisor or in the settings file: {choices}"
            )
        return self.hypervisor

    @property
    def metadata_listeners(self) -> tuple[ListenerSpec, ...]:
        """The listeners on real networks, parsed from `listen` and then `listeners`."""
        return (*(parse_listen_address(text) for text in self.listen), *parse_listeners(self.listeners))

    @property
    def served_versions(self) -> tuple[str, ...]:
        """The api-versions of scheduled events that VMs may use, oldest first; a location may serve fewer."""
        return ALL_VERSIONS if self.preview_versions else VERSIONS

    @property
    def http_client(self) -> HttpClient:
        """A new HTTP client for webhooks and the external issuer; `local_targets` says where it may call."""
        return HttpClient(local_targets=self.local_targets)

    @property
    def policy(self) -> Policy:
        """The part of the settings that decisions about events use, as a new Policy."""
        return Policy(
            enablement=self.enablement,
            max_user_operations=self.max_user_operations,
            settle_s=self.event_settle_s,
            grace_s=self.start_grace_s,
            recommends_rebalancing=self.preview_versions,
        )


def _default_data_directory(environ: Mapping[str, str] = os.environ) -> str:
    state = environ.get("XDG_STATE_HOME") or str(Path(environ.get("HOME", "~")).expanduser() / ".local" / "state")
    return str(Path(state) / "forewarn")


def load_settings(
    flags: Mapping[str, Any],
    *,
    lab: bool,
    config: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    is_node: bool = False,
) -> Settings:
    """Return the settings: flags over environment over the settings file `config` over defaults, checked."""
    defaults = {"data": _default_data_directory(environ), "lab": lab}
    if lab:
        defaults |= {
            "enablement": EnablementMode.ALWAYS.value,  # spec §8.3
            "hypervisor": HypervisorKind.PROCESS.value,
            "local_targets": LocalTargets.LOOPBACK.value,
        }
    from_file = _read_file(config) if config is not None else {}
    flags_given = {name: value for name, value in flags.items() if value is not None}
    merged = {**defaults, **from_file, **_read_environment(environ), **flags_given}
    try:
        settings = msgspec.convert(merged, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise Rejected(_describe_error(error)) from error
    _check_settings(settings)
    _check_listeners(settings, is_node=is_node)
    (_check_node if is_node else _check_bus)(settings)
    return msgspec.structs.replace(settings, data=str(settings.directory.expanduser().absolute()))


def _read_file(path: Path) -> dict[str, Any]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Rejected(
            f"settings file {str(path)!r} cannot be read: {error.strerror}; name another with --config"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Rejected(f"settings file {str(path)!r} is not TOML: {error}") from error
    if "lab" in table:
        raise Rejected(f"settings file {str(path)!r} has 'lab': remove it; the command `forewarn up` starts a lab")
    for name in table:
        if name not in Settings.__struct_fields__:
            raise Rejected(f"settings file {str(path)!r}: setting {name!r} does not exist{_did_you_mean(name)}")
    return table


def _read_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """The settings of environment variables; lists are separated by commas. Tables can only be in the file."""
    found: dict[str, Any] = {}
    for name in Settings.__struct_fields__:
        text = environ.get(ENVIRONMENT_PREFIX + name.upper())
        if text is None or name in (*FILE_ONLY_SETTINGS, "lab"):
            continue
        found[name] = [part.strip() for part in text.split(",") if part.strip()] if name in _LIST_SETTINGS else text
    return found


def _did_you_mean(name: str) -> str:
    close = difflib.get_close_matches(name, Settings.__struct_fields__, n=1)
    return f"; did you mean {close[0]!r}?" if close else ": `docs/reference/settings.md` lists them"


def _describe_error(error: msgspec.ValidationError) -> str:
    text, _, where = str(error).partition(" - at `$.")
    name = where.rstrip("`")
    return f"setting {name!r}: {text[0].lower()}{text[1:]}{_remedy(name)}" if name else f"settings: {text}"


_TYPE_DESCRIPTIONS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text in quotes"}


def _remedy(name: str) -> str:
    types: dict[str, Any] = {field.name: field.type for field in msgspec.structs.fields(Settings)}
    type_ = types.get(name)
    if isinstance(type_, UnionType):
        type_ = type_.__args__[0]  # the other one is None, for a setting without a default
    if isinstance(type_, type) and issubclass(type_, StrEnum):
        return f": give one of {', '.join(type_)}, in the file or as {ENVIRONMENT_PREFIX}{name.upper()}"
    if type_ in _TYPE_DESCRIPTIONS:
        return f": give {_TYPE_DESCRIPTIONS[type_]}, in the file or as {ENVIRONMENT_PREFIX}{name.upper()}"
    return ': give a list, such as ["10.0.0.1:80"]' if name == "listen" else ": see docs/reference/settings.md"


def parse_api_address(text: str) -> tuple[str, int]:
    """Return the IP address and port of the setting `api`; port 0 means any free port."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if is_ip_address(host) and port.isdecimal() and int(port) < 65536:
        return host, int(port)
    raise Rejected(f"setting 'api' is {text!r}: write ADDRESS:PORT in numbers, such as 127.0.0.1:8443, or \"\"")


def parse_metrics_address(text: str) -> tuple[str, int]:
    """Return the IP address and port of the owner's metrics, from the setting `metrics`."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if is_ip_address(host) and port.isdecimal() and 0 < int(port) < 65536:
        return host, int(port)
    raise Rejected(f"setting 'metrics' is {text!r}: write ADDRESS:PORT in numbers, such as 127.0.0.1:9464, or \"\"")


def _check_metrics(settings: Settings) -> None:
    """Metrics show the whole fleet without authentication, so VMs must not be able to call that address."""
    if not settings.metrics:
        return
    host, port = parse_metrics_address(settings.metrics)
    if port + settings.workers > 65535:
        raise Rejected(f"setting 'metrics' is {settings.metrics!r}: {settings.workers} workers need the ports after it")
    address, listener_addresses = ip_address(host), {spec.address for spec in settings.metadata_listeners}
    if (
        address.is_link_local
        or str(address) in listener_addresses
        or (listener_addresses and (address.is_unspecified or address.is_multicast))
    ):
        raise Rejected(
            f"setting 'metrics' is {settings.metrics!r}, an address that VMs can call: give one that they cannot call, "
            "such as 127.0.0.1:9464"
        )


def _check_api(settings: Settings) -> None:
    if settings.api:
        parse_api_address(settings.api)
    if bool(settings.api_certificate) != bool(settings.api_key):
        raise Rejected("settings 'api_certificate' and 'api_key' go together: give both files, or neither")
    if not 1 <= settings.token_minutes <= 1440:
        raise Rejected(f"setting 'token_minutes' is {settings.token_minutes:g}: give 1 to 1440")
    if settings.oidc_issuer and not settings.oidc_audience:
        raise Rejected("setting 'oidc_issuer' needs 'oidc_audience': name the audiences that its tokens must have")
    for name in ("oidc_issuer", "oidc_jwks"):
        _check_target(settings, name)
    if settings.oidc_client_id and not settings.oidc_issuer:
        raise Rejected("setting 'oidc_client_id' needs 'oidc_issuer': name the issuer of this client id")
    if settings.oidc_client_secret_file and not settings.oidc_client_id:
        raise Rejected(
            "setting 'oidc_client_secret_file' needs 'oidc_client_id': name the client id that this secret belongs to"
        )


def _check_cluster(settings: Settings) -> None:
    for name in ("api_url", "advertise"):
        if (url := getattr(settings, name)) and not _is_https_base(url):
            raise Rejected(f"setting {name!r} is {url!r}: write https://HOST or https://HOST:PORT, without a path")
    if not settings.store:
        for name in ("name", "advertise", "secrets"):
            if getattr(settings, name):
                raise Rejected(f"setting {name!r} is for control nodes of a cluster: give 'store' too, or leave it out")
        return
    if settings.lab:
        raise Rejected("a lab is one process: leave 'store' out, or start a control node with `forewarn serve`")
    if not settings.api:
        raise Rejected("setting 'api' is \"\", but the control nodes of a cluster call each other there: give it")
    if not _NODE_NAME.fullmatch(settings.name):
        given = f"is {settings.name!r}" if settings.name else "is missing"
        raise Rejected(
            f"setting 'name' {given}: give each control node a name, such as --name c1, of letters and digits"
        )
    if not settings.api_url:
        raise Rejected(
            "setting 'api_url' is missing: give the URL at which clients reach the cluster, the same on all nodes, "
            "such as --api-url https://forewarn.example:8443"
        )
    if settings.hypervisor is HypervisorKind.PROCESS:
        raise Rejected(
            "setting 'hypervisor' is 'process', which acts on one machine only: choose another for a cluster"
        )


def _is_https_base(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme == "https" and bool(parts.hostname) and url == f"https://{parts.netloc}" and parts.port != 0
    except ValueError:
        return False


def _check_target(settings: Settings, name: str) -> None:
    """Reject a URL that the HTTP client would refuse to call; names are checked when they are called."""
    try:
        settings.http_client.require_allowed(getattr(settings, name))
    except Rejected as error:
        raise Rejected(f"setting {name!r} cannot be used: {error}") from error


def _check_machines(settings: Settings) -> None:
    check_qemu(settings.qemu)
    if settings.hypervisor is HypervisorKind.QEMU and not settings.qemu.hosts:
        raise Rejected("setting 'hypervisor' is 'qemu', but no host is set: add [qemu.hosts.NAME] for each host")
    check_libvirt(settings.libvirt)
    if settings.hypervisor is HypervisorKind.LIBVIRT and not settings.libvirt.hosts:
        raise Rejected("setting 'hypervisor' is 'libvirt', but no host is set: add [libvirt.hosts.NAME] for each host")
    for name in MachinePolicy.__struct_fields__:
        value, can_be_off = getattr(settings.machines, name), name == "observe_interval_s"
        if value < 0 or (value == 0 and not can_be_off):
            more = "0 to switch it off, or more" if can_be_off else "more than 0"
            raise Rejected(f"setting 'machines.{name}' is {value:g}: give {more} seconds")


def _check_settings(settings: Settings) -> None:
    _check_api(settings)
    _check_cluster(settings)
    _check_metrics(settings)
    check_commands(settings.commands)
    _check_machines(settings)
    if settings.hypervisor is HypervisorKind.COMMAND and not settings.commands:
        raise Rejected("setting 'hypervisor' is 'command', but no command is set: add [commands.reboot] and others")
    if not 0 <= settings.first_answer_delay_s <= 120:
        raise Rejected(f"setting 'first_answer_delay_s' is {settings.first_answer_delay_s:g}: give 0 to 120 seconds")
    if not 0 <= settings.workers <= _MAX_WORKERS:
        raise Rejected(f"setting 'workers' is {settings.workers}: give 0 to {_MAX_WORKERS}, at most one per core")
    if not 1 <= settings.port <= 65535:
        raise Rejected(f"setting 'port' is {settings.port}: give a port from 1 to 65535")
    for name in ("start_grace_s", "event_settle_s", "max_user_operations", "requests_per_s", "history_days"):
        if getattr(settings, name) < 0:
            raise Rejected(f"setting {name!r} is {getattr(settings, name):g}: give 0 or more")
    if 0 < settings.history_days < 1:
        raise Rejected(
            f"setting 'history_days' is {settings.history_days:g}: give 1 or more, because finished events "
            "are kept for 24 hours, or 0 to keep everything"
        )
    check_location_versions(settings.versions, settings.served_versions)


def _check_listeners(settings: Settings, *, is_node: bool) -> None:
    if settings.metadata_listeners:
        return
    if is_node:
        raise Rejected("a host node needs an address that VMs call: give --listen ADDRESS:PORT")
    if not settings.lab and not settings.bus:
        raise Rejected(
            "a service needs an address that VMs call: give --listen ADDRESS:PORT, or start a lab with `forewarn up`"
        )


def _check_bus(settings: Settings) -> None:
    if settings.host:
        raise Rejected("setting 'host' is for host nodes: remove it, or run `forewarn node run`")
    if not settings.bus:
        if settings.hypervisor is HypervisorKind.NODES:
            raise Rejected("hypervisor 'nodes' needs a bus to the host nodes: give --bus nats://HOST:PORT")
        return
    if settings.lab:
        raise Rejected("setting 'bus' is not for a lab, which runs on one machine: use `forewarn serve`")
    check_nats(settings.nats)
    if settings.metadata_listeners or settings.workers:
        raise Rejected(
            "with 'bus', host nodes answer the VMs: move 'listen', 'listeners' and 'workers' to their settings"
        )
    if settings.hypervisor not in (None, HypervisorKind.NODES):
        raise Rejected(
            f"with 'bus', host nodes perform the acts: leave out 'hypervisor', and give {settings.hypervisor} to "
            "`forewarn node run`"
        )


def _check_node(settings: Settings) -> None:
    if not settings.bus:
        raise Rejected("a host node needs a bus: give --bus nats://HOST:PORT")
    check_nats(settings.nats)
    if not settings.host:
        raise Rejected("a host node needs its host: give --host with its name in the fleet")
    if settings.chosen_hypervisor not in NODE_HYPERVISORS:
        choices = ", ".join(NODE_HYPERVISORS)
        raise Rejected(f"hypervisor {str(settings.hypervisor)!r} is not for host nodes: choose one of {choices}")
    kind = settings.chosen_hypervisor
    hosts: dict[str, Collection[str]] = {"qemu": settings.qemu.hosts, "libvirt": settings.libvirt.hosts}
    if settings.host not in hosts.get(kind, (settings.host,)):
        raise Rejected(
            f"the settings say nothing about this node's host {settings.host!r}: add [{kind}.hosts.{settings.host}], "
            "spelled as in the fleet"
        )
    if settings.stale_minutes <= 0:
        raise Rejected(f"setting 'stale_minutes' is {settings.stale_minutes:g}: give more than 0 minutes")
