"""Signing in to the portal of the real process: by link, over HTTP and TLS, across a restart and a kill."""

from __future__ import annotations

import os
import pty
import re
import signal
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlencode

import pytest

from tests.support.service_process import free_port
from tests.support.web_service import WebService, open_web_service

LINK = re.compile(r"http://localhost:\d+/portal/sign-in/once/[\w-]{43}")


@pytest.fixture
def console(tmp_path: Path) -> Iterator[WebService]:
    with open_web_service(tmp_path) as console:
        yield console


class Browser:
    def __init__(self, console: WebService, *, is_safe: bool = False) -> None:
        port = console.base_url.rpartition(":")[2]
        self.base = f"{'https' if is_safe else 'http'}://localhost:{port}"
        self.jar = CookieJar()
        trusting = ssl.create_default_context(cafile=console.console_info["ca"])
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}),
            urllib.request.HTTPSHandler(context=trusting),
            urllib.request.HTTPCookieProcessor(self.jar),
        )

    def get(self, url: str) -> tuple[int, str]:
        return self._ask(url if "://" in url else self.base + url, None)

    def post(self, path: str, **fields: str) -> tuple[int, str]:
        return self._ask(self.base + path, urlencode(fields).encode())

    def _ask(self, url: str, body: bytes | None) -> tuple[int, str]:
        try:
            with self._opener.open(urllib.request.Request(url, body, {"Origin": self.base}), timeout=60) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def who(self) -> str:
        found = re.search(r'class="who">([^<]*)<', self.get("/portal/")[1])
        return found[1] if found else ""

    def token(self) -> str:
        found = re.search(r'name="token" value="([^"]*)"', self.get("/portal/")[1])
        assert found is not None
        return found[1]


def new_link(console: WebService) -> str:
    result = console.service.forewarn("portal")
    assert result.returncode == 0, result.stderr
    assert LINK.fullmatch(result.stdout.strip())
    return result.stdout.strip()


def test_a_link_leads_to_the_overview_and_the_session_survives_a_restart(console: WebService) -> None:
    browser = Browser(console)
    assert browser.who() == ""
    link = new_link(console)
    assert browser.get(link)[0] == 200
    status, page = browser.get("/portal/")
    assert (status, "Nothing needs attention" in page) == (200, True)
    assert browser.who() == "client admin"
    assert Browser(console).get(link)[0] == 401

    console.service.kill()
    console.service.start()
    assert browser.who() == "client admin"

    assert browser.post("/portal/sign-out", token="wrong")[0] == 403
    copied = list(browser.jar)
    assert browser.post("/portal/sign-out", token=browser.token())[0] == 200  # the sign-in page
    for cookie in copied:
        browser.jar.set_cookie(cookie)
    assert browser.who() == ""
    console.service.kill()
    console.service.start()
    assert browser.who() == ""


def test_the_administrators_secret_signs_in_over_tls(console: WebService) -> None:
    client_id, secret = console.admin_credentials
    browser = Browser(console, is_safe=True)
    assert browser.post("/portal/sign-in", client_id=client_id, secret="wrong")[0] == 401
    assert browser.post("/portal/sign-in", client_id=client_id, secret=secret)[0] == 200
    assert browser.who() == "client admin"
    (cookie,) = browser.jar
    assert (cookie.name.startswith("__Host-"), cookie.secure) == (True, True)


def test_a_link_is_in_no_log_no_history_and_no_listing(console: WebService) -> None:
    code = new_link(console).rpartition("/")[2]
    history = console.service.api("GET", "/history").body
    shown = console.service.api("GET", "/service").body
    assert code not in str(history) + str(shown) + console.service.log.read_text()
    assert "/sign-in/once/" not in console.service.log.read_text()
    assert "/portal/\n" in console.service.log.read_text()  # the portal's address, without a link


def test_a_terminal_shows_a_link_that_signs_in(tmp_path: Path) -> None:
    port = free_port()
    arguments = ["--data", str(tmp_path), "up", "--port", str(free_port()), "--api", f"127.0.0.1:{port}"]
    ours, theirs = pty.openpty()
    plain = {name: text for name, text in os.environ.items() if not name.startswith("FOREWARN_")}
    env = {**plain, "COLUMNS": "60", "TERM": "xterm"}
    child = subprocess.Popen([sys.executable, "-m", "forewarn", *arguments], stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    try:
        link = _read_until(ours, LINK)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(link, timeout=60) as answer:
            assert answer.status == 200
            assert answer.headers["Set-Cookie"].startswith("forewarn-")
    finally:
        child.send_signal(signal.SIGINT)
        _drain(ours)
        assert child.wait(60) == 0
        os.close(ours)


def _read_until(terminal: int, wanted: re.Pattern[str]) -> str:
    output = ""
    for _ in range(1000):
        output += os.read(terminal, 4096).decode(errors="replace")
        found = wanted.search(output)
        if found and output[found.end() :]:
            return found[0]
    raise AssertionError(output)


def _drain(terminal: int) -> None:
    """Read the rest of the output, so that the process can exit; a terminal ends with an OSError."""
    try:
        while os.read(terminal, 4096):
            pass
    except OSError:
        pass
