"""The link to the portal: one that signs in, and that nobody but a browser of one's own gets to see."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any

from tests.support.scripted_server import json_reply

LINK = re.compile(r"http://localhost:8443/portal/sign-in/once/[\w-]{43}")


def test_a_link_is_the_whole_answer_so_that_it_can_be_handed_on(lab: Any) -> None:
    assert LINK.fullmatch(lab.good("portal").strip())


def test_programs_are_told_whom_it_signs_in_and_until_when(lab: Any) -> None:
    told = lab.json("portal")
    assert set(told) == {"url", "signs_in", "ends_at"}
    assert told["signs_in"] == "local user ann"  # there is no administrator in this world


def test_a_browser_is_started_with_a_private_file_instead_of_the_link(lab: Any, tmp_path: Path) -> None:
    browser, seen = tmp_path / "browser", tmp_path / "seen"
    browser.write_text(f'#!/bin/sh\necho "$1" > {seen}\n')
    browser.chmod(0o755)
    said = lab.good("portal", "--open", BROWSER=f"{browser} %s", TMPDIR=str(tmp_path))
    address = seen.read_text().strip()
    page = Path(address.removeprefix("file://"))
    try:
        assert not LINK.search(address)
        assert said.strip() in page.read_text()
        assert stat.S_IMODE(page.stat().st_mode) == 0o600
    finally:
        os.unlink(page)


def test_a_link_from_elsewhere_leads_to_where_the_service_was_called(signed: Any, elsewhere: Any) -> None:
    elsewhere.will_say(
        json_reply({"url": "http://localhost:1/portal/sign-in/once/abc", "signs_in": "ci", "ends_at": 1.0})
    )
    assert signed.good("portal", "--profile", "lab").strip() == f"{elsewhere.url}/portal/sign-in/once/abc"
