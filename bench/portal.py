"""The portal in a real browser: overview and fleet page with 100,000 VMs and with 100, and their frame times."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import Any

from bench.figure import Figure, absent
from bench.process import CLIENT_CORE, on_core
from bench.run_context import RunContext
from bench.sample_statistics import median, percentile
from bench.service import BenchService, single_vms
from tests.support.service_process import free_port

# The pages that are measured, and how the names of their figures begin.
_PAGES = {"/portal/": "overview", "/portal/fleet": "portal"}
FIGURES = tuple(f"{name}-{what}" for name in _PAGES.values() for what in ("growth", "heap", "frame"))
_SMALL, _LARGE = 100, 100_000
_VIEWS = 7
_WATCHES = 3
_WATCH_S = 15.0
_CHANGES = 50  # a second
_MIN_DRAWN = 0.9  # share of the changes that must be received, and on the fleet page drawn
_MIN_REFRESHES = 0.3  # of the overview's heat map, a second
_CHANGED_VMS = 200
_DRIVER = Path(__file__).parents[1] / ".venv-portal" / "bin" / "python"


def measure(context: RunContext) -> tuple[Figure, ...]:
    if (reason := _unavailable_reason()) is not None:
        return tuple(absent(name, reason) for name in FIGURES)
    small = _measure_portal(context, context.scaled(_SMALL), watches=0)
    large = _measure_portal(context, context.scaled(_LARGE), watches=1 if context.is_quick else _WATCHES)
    figures: list[Figure] = []
    for path, name in _PAGES.items():
        few, (many, watched) = small[path][0], large[path]
        figures += [_growth(name, few, many), _heap(name, watched), _frame(name, watched)]
    return tuple(figures)


def _unavailable_reason() -> str | None:
    if shutil.which("chromium") is None:
        return "chromium is not installed: `make test-portal` as root installs it"
    if _driver() is None:
        return "playwright is not installed: `make test-portal` installs it"
    return None


def _driver() -> str | None:
    if find_spec("playwright"):
        return sys.executable
    return str(_DRIVER) if _DRIVER.exists() else None


def _growth(name: str, small: list[dict[str, float]], large: list[dict[str, float]]) -> Figure:
    """The first view of each is only in the note: it follows a sign-in and fills caches."""
    (first_small, *small), (first_large, *large) = small, large
    few, many = ([view["drawn_ms"] for view in views] for views in (small, large))
    note = (
        f"{median(many):.0f} ms : {median(few):.0f} ms; "
        f"the very first {first_large['drawn_ms']:.0f} : {first_small['drawn_ms']:.0f} ms; "
        f"{large[0]['bytes'] / 1024:.0f} : {small[0]['bytes'] / 1024:.0f} KiB"
    )
    samples = {"few_ms": tuple(few), "many_ms": tuple(many)}
    return Figure(name=f"{name}-growth", value=median(many) / median(few), note=note, samples=samples)


def _heap(name: str, watched: list[dict[str, Any]]) -> Figure:
    value = max(one["heap"] for one in watched) / 2**20
    return Figure(name=f"{name}-heap", value=value, note=f"after {watched[0]['received']} changes")


def _frame(name: str, watched: list[dict[str, Any]]) -> Figure:
    """The median over several watches, because other work of the machine delays frames too."""
    longest = [max(one["gaps"]) for one in watched]
    gaps = [gap for one in watched for gap in one["gaps"]]
    tasks = [task for one in watched for task in one["tasks"]]
    received = sum(one["received"] for one in watched) / sum(one["for_s"] for one in watched)
    note = (
        f"{received:.0f} changes a second; median {median(gaps):.0f}, p99 {percentile(gaps, 0.99):.0f}, "
        f"longest of each watch {', '.join(f'{one:.0f}' for one in longest)} ms; {len(tasks)} long tasks"
    )
    return Figure(name=f"{name}-frame", value=median(longest), note=note, samples={"gaps_ms": tuple(gaps)})


def check_views(count: int, views: list[dict[str, float]]) -> None:
    """AssertionError unless every view showed at least as many VMs as the small fleet has, or all."""
    least, fewest = min(count, _SMALL), min(view["vms"] for view in views)
    assert fewest >= least, f"a view of {count} VMs showed {fewest} of them"


def check_changes_drawn(watched: list[dict[str, Any]]) -> None:
    """AssertionError unless the page received and drew the changes."""
    for one in watched:
        least = _MIN_DRAWN * _CHANGES * one["for_s"]
        message = (
            f"of {_CHANGES} changes a second for {one['for_s']:g} s, {one['received']} received, {one['drawn']} drawn"
        )
        assert min(one["received"], one["drawn"]) >= least, message


def check_refreshed(watched: list[dict[str, Any]]) -> None:
    """AssertionError unless the overview received the changes and fetched its heat map again meanwhile."""
    for one in watched:
        assert one["received"] >= _MIN_DRAWN * _CHANGES * one["for_s"], f"{one['received']} changes received"
        least = _MIN_REFRESHES * one["for_s"]
        assert one["refreshed"] >= least, f"the heat map was drawn {one['refreshed']} times in {one['for_s']:g} s"


_Measurements = tuple[list[dict[str, float]], list[dict[str, Any]]]  # views and watches


def _measure_portal(context: RunContext, count: int, *, watches: int) -> dict[str, _Measurements]:
    """The measurements of each page, by its path."""
    data = context.directory / f"portal-{count}"
    context.on_progress(f"a fleet of {count} VMs", 0, 1)
    with _service(data, single_vms(count, max(2, count // 40))) as (service, base):
        service.check_vm_count(count)
        console = service.ask("GET", "/service")["api"]
        task = {
            "chromium": shutil.which("chromium"),
            "base": base,
            "client": console["client_id"],
            "secret": Path(console["admin_secret"]).read_text(encoding="utf-8").strip(),
            "views": 2 if context.is_quick else _VIEWS,
            "watches": watches,
            "watch_s": 4 if context.is_quick else _WATCH_S,
        }
        changes = Changes(service)
        measured = {path: _run_browser(context, changes, {**task, "path": path}) for path in _PAGES}
    for path, (views, watched) in measured.items():
        check_views(count, views)
        if path == "/portal/":
            check_refreshed(watched)
        else:
            check_changes_drawn(watched)
    return measured


@contextmanager
def _service(data: Path, fleet: str) -> Iterator[tuple[BenchService, str]]:
    port = free_port()
    with BenchService(data=data, fleet=fleet, environment={"FOREWARN_API": f"127.0.0.1:{port}"}) as service:
        assert isinstance(service, BenchService)
        yield service, f"http://localhost:{port}"


def _run_browser(context: RunContext, changes: Changes, task: dict[str, Any]) -> _Measurements:
    driver = _driver()
    assert driver is not None
    with on_core(CLIENT_CORE):
        child = subprocess.Popen(
            [driver, "-m", "bench.portal_browser"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    with child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(json.dumps(task))
        child.stdin.close()
        messages = map(json.loads, child.stdout)
        views: list[dict[str, float]] = next(messages)["views"]
        for_s = task["watch_s"] - 1
        watched = []
        for _ in context.track("changes in view", range(task["watches"])):
            # The overview names no VMs that are running.
            shown = next(messages)["vms"] or [f"web-{number}" for number in range(_CHANGED_VMS)]
            changes.make(shown, for_s)
            watched.append({**next(messages), "for_s": for_s})
        return views, watched


class Changes:
    """Schedules and withdraws events of visible VMs, 50 a second in total."""

    def __init__(self, service: BenchService) -> None:
        self._service = service
        self._pending: dict[str, str] = {}  # name of a VM → event id

    def make(self, vms: list[str], for_s: float) -> None:
        """Make changes to these VMs, given by name or key, in turn for this time."""
        begin = time.perf_counter()
        for number, vm in zip(range(round(for_s * _CHANGES)), cycle(vms), strict=False):
            time.sleep(max(0.0, begin + number / _CHANGES - time.perf_counter()))
            self._change(vm.rpartition("/")[2])

    def _change(self, vm: str) -> None:
        if vm in self._pending:
            self._service.withdraw(self._pending.pop(vm))
        else:
            (self._pending[vm],) = self._service.schedule(vm)
