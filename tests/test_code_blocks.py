"""Every code block of a page is run or read by a test, or listed here with the reason why not."""

from __future__ import annotations

import configparser
import json
import re
from pathlib import Path

import pytest

from forewarn.service.settings import load_settings
from tests.support.markdown_pages import ROOT, blocks, pages

CLI_PAGES = [page.relative_to(ROOT).as_posix() for page in pages() if page.match("docs/reference/cli/*.md")]
TUTORIALS = ("first-ten-minutes", "handler-in-ci", "crash-test-my-handler")
# (page, language) → the test that runs or reads the blocks; the test names the page or its folder.
TESTED_BY = {
    ("docs/contributing/how-to-add.md", "sh"): "tests/test_how_to_add.py",
    ("README.md", "sh"): "tests/e2e/test_readme.py",
    ("docs/index.md", "console"): "tests/tools/test_site.py",
    ("docs/how-to/agent.md", "toml"): "tests/agent/test_documentation.py",
    ("docs/how-to/azure.md", "azurecli"): "tests/azure/test_az_tour.py",
    ("docs/how-to/azure.md", "powershell"): "tests/arm/test_powershell_page.py",
    ("docs/how-to/commands.md", "toml"): "tests/hypervisor/test_documentation.py",
    ("docs/how-to/host-nodes.md", "toml"): "tests/cluster/test_node_settings.py",
    ("docs/how-to/host-nodes.md", "text"): "tests/cluster/test_node_settings.py",
    ("docs/how-to/libvirt.md", "toml"): "tests/hypervisor/libvirt/test_documentation.py",
    ("docs/how-to/production.md", "sh"): "tests/vms/test_production_page.py",
    ("docs/how-to/production.md", "toml"): "tests/vms/test_production_page.py",
    ("docs/how-to/proxmox.md", "toml"): "tests/deploy/test_proxmox.py",
    ("docs/how-to/qemu.md", "toml"): "tests/hypervisor/test_qemu_definition.py",
    ("docs/how-to/crash-test.md", "python"): "tests/crash_test/test_documentation.py",
    ("docs/how-to/crash-test.md", "toml"): "tests/crash_test/test_documentation.py",
    ("docs/how-to/faults.md", ""): "tests/faults/test_command.py",
    ("docs/how-to/faults.md", "sh"): "tests/faults/test_command.py",
    ("docs/how-to/fleet.md", ""): "tests/core/test_fleet_file_examples.py",
    ("docs/how-to/fleet.md", "toml"): "tests/core/test_fleet_file_examples.py",
    ("docs/how-to/maintenance-configurations.md", "python"): "tests/azure/test_sdk_maintenance.py",
    ("docs/how-to/monitoring.md", "yaml"): "tests/metrics/test_alerts.py",
    ("docs/how-to/network.md", "toml"): "tests/service/test_listener_settings.py",
    ("docs/how-to/record-replay.md", "console"): "tests/replay/test_commands.py",
    ("docs/how-to/record-replay.md", "json"): "tests/replay/test_commands.py",
    ("docs/how-to/rollout-health.md", "sh"): "tests/cli/test_rollout_health.py",
    ("docs/how-to/rollout-health.md", "toml"): "tests/cli/test_rollout_health.py",
    ("docs/how-to/rollouts.md", "sh"): "tests/cli/test_rollout_windows.py",
    ("docs/how-to/rollouts.md", "toml"): "tests/core/test_rollout_file.py",
    ("docs/how-to/testing.md", "python"): "tests/lab/test_documentation.py",
    ("docs/how-to/vm.md", "shell-session"): "tests/namespace_vm/test_vm_page.py",
    ("docs/how-to/webhooks.md", "python"): "tests/webhooks/test_documentation.py",
    ("docs/reference/metrics.md", "yaml"): "tests/agent/test_metrics.py",
    ("docs/reference/agent.md", "toml"): "tests/agent/test_documentation.py",
    ("docs/reference/crash-test.md", "toml"): "tests/crash_test/test_documentation.py",
    ("docs/reference/hypervisors.md", "toml"): "tests/hypervisor/test_documentation.py",
    ("docs/reference/reactions.md", "toml"): "tests/agent/reactions/test_documentation.py",
    ("docs/reference/sdk.md", "python"): "tests/client/test_documentation.py",
    ("docs/reference/settings.md", "toml"): "tests/service/test_settings.py",
    **{
        (f"docs/tutorials/{name}.md", language): "tests/e2e/test_tutorials.py"
        for name in TUTORIALS
        for language in ("sh", "console", "python", "toml", "yaml")
    },
}
# Settings files: the tests below read them.
SETTINGS_PAGES = (
    "docs/how-to/cluster.md",
    "docs/how-to/portal.md",
    "docs/how-to/remote.md",
    "docs/how-to/unprivileged.md",
)
# page → the commands that its units of systemd start
UNITS = {"docs/how-to/production.md": ["serve"], "docs/how-to/unprivileged.md": ["sockets", "serve"]}
# (page, language) → why no test runs the blocks. For `sh`, tests/cli/test_documentation.py checks every `forewarn`
# command of every page: that it exists, with these options.
NOT_RUN = {
    ("docs/how-to/lab-vms.md", "sh"): "boots real VMs; tests/vms/test_lab_vms.py runs some of the commands",
    ("CONTRIBUTING.md", "sh"): "the targets of the Makefile, which CI runs",
    ("docs/explanation/crash-test-handlers.md", "sh"): "runs programs of others; `make test-crash-long` does",
    ("docs/how-to/agent.md", ""): "a log with ids and times of one run",
    ("docs/how-to/agent.md", "console"): "needs namespaces; tests/namespace_vm runs programs in the same way",
    ("docs/how-to/agent.md", "sh"): "commands in three terminals; their options are checked",
    ("docs/how-to/azure.md", "js"): "a fragment of a program; tests/azure make the same calls",
    ("docs/how-to/azure.md", "python"): "a fragment, with a secret of the reader; tests/azure make the same calls",
    ("docs/how-to/azure.md", "sh"): "for the reader's own shell; their options are checked",
    ("docs/how-to/cluster.md", "sh"): "several machines; tests/cluster run the same commands, and options are checked",
    ("docs/how-to/cluster.md", "sql"): "PostgreSQL's own; tests/cluster make a database",
    ("docs/how-to/containers.md", "sh"): "needs a container engine; their options are checked",
    ("docs/how-to/crash-test.md", "sh"): "the reader's own handler; their options are checked",
    ("docs/how-to/fleet.md", "sh"): "the reader's own file; their options are checked",
    ("docs/how-to/host-nodes.md", "sh"): "several machines; their options are checked",
    ("docs/how-to/lab-versus-serve.md", "sh"): "runs until it is ended; its options are checked",
    ("docs/how-to/libvirt.md", "sh"): "installs a hook in /etc; tests/vms runs the hook",
    ("docs/how-to/monitoring.md", "sh"): "writes to /etc; their options are checked",
    ("docs/how-to/network.md", "sh"): "changes the network of a host; tests/network load the same rules in namespaces",
    ("docs/how-to/portal.md", "console"): "a link that is valid once",
    ("docs/how-to/proxmox.md", "sh"): "needs Proxmox VE; tests/deploy/test_proxmox.py runs the scripts",
    ("docs/how-to/remote.md", "sh"): "two machines; their options are checked",
    ("docs/how-to/testing.md", "sh"): "installs from an index",
    ("docs/how-to/testing.md", "text"): "a sample of a report",
    ("docs/how-to/upgrade.md", "sh"): "installs from an index; their options are checked",
    ("docs/how-to/vm.md", "sh"): "the reader's own program; their options are checked",
    ("docs/how-to/webhooks.md", ""): "a receiver of the reader's; tests/webhooks run the commands",
    **{(name, "text"): "generated from the commands" for name in CLI_PAGES if "index" not in name},
    ("docs/reference/contract/errors.md", "xml"): "tests/protocol compare the bytes",
    ("docs/reference/reactions.md", ""): "a line of HAProxy's file; `make test-real` runs HAProxy",
    ("docs/reference/reactions.md", "nginx"): "nginx's file; `make test-real` runs nginx",
    ("examples/handlers/README.md", "console"): "tests/support/example_handlers.py runs the handlers",
    ("examples/handlers/README.md", "sh"): "tests/support/example_handlers.py runs the handlers",
    ("examples/queue-worker/README.md", "sh"): "`make test` runs the example",
}


