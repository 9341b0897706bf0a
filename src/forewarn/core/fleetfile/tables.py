"""The format of a fleet file: one struct per table, one field per key (docs/reference/fleet-file.md).

The description of a field's type completes the message "size = 5 is not …"; its example is shown as the remedy. A
key that the file leaves out has the default given here; `ParsedTable.given_keys` tells the two apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal
from uuid import NAMESPACE_URL, uuid5

import msgspec

from forewarn.core import limits
from forewarn.core.fleet import EvictionPolicy, Orchestration, Priority

# Rules for names in a fleet file, and patterns such as `web-{n:03}` that name many VMs or hosts.

MAX_NAME_LENGTH = 64  # characters
_NUMBER_PLACEHOLDER = re.compile(r"\{n(?::0[1-9])?\}")
_BASE36_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def name_error(name: str, *, limit: int = MAX_NAME_LENGTH) -> str | None:
    """Return why a name is not allowed, to follow the name in a sentence; None if it is allowed."""
    if not name.strip():
        return "is empty"
    if len(name) > limit:
        return f"is {len(name)} characters long, but the limit is {limit}"
    if name != name.strip():
        return "begins or ends with a blank"
    if "/" in name or "\\" in name:
        return "contains a slash"
    return None if name.isprintable() else "contains a control character"


def pattern_error(pattern: str) -> str | None:
    """Return why the braces of a name pattern are invalid, to follow the pattern in a sentence, or None."""
    rest = _NUMBER_PLACEHOLDER.sub("", pattern)
    return "has braces other than {n}" if "{" in rest or "}" in rest else None


def plain_name_error(name: str, *, limit: int) -> str | None:
    """Return why a name that cannot have a number is not allowed, to follow it in a sentence, or None."""
    return "contains braces" if "{" in name or "}" in name else name_error(name, limit=limit)


def is_pattern(text: str) -> bool:
    """Return whether the text contains `{n`, the beginning of a placeholder for the number, valid or not."""
    return "{n" in text


def numbered_pattern(text: str, *, counted: bool) -> str:
    """Return the pattern for names: with a count, a name without {n} gets -{n}, even for a count of 1."""
    # So the name of the first VM stays the same when the count grows.
    return f"{text}-{{n}}" if counted and not is_pattern(text) else text


def fill_pattern(pattern: str, n: int) -> str:
    """Return the pattern with the number in place of each {n}; {n:03} pads it with zeros to three digits."""
    return pattern.format(n=n)


def instance_host_name(prefix: str, n: int) -> str:
    """Return the hostname of a scale set instance: the prefix and at least six base-36 digits (spec §4.2)."""
    digits = ""
    while n:
        n, digit = divmod(n, 36)
        digits = _BASE36_DIGITS[digit] + digits
    return f"{prefix}{digits:0>6}"


def flexible_instance_ids(set_key: str) -> Iterator[str]:
    """Yield the ids of a flexible scale set's VMs without end: 8 hexadecimal digits, none of them twice."""
    taken: set[str] = set()
    n = 0
    while True:
        digits = uuid5(NAMESPACE_URL, f"{set_key}/{n}").hex[:8]
        n += 1
        if digits not in taken:
            taken.add(digits)
            yield digits


MAX_COUNT = 1_000_000  # VMs or hosts of one table
AUTO_PLACEMENT_GROUP = "auto"  # instances are put into groups of 100


def _field_meta(description: str, example: str, ge: int | None = None, le: int | None = None) -> msgspec.Meta:
    return msgspec.Meta(description=description, examples=[example], ge=ge, le=le)


def _text_meta(example: str) -> msgspec.Meta:
    description = "text in quotes, not empty and not longer than 800 characters"
    return msgspec.Meta(description=description, examples=[f'"{example}"'])


