"""Fixtures of the end-to-end tests: requests by curl, or with the bytes that curl sends."""

from __future__ import annotations

import http.client
import shutil
import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.service_process import ServiceProcess, VmEndpoint

TARGET = "/metadata/scheduledevents?api-version="


@dataclass(frozen=True, slots=True)
class CurlAnswer:
    status: int
    body: str


Curl = Callable[..., CurlAnswer]


def real_curl(
    at: VmEndpoint, target: str, *, headers: tuple[str, ...] = ("Metadata:true",), body: str = ""
) -> CurlAnswer:
    """Run `curl -H … -d … URL`."""
    line = ["curl", "-sS", "--noproxy", "*", "--max-time", "30", "-w", "\n%{http_code}"]
    for header in headers:
        line += ["-H", header]
    if body:
        line += ["-X", "POST", "-d", body]
    url = f"http://{at.address}:{at.port}{target}"
    out = subprocess.run([*line, url], capture_output=True, text=True, timeout=60, check=True).stdout
    text, _, status = out.rpartition("\n")
    return CurlAnswer(int(status), text)


def send_curl_bytes(
    at: VmEndpoint, target: str, *, headers: tuple[str, ...] = ("Metadata:true",), body: str = ""
) -> CurlAnswer:
    """Send the bytes that curl sends for the same command; like curl, omits a header given as `Name:`."""
    lines = [f"{'POST' if body else 'GET'} {target} HTTP/1.1", f"Host: {at.address}:{at.port}"]
    lines += ["User-Agent: curl/7.88.1", "Accept: */*", *(header for header in headers if not header.endswith(":"))]
    if body:
        lines.append(f"Content-Length: {len(body.encode())}")
    if body and not any(header.lower().startswith("content-type:") for header in headers):
        lines.append("Content-Type: application/x-www-form-urlencoded")
    head = "\r\n".join(lines) + "\r\n\r\n"
    with socket.create_connection((at.address, at.port), timeout=60) as sock:
        sock.sendall(head.encode() + body.encode())
        response = http.client.HTTPResponse(sock)
        response.begin()
        return CurlAnswer(response.status, response.read().decode())


_CURL_MISSING = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


@pytest.fixture(
    params=[pytest.param(real_curl, marks=_CURL_MISSING, id="curl"), pytest.param(send_curl_bytes, id="bytes")]
)
def curl(request: pytest.FixtureRequest) -> Curl:
    """Sends a request to a VM's endpoint, once with curl and once with the bytes that curl sends."""
    function: Curl = request.param
    return function


@pytest.fixture(scope="session")
def ask() -> Callable[..., str]:
    """A function that requests maintenance of one VM and returns the id of its event."""

    def request_maintenance(service: ServiceProcess, what: str, vm: str, **more: Any) -> str:
        answer = service.api("POST", "/requests", {"operation": what, "vms": [vm], **more})
        assert answer.status == 202, answer.body
        event_id: str = answer.json["events"][0]["id"]
        return event_id

    return request_maintenance
