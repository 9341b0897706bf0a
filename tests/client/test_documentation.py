"""docs/reference/sdk.md: its examples run against a real service, and the names it mentions are public."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import pytest

import forewarn.client
from tests.support.service_process import ServiceProcess

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "sdk.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
PRINTED = [
    r"Reboot Scheduled (89\d|900)(\.\d+)?\n",
    r"Scheduled Reboot\n(Started Reboot\n)?Gone Reboot\n",
    r"leaving because of Reboot\nback: finished\n",
]


@contextmanager
def advancing_clock(service: ServiceProcess, step_s: float) -> Iterator[None]:
    """Advances the lab's clock in steps, so that events end while the example watches."""
    over = threading.Event()

    def advance() -> None:
        while not over.wait(0.1):
            service.advance(step_s)

    thread = threading.Thread(target=advance)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize(("number", "step_s"), [(0, 0.1), (1, 1), (2, 1)], ids=["ask", "watch", "react"])
def test_the_examples_run(number: int, step_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    with ServiceProcess(data=tmp_path / "d") as service:
        service.api("POST", "/requests", {"operation": "restart", "vms": ["web-0"]})
        with redirect_stdout(printed), advancing_clock(service, step_s):
            exec(EXAMPLES[number].replace(":8254", f":{service.port}"), {"__name__": "example"})  # noqa: S102
    assert re.fullmatch(PRINTED[number], printed.getvalue()), printed.getvalue()


def test_every_example_is_run() -> None:
    assert len(EXAMPLES) == len(PRINTED)


def test_the_public_names_are_these() -> None:
    assert forewarn.client.__all__ == [
        *("AsyncClient", "Change", "Client", "Discovery", "Endpoint", "Event", "Gone", "Handler", "Kind", "Outcome"),
        *("Received", "ReceivedEvent", "Scheduled", "Started", "Unreachable", "lists"),
    ]
    assert all(hasattr(forewarn.client, name) for name in forewarn.client.__all__)


def test_the_methods_that_the_page_lists_exist() -> None:
    for method in re.findall(r"^\| `(\w+)\(.*\)` \|", PAGE, re.MULTILINE):
        kinds = (forewarn.client.Client, forewarn.client.AsyncClient)
        assert all(hasattr(kind, method) for kind in kinds) or hasattr(forewarn.client, method), method
