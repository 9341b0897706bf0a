"""Generates docs/reference/fleet-file.md from the structs of the format (`make docs`).

Keys, the form of their values, examples and defaults are those of `forewarn.core.fleetfile.tables`; a key without a
meaning here is a KeyError.
"""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from forewarn.core.fleetfile import tables

_INHERITED = "the value of its set, of its resource group (`location`), or of `[defaults]`"
_MEANINGS = {
    "address": (
        "the address by which the service identifies the VM; of the first VM, counted up from there, or with `{n}`"
    ),
    "approve_all_down": (
        "`false`: what would stop the last running VM of its scope is never approved automatically; for a VM in a set, "
        "write it at the set"
    ),
    "auto_approve": "user operations that need no approval; for a VM in a set, write it at the set",
    "availability_set": "its availability set, declared in the same file; at most one of the three kinds of sets",
    "cloud_service": "its cloud service, declared in the same file",
    "computer_name": "the hostname in the guest",
    "computer_name_prefix": "before six digits of base 36: `worker00000A` is the hostname of `workers_10`",
    "count": "how many the table declares",
    "directory": "the working directory of the program",
    "environment": "variables of the program; a VM adds its own to those of its scale set",
    "eviction_policy": "what happens to an evicted VM; only with Spot",
    "fault_domain": "below the number of fault domains of its set",
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
    "scale_set": "its scale set, declared in the same file",
    "size": "any text",
    "subscription": "the name of a declared subscription, or an id",
    "tags": "sets and VMs add their own to those of `[defaults]`; those of the VM win",
    "terminate_notification": "minutes of notice before the VM is deleted; never with Spot",
    "update_domain": "below the number of update domains of its set",
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
    "fault_domain": "the VMs of a set take the domains in turn",
    "host": "the host with the fewest VMs; update domains are kept apart",
    "update_domain": "the VMs of a set take the domains in turn",
    "availability_set": "a standalone VM",
    "cloud_service": "a standalone VM",
    "scale_set": "a standalone VM",
}
_SHARED = ("subscription", "resource_group", "location", "size", "os_type", "tags")  # keys of [defaults]
# Defaults that differ between tables.
_DEFAULTS_OF_VMS = {
    "directory": "that of its scale set, else that of the service",
    "eviction_policy": 'that of its scale set, else `"Deallocate"`',
    "placement_group": "that of its scale set",
    "program": "that of its scale set, else none",
    "priority": 'that of its scale set, else `"Regular"`',
    "terminate_notification": "that of its scale set, else none",
    "zone": "that of its set, else none",
}
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
    "cloud_services": "Its instances inherit its keys.",
    "cloud_services.roles": "Instances are `NAME_IN_0`, `NAME_IN_1` and so on.",
}

_PAGE = """\
# The fleet file

*Generated from `src/forewarn/core/fleetfile/tables.py` by `make docs`; change the format there, not this page.*

A fleet file declares hosts and virtual machines (VMs) in TOML. [Describe and change a fleet](../how-to/fleet.md) is the
guide, with a full example and patterns such as `web-{{n}}`. The service rejects a file with problems as a whole, and
says what to write instead.

{sections}
"""


def fleet_file_markdown() -> str:
    """The page docs/reference/fleet-file.md: every table with its keys."""
    structs: dict[str, type[msgspec.Struct]] = {"defaults": tables.DefaultsTable}
    for name in ("vms", "hosts", "availability_sets", "scale_sets", "cloud_services"):
        structs[name] = tables.TABLES[name]
    structs["cloud_services.roles"] = tables.RoleTable
    structs |= {name: struct for name, struct in tables.TABLES.items() if name not in structs}
    return _PAGE.format(sections="\n\n".join(_section(name, struct) for name, struct in structs.items()))


def _section(name: str, struct: type[msgspec.Struct]) -> str:
    title = f"`[{name}]`" if name == "defaults" else f"`[[{name}]]`"
    fields = msgspec.structs.fields(struct)
    shared = [field.name for field in fields if field.name in _SHARED] if name != "defaults" else []
    rows = [_row(name, field) for field in fields if field.name not in shared]
    if shared:
        rows.append(f"| {', '.join(f'`{key}`' for key in shared)} | as in `[defaults]` | {_INHERITED} | |")
    table = "\n".join(["| key | value | default | meaning |", "|---|---|---|---|", *rows])
    return "\n\n".join(part for part in (f"## {title}", _NOTES[name], table) if part)


def _row(table: str, field: msgspec.structs.FieldInfo) -> str:
    meta = get_args(field.type)[-1]  # those before it are limits
    (example,) = meta.examples or [""]
    value = str(meta.description).partition(", not ")[0]
    if field.name not in ("availability_set", "scale_set", "cloud_service", "placement_group", "computer_name_prefix"):
        value += f", such as `{example}`"
    return f"| `{field.name}` | {value} | {_default(table, field)} | {_MEANINGS[field.name]} |"


def _default(table: str, field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    if table == "vms" and field.name in _DEFAULTS_OF_VMS:
        return _DEFAULTS_OF_VMS[field.name]
    value: Any = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    if field.name in _DEFAULTS:
        return _DEFAULTS[field.name]
    if isinstance(value, bool) or value in ("", (), {}):
        return "none"
    return f"`{value}`" if isinstance(value, int) else f'`"{value}"`'
