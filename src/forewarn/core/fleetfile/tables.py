"""The format of a fleet file: one struct per table, one field per key; docs/fleet-file.md explains it to people.

A type's description finishes the sentence "size = 5 is not …", its example is what the remedy shows. What a file
leaves out has the default given here; `Table.given` tells the two apart.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from forewarn.core.fleet import EvictionPolicy, Priority

MAX_COUNT = 1_000_000
AUTO = "auto"


def _meta(description: str, example: str, ge: int | None = None, le: int | None = None) -> msgspec.Meta:
    return msgspec.Meta(description=description, examples=[example], ge=ge, le=le)


def _text(example: str) -> msgspec.Meta:
    return msgspec.Meta(description="text in quotes, and not empty", examples=[f'"{example}"'], min_length=1)


Name = Annotated[str, _meta("text in quotes", '"web-{n}"')]  # what a name may be: see `naming`
Text = Annotated[str, _text("prod")]
Location = Annotated[str, _text("westeurope")]
Size = Annotated[str, _text("Standard_D2s_v5")]
Address = Annotated[str, _text("10.0.0.4")]
HostName = Annotated[str, _text("host-0")]
Zone = Annotated[str, _text("1")]
Zones = Annotated[
    tuple[Zone, ...],
    msgspec.Meta(description="a list of zones, each in quotes", examples=['["1", "2", "3"]'], min_length=1),
]
Tags = Annotated[dict[str, str], _meta("a table of texts", '{ team = "shop" }')]
OsType = Annotated[Literal["Linux", "Windows"], _meta('"Linux" or "Windows"', '"Linux"')]
Spot = Annotated[Priority, _meta('"Regular" or "Spot"', '"Spot"')]
Eviction = Annotated[EvictionPolicy, _meta('"Deallocate" or "Delete"', '"Deallocate"')]
Count = Annotated[int, _meta("a whole number from 1 to 1,000,000", "3", 1, MAX_COUNT)]
First = Annotated[int, _meta("a whole number from 0 to 1,000,000", "1", 0, MAX_COUNT)]
Domain = Annotated[int, _meta("a whole number from 0 on", "0", 0)]
Domains = Annotated[int, _meta("a whole number from 1 to 1,000", "5", 1, 1000)]
Minutes = Annotated[  # spec §6.3
    bool | Annotated[int, msgspec.Meta(ge=5, le=15)],
    _meta("a whole number of minutes from 5 to 15, or true for 5", "5"),
]
Approvals = Annotated[
    tuple[Literal["restart", "redeploy"], ...],
    _meta('a list of "restart", "redeploy" or both', '["restart", "redeploy"]'),
]
_Word = Annotated[str, msgspec.Meta(pattern=r"^[^\0]*\Z")]  # what a system takes as an argument
Program = Annotated[
    tuple[_Word, ...],
    msgspec.Meta(
        description="a list of texts, a program and its arguments", examples=['["python3", "app.py"]'], min_length=1
    ),
]
Variables = Annotated[
    dict[Annotated[str, msgspec.Meta(pattern=r"^[^=\0]+\Z")], _Word],
    _meta("a table of texts, by names without =", '{ PORT = "80" }'),
]
Folder = Annotated[
    str,
    msgspec.Meta(description="an absolute path in quotes", examples=['"/srv/app"'], pattern=r"^/[^\0]*\Z"),
]


class Defaults(msgspec.Struct, frozen=True, kw_only=True):
    """What a VM has that says nothing else, nor does its set or resource group."""

    subscription: Text = "00000000-0000-0000-0000-000000000001"
    resource_group: Text = "fleet"
    location: Location = "local"
    size: Size = "Standard_D2s_v5"
    os_type: OsType = "Linux"
    tags: Tags = {}


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    name: Name
    id: Text


class ResourceGroup(msgspec.Struct, frozen=True, kw_only=True):
    name: Name
    subscription: Text = ""
    location: Location = ""
    tags: Tags = {}


class Hosts(msgspec.Struct, frozen=True, kw_only=True):
    name: Name
    count: Count = 1
    first: First = 0
    location: Location = ""
    zone: Zone = ""
    zones: Zones = ()


class Nature(msgspec.Struct, frozen=True, kw_only=True):
    """What anything that is or has VMs may say; a VM that leaves it out has it from its set."""

    name: Name
    subscription: Text = ""
    resource_group: Text = ""
    location: Location = ""
    size: Size = ""
    os_type: OsType = "Linux"
    tags: Tags = {}


class AvailabilitySet(Nature, frozen=True, kw_only=True):
    update_domains: Domains = 5
    fault_domains: Domains = 2
    auto_approve: Approvals = ()


class ScaleSet(Nature, frozen=True, kw_only=True):
    count: Count = 1
    zone: Zone = ""
    zones: Zones = ()
    placement_group: Text = AUTO
    computer_name_prefix: Text = ""
    update_domains: Domains = 5
    fault_domains: Domains = 5
    priority: Spot = Priority.REGULAR
    eviction_policy: Eviction = EvictionPolicy.DEALLOCATE
    terminate_notification: Minutes = False
    auto_approve: Approvals = ()
    program: Program = ()
    environment: Variables = {}
    directory: Folder = ""
    address: Address = ""


class Role(msgspec.Struct, frozen=True, kw_only=True):
    name: Name
    count: Count = 1
    size: Size = ""
    os_type: OsType = "Linux"
    tags: Tags = {}
    address: Address = ""


Roles = Annotated[tuple[Role, ...], _meta("a list of tables", '[{ name = "FrontEnd", count = 2 }]')]


class CloudService(Nature, frozen=True, kw_only=True):
    update_domains: Domains = 5
    fault_domains: Domains = 2
    roles: Roles = ()


class Vms(Nature, frozen=True, kw_only=True):
    count: Count = 1
    first: First = 0
    computer_name: Name = ""
    zone: Zone = ""
    zones: Zones = ()
    availability_set: Text = ""
    scale_set: Text = ""
    placement_group: Text = ""
    cloud_service: Text = ""
    update_domain: Domain = 0
    fault_domain: Domain = 0
    priority: Spot = Priority.REGULAR
    eviction_policy: Eviction = EvictionPolicy.DEALLOCATE
    terminate_notification: Minutes = False
    auto_approve: Approvals = ()
    program: Program = ()
    environment: Variables = {}
    directory: Folder = ""
    address: Address = ""
    host: HostName = ""


# The tables of a file by key, besides [defaults]: what a file may hold at its top.
TABLES: dict[str, type[msgspec.Struct]] = {
    "subscriptions": Subscription,
    "resource_groups": ResourceGroup,
    "hosts": Hosts,
    "availability_sets": AvailabilitySet,
    "scale_sets": ScaleSet,
    "cloud_services": CloudService,
    "vms": Vms,
}
