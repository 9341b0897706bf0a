"""Generates docs/reference/fleet-file.md from the structs of the format (`make docs`).

Keys, the form of their values, examples and defaults are those of `forewarn.core.fleetfile.tables`; a key without a
meaning here is a KeyError.
"""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from forewarn.core.fleetfile import tables

_MEANINGS = {
    "address": (
        "the address by which the service identifies the VM; of the first VM, counted up from there, or with `{n}`"
    ),
    "approve_all_down": (
        "`false`: what would stop the last running VM of its scope is never approved automatically; as `auto_approve`"
    ),
    "auto_approve": "user operations that need no approval; VMs of a set have that of the set",
    "availability_set": "declared in the same file; a VM has at most one set",
    "cloud_service": "declared in the same file",
    "computer_name": "the hostname in the guest",
    "computer_name_prefix": "before six digits of base 36: `worker00000A` is the hostname of `workers_10`",
    "count": "how many the table declares",
    "directory": "the working directory of the program",
    "environment": "variables of the program; a VM adds its own to those of its scale set",
    "eviction_policy": "what happens to an evicted VM; only with Spot",
    "fault_domain": "below `fault_domains` of its set",
    "fault_domains": "how many fault domains it has",
    "first": "the first number",
    "host": "the first host of the VM",
    "id": "the id of the subscription",
    "location": "a VM runs only on a host of its own location and zone",
    "name": "unique among its kind, ignoring case; `{n}` stands for the number",
    "narrow_delivery": "`true`: a VM sees only the events that affect it; only with `fault_domains = 1`",
    "orchestration": "`Flexible`: its VMs are VM resources of their own, called `NAME_1a2b3c4d`, in one scope",
    "os_type": "the operating system",
    "placement_group": (
        "the VMs of one share a document, 100 at most; `auto` makes groups of a hundred, `pg-0`, `pg-1`; not with "
        "flexible orchestration"
    ),
    "priority": "a Spot VM may be evicted",
    "program": "the program of a [namespace VM](hypervisors.md), and its arguments",
    "resource_group": "the name of a resource group; it need not be declared",
    "roles": "its roles, or `[[cloud_services.roles]]`",
    "scale_set": "declared in the same file",
    "size": "any text",
    "subscription": "the name of a declared subscription, or an id",
    "tags": "sets and VMs add their own to those of `[defaults]`; those of the VM win",
    "terminate_notification": "minutes of notice before the VM is deleted; never with Spot",
    "update_domain": "below `update_domains` of its set",
    "update_domains": "how many update domains it has",
    "zone": "not together with an availability set, nor with `zones`",
    "zones": "several, taken in turn",
}
# Defaults that words describe better than values.
_DEFAULTS = {
    "address": "a lab assigns one; otherwise none",
    "computer_name": "the name",
    "computer_name_prefix": "the name",
    "directory": "that of the service",
    "fault_domain": "in turn",
    "host": "the host with the fewest VMs; update domains are kept apart",
    "update_domain": "in turn",
    "availability_set": "a standalone VM",
    "cloud_service": "a standalone VM",
    "scale_set": "a standalone VM",
}
_SHARED = ("subscription", "resource_group", "location", "size", "os_type", "tags")  # keys of [defaults]
_WITHOUT_EXAMPLE = ("availability_set", "scale_set", "cloud_service", "placement_group", "computer_name_prefix")
_NOTES = {
    "defaults": "What tables without the key have.",
    "subscriptions": "Optional: a name for the id of a subscription.",
    "resource_groups": "Optional. VMs of a group are in its location, unless they or their set have one of their own.",
    "hosts": "",
    "vms": "A VM without a set is a scope of its own.",
    "availability_sets": "`[[vms]]` declares its VMs, which inherit its keys.",
    "scale_sets": (
        "Instances are `NAME_0`, `NAME_1` and so on; with flexible orchestration `NAME_` and eight hexadecimal digits, "
        "always the same. They inherit its keys."
    ),
    "cloud_services": "Its instances inherit its keys. `roles` may be tables `[[cloud_services.roles]]`.",
    "cloud_services.roles": "Instances are `NAME_IN_0`, `NAME_IN_1` and so on.",
}