Name = Annotated[limits.Name, _field_meta("text in quotes, not longer than 800 characters", '"web-{n}"')]
Text = Annotated[limits.NonEmptyText, _text_meta("prod")]
Location = Annotated[limits.NonEmptyText, _text_meta("westeurope")]
Size = Annotated[limits.NonEmptyText, _text_meta("Standard_D2s_v5")]
Address = Annotated[limits.NonEmptyText, _text_meta("10.0.0.4")]
HostName = Annotated[limits.NonEmptyText, _text_meta("host-0")]
Zone = Annotated[limits.NonEmptyText, _text_meta("1")]
Zones = Annotated[
    tuple[Zone, ...],
    msgspec.Meta(
        description="a list of zones, each in quotes", examples=['["1", "2", "3"]'], min_length=1, max_length=100
    ),
]
Tags = Annotated[limits.Tags, _field_meta("a table of texts, at most 1,000", '{ team = "shop" }')]
OsType = Annotated[Literal["Linux", "Windows"], _field_meta('"Linux" or "Windows"', '"Linux"')]
VmPriority = Annotated[Priority, _field_meta('"Regular" or "Spot"', '"Spot"')]
VmEvictionPolicy = Annotated[EvictionPolicy, _field_meta('"Deallocate" or "Delete"', '"Deallocate"')]
SetOrchestration = Annotated[Orchestration, _field_meta('"Uniform" or "Flexible"', '"Flexible"')]
Switch = Annotated[bool, _field_meta("true or false", "true")]
Count = Annotated[int, _field_meta("a whole number from 1 to 1,000,000", "3", 1, MAX_COUNT)]
FirstNumber = Annotated[int, _field_meta("a whole number from 0 to 1,000,000", "1", 0, MAX_COUNT)]
DomainNumber = Annotated[int, _field_meta("a whole number from 0 to 1,000", "0", 0, 1000)]
DomainCount = Annotated[int, _field_meta("a whole number from 1 to 1,000", "5", 1, 1000)]
NoticeMinutes = Annotated[  # spec §6.3
    bool | Annotated[int, msgspec.Meta(ge=5, le=15)],
    _field_meta("a whole number of minutes from 5 to 15, or true for 5", "5"),
]
ApprovedOperations = Annotated[
    tuple[Literal["restart", "redeploy"], ...],
    _field_meta('a list of "restart", "redeploy" or both', '["restart", "redeploy"]'),
]
_ProgramArgument = Annotated[limits.LongText, msgspec.Meta(pattern=r"^[^\0]*\Z")]  # execve allows no NUL
Program = Annotated[
    tuple[_ProgramArgument, ...],
    msgspec.Meta(
        description="a list of texts, a program and its arguments", examples=['["python3", "app.py"]'], min_length=1
    ),
]
Variables = Annotated[
    dict[Annotated[str, msgspec.Meta(pattern=r"^[^=\0]+\Z")], _ProgramArgument],
    _field_meta("a table of texts, by names without =", '{ PORT = "80" }'),
]
AbsolutePath = Annotated[
    str,
    msgspec.Meta(
        description="an absolute path in quotes", examples=['"/srv/app"'], pattern=r"^/[^\0]*\Z", max_length=10_000
    ),
]


class DefaultsTable(msgspec.Struct, frozen=True, kw_only=True):
    """[defaults]: values of VMs, sets and cloud services that give none; their own tags are added."""

    subscription: Text = "00000000-0000-0000-0000-000000000001"  # name or id
    resource_group: Text = "fleet"  # its name
    location: Location = "local"
    size: Size = "Standard_D2s_v5"
    os_type: OsType = "Linux"
    tags: Tags = {}


class SubscriptionTable(msgspec.Struct, frozen=True, kw_only=True):
    """[[subscriptions]]: a name for a subscription id."""

    name: Name
    id: Text  # a GUID, or any other text


