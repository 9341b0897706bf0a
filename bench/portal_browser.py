"""Opens the portal in Debian's chromium and measures it; runs in an environment that has playwright.

.venv-portal/bin/python -m bench.portal_browser   reads a task as JSON from standard input and writes measurements.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_TIMEOUT_MS = 120_000
# The time from the click until the page is drawn, and how many VMs it shows.
_VIEW_MEASUREMENTS = """() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(() => {
  const [navigation] = performance.getEntriesByType("navigation");
  const total = document.querySelector("#map-title .tag"); // on the overview, whose heat map shows all VMs
  const shown = total?.textContent.replaceAll(",", "");
  const vms = shown ? Number(shown) : document.querySelectorAll(".cell[data-vm]").length;
  resolve({ drawn_ms: performance.now(), answered_ms: navigation.responseEnd, bytes: navigation.transferSize, vms });
})))"""
# From now on: the gaps between frames, long tasks, and cells that are drawn again.
_WATCH = """() => {
  window.gaps = []; window.tasks = []; window.received = 0; window.drawn = 0; window.refreshed = 0;
  let last = performance.now();
  const frame = (now) => { window.gaps.push(now - last); last = now; requestAnimationFrame(frame); };
  requestAnimationFrame(frame);
  new PerformanceObserver((list) => window.tasks.push(...list.getEntries().map((one) => one.duration)))
    .observe({ type: "longtask" });
  new MutationObserver((list) => { window.drawn += list.filter((one) => one.target.matches(".cell")).length; })
    .observe(document.body, { subtree: true, attributeFilter: ["class"] });
  document.addEventListener("refreshed", ({ target }) => { window.refreshed += target.id === "fleet-map"; });
}"""
_WATCH_DATA = """() => {
  const { gaps, tasks, received, drawn, refreshed } = window;
  return { gaps, tasks, received, drawn, refreshed };
}"""
_COUNT_CHANGES = """async () => {
  const { live } = await import("/portal/static/live.js");
  live.addEventListener("change", ({ detail }) => { window.received += detail.vms.length; });
}"""


def main() -> None:
    task = json.load(sys.stdin)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=task["chromium"], args=ARGUMENTS)
        state, first = _sign_in(browser, task)
        views = [first, *(_view(browser, task, state) for _ in range(task["views"]))]
        print(json.dumps({"views": views}), flush=True)
        for _ in range(task["watches"]):
            _watch(browser, task, state)
        browser.close()


def _sign_in(browser: Browser, task: dict[str, Any]) -> tuple[Any, dict[str, float]]:
    """Sign in; returns the cookies and the measurements of the first view."""
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(_TIMEOUT_MS)
    page.goto(f"{task['base']}{task['path']}")
    page.get_by_label("Client").fill(task["client"])
    page.get_by_label("Secret").fill(task["secret"])
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"{task['base']}{task['path']}")
    view, state = page.evaluate(_VIEW_MEASUREMENTS), context.storage_state()
    context.close()
    return state, view


def _view(browser: Browser, task: dict[str, Any], state: Any) -> dict[str, float]:
    """Open the page with an empty browser cache, signed in."""
    context = browser.new_context(storage_state=state)
    page = _open_portal(context.new_page(), task)
    view: dict[str, float] = page.evaluate(_VIEW_MEASUREMENTS)
    context.close()
    return view


def _watch(browser: Browser, task: dict[str, Any], state: Any) -> None:
    """Print the visible VMs when the page is ready, then the measurements of the watch."""
    context = browser.new_context(storage_state=state)
    page = _open_portal(context.new_page(), task)
    page.evaluate(_COUNT_CHANGES)
    page.evaluate(_WATCH)
    vms = page.evaluate('() => [...document.querySelectorAll(".cell[data-vm]")].map((one) => one.dataset.vm)')
    print(json.dumps({"vms": vms}), flush=True)
    page.wait_for_timeout(1000 * task["watch_s"])
    session = context.new_cdp_session(page)
    session.send("Performance.enable")
    metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    watch = page.evaluate(_WATCH_DATA)
    print(json.dumps({**watch, "heap": metrics["JSHeapUsedSize"]}), flush=True)
    context.close()


def _open_portal(page: Page, task: dict[str, Any]) -> Page:
    page.set_default_timeout(_TIMEOUT_MS)
    page.goto(f"{task['base']}{task['path']}", wait_until="load")
    return page


if __name__ == "__main__":
    main()