_PAGE = """\
# The fleet file

<!-- from src/forewarn/core/fleetfile/tables.py, by `make docs` -->

[Describe and change a fleet](../how-to/fleet.md) is the guide, with a full example and patterns such as `web-{{n}}`.

## Tables

| table | keys |
|---|---|
{tables}

{notes}

*inherited* keys: {shared}.
Without them, the value of the set, of the resource group (`location`), or of `[defaults]` counts. VMs of a set
also inherit its `zone`, `placement_group`, `priority`, `eviction_policy`, `terminate_notification`, `program` and
`directory`.

## Keys

| key | value | default | meaning |
|---|---|---|---|
{keys}
"""


def fleet_file_markdown() -> str:
    """The page docs/reference/fleet-file.md: the tables, and every key once."""
    structs: dict[str, type[msgspec.Struct]] = {"defaults": tables.DefaultsTable}
    for name in ("vms", "hosts", "availability_sets", "scale_sets", "cloud_services"):
        structs[name] = tables.TABLES[name]
    structs["cloud_services.roles"] = tables.RoleTable
    structs |= {name: struct for name, struct in tables.TABLES.items() if name not in structs}
    fields: dict[str, dict[str, msgspec.structs.FieldInfo]] = {}
    for name, struct in structs.items():
        for field in msgspec.structs.fields(struct):
            fields.setdefault(field.name, {})[name] = field
    return _PAGE.format(
        tables="\n".join(f"| {_title(name)} | {_keys(name, struct)} |" for name, struct in structs.items()),
        notes="\n".join(f"- {_title(name)}: {note}" for name, note in _NOTES.items() if note),
        shared=", ".join(f"`{key}`" for key in _SHARED),
        keys="\n".join(_row(found) for found in fields.values()),
    )


def _title(name: str) -> str:
    return f"`[{name}]`" if name == "defaults" else f"`[[{name}]]`"


def _keys(name: str, struct: type[msgspec.Struct]) -> str:
    names = [field.name for field in msgspec.structs.fields(struct)]
    inherited = [key for key in names if key in _SHARED]
    own = [f"`{key}`" for key in names if name == "defaults" or key not in _SHARED]
    if name == "defaults" or not inherited:
        return ", ".join(own)
    few = len(inherited) < len(_SHARED)
    return ", ".join([*own, f"*inherited* ({', '.join(f'`{key}`' for key in inherited)})" if few else "*inherited*"])


def _row(fields: dict[str, msgspec.structs.FieldInfo]) -> str:
    """The row of a key: what it is in all tables, and its defaults, also where they differ."""
    field = next(iter(fields.values()))
    meta = get_args(field.type)[-1]  # those before it are limits
    (example,) = meta.examples or [""]
    value = str(meta.description).partition(", not ")[0].removeprefix("a ").replace("text in quotes", "text")
    if value.startswith(("text", "list", "table", "an absolute")) and field.name not in _WITHOUT_EXAMPLE:
        value += f", such as `{example}`"
    defaults: dict[str, list[str]] = {}
    for table, each in fields.items():
        if (table != "defaults" and "defaults" in fields) or (table == "vms" and field.name == "placement_group"):
            continue  # inherited
        defaults.setdefault(_default(each), []).append(table)
    texts = [
        text if len(defaults) == 1 else f"{text} ({', '.join(table.replace('_', ' ') for table in found)})"
        for text, found in defaults.items()
    ]
    return f"| `{field.name}` | {value} | {'; '.join(texts)} | {_MEANINGS[field.name]} |"


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    value: Any = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    if field.name in _DEFAULTS:
        return _DEFAULTS[field.name]
    if isinstance(value, bool) or value in ("", (), {}):
        return "none"
    return f"`{value}`" if isinstance(value, int) else f'`"{value}"`'
