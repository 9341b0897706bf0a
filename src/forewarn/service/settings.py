"""Settings of a service: flags over environment (`FOREWARN_…`) over the TOML file over defaults.

`load_settings` merges, checks and returns them. A `Rejected` names the setting and what to write instead.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Collection, Mapping
from enum import StrEnum
from ipaddress import ip_address
from pathlib import Path
from types import UnionType
from typing import Any
from urllib.parse import urlsplit

import msgspec

from forewarn.base.http_client import HttpClient, LocalTargets
from forewarn.base.tomlfile import parse_toml, read_text_file, suggest_name
from forewarn.cluster.bus import DEFAULT_PREFIX
from forewarn.cluster.nats_bus import NatsSettings, check_nats
from forewarn.core.decision import EnablementMode, Policy
from forewarn.errors import Rejected
from forewarn.machines.acts import MachinePolicy
from forewarn.machines.command import CommandSpec, check_commands
from forewarn.machines.libvirt.connection import LibvirtSettings, check_libvirt
from forewarn.machines.qemu.definition import QemuSettings, check_qemu
from forewarn.metadata import ListenerSpec
from forewarn.metadata.limits import Limits, ServingSettings
from forewarn.metadata.listener_config import is_ip_address, parse_listen_address, parse_listeners
from forewarn.protocol.exchange import EndpointRules
from forewarn.protocol.versions import ALL_VERSIONS, VERSIONS, UnknownVersionPolicy, check_location_versions

ENVIRONMENT_PREFIX = "FOREWARN_"  # of environment variables that are settings
_LIST_SETTINGS = ("listen", "api_names", "oidc_audience")
FILE_ONLY_SETTINGS = ("versions", "simulate", "listeners", "commands", "machines", "qemu", "libvirt")  # tables

_MAX_WORKERS = 64
_NODE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?", re.ASCII)


class SocketOwner(StrEnum):
    """Which process opens the sockets that VMs call."""

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

    The environment variable of a setting is FOREWARN_ and its name in capitals; `lab` and tables have none. The comment
    above a setting is its text in docs/reference/settings.md; one behind it says there what the default is, in words.
    """

    # the data directory: database, sockets, ledger, certificates
    data: str = ""  # `$XDG_STATE_HOME/forewarn`, else `~/.local/state/forewarn`
    # a lab: movable clock, a sample fleet if there is no `fleet`, and some other defaults
    lab: bool = False
    # `postgresql://USER@HOST,HOST/DATABASE`: the record that the control nodes of a [cluster](../how-to/cluster.md)
    # share; the password may be in a password file of PostgreSQL
    store: str = ""  # none: a database in `data`, for one service
    # the name of this control node, unique in its cluster
    name: str = ""
    # URL at which the other control nodes reach the API of this one, `https://HOST:PORT`
    advertise: str = ""  # `https://`, the name of the machine, and the port of `api`
    # directory with the secrets of the cluster, which `forewarn cluster init` made; the same on all control nodes
    secrets: str = ""  # `secrets` in `data`
    # a [fleet file](fleet-file.md), applied once, to an empty store
    fleet: str = ""  # the sample fleet in a lab
    # addresses that VMs call, `ADDRESS:PORT`, separated by commas; a VM is identified by its source address
    listen: tuple[str, ...] = ()  # none; a lab always listens on loopback
    # sockets that VMs call on real hosts, identified by device, namespace, mark or source; see [below](#listeners)
    listeners: tuple[dict[str, Any], ...] = ()
    # the process that opens the sockets of `listen` and `listeners`: the service, or with `helper` the program
    # `forewarn sockets`
    sockets: SocketOwner = SocketOwner.OWN
    # [worker processes](../contributing/workers.md) that answer VMs; with 0 the service answers them itself
    workers: int = 0
    # the port of the loopback addresses of a lab
    port: int = 8254
    # for machines with only one loopback address: each VM of a lab gets its own port
    one_port_per_vm: bool = False
    # when scheduled events are enabled for a scope: once one of its VMs polls, or always
    enablement: EnablementMode = EnablementMode.ON_REQUEST
    # how long events that became due while the service was away wait after its start
    start_grace_s: float = 60
    # how long an event stays listed after its last act
    event_settle_s: float = 0
    # how many user operations may be scheduled at once in a scope
    max_user_operations: int = 100
    # how long answers to a scope are delayed after it is enabled; up to 120
    first_answer_delay_s: float = 0
    # limit of requests per second and VM; more get 429. Azure allows 5. Each worker counts separately
    requests_per_s: int = 0  # `0` (no limit)
    # what ended or was removed longer ago is deleted ([space](data-directory.md#space)); 0 keeps everything
    history_days: float = 90
    # an unknown api-version: `refuse` (400), `lenient` (served as the newest one not newer), `not-found` (404)
    unknown_version: UnknownVersionPolicy = UnknownVersionPolicy.REFUSE
    # NotBefore in ISO form for api-versions up to 2017-08-01
    iso_dates: bool = False
    # serve api-version 2024-07-09 too, and let Spot VMs get [rebalance
    # recommendations](contract/newer.md#144-spot-rebalance-recommendation)
    preview_versions: bool = False
    # `Server` and `x-ms-request-id` in every response to VMs, as Azure's metadata service sends them
    imds_headers: bool = False
    # require the `Metadata` header for api-version 2017-03-01 on loopback too
    require_header: bool = False
    # a table: location → the api-versions served there
    versions: dict[str, tuple[str, ...]] = {}  # all seven
    # plain HTTP port for the [metrics](metrics.md) of the service, `ADDRESS:PORT`, such as `127.0.0.1:9464`; workers
    # use the ports after it. Must not be an address that VMs can call
    metrics: str = ""  # none: only at the API
    # HTTPS port of the API and the [portal](../how-to/portal.md), `ADDRESS:PORT`; port 0 means any free port; empty:
    # only the local socket
    api: str = "127.0.0.1:8443"
    # URL at which clients reach the API, `https://HOST:PORT`; it is the issuer of tokens, and the same on all control
    # nodes of a cluster
    api_url: str = ""  # the address of `api`
    # PEM file of your own certificate, with its chain
    api_certificate: str = ""  # a certificate of a local CA, created at the first start
    # file of its key
    api_key: str = ""  # the same
    # more host names and addresses for the local CA's certificate, separated by commas
    api_names: tuple[str, ...] = ()
    # lifetime of access tokens, 1 to 1440
    token_minutes: float = 60
    # issue [tokens](contract/requests.md#28-managed-identity-tokens) on loopback too, where every program of this
    # machine can pose as any VM
    identity_on_loopback: bool = False
    # URL of an OpenID Connect issuer, where clients sign in instead
    oidc_issuer: str = ""
    # the audiences that its tokens must have, separated by commas
    oidc_audience: tuple[str, ...] = ()
    # URL of the issuer's keys
    oidc_jwks: str = ""  # the one in the issuer's openid-configuration
    # the client id of the [portal](../how-to/portal.md) at that issuer, for people to sign in there
    oidc_client_id: str = ""
    # file of that client's secret
    oidc_client_secret_file: str = ""  # none: a public client
    # which local addresses webhooks, health checks and the external issuer may have: `none`, `loopback` (this machine),
    # or `link-local` (this machine and link-local addresses, such as 169.254.169.254). Other machines are always
    # allowed
    local_targets: LocalTargets = LocalTargets.NONE
    # whether [health checks](../how-to/rollout-health.md) of rollouts may run commands, as the user of the service
    allow_command_checks: bool = False
    # reject calls of Azure's API without an api-version, or with an unknown one
    strict_api_versions: bool = False
    # the hypervisor that performs acts on VMs: `simulated` (touches no real VM), `process`, `command`, `qemu` or
    # `libvirt`; see [hypervisors](hypervisors.md). With `bus`, it is a setting of the host nodes
    hypervisor: HypervisorKind | None = None  # none: `forewarn serve` needs one; `process` in a lab
    # a list of rules that make the simulated hypervisor misbehave
    simulate: tuple[dict[str, Any], ...] = ()
    # for the `command` hypervisor, a table: verb → `run`, `timeout_s`, `check`
    commands: dict[str, CommandSpec] = {}
    # for real VMs (`qemu`, `libvirt`), a table: how long acts wait for guests, hosts and migrations, and how often
    # hosts are observed and asked what they have free
    machines: MachinePolicy = MachinePolicy()  # see [Maintain QEMU VMs](../how-to/qemu.md)
    # for the `qemu` hypervisor, a table: `hosts.NAME` → `directory`, `prefix`, `fence` and others; `lock_directories`
    qemu: QemuSettings = QemuSettings()  # none
    # for the `libvirt` hypervisor, a table: `hosts.NAME` → `uri`, `peer_uri`, `fence` and others
    libvirt: LibvirtSettings = LibvirtSettings()  # none
    # URLs of NATS servers, separated by commas: [host nodes](../how-to/host-nodes.md) on this bus answer VMs and
    # perform acts, in place of this machine
    bus: str = ""  # none: this machine answers VMs and performs acts
    # the first part of all subjects, if several services share the NATS servers
    bus_prefix: str = DEFAULT_PREFIX
    # file with `USER:PASSWORD` for NATS in its first line, or a credentials file of NATS
    bus_credentials: str = ""
    # PEM file of the CA of the NATS servers
    bus_ca: str = ""  # those of the system
    # PEM file of a client certificate for the NATS servers
    bus_certificate: str = ""
    # file of its key
    bus_key: str = ""
    # for a host node: the name of its host in the fleet
    host: str = ""
    # for a host node: after this time without the service, polls get 503
    stale_minutes: float = 10

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
    def serving(self) -> ServingSettings:
        """The part of the settings that every process that answers VMs uses."""
        rules = EndpointRules(
            versions=self.served_versions,
            header_always=self.require_header,
            unknown_version=self.unknown_version,
            iso_dates=self.iso_dates,
            imds_headers=self.imds_headers,
            gives_tokens=self.identity_on_loopback,
        )
        return ServingSettings(
            rules=rules,
            rules_by_location={
                name: dataclasses.replace(rules, versions=versions) for name, versions in self.versions.items()
            },
            first_answer_delay_s=self.first_answer_delay_s,
            limits=Limits(requests_per_s=self.requests_per_s or None),
        )

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
    table = parse_toml(read_text_file(path, "settings file", "name another with --config"), str(path))
    for name in table.raw:
        if name == "lab":
            table.add_problem(name, "a settings file has no 'lab'", "remove it; the command `forewarn up` starts a lab")
        elif name not in Settings.__struct_fields__:
            remedy = suggest_name(name, Settings.__struct_fields__, "`docs/reference/settings.md` lists them")
            table.add_problem(name, f"setting {name!r} does not exist", remedy)
    table.raise_problems(str(path))
    return dict(table.raw)


def _read_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """The settings of environment variables; lists are separated by commas. Tables can only be in the file."""
    found: dict[str, Any] = {}
    for name in Settings.__struct_fields__:
        text = environ.get(ENVIRONMENT_PREFIX + name.upper())
        if text is None or name in (*FILE_ONLY_SETTINGS, "lab"):
            continue
        found[name] = [part.strip() for part in text.split(",") if part.strip()] if name in _LIST_SETTINGS else text
    return found


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