class ResourceGroupTable(msgspec.Struct, frozen=True, kw_only=True):
    """[[resource_groups]]: the location and tags of a resource group; its VMs inherit the location only."""

    name: Name
    subscription: Text = ""  # name or id; "": that of [defaults]
    location: Location = ""  # "": that of [defaults]
    tags: Tags = {}


class HostsTable(msgspec.Struct, frozen=True, kw_only=True):
    """[[hosts]]: one host, or `count` numbered ones, in `zones` in turn."""

    name: Name  # with {n} in place of its number; without it, a count adds `-{n}`
    count: Count = 1
    first: FirstNumber = 0  # the number of the first one, at most 1,000,000
    location: Location = ""  # "": that of [defaults]
    zone: Zone = ""  # "": in none
    zones: Zones = ()  # the hosts are in these in turn; (): all in `zone`; not both


class CommonVmTable(msgspec.Struct, frozen=True, kw_only=True):
    """Keys that [[vms]], sets and cloud services have in common; VMs inherit them from their set.

    A key that is left out is inherited from the set, else (only the location) from the resource group, else from
    [defaults]. So the defaults here never take effect; `ParsedTable.has` says whether a key is given.
    """

    name: Name  # the name of the set; or of the VM, with {n} in place of its number; without it, a count adds `-{n}`
    subscription: Text = ""  # name or id
    resource_group: Text = ""
    location: Location = ""
    size: Size = ""
    os_type: OsType = "Linux"
    tags: Tags = {}


class AvailabilitySetTable(CommonVmTable, frozen=True, kw_only=True):
    """[[availability_sets]]: an availability set; [[vms]] declares its VMs. It may have none.

    Has the keys of CommonVmTable too, which its VMs inherit. Its name has at most 56 characters. Its VMs are in no
    zone, and [[vms]] may not give them an automatic approval of their own.
    """

    update_domains: DomainCount = 5  # how many, 1 to 1,000
    fault_domains: DomainCount = 2  # how many, 1 to 1,000
    auto_approve: ApprovedOperations = ()  # of its VMs
    approve_all_down: Switch = True  # False: policy approves nothing that stops its last running VM
    narrow_delivery: Switch = False  # its VMs see only events that affect them; with one fault domain only


class ScaleSetTable(CommonVmTable, frozen=True, kw_only=True):
    """[[scale_sets]]: a scale set, with `count` instances if that is given; [[vms]] may declare more VMs.

    A set without a count and without [[vms]] is a problem of the file. Has the keys of CommonVmTable too, which its VMs
    inherit. Its name has at most 56 characters, of a flexible set 55. Only one of zone and zones may be given.
    """

    count: Count = 1  # 1 to 1,000,000; of a flexible set, to 1,000; if left out, this table makes no instances
    orchestration: SetOrchestration = Orchestration.UNIFORM
    zone: Zone = ""  # of all its VMs; "": in none
    zones: Zones = ()  # its VMs are in these in turn
    placement_group: Text = AUTO_PLACEMENT_GROUP  # "auto": groups of 100 VMs; one has at most 100; flexible: none
    computer_name_prefix: Text = ""  # of the hostnames of instances; "": its name
    update_domains: DomainCount = 5  # how many, 1 to 1,000
    fault_domains: DomainCount = 5  # how many, 1 to 1,000
    priority: VmPriority = Priority.REGULAR
    eviction_policy: VmEvictionPolicy = EvictionPolicy.DEALLOCATE  # given only with priority Spot
    terminate_notification: NoticeMinutes = False  # 5 to 15 minutes; True: 5, False: none; not with priority Spot
    auto_approve: ApprovedOperations = ()  # operations of users that start without notice
    approve_all_down: Switch = True  # False: policy approves nothing that stops its last running VM
    narrow_delivery: Switch = False  # its VMs see only events that affect them; with one fault domain only
    program: Program = ()  # of each instance, as in [[vms]]
    environment: Variables = {}  # of the program
    directory: AbsolutePath = ""  # of the program; "": the service's
    address: Address = ""  # of the first instance, counted up from there, or with {n}, from 0 on; "": none


