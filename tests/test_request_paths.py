"""The paths that docs/contributing/code-paths.md describes are those that the code takes."""

from __future__ import annotations

import json
import re
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import forewarn
from forewarn.lab import Lab
from tests.support import operator_api

PAGE = Path(__file__).parents[1] / "docs" / "contributing" / "code-paths.md"
SOURCE = Path(forewarn.__file__).parent
MOST_FILES_OF_A_RESTART = 51  # from the API's route to the end of the event, in virtual time
api, api_of = operator_api.api, operator_api.api_of


def documented(heading: str) -> list[str]:
    """The files that a section of the page names, in its order."""
    text = PAGE.read_text(encoding="utf-8")
    section = text.split(f"## {heading}\n", 1)[1].split("\n##", 1)[0]
    return re.findall(r"`([a-z_/]+\.py)`", section)


@contextmanager
def recorded() -> Iterator[dict[str, None]]:
    """The source files whose functions are called in this block, in the order of their first call."""
    files: dict[str, None] = {}

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(str(SOURCE)):
            files.setdefault(Path(name).relative_to(SOURCE).as_posix())

    threading.setprofile(profile)  # for threads that start in the block
    sys.setprofile(profile)
    try:
        yield files
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def call(lab: Lab, body: Any = None) -> Any:
    """One request of a VM to the endpoint of the lab."""
    url = f"{lab.vm('web-0').endpoint}/metadata/scheduledevents?api-version=2020-07-01"
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, content, {"Metadata": "true"})
    with urllib.request.urlopen(request, timeout=10) as response:
        return json.loads(response.read() or b"null")


def test_a_restart_takes_the_documented_path(api_of: Callable[..., Any]) -> None:
    world_api = api_of()
    with recorded() as files:
        world_api.post("/requests", {"operation": "restart", "vms": ["web-0"]})
        world_api.world.advance(3600)
    assert [name for name in documented("The path of a restart") if name not in files] == []
    assert len(files) <= MOST_FILES_OF_A_RESTART, sorted(files)


def test_a_poll_takes_the_documented_path() -> None:
    with recorded() as files, Lab(vms=["web-0"]) as lab:
        files.clear()
        assert call(lab)["Events"] == []
        used = list(files)
    assert [name for name in documented("The path of a poll") if name not in used] == []


def test_an_approval_takes_the_documented_path() -> None:
    with recorded() as files, Lab(vms=["web-0"]) as lab:
        event = lab.reboot("web-0")
        files.clear()
        call(lab, {"StartRequests": [{"EventId": event.id}]})
        used = list(files)
    assert [name for name in documented("The path of an approval") if name not in used] == []
