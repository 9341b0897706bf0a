"""Takes the pictures in docs/: the portal of a lab where things happen, and the crash test's report of a bad handler.

`make screenshots` runs it in an environment that has Playwright, with Debian's Chromium. The crash test takes four
minutes; `python -m tools.docs.screenshot portal.png` takes only the pictures that it names.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tools.docs.executable_page import ROOT, CommandStep, PageShell, chosen_ports, open_page_shell

DOCS = ROOT / "docs"
PORTAL, ROLLOUT = "portal.png", "rollout.png"
REPORT, REPORT_PHONE, CASE = "report.png", "report-phone.png", "report-case.png"
_HANDLERS = ROOT / "examples" / "handlers"
_CASE = "whom-neighbour-only"  # whose timeline REPORT's report shows in CASE
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
_ROLLOUT_FORM = "/portal/forms/rollout?impact=reboot&scope=workers/pg-0&canary=2&shares=50&settle=10m"
_CRASH_TEST = (
    "forewarn crash-test --claims bad/claims.toml --prepared 'test -s drained' --recovered 'test ! -e drained'"
    " --html {report} -- python3 bad/handler.py 'date > drained'"
)
# Chromium has no sandbox as root. It must not fetch anything for itself.
_CHROMIUM = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@contextmanager
def _open_page(width: int, height: int) -> Iterator[Page]:
    program = shutil.which("chromium")
    if program is None:
        raise RuntimeError("chromium is not installed: `apt-get install chromium`")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=_CHROMIUM)
        yield browser.new_page(
            viewport={"width": width, "height": height}, color_scheme="light", device_scale_factor=1.2
        )
        browser.close()


def take_portal(directory: Path, ports: tuple[int, int]) -> None:
    """Start a lab on these ports, let things happen, and take pictures of the first page and of a rollout's preview."""
    with open_page_shell(ports=ports) as shell:
        _run(shell, "forewarn up --detach --wait-ready")
        for last in _POLLING_VMS:
            _run(shell, f"forewarn guest events --endpoint {_POLL.format(last=last)}")
        for command in _WHAT_HAPPENS:
            _run(shell, command)
        link = _run(shell, "forewarn portal").split()[0].replace(":8443/", f":{ports[1]}/")
        with _open_page(1440, 1000) as page:
            page.goto(link)
            page.get_by_role("button", name="Find").wait_for()  # the page's script adds it
            page.screenshot(path=directory / PORTAL)
            page.goto(link.partition("/portal/")[0] + _ROLLOUT_FORM)
            page.get_by_role("button", name="Preview").click()
            page.get_by_role("button", name="Start", exact=True).wait_for()
            page.set_viewport_size({"width": 1000, "height": 900})
            page.locator("main").screenshot(path=directory / ROLLOUT)


def take_report(directory: Path) -> None:
    """Crash-test the bad handler of the examples, and take pictures of its report."""
    with tempfile.TemporaryDirectory() as made:
        report = Path(made, "report.html")
        line = [str(Path(sys.executable).parent / "forewarn"), *shlex.split(_CRASH_TEST.format(report=report))[1:]]
        subprocess.run(line, cwd=_HANDLERS, check=False, stdout=subprocess.DEVNULL)  # exit status 1: cases failed
        picture_report(report, directory)


def picture_report(report: Path, directory: Path) -> None:
    """Take pictures of the grade and what to fix first, on a desk and on a phone, and of one case."""
    for name, width, last in ((REPORT, 1024, 3), (REPORT_PHONE, 390, 1)):
        with _open_page(width, 900) as page:
            page.goto(report.as_uri())
            fix = page.locator("ol.fixes > li").nth(last - 1).bounding_box()
            assert fix is not None, "the report of a bad handler says what to fix"
            clip = {"x": 0, "y": 0, "width": width, "height": fix["y"] + fix["height"] + 12}
            page.screenshot(path=directory / name, full_page=True, clip=clip)
            if name == REPORT:
                page.locator(f"#{_CASE}").screenshot(path=directory / CASE)


def _run(shell: PageShell, command: str) -> str:
    (done,) = shell.run_steps([CommandStep(command, None)])
    if done.status:
        raise RuntimeError(f"$ {command}\n{done.output}\nexit status {done.status}")
    return done.output


def main(names: Sequence[str]) -> None:
    """Take the pictures with these names; none: all."""
    if not names or {PORTAL, ROLLOUT} & set(names):
        take_portal(DOCS, chosen_ports())
    if not names or {REPORT, REPORT_PHONE, CASE} & set(names):
        take_report(DOCS)


if __name__ == "__main__":
    main(sys.argv[1:])
