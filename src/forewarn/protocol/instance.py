"""/metadata/instance: what a VM may read about itself (spec §2.6).

All primitives are strings, missing values are "", keys are alphabetical. Every instance version shows every field,
on purpose: clients do not depend on which version introduced which field.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from ipaddress import ip_network

from forewarn.protocol.exchange import InstanceRequest
from forewarn.protocol.http_message import JSON_CONTENT_TYPE, TEXT_CONTENT_TYPE, HttpResponse
from forewarn.protocol.responses import bad_request, not_found

MetadataElement = str | list["MetadataElement"] | dict[str, "MetadataElement"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceFacts:
    """The facts of one VM that its instance metadata shows, as texts; "" means unknown or none."""

    name: str  # the name of the VM
    vm_id: str = ""  # a GUID
    resource_id: str = ""  # the resource id of Azure, `/subscriptions/…`
    location: str = ""  # such as westeurope
    subscription_id: str = ""  # a GUID
    resource_group: str = ""  # its name

    scale_set: str = ""  # the name of its scale set; "": none
    virtual_machine_scale_set_id: str = ""  # the resource id of its scale set; "": none
    placement_group: str = ""  # the id of its placement group
    update_domain: str = "0"  # a number, as text
    fault_domain: str = "0"  # a number, as text
    zone: str = ""  # such as 1
    host_id: str = ""  # the resource id of a dedicated host

    size: str = ""  # such as Standard_D2s_v5
    priority: str = ""  # Spot, or "" for a regular VM
    eviction_policy: str = ""  # Deallocate or Delete; "" for a regular VM
    tags: tuple[tuple[str, str], ...] = ()  # (name, value)
    user_data: str = ""  # base64

    computer_name: str = ""  # "": the same as the name
    os_type: str = "Linux"  # Linux or Windows
    admin_username: str = ""  # of the guest
    public_keys: tuple[str, ...] = ()  # as in authorized_keys; with any, passwords count as disabled
    publisher: str = ""  # of the image
    offer: str = ""  # of the image
    sku: str = ""  # of the image
    version: str = ""  # the version of the image

    address: str = ""  # IPv4; "": the interface has no address
    public_address: str = ""  # IPv4
    prefix: str = "24"  # length of the subnet's prefix, in bits
    mac: str = ""  # hex digits with `:`, `-` or nothing between them; the VM sees them without, in upper case

    environment: str = "AzurePublicCloud"  # the name of the cloud
    provider: str = "Microsoft.Compute"  # the resource provider


def metadata_tree(facts: InstanceFacts) -> dict[str, MetadataElement]:
    """Build the complete tree below /metadata/instance: a dict with the keys `compute` and `network`."""
    return {"compute": _sorted_by_name(_compute_fields(facts)), "network": {"interface": [_network_interface(facts)]}}


def instance_response(request: InstanceRequest, facts: InstanceFacts) -> HttpResponse:
    """Build the response with the requested element: JSON, or as text a leaf or the names of the children."""
    element = _find_element(metadata_tree(facts), request.path)
    if element is None:
        return not_found()
    if request.as_text:
        return HttpResponse(status=200, headers=(TEXT_CONTENT_TYPE,), body=_as_text(element).encode("utf-8", "replace"))
    if isinstance(element, str):
        # Azure refuses a leaf with an explicit format=json too.
        return bad_request(f"{'/'.join(request.path)} is a single value, ask for it with format=text")
    return HttpResponse(
        status=200, headers=(JSON_CONTENT_TYPE,), body=json.dumps(element, separators=(",", ":")).encode("ascii")
    )


def _find_element(element: MetadataElement, path: tuple[str, ...]) -> MetadataElement | None:
    for segment in path:
        children = {name.lower(): child for name, child in _children(element)}
        if segment.lower() not in children:
            return None
        element = children[segment.lower()]
    return element


def _children(element: MetadataElement) -> list[tuple[str, MetadataElement]]:
    if isinstance(element, dict):
        return list(element.items())
    return [(str(index), child) for index, child in enumerate(element)] if isinstance(element, list) else []


def _as_text(element: MetadataElement) -> str:
    if isinstance(element, str):
        return element
    return "\n".join(name if isinstance(child, str) else f"{name}/" for name, child in _children(element))


def _sorted_by_name(element: dict[str, MetadataElement]) -> dict[str, MetadataElement]:
    return dict(sorted(element.items(), key=lambda item: item[0].lower()))


def _compute_fields(facts: InstanceFacts) -> dict[str, MetadataElement]:
    return {**_identity_fields(facts), **_placement_fields(facts), **_system_fields(facts), **_hardware_fields(facts)}


def _identity_fields(facts: InstanceFacts) -> dict[str, MetadataElement]:
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


def _placement_fields(facts: InstanceFacts) -> dict[str, MetadataElement]:
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


def _system_fields(facts: InstanceFacts) -> dict[str, MetadataElement]:
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


def _hardware_fields(facts: InstanceFacts) -> dict[str, MetadataElement]:
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
        "storageProfile": _storage_profile(facts),
        "vmSize": facts.size,
    }


def _storage_profile(facts: InstanceFacts) -> MetadataElement:
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


def _network_interface(facts: InstanceFacts) -> MetadataElement:
    addresses: list[MetadataElement] = [{"privateIpAddress": facts.address, "publicIpAddress": facts.public_address}]
    subnets: list[MetadataElement] = [{"address": _subnet_address(facts), "prefix": facts.prefix}]
    return {
        "ipv4": {"ipAddress": addresses if facts.address else [], "subnet": subnets if facts.address else []},
        "ipv6": {"ipAddress": []},
        "macAddress": facts.mac.replace(":", "").replace("-", "").upper(),
    }


def _subnet_address(facts: InstanceFacts) -> str:
    try:
        return str(ip_network(f"{facts.address}/{facts.prefix}", strict=False).network_address)
    except ValueError:
        return ""