def blocks_of(page: str, language: str) -> list[str]:
    return [block.text for block in blocks(ROOT / page) if block.language == language]


def all_blocks() -> set[tuple[str, str]]:
    """Every page with each language of its code blocks; diagrams are drawn, and JSON is read below."""
    found = {(page.relative_to(ROOT).as_posix(), block.language) for page in pages() for block in blocks(page)}
    return {(page, language) for page, language in found if language not in ("mermaid", "json", "ini")}


def test_every_code_block_is_tested_or_listed_with_a_reason() -> None:
    here = {(page, "toml") for page in SETTINGS_PAGES}
    known = {*TESTED_BY, *NOT_RUN, *here}
    assert all_blocks() - known == set()
    tested = {key for key in TESTED_BY if "tutorials" not in key[0] and key[1] != "json"}
    assert {*tested, *NOT_RUN} - all_blocks() == set(), "no page has these blocks any more"


def test_no_block_is_both_tested_and_listed_as_not_run() -> None:
    assert set(TESTED_BY) & set(NOT_RUN) == set()


@pytest.mark.parametrize(("page", "test"), sorted({(page, test) for (page, _), test in TESTED_BY.items()}))
def test_the_test_of_a_page_reads_it(page: str, test: str) -> None:
    source = (ROOT / test).read_text(encoding="utf-8")
    assert Path(page).name in source or Path(page).stem in source or Path(page).parent.name in source, test


@pytest.mark.parametrize("page", SETTINGS_PAGES)
def test_settings_on_a_page_are_accepted(page: str, tmp_path: Path) -> None:
    (text,) = blocks_of(page, "toml")
    config = tmp_path / "settings.toml"
    config.write_text(text, encoding="utf-8")
    flags = {} if "\nbus = " in text else {"listen": ("10.0.0.1:80",)}
    assert load_settings(flags, lab=False, config=config, environ={"HOME": "/home/ann"})


@pytest.mark.parametrize("page", UNITS)
def test_the_units_on_a_page_start_its_programs(page: str) -> None:
    units = [configparser.RawConfigParser(strict=False) for _ in blocks_of(page, "ini")]
    for unit, text in zip(units, blocks_of(page, "ini"), strict=True):
        unit.read_string(text)
    assert [unit["Service"]["ExecStart"].split()[1] for unit in units] == UNITS[page]


@pytest.mark.parametrize("page", [page for page in pages() if any(block.language == "json" for block in blocks(page))])
def test_json_on_a_page_is_json(page: Path) -> None:
    for block in blocks(page):
        if block.language == "json":
            for text in [block.text] if block.text.lstrip().startswith("[") else block.text.strip().splitlines():
                assert json.loads(re.sub(r"^\s*//.*$", "", text))
