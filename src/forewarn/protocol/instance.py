"""/metadata/instance: what a VM may read about itself (spec §2.6).

All primitives are strings, what is missing is "", keys are alphabetical. Every instance version is shown
every field, on purpose: which version brought which field is more than the clients we serve ask for.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from ipaddress import ip_network

from forewarn.protocol.answer import bad_request, not_found
from forewarn.protocol.exchange import ReadInstance
from forewarn.protocol.message import JSON, TEXT, Response

Element = str | list["Element"] | dict[str, "Element"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceFacts:
    """What is known of one VM; only its name has to be."""

    name: str
    vm_id: str = ""
    resource_id: str = ""
    location: str = ""
    subscription_id: str = ""
    resource_group: str = ""

    scale_set: str = ""
    virtual_machine_scale_set_id: str = ""
    placement_group: str = ""
    update_domain: str = "0"
    fault_domain: str = "0"
    zone: str = ""
    host_id: str = ""

    size: str = ""
    priority: str = ""  # Spot, or "" for a regular VM
    eviction_policy: str = ""
    tags: tuple[tuple[str, str], ...] = ()
    user_data: str = ""

    computer_name: str = ""  # the name again, if empty
    os_type: str = "Linux"
    admin_username: str = ""
    public_keys: tuple[str, ...] = ()
    publisher: str = ""
    offer: str = ""
    sku: str = ""
    version: str = ""

    address: str = ""  # IPv4; a VM without one has no interface address
    public_address: str = ""
    prefix: str = "24"
    mac: str = ""  # in any notation; shown as 12 capital hex digits

    environment: str = "AzurePublicCloud"
    provider: str = "Microsoft.Compute"


def tree(facts: InstanceFacts) -> dict[str, Element]:
    return {"compute": _sorted(_compute(facts)), "network": {"interface": [_interface(facts)]}}


def answer_instance(ask: ReadInstance, facts: InstanceFacts) -> Response:
    """The element asked for: a leaf as text, what has parts as JSON, or as text the names of its parts."""
    element = _element(tree(facts), ask.path)
    if element is None:
        return not_found()
    if ask.text:
        return Response(status=200, headers=(TEXT,), body=_lines(element).encode("utf-8", "replace"))
    if isinstance(element, str):
        # An explicit format=json is no better: the real service was met refusing it on a leaf too.
        return bad_request(f"{'/'.join(ask.path)} is a single value, ask for it with format=text")
    return Response(status=200, headers=(JSON,), body=json.dumps(element, separators=(",", ":")).encode("ascii"))


def _element(element: Element, path: tuple[str, ...]) -> Element | None:
    """What a path leads to, without case; None: nothing."""
    for step in path:
        parts = {name.lower(): part for name, part in _parts(element)}
        if step.lower() not in parts:
            return None
        element = parts[step.lower()]
    return element


def _parts(element: Element) -> list[tuple[str, Element]]:
    if isinstance(element, dict):
        return list(element.items())
    return [(str(index), part) for index, part in enumerate(element)] if isinstance(element, list) else []


def _lines(element: Element) -> str:
    if isinstance(element, str):
        return element
    return "\n".join(name if isinstance(part, str) else f"{name}/" for name, part in _parts(element))


def _sorted(element: dict[str, Element]) -> dict[str, Element]:
    return dict(sorted(element.items(), key=lambda item: item[0].lower()))


def _compute(facts: InstanceFacts) -> dict[str, Element]:
    return {**_identity(facts), **_placement(facts), **_system(facts), **_hardware(facts)}


def _identity(facts: InstanceFacts) -> dict[str, Element]:
    return {
        "azEnvironment": facts.environment,
        "location": facts.location,
        "name": facts.name,
        "provider": facts.provider,
        "resourceGroupName": facts.resource_group,
        "resourceId": facts.resource_id,
        "subscriptionId": facts.subscription_id,
        "tags": ";".join(f"{name}:{value}" for name, value in facts.tags),
        "tagsList": [{"name": name, "value": value} for name, value in facts.tags],
        "userData": facts.user_data,
        "vmId": facts.vm_id,
    }


def _placement(facts: InstanceFacts) -> dict[str, Element]:
    return {
        "extendedLocation": {"name": "", "type": ""},
        "host": {"id": facts.host_id},
        "hostGroup": {"id": ""},
        "physicalZone": "",
        "placementGroupId": facts.placement_group,
        "platformFaultDomain": facts.fault_domain,
        "platformSubFaultDomain": "",
        "platformUpdateDomain": facts.update_domain,
        "virtualMachineScaleSet": {"id": facts.virtual_machine_scale_set_id},
        "vmScaleSetName": facts.scale_set,
        "zone": facts.zone,
    }


def _system(facts: InstanceFacts) -> dict[str, Element]:
    keys_path = f"/home/{facts.admin_username}/.ssh/authorized_keys"
    return {
        "customData": "",
        "offer": facts.offer,
        "osProfile": {
            "adminUsername": facts.admin_username,
            "computerName": facts.computer_name or facts.name,
            "disablePasswordAuthentication": "true" if facts.public_keys else "false",
        },
        "osType": facts.os_type,
        "plan": {"name": "", "product": "", "publisher": ""},
        "publicKeys": [{"keyData": key, "path": keys_path} for key in facts.public_keys],
        "publisher": facts.publisher,
        "sku": facts.sku,
        "version": facts.version,
    }


def _hardware(facts: InstanceFacts) -> dict[str, Element]:
    return {
        "additionalCapabilities": {"hibernationEnabled": "false"},
        "evictionPolicy": facts.eviction_policy,
        "isHostCompatibilityLayerVm": "false",
        "isVmInStandbyPool": "",
        "licenseType": "",
        "priority": facts.priority,
        "securityProfile": {
            "encryptionAtHost": "false",
            "secureBootEnabled": "false",
            "securityType": "",
            "virtualTpmEnabled": "false",
        },
        "storageProfile": _storage(facts),
        "vmSize": facts.size,
    }


def _storage(facts: InstanceFacts) -> Element:
    return {
        "dataDisks": [],
        "imageReference": {
            "id": "",
            "offer": facts.offer,
            "publisher": facts.publisher,
            "sku": facts.sku,
            "version": facts.version,
        },
        "osDisk": {
            "caching": "",
            "createOption": "",
            "diskSizeGB": "",
            "name": "",
            "osType": facts.os_type,
        },
        "resourceDisk": {"size": ""},
    }


def _interface(facts: InstanceFacts) -> Element:
    addresses: list[Element] = [{"privateIpAddress": facts.address, "publicIpAddress": facts.public_address}]
    subnets: list[Element] = [{"address": _subnet(facts), "prefix": facts.prefix}]
    return {
        "ipv4": {"ipAddress": addresses if facts.address else [], "subnet": subnets if facts.address else []},
        "ipv6": {"ipAddress": []},
        "macAddress": facts.mac.replace(":", "").replace("-", "").upper(),
    }


def _subnet(facts: InstanceFacts) -> str:
    try:
        return str(ip_network(f"{facts.address}/{facts.prefix}", strict=False).network_address)
    except ValueError:
        return ""
