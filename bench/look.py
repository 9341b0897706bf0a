"""Somebody who looks at the portal with Debian's chromium: run by an environment that has what drives a browser.

.venv-portal/bin/python -m bench.look   reads a task as JSON from standard input, and writes what it saw.
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
_MS = 120_000
# From the click to the page as it stands, drawn, and how many VMs are on it.
_SEEN = """() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(() => {
  const [navigation] = performance.getEntriesByType("navigation");
  const vms = document.querySelectorAll(".cell[data-vm]").length;
  resolve({ drawn_ms: performance.now(), answered_ms: navigation.responseEnd, bytes: navigation.transferSize, vms });
})))"""
# Gaps between frames, tasks that hold everything up, and cells that are drawn anew, from now on.
_WATCH = """() => {
  window.gaps = []; window.tasks = []; window.heard = 0; window.drawn = 0;
  let last = performance.now();
  const frame = (now) => { window.gaps.push(now - last); last = now; requestAnimationFrame(frame); };
  requestAnimationFrame(frame);
  new PerformanceObserver((list) => window.tasks.push(...list.getEntries().map((one) => one.duration)))
    .observe({ type: "longtask" });
  new MutationObserver((list) => { window.drawn += list.filter((one) => one.target.matches(".cell")).length; })
    .observe(document.body, { subtree: true, attributeFilter: ["class"] });
}"""
_WATCHED = "() => ({ gaps: window.gaps, tasks: window.tasks, heard: window.heard, drawn: window.drawn })"
_LISTEN = """async () => {
  const { live } = await import("/portal/static/live.js");
  live.addEventListener("change", ({ detail }) => { window.heard += detail.vms.length; });
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
    """The cookies from then on, and the view that it leads to."""
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(_MS)
    page.goto(f"{task['base']}/portal/sign-in")
    page.get_by_label("Client").fill(task["client"])
    page.get_by_label("Secret").fill(task["secret"])
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"{task['base']}/portal/")
    seen, state = page.evaluate(_SEEN), context.storage_state()
    context.close()
    return state, seen


def _view(browser: Browser, task: dict[str, Any], state: Any) -> dict[str, float]:
    """With nothing remembered but who is signed in."""
    context = browser.new_context(storage_state=state)
    page = _opened(context.new_page(), task)
    seen: dict[str, float] = page.evaluate(_SEEN)
    context.close()
    return seen


def _watch(browser: Browser, task: dict[str, Any], state: Any) -> None:
    """Tell when all is ready; then what was seen while things changed."""
    context = browser.new_context(storage_state=state)
    page = _opened(context.new_page(), task)
    page.evaluate(_LISTEN)
    page.evaluate(_WATCH)
    vms = page.evaluate('() => [...document.querySelectorAll(".cell[data-vm]")].map((one) => one.dataset.vm)')
    print(json.dumps({"vms": vms}), flush=True)
    page.wait_for_timeout(1000 * task["watch_s"])
    session = context.new_cdp_session(page)
    session.send("Performance.enable")
    metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    seen = page.evaluate(_WATCHED)
    print(json.dumps({**seen, "heap": metrics["JSHeapUsedSize"]}), flush=True)
    context.close()


def _opened(page: Page, task: dict[str, Any]) -> Page:
    page.set_default_timeout(_MS)
    page.goto(f"{task['base']}/portal/", wait_until="load")
    return page


if __name__ == "__main__":
    main()
