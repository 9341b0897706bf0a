"""Settings of a service: flags over environment (`FOREWARN_…`) over the TOML file over defaults.

`load_settings` merges, checks and returns them. A `Rejected` names the setting and what to write instead.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from enum import StrEnum
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import msgspec

from forewarn.core.decision import EnablementMode, Policy
from forewarn.errors import Rejected
from forewarn.hypervisor.command import CommandSpec, check_commands
from forewarn.metadata import ListenerSpec
from forewarn.metadata.listener_config import is_ip_address, parse_listen_address, parse_listeners
from forewarn.protocol.versions import VERSIONS, UnknownVersionPolicy

ENVIRONMENT_PREFIX = "FOREWARN_"
_LIST_SETTINGS = ("listen", "console_names", "oidc_audience")
_FILE_ONLY_SETTINGS = ("versions", "simulate", "listeners", "commands")  # tables

_MAX_WORKERS = 64


class SocketOwner(StrEnum):
    """Who opens the sockets that VMs call."""

    OWN = "own"
    HELPER = "helper"  # `forewarn sockets`, which has the privilege that the service then needs no more


class HypervisorKind(StrEnum):
    """Who does to VMs what events announce."""

    SIMULATED = "simulated"
    PROCESS = "process"  # VMs made of namespaces, by their keepers; simulated for all others
    COMMAND = "command"  # the operator's own commands


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything a service can be told. A setting's environment variable is its name in capitals, prefixed."""

    data: str = ""  # the data directory: database, socket, ledger
    lab: bool = False  # a lab: sample fleet, a clock that can be moved, every scope enabled
    fleet: str = ""  # a fleet file, applied once, to an empty store
    listen: tuple[str, ...] = ()  # addresses VMs call, `ADDRESS:PORT`; a lab listens on loopback by itself
    listeners: tuple[dict[str, Any], ...] = ()  # by device, namespace, mark or source: who calls there is told by that
    sockets: SocketOwner = SocketOwner.OWN
    workers: int = 0  # processes that answer VMs beside the one that decides; 0: that one does
    port: int = 8254  # of a lab's loopback addresses
    one_port_per_vm: bool = False  # a lab on a machine with one loopback address only
    enablement: EnablementMode = EnablementMode.ON_REQUEST
    grace_s: float = 60
    settle_s: float = 0
    max_user_operations: int = 100
    first_answer_delay_s: float = 0  # up to 120 (spec §8.1)
    requests_per_s: int = 0  # per VM; 0: no limit (spec §8.5; Azure has 5)
    history_days: float = 90  # older entries are pruned; 0 keeps everything
    unknown_version: UnknownVersionPolicy = UnknownVersionPolicy.REFUSE
    iso_dates: bool = False  # NotBefore in ISO form up to 2017-08-01 (spec §4.2)
    require_header: bool = False  # the Metadata header in 2017-03-01 too, on loopback as well
    versions: dict[str, tuple[str, ...]] = {}  # location → the api-versions it serves
    metrics: str = ""  # of each process on plain HTTP, `ADDRESS:PORT`, never where VMs call; "": only at the console
    console: str = "127.0.0.1:8443"  # of the API over HTTPS, `ADDRESS:PORT`; "": only the local socket
    console_certificate: str = ""  # the user's own, with its chain; "": one of a local CA
    console_key: str = ""
    console_names: tuple[str, ...] = ()  # more names for the local CA's certificate
    token_minutes: float = 60  # how long a sign-in lasts
    identity_on_loopback: bool = False  # tokens to VMs' identities where any program can pose as the VM (spec §2.8)
    oidc_issuer: str = ""  # an external issuer's URL: clients sign in there instead
    oidc_audience: tuple[str, ...] = ()  # for whom its tokens must be
    oidc_jwks: str = ""  # where its keys are; "": as its openid-configuration says
    oidc_client_id: str = ""  # by which that issuer knows the portal; "": people cannot sign in to it there
    oidc_client_secret_file: str = ""  # its secret; "": it has none, as a public client
    strict_api_versions: bool = False  # refuse calls of Azure's API with an api-version that is not known
    hypervisor: HypervisorKind = HypervisorKind.SIMULATED  # process in a lab
    simulate: tuple[dict[str, Any], ...] = ()  # how the simulated hypervisor misbehaves
    commands: dict[str, CommandSpec] = {}  # verb → the command that does it; "*" for all others

    @property
    def directory(self) -> Path:
        return Path(self.data)

    @property
    def metadata_listeners(self) -> tuple[ListenerSpec, ...]:
        """Where VMs come in on real networks."""
        return (*(parse_listen_address(text) for text in self.listen), *parse_listeners(self.listeners))

    @property
    def policy(self) -> Policy:
        return Policy(
            enablement=self.enablement,
            max_user_operations=self.max_user_operations,
            settle_s=self.settle_s,
            grace_s=self.grace_s,
        )


