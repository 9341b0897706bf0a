"""Settings: flags over environment over file over defaults, and one clear sentence for every mistake."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from forewarn.base.http_client import LocalTargets
from forewarn.core.decision import EnablementMode
from forewarn.errors import Rejected
from forewarn.machines.simulated import SimulatedBehaviour
from forewarn.protocol.versions import VERSIONS
from forewarn.service.settings import HypervisorKind, Settings, load_settings

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"
HOME = {"HOME": "/home/ann"}


def write_file(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_lab_needs_no_settings_at_all() -> None:
    settings = load_settings({}, lab=True, environ=HOME)
    assert settings.data == "/home/ann/.local/state/forewarn"
    assert settings.enablement is EnablementMode.ALWAYS  # spec §8.3


def test_flags_win_over_the_environment_which_wins_over_the_file(tmp_path: Path) -> None:
    config = write_file(tmp_path / "f.toml", "port = 1001\nstart_grace_s = 1\nevent_settle_s = 1\n")
    environ = {**HOME, "FOREWARN_PORT": "1002", "FOREWARN_START_GRACE_S": "2"}
    settings = load_settings({"port": 1003, "fleet": None}, lab=True, config=config, environ=environ)
    assert (settings.port, settings.start_grace_s, settings.event_settle_s) == (1003, 2, 1)


def test_addresses_in_the_environment_are_separated_by_commas() -> None:
    settings = load_settings({}, lab=False, environ={**HOME, "FOREWARN_LISTEN": "10.0.0.1:80, 10.0.1.1:80"})
    assert settings.listen == ("10.0.0.1:80", "10.0.1.1:80")


def test_a_lab_uses_the_process_hypervisor_by_default() -> None:
    assert load_settings({}, lab=True, environ=HOME).chosen_hypervisor is HypervisorKind.PROCESS
    assert load_settings({"hypervisor": "simulated"}, lab=True, environ=HOME).hypervisor is HypervisorKind.SIMULATED


def test_a_service_for_real_vms_needs_a_hypervisor_and_is_told_all_of_them_and_what_simulated_means() -> None:
    settings = load_settings({"listen": ("10.0.0.1:80",)}, lab=False, environ=HOME)
    with pytest.raises(Rejected) as caught:
        _ = settings.chosen_hypervisor
    message = str(caught.value)
    assert message.startswith("setting 'hypervisor' is missing")
    kinds = [kind for kind in HypervisorKind if kind is not HypervisorKind.NODES]  # `bus` chooses that one
    assert all(f"{kind} ({kind.description})" in message for kind in kinds)
    assert "nodes" not in message
    assert "simulated (no real VMs" in message
    chosen = load_settings({"listen": ("10.0.0.1:80",), "hypervisor": "simulated"}, lab=False, environ=HOME)
    assert chosen.chosen_hypervisor is HypervisorKind.SIMULATED


def test_a_service_for_real_vms_enables_scopes_on_request() -> None:
    settings = load_settings({"listen": ("10.0.0.1:80",)}, lab=False, environ=HOME)
    assert settings.enablement is EnablementMode.ON_REQUEST  # spec §8.3


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("prot = 1", "setting 'prot' does not exist: did you mean 'port'?"),
        ("port = 0", "setting 'port' is 0: give a port from 1 to 65535"),
        ("start_grace_s = -1", "setting 'start_grace_s' is -1: give 0 or more"),
        ("first_answer_delay_s = 121", "give 0 to 120 seconds"),
        ("history_days = 0.5", "setting 'history_days' is 0.5"),
        (
            'enablement = "sometimes"',
            "setting 'enablement': invalid enum value 'sometimes': give one of on-request, always, "
            "in the file or as FOREWARN_ENABLEMENT",
        ),
        (
            'port = "http"',
            "setting 'port': expected `int`, got `str`: give a whole number, in the file or as FOREWARN_PORT",
        ),
        ('listen = "10.0.0.1:80"', "setting 'listen': expected `array`, got `str`: give a list, such as ["),
        ('[versions]\nwesteurope = ["2018-01-01"]', "'2018-01-01' is not an api-version"),
        ("[versions]\nwesteurope = []", "is empty: name at least one api-version"),
        ("port = ", "is not TOML"),
        ('hypervisor = "magic"', "setting 'hypervisor': invalid enum value 'magic': give one of simulated"),
        ('hypervisor = "command"', "no command is set: add [commands.reboot]"),
        ('[commands.rebot]\nrun = ["true"]', "setting 'commands': verb 'rebot' does not exist"),
        ("[commands.reboot]\nrun = []", "setting 'commands.reboot.run' is empty"),
        ("lab = true", "has no 'lab': remove it; the command `forewarn up` starts a lab"),
        ('[commands.reboot]\nrun = ["true"]\ntimeout_s = 0', "'commands.reboot.timeout_s' is 0"),
    ],
)
def test_a_mistake_in_the_settings_file_gets_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(Rejected, match=re.escape(sentence)):
        load_settings({}, lab=True, config=write_file(tmp_path / "f.toml", text), environ=HOME)


def test_a_missing_settings_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match=r"cannot be read \(No such file .*: name another with --config"):
        load_settings({}, lab=True, config=tmp_path / "none.toml", environ=HOME)


def test_a_mistake_in_the_environment_names_the_setting() -> None:
    with pytest.raises(Rejected, match="setting 'port'"):
        load_settings({}, lab=True, environ={**HOME, "FOREWARN_PORT": "many"})


def test_a_service_for_real_vms_needs_a_listen_address() -> None:
    with pytest.raises(Rejected, match="give --listen ADDRESS:PORT"):
        load_settings({}, lab=False, environ=HOME)


def test_a_lab_may_call_its_own_machine_and_other_services_may_not() -> None:
    service: dict[str, object] = {"listen": ("10.0.0.1:80",), "oidc_audience": ("x",)}
    assert load_settings({}, lab=True, environ=HOME).local_targets is LocalTargets.LOOPBACK
    assert load_settings(service, lab=False, environ=HOME).local_targets is LocalTargets.NONE
    local = {**service, "oidc_issuer": "http://localhost:8080"}
    sentence = "setting 'oidc_issuer' cannot be used: 'localhost' is this machine, which the setting 'local_targets'"
    with pytest.raises(Rejected, match=re.escape(sentence)):
        load_settings(local, lab=False, environ=HOME)
    assert load_settings({**local, "local_targets": "loopback"}, lab=False, environ=HOME).oidc_issuer


def test_the_documentation_lists_every_setting() -> None:
    documented = set(re.findall(r"^\| `(\w+)` \|", DOCS.read_text(encoding="utf-8"), re.MULTILINE))
    assert documented == set(Settings.__struct_fields__) - {"lab"}


def test_the_documented_example_is_accepted(tmp_path: Path) -> None:
    found = re.search(r"```toml\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    settings = load_settings({}, lab=True, config=write_file(tmp_path / "f.toml", found[1]), environ=HOME)
    assert settings.port == 9000
    assert len(SimulatedBehaviour.from_rules(list(settings.simulate)).rules) == 1


@pytest.mark.parametrize(
    ("flags", "missing"),
    [
        ({"oidc_client_id": "portal"}, "'oidc_client_id' needs 'oidc_issuer'"),
        ({"oidc_client_secret_file": "x"}, "'oidc_client_secret_file' needs 'oidc_client_id'"),
    ],
)
def test_settings_for_sign_in_at_an_external_issuer_must_be_complete(flags: dict[str, str], missing: str) -> None:
    with pytest.raises(Rejected, match=missing):
        load_settings(flags, lab=True, environ=HOME)


QEMU_SETTINGS = """
hypervisor = "qemu"
[machines]
acpi_timeout_s = 5
[qemu.hosts.host-1]
directory = "/hosts/1"
prefix = ["ip", "netns", "exec", "host-1"]
"""


def test_the_hosts_of_qemu_are_tables_of_the_file(tmp_path: Path) -> None:
    config = tmp_path / "settings.toml"
    config.write_text(QEMU_SETTINGS)
    settings = load_settings({}, lab=True, config=config, environ=HOME)
    assert settings.hypervisor is HypervisorKind.QEMU
    assert settings.qemu.hosts["host-1"].prefix == ("ip", "netns", "exec", "host-1")
    assert settings.machines.acpi_timeout_s == 5


def test_the_observation_of_hosts_can_be_switched_off(tmp_path: Path) -> None:
    config = tmp_path / "settings.toml"
    config.write_text(QEMU_SETTINGS.replace("acpi_timeout_s = 5", "observe_interval_s = 0"))
    assert load_settings({}, lab=True, config=config, environ=HOME).machines.observe_interval_s == 0


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[qemu.hosts.host-1]", "[unused]", "setting 'unused' does not exist"),
        (
            "acpi_timeout_s = 5",
            "acpi_timeout_s = 0",
            "setting 'machines.acpi_timeout_s' is 0: give more than 0 seconds",
        ),
        (
            "acpi_timeout_s = 5",
            "observe_interval_s = -1",
            "setting 'machines.observe_interval_s' is -1: give 0 to switch it off, or more seconds",
        ),
        ('"/hosts/1"', '"hosts/1"', "setting 'qemu.hosts.host-1.directory' is 'hosts/1': give an absolute path"),
        ("prefix", "prefiks", "prefiks"),
    ],
)
def test_wrong_settings_of_real_vms_are_rejected(tmp_path: Path, old: str, new: str, message: str) -> None:
    config = tmp_path / "settings.toml"
    config.write_text(QEMU_SETTINGS.replace(old, new))
    with pytest.raises(Rejected) as caught:
        load_settings({}, lab=True, config=config, environ=HOME)
    assert message in str(caught.value)


def test_the_hypervisor_qemu_needs_a_host() -> None:
    with pytest.raises(Rejected, match=r"no host is set: add \[qemu.hosts.NAME\]"):
        load_settings({"hypervisor": "qemu"}, lab=True, environ=HOME)


LIBVIRT_SETTINGS = """
hypervisor = "libvirt"
[libvirt.hosts.kvm-a]
uri = "qemu+ssh://kvm-a/system"
[libvirt.hosts.kvm-b]
uri = "qemu+ssh://kvm-b/system"
fence = ["ipmitool", "-H", "kvm-b-bmc", "power", "off"]
"""


def test_the_hosts_of_libvirt_are_tables_of_the_file(tmp_path: Path) -> None:
    config = tmp_path / "settings.toml"
    config.write_text(LIBVIRT_SETTINGS)
    settings = load_settings({}, lab=True, config=config, environ=HOME)
    assert settings.hypervisor is HypervisorKind.LIBVIRT
    assert settings.libvirt.hosts["kvm-a"].uri == "qemu+ssh://kvm-a/system"
    assert settings.libvirt.hosts["kvm-b"].fence[0] == "ipmitool"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("qemu+ssh://kvm-a/system", "kvm-a", "setting 'libvirt.hosts.kvm-a.uri' is 'kvm-a': give a libvirt URI"),
        ("//kvm-b/", "//kvm-a/", "setting 'libvirt.hosts.kvm-b.uri' is also that of host 'kvm-a'"),
        ('"ipmitool"', '""', "setting 'libvirt.hosts.kvm-b.fence' begins with an empty string"),
        ("fence", "fence_timeout_s = 0\nfence", "setting 'libvirt.hosts.kvm-b.fence_timeout_s' is 0: give more than 0"),
        ("fence", "fench", "fench"),
    ],
    ids=["no URI", "the same URI", "no program", "no time", "unknown key"],
)
def test_wrong_settings_of_libvirt_hosts_are_rejected(tmp_path: Path, old: str, new: str, message: str) -> None:
    config = tmp_path / "settings.toml"
    config.write_text(LIBVIRT_SETTINGS.replace(old, new))
    with pytest.raises(Rejected) as caught:
        load_settings({}, lab=True, config=config, environ=HOME)
    assert message in str(caught.value)


def test_the_hypervisor_libvirt_needs_a_host() -> None:
    with pytest.raises(Rejected, match=r"no host is set: add \[libvirt.hosts.NAME\]"):
        load_settings({"hypervisor": "libvirt"}, lab=True, environ=HOME)


def test_the_preview_version_is_served_only_if_it_is_switched_on(tmp_path: Path) -> None:
    """Spec §14.4."""
    assert load_settings({}, lab=True, environ=HOME).served_versions == VERSIONS
    on = load_settings({}, lab=True, environ={**HOME, "FOREWARN_PREVIEW_VERSIONS": "true"})
    assert on.served_versions == (*VERSIONS, "2024-07-09")
    assert (on.policy.recommends_rebalancing, on.serving.rules.versions) == (True, on.served_versions)
    config = write_file(tmp_path / "f.toml", '[versions]\nnorth = ["2024-07-09"]\n')
    with pytest.raises(Rejected, match=r"'2024-07-09' is not an api-version; choose from 2017-03-01"):
        load_settings({}, lab=True, config=config, environ=HOME)
