"""The one-time link to the portal: only the user's own browser gets to see it."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any

from tests.support.scripted_server import json_reply

LINK = re.compile(r"http://localhost:8443/portal/sign-in/once/[\w-]{43}")


def test_the_portal_link_is_the_whole_output(lab: Any) -> None:
    assert LINK.fullmatch(lab.good("portal").strip())


def test_the_portal_link_in_json_has_its_user_and_expiry(lab: Any) -> None:
    message = lab.json("portal")
    assert set(message) == {"url", "user", "ends_at"}
    assert message["user"] == "local user ann"  # this service has no administrator


def test_a_browser_is_started_with_a_private_file_instead_of_the_link(lab: Any, tmp_path: Path) -> None:
    browser, seen = tmp_path / "browser", tmp_path / "seen"
    browser.write_text(f'#!/bin/sh\necho "$1" > {seen}\n')
    browser.chmod(0o755)
    printed = lab.good("portal", "--open", BROWSER=f"{browser} %s", TMPDIR=str(tmp_path))
    address = seen.read_text().strip()
    page = Path(address.removeprefix("file://"))
    try:
        assert not LINK.search(address)
        assert printed.strip() in page.read_text()
        assert stat.S_IMODE(page.stat().st_mode) == 0o600
    finally:
        os.unlink(page)


def test_a_portal_link_of_a_remote_service_has_the_address_that_was_used(signed_in: Any, remote_service: Any) -> None:
    remote_service.set_replies(
        json_reply({"url": "http://localhost:1/portal/sign-in/once/abc", "user": "ci", "ends_at": 1.0})
    )
    assert signed_in.good("portal", "--profile", "lab").strip() == f"{remote_service.url}/portal/sign-in/once/abc"
