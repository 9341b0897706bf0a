"""Writes the tables of docs/reference/settings.md from the settings themselves (`make docs`).

Names and defaults are those of `Settings`; a setting without a meaning here is a KeyError.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum

import msgspec

from forewarn.service.settings import FILE_ONLY_SETTINGS, Settings, load_settings

_MEANINGS = {
    "data": "the data directory: database, sockets, ledger, certificates",
    "fleet": "a [fleet file](fleet-file.md), applied once, to an empty store",
    "listen": "addresses that VMs call, `ADDRESS:PORT`, separated by commas; a VM is identified by its source address",
    "listeners": (
        "sockets that VMs call on real hosts, identified by device, namespace, mark or source; see [below](#listeners)"
    ),
    "sockets": (
        "the process that opens the sockets of `listen` and `listeners`: the service, or with `helper` the "
        "program `forewarn sockets`"
    ),
    "workers": "[worker processes](../contributing/workers.md) that answer VMs; with 0 the service answers them itself",
    "port": "the port of the loopback addresses of a lab",
    "one_port_per_vm": "for machines with only one loopback address: each VM of a lab gets its own port",
    "enablement": "when scheduled events are enabled for a scope: once one of its VMs polls, or always",
    "start_grace_s": "how long events that became due while the service was away wait after its start",
    "event_settle_s": "how long an event stays listed after its last act",
    "max_user_operations": "how many user operations may be scheduled at once in a scope",
    "first_answer_delay_s": "how long answers to a scope are delayed after it is enabled; up to 120",
    "requests_per_s": (
        "limit of requests per second and VM; more get 429. Azure allows 5. Each worker counts separately"
    ),
    "history_days": (
        "what ended or was removed longer ago is deleted ([space](data-directory.md#space)); 0 keeps everything"
    ),
    "unknown_version": (
        "an unknown api-version: `refuse` (400), `lenient` (served as the newest one not newer), `not-found` (404)"
    ),
    "iso_dates": "NotBefore in ISO form for api-versions up to 2017-08-01",
    "preview_versions": (
        "serve api-version 2024-07-09 too, and let Spot VMs get "
        "[rebalance recommendations](contract/newer.md#144-spot-rebalance-recommendation)"
    ),
    "imds_headers": "`Server` and `x-ms-request-id` in every response to VMs, as Azure's metadata service sends them",
    "require_header": "require the `Metadata` header for api-version 2017-03-01 on loopback too",
    "versions": "a table: location → the api-versions served there",
    "metrics": (
        "plain HTTP port for the [metrics](metrics.md) of the service, `ADDRESS:PORT`, such as `127.0.0.1:9464`; "
        "workers use the ports after it. Must not be an address that VMs can call"
    ),
    "api": (
        "HTTPS port of the API and the [portal](../how-to/portal.md), `ADDRESS:PORT`; port 0 means any free port; "
        "empty: only the local socket"
    ),
    "store": (
        "`postgresql://USER@HOST,HOST/DATABASE`: the record that the control nodes of a "
        "[cluster](../how-to/cluster.md) share; the password may be in a password file of PostgreSQL"
    ),
    "name": "the name of this control node, unique in its cluster",
    "advertise": "URL at which the other control nodes reach the API of this one, `https://HOST:PORT`",
    "secrets": (
        "directory with the secrets of the cluster, which `forewarn cluster init` made; the same on all control nodes"
    ),
    "api_url": (
        "URL at which clients reach the API, `https://HOST:PORT`; it is the issuer of tokens, and the same on all "
        "control nodes of a cluster"
    ),
    "api_certificate": "PEM file of your own certificate, with its chain",
    "api_key": "file of its key",
    "api_names": "more host names and addresses for the local CA's certificate, separated by commas",
    "token_minutes": "lifetime of access tokens, 1 to 1440",
    "identity_on_loopback": (
        "issue [tokens](contract/requests.md#28-managed-identity-tokens) on loopback too, where every program of "
        "this machine can pose as any VM"
    ),
    "oidc_issuer": "URL of an OpenID Connect issuer, where clients sign in instead",
    "oidc_audience": "the audiences that its tokens must have, separated by commas",
    "oidc_jwks": "URL of the issuer's keys",
    "oidc_client_id": "the client id of the [portal](../how-to/portal.md) at that issuer, for people to sign in there",
    "oidc_client_secret_file": "file of that client's secret",
    "local_targets": (
        "which local addresses webhooks, health checks and the external issuer may have: `none`, `loopback` (this "
        "machine), or `link-local` (this machine and link-local addresses, such as 169.254.169.254). Other machines "
        "are always allowed"
    ),
    "allow_command_checks": (
        "whether [health checks](../how-to/rollout-health.md) of rollouts may run commands, as the user of the service"
    ),
    "strict_api_versions": "reject calls of Azure's API without an api-version, or with an unknown one",
    "hypervisor": (
        "the hypervisor that performs acts on VMs: `simulated` (touches no real VM), `process`, `command`, `qemu` or "
        "`libvirt`; see [hypervisors](hypervisors.md). With `bus`, it is a setting of the host nodes"
    ),
    "commands": "for the `command` hypervisor, a table: verb → `run`, `timeout_s`, `check`",
    "machines": "for real VMs (`qemu`, `libvirt`), a table: how long acts wait for guests, hosts and migrations, "
    "and how often hosts are observed and asked what they have free",
    "qemu": (
        "for the `qemu` hypervisor, a table: `hosts.NAME` → `directory`, `prefix`, `fence` and others; "
        "`lock_directories`"
    ),
    "libvirt": "for the `libvirt` hypervisor, a table: `hosts.NAME` → `uri`, `peer_uri`, `fence` and others",
    "simulate": "a list of rules that make the simulated hypervisor misbehave",
    "bus": (
        "URLs of NATS servers, separated by commas: [host nodes](../how-to/host-nodes.md) on this bus answer VMs and "
        "perform acts, in place of this machine"
    ),
    "bus_prefix": "the first part of all subjects, if several services share the NATS servers",
    "bus_credentials": "file with `USER:PASSWORD` for NATS in its first line, or a credentials file of NATS",
    "bus_ca": "PEM file of the CA of the NATS servers",
    "bus_certificate": "PEM file of a client certificate for the NATS servers",
    "bus_key": "file of its key",
    "host": "for a host node: the name of its host in the fleet",
    "stale_minutes": "for a host node: after this time without the service, polls get 503",
}
# Defaults that words describe better than values.
_DEFAULTS = {
    "data": "`$XDG_STATE_HOME/forewarn`, else `~/.local/state/forewarn`",
    "fleet": "the sample fleet in a lab",
    "listen": "none; a lab always listens on loopback",
    "requests_per_s": "`0` (no limit)",
    "versions": "all seven",
    "hypervisor": "none: `forewarn serve` needs one; `process` in a lab",
    "metrics": "none: only at the API",
    "api_certificate": "a certificate of a local CA, created at the first start",
    "api_key": "the same",
    "oidc_jwks": "the one in the issuer's openid-configuration",
    "oidc_client_secret_file": "none: a public client",
    "machines": "see [Maintain QEMU VMs](../how-to/qemu.md)",
    "qemu": "none",
    "libvirt": "none",
    "bus": "none: this machine answers VMs and performs acts",
    "bus_ca": "those of the system",
    "store": "none: a database in `data`, for one service",
    "advertise": "`https://`, the name of the machine, and the port of `api`",
    "api_url": "the address of `api`",
    "secrets": "`secrets` in `data`",
}

# The settings of clusters, which have a table of their own.
_CLUSTER = (
    *("store", "name", "advertise", "api_url", "secrets", "bus", "bus_prefix", "bus_credentials", "bus_ca"),
    *("bus_certificate", "bus_key", "host", "stale_minutes"),
)

_TABLE = re.compile(r"(<!-- settings: begin (\w+) .*? -->\n).*?(<!-- settings: end -->)", re.DOTALL)


def with_settings(page: str) -> str:
    """The text of docs/reference/settings.md with new tables of settings between its comments."""
    own = [name for name in Settings.__struct_fields__ if name not in ("lab", *_CLUSTER)]
    tables = {"service": own, "cluster": _CLUSTER}
    return _TABLE.sub(lambda match: match[1] + _table(tables[match[2]]) + match[3], page)


def _table(names: Sequence[str]) -> str:
    return "\n".join(["| setting | default | meaning |", "|---|---|---|", *map(_row, names)]) + "\n"


def _row(name: str) -> str:
    only = "in the file only: " if name in FILE_ONLY_SETTINGS else ""
    return f"| `{name}` | {_DEFAULTS.get(name) or _default(name)} | {only}{_MEANINGS[name]} |"


def _default(name: str) -> str:
    """The default as a person would write it, and that of a lab if it differs."""
    (field,) = (field for field in msgspec.structs.fields(Settings) if field.name == name)
    usual = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    in_lab = getattr(load_settings({}, lab=True, environ={}), name)
    text = _value_text(usual)
    return text if in_lab == usual else f"{text}; {_value_text(in_lab)} in a lab"


def _value_text(value: object) -> str:
    if value in ("", (), {}):
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value.value if isinstance(value, StrEnum) else value}`"
