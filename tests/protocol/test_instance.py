"""The instance metadata that a VM reads under /metadata/instance (spec §2.6)."""

import json

import pytest

from forewarn.protocol.exchange import EndpointRules, InstanceRequest, read_request
from forewarn.protocol.http_message import HttpRequest, HttpResponse
from forewarn.protocol.instance import InstanceFacts, MetadataElement, instance_response, metadata_tree
from forewarn.protocol.versions import INSTANCE_VERSIONS

FACTS = InstanceFacts(
    name="web_7",
    vm_id="5c4bebd0-1f67-4c47-a006-50affae50bbf",
    resource_id="/subscriptions/s/resourceGroups/rg/providers/Microsoft.Compute/virtualMachines/web_7",
    location="westeurope",
    subscription_id="s",
    resource_group="rg",
    scale_set="web",
    placement_group="pg",
    update_domain="2",
    fault_domain="1",
    zone="3",
    size="Standard_D2s_v5",
    priority="Spot",
    eviction_policy="Delete",
    tags=(("role", "web"), ("owner", "bär")),
    computer_name="web000007",
    admin_username="azureuser",
    public_keys=("ssh-ed25519 AAAA",),
    publisher="Debian",
    offer="debian-12",
    sku="12",
    version="latest",
    address="10.0.10.11",
    mac="00:0d:3a:d0:30:ad",
)
BARE = InstanceFacts(name="lone")
TEXT = (("Content-Type", "text/plain; charset=utf-8"),)
JSON = (("Content-Type", "application/json; charset=utf-8"),)


def get(path: str = "", query: str = "api-version=2021-08-01", facts: InstanceFacts = FACTS) -> HttpResponse:
    request = HttpRequest(method="GET", target=f"/metadata/instance{path}?{query}", headers=(("metadata", "true"),))
    read = read_request(request, is_known_caller=True, rules=EndpointRules())
    if isinstance(read, HttpResponse):
        return read
    assert isinstance(read, InstanceRequest)
    return instance_response(read, facts)


def text(path: str, facts: InstanceFacts = FACTS) -> str:
    answer = get(path, "api-version=2021-08-01&format=text", facts)
    assert (answer.status, answer.headers) == (200, TEXT)
    return answer.body.decode()


def leaves(element: MetadataElement, path: str = "") -> list[tuple[str, str]]:
    if isinstance(element, str):
        return [(path, element)]
    children = element.items() if isinstance(element, dict) else enumerate(element)
    return [leaf for name, child in children for leaf in leaves(child, f"{path}/{name}")]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("/compute/name", "web_7"),
        ("/compute/vmId", "5c4bebd0-1f67-4c47-a006-50affae50bbf"),
        ("/compute/location", "westeurope"),
        ("/compute/resourceGroupName", "rg"),
        ("/compute/subscriptionId", "s"),
        ("/compute/vmScaleSetName", "web"),
        ("/compute/placementGroupId", "pg"),
        ("/compute/platformUpdateDomain", "2"),
        ("/compute/platformFaultDomain", "1"),
        ("/compute/zone", "3"),
        ("/compute/vmSize", "Standard_D2s_v5"),
        ("/compute/priority", "Spot"),
        ("/compute/evictionPolicy", "Delete"),
        ("/compute/osType", "Linux"),
        ("/compute/publisher", "Debian"),
        ("/compute/offer", "debian-12"),
        ("/compute/sku", "12"),
        ("/compute/version", "latest"),
        ("/compute/tags", "role:web;owner:bär"),
        ("/compute/tagsList/1/value", "bär"),
        ("/compute/osProfile/computerName", "web000007"),
        ("/compute/publicKeys/0/keyData", "ssh-ed25519 AAAA"),
        ("/compute/virtualMachineScaleSet/id", ""),
        ("/compute/userData", ""),
        ("/network/interface/0/macAddress", "000D3AD030AD"),
        ("/network/interface/0/ipv4/ipAddress/0/privateIpAddress", "10.0.10.11"),
        ("/network/interface/0/ipv4/ipAddress/0/publicIpAddress", ""),
        ("/network/interface/0/ipv4/subnet/0/address", "10.0.10.0"),
        ("/network/interface/0/ipv4/subnet/0/prefix", "24"),
        ("/COMPUTE/NAME", "web_7"),
        ("/compute/name/", "web_7"),
    ],
)
def test_a_leaf_is_returned_as_text(path: str, value: str) -> None:
    assert text(path) == value


