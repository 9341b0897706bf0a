"""Whole tasks in the portal, with a real service and a real agent."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import BrowserUser
from tests.support.service_process import eventually
from tests.support.web_service import WebService

pytestmark = pytest.mark.portal

AGENT = """
listen = ""
state = "{folder}/state"

[steps.note]
use = "command"
run = ["/bin/true"]
budget = "20s"

[[rules]]
steps = ["note"]
approve = "when-done"
"""
# Every state that the cells of some VMs are in, whenever one of them changes: [key, state] of each.
RECORD_STATES = """(names) => {
  window.seen = [];
  const cells = () => [...document.querySelectorAll("a.cell[data-vm]")].filter(
    (cell) => names.some((name) => cell.dataset.vm.endsWith(`/${name}`)));
  const look = () => window.seen.push(cells().map((cell) => [cell.dataset.vm.split("/").pop(), cell.classList[1]]));
  look();
  new MutationObserver(look).observe(document.querySelector("main"), {
    subtree: true, childList: true, attributes: true, attributeFilter: ["class"],
  });
}"""


@contextmanager
def agent(console: WebService, vm: str, folder: Path) -> Iterator[None]:
    """A real agent that approves every event."""
    folder.mkdir()
    (folder / "agent.toml").write_text(AGENT.format(folder=folder), encoding="utf-8")
    at = console.service.endpoint(vm)
    arguments = ["-m", "forewarn", "agent", "run", "--config", str(folder / "agent.toml")]
    command = [sys.executable, *arguments, "--endpoint", f"http://{at.address}:{at.port}"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as running:
        try:
            yield
        finally:
            running.terminate()


def states(page: Page) -> list[dict[str, str]]:
    """The states of the recorded cells after each change."""
    seen: list[dict[str, str]] = [dict(cells) for cells in page.evaluate("window.seen")]
    return seen


def state_changes_of(page: Page, vm: str) -> list[str]:
    """The states of one VM, one after the other."""
    changes: list[str] = []
    for cells in states(page):
        if cells and (not changes or changes[-1] != cells[vm]):
            changes.append(cells[vm])
    return changes


def test_first_run_with_a_link_and_a_restart_that_an_agent_approves(
    console: WebService, new_user: Callable[..., BrowserUser], tmp_path: Path
) -> None:
    link = re.search(r"http://\S+/portal/sign-in/once/\S+", console.service.forewarn("portal").stdout)
    assert link is not None
    user = new_user(console)
    page = user.page
    page.goto(link[0])
    page.wait_for_url(f"{user.base}/portal/")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    page.get_by_role("link", name="Show every VM").click()
    fleet = page.context.new_page()
    fleet.goto(f"{user.base}/portal/fleet")
    fleet.evaluate(RECORD_STATES, ["db-0"])

    with agent(console, "db-0", tmp_path / "agent"):
        eventually(lambda: console.service.api("GET", "/vms/db-0").json["polls"] > 0)
        page.get_by_role("link", name="db-0, running").click()
        page.get_by_role("link", name="Restart", exact=True).click()
        page.get_by_role("button", name="Preview").click()
        expect(page.get_by_role("heading", name="Restart VMs: confirm")).to_be_visible()
        page.get_by_role("button", name="Restart", exact=True).click()
        page.wait_for_url(re.compile(r"/portal/(requests|events)/"))
        expect(fleet.get_by_role("link", name="db-0, rebooting")).to_be_visible()
        console.service.advance(600)
        expect(fleet.get_by_role("link", name="db-0, running")).to_be_visible()
    assert state_changes_of(fleet, "db-0") in (
        ["running", "noticed", "rebooting", "running"],
        ["running", "rebooting", "running"],  # the agent approved before the page showed the event
    )


def test_a_link_works_once(console: WebService, new_user: Callable[..., BrowserUser]) -> None:
    link = re.search(r"http://\S+/portal/sign-in/once/\S+", console.service.forewarn("portal").stdout)
    assert link is not None
    new_user(console).page.goto(link[0])
    late = new_user(console)
    answer = late.page.goto(link[0])
    assert answer is not None
    assert answer.status >= 400
    late.clear_errors()


NOW = '() => [...document.querySelectorAll("a.cell")].map((cell) => cell.classList[1])'
DOWN = {"started", "frozen", "rebooting", "moving"}


def test_a_rollout_never_shows_two_update_domains_down(console: WebService, admin: Callable[..., BrowserUser]) -> None:
    page = admin(console).page
    names = [f"web-{number}" for number in range(6)]
    page.evaluate(RECORD_STATES, names)
    domains = {vm["name"]: vm["update_domain"] for vm in console.service.api("GET", "/fleet").json["vms"]}
    assert {domains[name] for name in names} == {0, 1, 2}
    console.service.poll("web-0")
    answer = console.service.api("POST", "/rollouts", {"impact": "reboot", "scope": "web"})
    assert answer.status < 300, answer.body
    rollout = answer.json["id"]

    def is_done() -> bool:
        at_work = any(cells in DOWN for cells in page.evaluate(NOW))
        console.service.advance(5 if at_work else 60)
        page.wait_for_timeout(100)  # longer than the batch window of changes
        return bool(console.service.api("GET", f"/rollouts/{rollout}").json["progress"] == "completed")

    eventually(is_done, within_s=90)
    expect(page.locator("a.cell.running[data-vm*='/web-']")).to_have_count(6)
    seen = states(page)
    for cells in seen:
        assert len({domains[name] for name, state in cells.items() if state in DOWN}) <= 1, cells
    assert {name for cells in seen for name, state in cells.items() if state in DOWN} == set(names)


def test_two_roles_see_different_vms_and_forms(console: WebService, new_user: Callable[..., BrowserUser]) -> None:
    group = next(
        vm["subscription_id"] for vm in console.service.api("GET", "/fleet").json["vms"] if vm["name"] == "db-0"
    )
    over = f"/subscriptions/{group}/resourceGroups/elsewhere"
    reader, operator = new_user(console), new_user(console)
    reader.sign_in(*console.new_client("Reader", over), to="/portal/vms/other")
    operator.sign_in(*console.new_client("Operator"), to="/portal/vms/other")
    expect(operator.page.get_by_role("link", name="Restart", exact=True)).to_be_visible()
    expect(reader.page.get_by_role("heading", name="other")).to_be_visible()
    expect(reader.page.get_by_role("link", name="Restart", exact=True)).to_have_count(0)
    reader.go("/portal/fleet")
    expect(reader.page.locator("a.cell")).to_have_count(1)
    operator.go("/portal/fleet")
    expect(operator.page.locator("a.cell")).to_have_count(13)
    answer = reader.page.request.get(f"{reader.base}/portal/vms/db-0")
    assert answer.status == 404
    answer = reader.page.request.get(f"{reader.base}/portal/forms/restart?vm=other")
    assert "Reader" not in answer.text()


def test_a_restart_can_be_requested_by_keyboard_alone(console: WebService, admin: Callable[..., BrowserUser]) -> None:
    page = admin(console, to="/portal/vms/db-1").page
    tab_to(page, "Restart")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Preview")).to_be_visible()
    tab_to(page, "Preview")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Restart VMs: confirm")).to_be_visible()
    tab_to(page, "Restart")
    page.keyboard.press("Enter")
    eventually(lambda: console.service.api("GET", "/events").json["events"])
    page.wait_for_url(re.compile(r"/portal/(requests|events)/"))


def tab_to(page: Page, text: str) -> None:
    """Presses Tab until the focused element has this text."""
    for _ in range(80):
        if page.evaluate("document.activeElement?.textContent?.trim()") == text:
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"{text!r} cannot be reached by Tab")