def default_data_directory(environ: Mapping[str, str] = os.environ) -> str:
    """Where a user's own service keeps its things."""
    state = environ.get("XDG_STATE_HOME") or str(Path(environ.get("HOME", "~")).expanduser() / ".local" / "state")
    return str(Path(state) / "forewarn")


def load_settings(
    flags: Mapping[str, Any], *, lab: bool, config: Path | None = None, environ: Mapping[str, str] = os.environ
) -> Settings:
    """The settings of a service; `flags` that are None were not given."""
    usual = {"data": default_data_directory(environ), "lab": lab}
    if lab:
        usual |= {"enablement": EnablementMode.ALWAYS.value, "hypervisor": HypervisorKind.PROCESS.value}  # spec §8.3
    from_file = _read_file(config) if config is not None else {}
    given = {name: value for name, value in flags.items() if value is not None}
    merged = {**usual, **from_file, **_read_environment(environ), **given}
    try:
        settings = msgspec.convert(merged, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise Rejected(_describe_error(error)) from error
    _check_settings(settings)
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
    for name in table:
        if name not in Settings.__struct_fields__:
            raise Rejected(f"settings file {str(path)!r}: there is no setting {name!r}{_did_you_mean(name)}")
    return table


def _read_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """Plain settings from variables; lists are separated by commas. Tables belong into the file."""
    found: dict[str, Any] = {}
    for name in Settings.__struct_fields__:
        text = environ.get(ENVIRONMENT_PREFIX + name.upper())
        if text is None or name in (*_FILE_ONLY_SETTINGS, "lab"):
            continue
        found[name] = [part.strip() for part in text.split(",") if part.strip()] if name in _LIST_SETTINGS else text
    return found


def _did_you_mean(name: str) -> str:
    close = difflib.get_close_matches(name, Settings.__struct_fields__, n=1)
    return f"; did you mean {close[0]!r}?" if close else ": `docs/settings.md` lists them"


def _describe_error(error: msgspec.ValidationError) -> str:
    text, _, where = str(error).partition(" - at `$.")
    name = where.rstrip("`")
    return f"setting {name!r}: {text[0].lower()}{text[1:]}{_remedy(name)}" if name else f"settings: {text}"


_TYPE_DESCRIPTIONS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text in quotes"}


def _remedy(name: str) -> str:
    """What to write instead, and where it may have come from."""
    kinds: dict[str, Any] = {field.name: field.type for field in msgspec.structs.fields(Settings)}
    kind = kinds.get(name)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return f": give one of {', '.join(kind)}, in the file or as {ENVIRONMENT_PREFIX}{name.upper()}"
    if kind in _TYPE_DESCRIPTIONS:
        return f": give {_TYPE_DESCRIPTIONS[kind]}, in the file or as {ENVIRONMENT_PREFIX}{name.upper()}"
    return ': give a list, such as ["10.0.0.1:80"]' if name == "listen" else ": see docs/settings.md"


def parse_console_address(text: str) -> tuple[str, int]:
    """The address and port of the console; port 0 is any that is free."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if is_ip_address(host) and port.isdecimal() and int(port) < 65536:
        return host, int(port)
    raise Rejected(f"setting 'console' is {text!r}: write ADDRESS:PORT in numbers, such as 127.0.0.1:8443, or \"\"")


def parse_metrics_address(text: str) -> tuple[str, int]:
    """The address and port where the owner shows its metrics; workers have the ports after it."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if is_ip_address(host) and port.isdecimal() and 0 < int(port) < 65536:
        return host, int(port)
    raise Rejected(f"setting 'metrics' is {text!r}: write ADDRESS:PORT in numbers, such as 127.0.0.1:9464, or \"\"")


def _check_metrics(settings: Settings) -> None:
    """They tell of the whole fleet, and ask nobody who they are: no VM may get at them."""
    if not settings.metrics:
        return
    host, port = parse_metrics_address(settings.metrics)
    if port + settings.workers > 65535:
        raise Rejected(f"setting 'metrics' is {settings.metrics!r}: {settings.workers} workers need the ports after it")
    address, called = ip_address(host), {entrance.address for entrance in settings.metadata_listeners}
    if address.is_link_local or str(address) in called or (called and (address.is_unspecified or address.is_multicast)):
        raise Rejected(
            f"setting 'metrics' is {settings.metrics!r}, which VMs can call: give an address that they cannot, "
            "such as 127.0.0.1:9464"
        )


def _check_console(settings: Settings) -> None:
    if settings.console:
        parse_console_address(settings.console)
    if bool(settings.console_certificate) != bool(settings.console_key):
        raise Rejected("settings 'console_certificate' and 'console_key' go together: give both files, or neither")
    if not 1 <= settings.token_minutes <= 1440:
        raise Rejected(f"setting 'token_minutes' is {settings.token_minutes:g}: give 1 to 1440")
    if settings.oidc_issuer and not settings.oidc_audience:
        raise Rejected("setting 'oidc_issuer' needs 'oidc_audience': name for whom its tokens must be")
    if settings.oidc_client_id and not settings.oidc_issuer:
        raise Rejected("setting 'oidc_client_id' needs 'oidc_issuer': name the issuer that knows the portal by it")
    if settings.oidc_client_secret_file and not settings.oidc_client_id:
        raise Rejected("setting 'oidc_client_secret_file' needs 'oidc_client_id': name the client whose secret it is")


def _check_settings(settings: Settings) -> None:
    _check_console(settings)
    _check_metrics(settings)
    check_commands(settings.commands)
    if settings.hypervisor is HypervisorKind.COMMAND and not settings.commands:
        raise Rejected("setting 'hypervisor' is 'command', but there is no command: add [commands.reboot] and others")
    if not 0 <= settings.first_answer_delay_s <= 120:
        raise Rejected(f"setting 'first_answer_delay_s' is {settings.first_answer_delay_s:g}: give 0 to 120 seconds")
    if not 0 <= settings.workers <= _MAX_WORKERS:
        raise Rejected(
            f"setting 'workers' is {settings.workers}: give 0 to {_MAX_WORKERS}, one for each core to keep busy"
        )
    if not 1 <= settings.port <= 65535:
        raise Rejected(f"setting 'port' is {settings.port}: give a port from 1 to 65535")
    for name in ("grace_s", "settle_s", "max_user_operations", "requests_per_s", "history_days"):
        if getattr(settings, name) < 0:
            raise Rejected(f"setting {name!r} is {getattr(settings, name):g}: give 0 or more")
    if 0 < settings.history_days < 1:
        raise Rejected(
            f"setting 'history_days' is {settings.history_days:g}: give 1 or more, since events that are over "
            "are kept for 24 hours, or 0 to keep everything"
        )
    for location, versions in settings.versions.items():
        for version in versions:
            if version not in VERSIONS:
                raise Rejected(
                    f"setting 'versions' for location {location!r}: {version!r} is no api-version; "
                    f"choose from {', '.join(VERSIONS)}"
                )
        if not versions:
            raise Rejected(f"setting 'versions' for location {location!r} is empty: name at least one api-version")
    if not settings.metadata_listeners and not settings.lab:
        raise Rejected(
            "a service needs an address that VMs call: give --listen ADDRESS:PORT, or use `forewarn up` for a lab"
        )
