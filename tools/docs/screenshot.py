"""Takes docs/portal.png: the first page of the portal, in light mode, of a lab where things happen.

`make screenshots` runs it in an environment that has Playwright, with Debian's Chromium.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright

from tools.docs.executable_page import ROOT, CommandStep, PageShell, chosen_ports, open_page_shell

PICTURE = ROOT / "docs" / "portal.png"
_SIZE = {"width": 1440, "height": 1000}
_SCALE = 1.2
_POLL = "http://127.0.0.{last}:8254"
_POLLING_VMS = (1, 2, 3, 4, 5)  # the last byte of their addresses
_WHAT_HAPPENS = (
    "forewarn rollout start --scope db --impact update",
    "forewarn clock advance 20m",
    "forewarn restart web-0",
    "forewarn evict batch_0 --notice 10m --short-notice",
    "forewarn degrade host-4 --in 7d",
    "forewarn redeploy web-1",
    "forewarn clock speed 0",  # so that the restart stays in progress
    "forewarn guest approve --own --endpoint http://127.0.0.1:8254",
)
# Chromium has no sandbox as root. It must not fetch anything for itself.
_CHROMIUM = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


def take_screenshot(path: Path, ports: tuple[int, int]) -> None:
    """Start a lab on these ports, let things happen in it, and write a picture of the portal to this file.

    Raises RuntimeError if a command fails or Chromium is not installed.
    """
    program = shutil.which("chromium")
    if program is None:
        raise RuntimeError("chromium is not installed: `apt-get install chromium`")
    with open_page_shell(ports=ports) as shell:
        _run(shell, "forewarn up --detach --wait-ready")
        for last in _POLLING_VMS:
            _run(shell, f"forewarn guest events --endpoint {_POLL.format(last=last)}")
        for command in _WHAT_HAPPENS:
            _run(shell, command)
        link = _run(shell, "forewarn portal").split()[0].replace(":8443/", f":{ports[1]}/")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=program, args=_CHROMIUM)
            page = browser.new_page(viewport=_SIZE, color_scheme="light", device_scale_factor=_SCALE)
            page.goto(link)
            page.get_by_role("button", name="Find").wait_for()  # the page's script adds it
            page.screenshot(path=path)
            browser.close()


def _run(shell: PageShell, command: str) -> str:
    (done,) = shell.run_steps([CommandStep(command, None)])
    if done.status:
        raise RuntimeError(f"$ {command}\n{done.output}\nexit status {done.status}")
    return done.output


if __name__ == "__main__":
    take_screenshot(PICTURE, chosen_ports())
