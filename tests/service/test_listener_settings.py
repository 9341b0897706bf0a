"""[[listeners]]: how a listener identifies VMs (spec §2.1, §7.4), and errors for mistakes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from forewarn.errors import Rejected
from forewarn.metadata import IdentifyBy
from forewarn.service.settings import Settings, SocketOwner, load_settings

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"
NETWORK = DOCS.parents[1] / "how-to" / "network.md"
HOME = {"HOME": "/home/ann"}


def load(tmp_path: Path, text: str) -> Settings:
    config = tmp_path / "f.toml"
    config.write_text(text, encoding="utf-8")
    return load_settings({}, lab=False, config=config, environ=HOME)


def test_the_documented_example_has_one_listener_of_each_kind(tmp_path: Path) -> None:
    text = re.findall(r"```toml\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)[1]
    specs = load(tmp_path, text).metadata_listeners
    assert [spec.identify_by for spec in specs] == list(IdentifyBy)
    assert [spec.assignments for spec in specs] == [
        (("device:/tap-web0", "web-0"),),
        (("within:tenant-a", "web-1"),),
        (("mark:/br0/1", "db-0"), ("mark:/br0/2", "db-1")),
        (("blue/10.0.0.4", "cache-0"),),
    ]
    assert [(spec.address, spec.port) for spec in specs] == [
        *[("169.254.169.254", 80)] * 3,
        ("10.0.0.1", 80),
    ]


def test_every_listener_in_the_page_about_networks_is_accepted(tmp_path: Path) -> None:
    texts = re.findall(r"```toml\n(.*?)```", NETWORK.read_text(encoding="utf-8"), re.DOTALL)
    identified_by = [
        load(tmp_path, text).metadata_listeners[0].identify_by for text in texts if "[[listeners]]" in text
    ]
    assert identified_by == [IdentifyBy.DEVICE, IdentifyBy.MARK, IdentifyBy.NAMESPACE, IdentifyBy.SOURCE]


def test_the_page_about_networks_names_exactly_the_rule_files_that_exist() -> None:
    named = set(re.findall(r"network/([\w-]+\.nft)", NETWORK.read_text(encoding="utf-8")))
    assert named == {path.name for path in NETWORK.with_suffix("").iterdir()}


def test_listeners_of_the_setting_listen_identify_vms_by_source_address(tmp_path: Path) -> None:
    (spec,) = load(tmp_path, 'listen = ["[::1]:8080"]').metadata_listeners
    assert (spec.identify_by, spec.address, spec.port, spec.name) == (
        IdentifyBy.SOURCE,
        "::1",
        8080,
        "[::1]:8080",
    )


def test_the_sockets_can_be_opened_by_the_helper(tmp_path: Path) -> None:
    assert load(tmp_path, 'listen = ["10.0.0.1:80"]\nsockets = "helper"').sockets is SocketOwner.HELPER
    with pytest.raises(Rejected, match="setting 'sockets': invalid enum value 'systemd'"):
        load(tmp_path, 'listen = ["10.0.0.1:80"]\nsockets = "systemd"')


@pytest.mark.parametrize(
    ("listener", "sentence"),
    [
        ('device = "tap0"', '\'by\', how VMs are identified, is missing: write by = "device" or "namespace" or'),
        ('by = "header"', "by = 'header' is not supported: write \"device\" or"),
        ('by = "device"\ndevice = "tap0"', "a listener by device needs 'vm': write device = \"tap-web0\" and vm ="),
        ('by = "device"\ndevise = "tap0"', "a listener by device has no key 'devise': did you mean 'device'?"),
        ('by = "mark"\ndevice = "br0"\nvm = "a"', "a listener by mark has no key 'vm'"),
        ('by = "mark"\ndevice = "br0"', "a listener by mark needs 'marks': write device = \"br0\" and marks ="),
        ('by = "mark"\ndevice = "br0"\nmarks = {0 = "a"}', "mark '0' is not valid: write a number from 1"),
        ('by = "mark"\ndevice = "br0"\nmarks = {x = "a"}', "mark 'x' is not valid"),
        ('by = "mark"\ndevice = "br0"\nmarks = {1 = 2}', "'marks' is not a table of VM names"),
        ('by = "mark"\ndevice = "br0"\nmarks = ["a"]', "'marks' is not a table of VM names"),
        ('by = "namespace"\nvm = "a"', "a listener by namespace needs 'namespace'"),
        ('by = "source"\nnetwork = "blue"', "'network' and 'vms' belong together"),
        ('by = "source"\nnetwork = "b/c"\nvms = {"10.0.0.4" = "a"}', "network 'b/c' is not a valid name"),
        ('by = "source"\nnetwork = "blue"\nvms = {"web" = "a"}', "'web' in 'vms' is not an IP address"),
        ('by = "source"\naddress = "localhost"', "address 'localhost' is not an IP address"),
        ('by = "source"\nport = 0', "port 0 is not valid: give a number from 1 to 65535"),
        (
            'by = "device"\nvm = "a"\ndevice = "a-name-of-sixteen"',
            "device 'a-name-of-sixteen' is not a valid name: use at most 15 characters",
        ),
        ('by = "device"\nvm = "a"\ndevice = 7', "device = 7 is not text: write it in quotes"),
    ],
)
def test_a_mistake_in_a_listener_gets_one_sentence_with_its_number(
    tmp_path: Path, listener: str, sentence: str
) -> None:
    first = '[[listeners]]\nby = "source"\naddress = "10.9.9.9"\n'
    with pytest.raises(Rejected, match=re.escape(f"[[listeners]] number 2: {sentence}")):
        load(tmp_path, f"{first}[[listeners]]\n{listener}\n")


def test_two_listeners_on_the_same_address_are_rejected(tmp_path: Path) -> None:
    one = '[[listeners]]\nby = "device"\ndevice = "tap0"\nvm = "a"\n'
    with pytest.raises(Rejected, match=r"\[\[listeners\]\] numbers 1 and 2 listen on the same address"):
        load(tmp_path, one + one)


def test_one_place_cannot_belong_to_two_vms(tmp_path: Path) -> None:
    """Spec §7.4."""
    one = '[[listeners]]\nby = "device"\ndevice = "tap0"\nvm = "a"\n'
    other = '[[listeners]]\nby = "device"\ndevice = "tap0"\nvm = "b"\nport = 81\n'
    with pytest.raises(Rejected, match="number 2: the same callers are VM 'a' and VM 'b': name only one"):
        load(tmp_path, one + other)
