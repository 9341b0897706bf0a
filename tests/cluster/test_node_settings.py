"""Settings of host nodes and of a service with a bus; what docs/how-to/host-nodes.md says about them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from forewarn.cluster.bus import Subjects, subject_token
from forewarn.cluster.node_state import NodeState
from forewarn.errors import Rejected
from forewarn.service.settings import HypervisorKind, Settings, load_settings
from tests.support.markdown_pages import ROOT, blocks

PAGE = ROOT / "docs/how-to/host-nodes.md"
NODE = {"bus": "nats://127.0.0.1:4222", "host": "h7", "hypervisor": "simulated", "listen": ("10.0.0.1:80",)}


def load(flags: dict[str, Any], *, is_node: bool = True, config: Path | None = None, lab: bool = False) -> Settings:
    return load_settings(flags, lab=lab, config=config, environ={"HOME": "/nowhere"}, is_node=is_node)


def test_a_node_has_its_own_listeners_and_hypervisor() -> None:
    settings = load(NODE)
    assert settings.chosen_hypervisor is HypervisorKind.SIMULATED
    assert len(settings.metadata_listeners) == 1


def test_a_service_with_a_bus_leaves_acts_and_vms_to_its_nodes() -> None:
    settings = load({"bus": "nats://127.0.0.1:4222"}, is_node=False)
    assert settings.chosen_hypervisor is HypervisorKind.NODES


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bus": None}, "a host node needs a bus: give --bus nats://HOST:PORT"),
        ({"host": None}, "a host node needs its host: give --host with its name in the fleet"),
        ({"listen": None}, "a host node needs an address that VMs call: give --listen ADDRESS:PORT"),
        ({"hypervisor": "process"}, "hypervisor 'process' is not for host nodes: choose one of"),
        ({"hypervisor": None}, "setting 'hypervisor' is missing"),
        (
            {"hypervisor": "qemu", "qemu": {"hosts": {"h8": {"directory": "/srv/h8"}}}},
            "the settings say nothing about this node's host 'h7': add [qemu.hosts.h7], spelled as in the fleet",
        ),
        ({"stale_minutes": 0}, "setting 'stale_minutes' is 0: give more than 0 minutes"),
        ({"bus": "http://x"}, "setting 'bus': 'http://x' is not nats://HOST:PORT or tls://HOST:PORT"),
        ({"bus": "nats://u:p@x:4222"}, "setting 'bus' has a password in its URL, which other users can see"),
        ({"bus_ca": "/nowhere/ca.pem"}, "setting 'bus_ca': file '/nowhere/ca.pem' does not exist"),
        ({"bus_certificate": "/etc/hostname"}, "settings 'bus_certificate' and 'bus_key' go together"),
    ],
)
def test_a_wrong_setting_of_a_node_is_rejected_in_one_sentence(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(Rejected) as rejected:
        load({**NODE, **changes})
    assert str(rejected.value).startswith(message)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"listen": ("10.0.0.1:80",)}, "with 'bus', host nodes answer the VMs: move 'listen'"),
        ({"workers": 2}, "with 'bus', host nodes answer the VMs: move 'listen'"),
        ({"hypervisor": "simulated"}, "with 'bus', host nodes perform the acts: leave out 'hypervisor'"),
        ({"host": "h7"}, "setting 'host' is for host nodes"),
    ],
)
def test_settings_of_nodes_are_rejected_for_a_service_with_a_bus(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(Rejected) as rejected:
        load({"bus": "nats://127.0.0.1:4222", **flags}, is_node=False)
    assert str(rejected.value).startswith(message)


def test_the_hypervisor_of_nodes_needs_a_bus() -> None:
    with pytest.raises(Rejected, match="hypervisor 'nodes' needs a bus"):
        load({"hypervisor": "nodes", "listen": ("10.0.0.1:80",)}, is_node=False)


def test_a_lab_has_no_bus() -> None:
    with pytest.raises(Rejected, match="setting 'bus' is not for a lab"):
        load({"bus": "nats://127.0.0.1:4222"}, is_node=False, lab=True)


def test_a_node_keeps_its_id_and_terms_and_counts_its_starts(tmp_path: Path) -> None:
    first = NodeState.load(tmp_path / "node.json")
    first.store_term("tag", 7)
    again = NodeState.load(tmp_path / "node.json")
    assert (again.id, again.boot) == (first.id, first.boot + 1)
    assert (again.term_of("tag"), again.term_of("other")) == (7, 0)


def test_a_damaged_state_of_a_node_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "node.json").write_text("{", encoding="utf-8")
    with pytest.raises(Rejected, match="cannot be read"):
        NodeState.load(tmp_path / "node.json")
    assert (tmp_path / "node.json").read_text(encoding="utf-8") == "{"


@pytest.mark.parametrize(
    ("name", "token"), [("h7", "h7"), ("H7", "h7"), ("a.b", "a%2Eb"), ("a b*>", "a%20b%2A%3E"), ("ü-1_x", "%C3%BC-1_x")]
)
def test_the_name_of_a_host_is_one_token_of_a_subject(name: str, token: str) -> None:
    assert subject_token(name) == token


def test_the_settings_on_the_page_are_valid(tmp_path: Path) -> None:
    node, bus = (block.text for block in blocks(PAGE) if block.language == "toml")
    (tmp_path / "node.toml").write_text(node, encoding="utf-8")
    settings = load({"bus": "nats://10.0.0.1:4222", "host": "h7"}, config=tmp_path / "node.toml")
    assert settings.chosen_hypervisor is HypervisorKind.COMMAND
    (tmp_path / "bus.toml").write_text(re.sub(r'"/etc/.*?"', f'"{__file__}"', bus), encoding="utf-8")
    assert load({}, is_node=False, config=tmp_path / "bus.toml").nats.needs_tls


def test_the_permissions_on_the_page_are_those_that_a_node_needs() -> None:
    (text,) = (block.text for block in blocks(PAGE) if block.language == "text")
    node = text[text.index('user: "h7"') :]
    for verb, subjects in Subjects().host_node_permissions("h7").items():
        listed = re.search(rf"{verb}: \[(.*?)\]", node)
        assert listed is not None
        assert re.findall(r'"(.*?)"', listed[1]) == subjects
    assert "allow_responses: true" in node