class RoleTable(msgspec.Struct, frozen=True, kw_only=True):
    """[[cloud_services.roles]]: a role of a cloud service, with `count` instances (NAME_IN_0, …).

    Size and OS type are inherited from the service if they are left out (`ParsedTable.has`).
    """

    name: Name  # at most 53 characters, without braces
    count: Count = 1  # 1 to 1,000,000
    size: Size = ""  # if left out, that of the service
    os_type: OsType = "Linux"  # if left out, that of the service
    tags: Tags = {}  # added to those of the service, and replace those of the same name
    address: Address = ""  # of the first instance, counted up from there, or with {n}, from 0 on; "": none


RoleTables = Annotated[tuple[RoleTable, ...], _field_meta("a list of tables", '[{ name = "FrontEnd", count = 2 }]')]


class CloudServiceTable(CommonVmTable, frozen=True, kw_only=True):
    """[[cloud_services]]: a cloud service and its roles; [[vms]] may declare more VMs.

    Has the keys of CommonVmTable too, which its VMs inherit.
    """

    update_domains: DomainCount = 5  # how many, 1 to 1,000
    fault_domains: DomainCount = 2  # how many, 1 to 1,000
    roles: RoleTables = ()  # always (): `ParsedFleetFile.roles` has them


class VmsTable(CommonVmTable, frozen=True, kw_only=True):
    """[[vms]]: one VM, or `count` numbered ones, on its own or in a set or service.

    Has the keys of CommonVmTable too. Values with {n} (name, computer_name, address, host) get the number of each VM. A
    count is 1 to 1,000,000; if it is given, even 1, names get a number. A name has at most 64 characters then.
    """

    count: Count = 1  # 1 to 1,000,000
    first: FirstNumber = 0  # the number of the first one, at most 1,000,000
    computer_name: Name = ""  # "": as the name; with a count and without {n}, gets -{n}
    zone: Zone = ""  # "": its set's zone, or none; not in an availability set
    zones: Zones = ()  # the VMs are in these in turn; not together with `zone`, nor in an availability set
    availability_set: Text = ""  # at most one of this, scale_set and cloud_service is given
    scale_set: Text = ""  # its name; "": in none
    placement_group: Text = ""  # "": as the scale set says
    cloud_service: Text = ""  # its name; "": in none
    update_domain: DomainNumber = 0  # less than its set has, 0 outside a set; if left out, taken in turn in a set
    fault_domain: DomainNumber = 0  # less than its set has, 0 outside a set; if left out, taken in turn in a set
    priority: VmPriority = Priority.REGULAR
    eviction_policy: VmEvictionPolicy = EvictionPolicy.DEALLOCATE  # given only with priority Spot
    terminate_notification: NoticeMinutes = False  # 5 to 15 minutes; True: 5, False: none; not with priority Spot
    auto_approve: ApprovedOperations = ()  # operations of users that start without notice; not for VMs of a set
    approve_all_down: Switch = True  # False: policy approves nothing that stops it; not for VMs of a set
    program: Program = ()  # run in a namespace VM; (): none
    environment: Variables = {}  # of the program
    directory: AbsolutePath = ""  # of the program; "": the service's
    address: Address = ""  # of the first VM, counted up from there, or with {n}; "": none
    host: HostName = ""  # a declared one of its location and zone; "": chosen when the VM is added


# The top-level keys of a file besides [defaults], with their tables.
TABLES: dict[str, type[msgspec.Struct]] = {
    "subscriptions": SubscriptionTable,
    "resource_groups": ResourceGroupTable,
    "hosts": HostsTable,
    "availability_sets": AvailabilitySetTable,
    "scale_sets": ScaleSetTable,
    "cloud_services": CloudServiceTable,
    "vms": VmsTable,
}
