"""A resource group by its name."""

from __future__ import annotations

from forewarn.cli.invocation import Invocation
from forewarn.errors import NotFound, Rejected


def group_id(call: Invocation, group: str) -> str:
    """The id of a resource group, as its VMs tell it."""
    everywhere = call.api.get("fleet")["vms"]
    vms = [vm for vm in everywhere if vm["resource_group"].casefold() == group.casefold()]
    found = sorted({f"/subscriptions/{vm['subscription_id']}/resourceGroups/{vm['resource_group']}" for vm in vms})
    if not found:
        groups = ", ".join(sorted({vm["resource_group"] for vm in everywhere})) or "none"
        raise NotFound(f"no VM is in a resource group {group!r}: VMs are in {groups}; or give its id with --over")
    if len(found) > 1:
        raise Rejected(
            f"resource group {group!r} is in several subscriptions: give one of {', '.join(found)} to --over"
        )
    return found[0]