@pytest.mark.parametrize("query", ["", "&format=json"])
def test_a_leaf_is_refused_without_format_text(query: str) -> None:
    """Spec §2.6."""
    answer = get("/compute/name", "api-version=2021-08-01" + query)
    assert answer == HttpResponse(
        status=400,
        headers=JSON,
        body=b'{ "error": "Bad request. compute/name is a single value, ask for it with format=text" }',
    )


@pytest.mark.parametrize("form", ["xml", "yaml", "texts"])
def test_an_unknown_format_is_refused(form: str) -> None:
    answer = get("", f"api-version=2021-08-01&format={form}")
    assert (answer.status, answer.body) == (400, b'{ "error": "Bad request. format must be json or text" }')


@pytest.mark.parametrize("query", ["", "&format=json", "&format=JSON", "&format=", "&extended=true"])
def test_the_complete_tree_is_json(query: str) -> None:
    answer = get("", "api-version=2021-08-01" + query)
    assert (answer.status, answer.headers) == (200, JSON)
    assert json.loads(answer.body) == metadata_tree(FACTS)
    assert b": " not in answer.body


@pytest.mark.parametrize("path", ["/compute", "/compute/osProfile", "/compute/tagsList", "/network/interface/0"])
def test_a_subtree_is_json(path: str) -> None:
    element: MetadataElement = metadata_tree(FACTS)
    for segment in path.split("/")[1:]:
        element = element[int(segment)] if isinstance(element, list) else element[segment]  # type: ignore[index]
    assert json.loads(get(path).body) == element


def test_a_subtree_as_text_lists_the_names_of_its_children() -> None:
    assert text("") == "compute/\nnetwork/"
    assert text("/compute/osProfile") == "adminUsername\ncomputerName\ndisablePasswordAuthentication"
    assert text("/network/interface") == "0/"


@pytest.mark.parametrize(
    "path",
    [
        "/nothing",
        "/compute/nothing",
        "/compute/name/x",
        "/network/interface/1",
        "/network/interface/-1",
        "/network/interface/٠",
        "/compute//name",
        "/compute/publicKeys/00",
    ],
)
@pytest.mark.parametrize("form", ["text", "json"])
def test_an_unknown_element_is_not_found(path: str, form: str) -> None:
    answer = get(path, f"api-version=2021-08-01&format={form}")
    assert (answer.status, answer.body) == (404, b'{ "error": "Not found" }')


@pytest.mark.parametrize("facts", [FACTS, BARE], ids=["full", "bare"])
def test_every_leaf_is_a_string_and_has_a_path_of_its_own(facts: InstanceFacts) -> None:
    for path, value in leaves(metadata_tree(facts)):
        assert text(path, facts) == value


@pytest.mark.parametrize("facts", [FACTS, BARE], ids=["full", "bare"])
def test_keys_are_alphabetical_everywhere(facts: InstanceFacts) -> None:
    def check(element: MetadataElement) -> None:
        if isinstance(element, dict):
            assert list(element) == sorted(element, key=str.lower)
        if not isinstance(element, str):
            for child in element.values() if isinstance(element, dict) else element:
                check(child)

    check(metadata_tree(facts))


def test_unknown_facts_are_empty_strings_and_empty_lists() -> None:
    tree = json.loads(get(facts=BARE).body)
    assert tree["compute"]["name"] == tree["compute"]["osProfile"]["computerName"] == "lone"
    assert tree["compute"]["vmId"] == tree["compute"]["tags"] == ""
    assert tree["compute"]["tagsList"] == tree["compute"]["publicKeys"] == []
    assert tree["network"]["interface"][0]["ipv4"] == {"ipAddress": [], "subnet": []}


def test_an_invalid_address_has_an_empty_subnet() -> None:
    odd = InstanceFacts(name="odd", address="pending", mac="00-0D-3A-00-00-01")
    assert text("/network/interface/0/ipv4/subnet/0/address", odd) == ""
    assert text("/network/interface/0/macAddress", odd) == "000D3A000001"


@pytest.mark.parametrize("version", INSTANCE_VERSIONS)
def test_every_instance_version_is_served(version: str) -> None:
    """Spec §2.6: all versions have the same fields."""
    assert get("", f"api-version={version}").body == get().body
