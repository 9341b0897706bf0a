"""The portal in a real browser: its first view of 100,000 VMs beside that of 100, and how it keeps up with changes."""

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
from bench.ground import Ground
from bench.process import CLIENT_CORE, on_core
from bench.statistic import median, percentile
from bench.subject import Subject, single_vms
from tests.support.service_process import free_port

FIGURES = ("portal-growth", "portal-heap", "portal-frame")
_SMALL, _LARGE = 100, 100_000
_VIEWS = 7
_WATCHES = 3
_WATCH_S = 15.0
_CHANGES = 50  # a second
_SEEN = 0.9  # of them at least are heard and drawn within a watch
_DRIVER = Path(__file__).parents[1] / ".venv-portal" / "bin" / "python"


def measure(ground: Ground) -> tuple[Figure, ...]:
    if (why := _why_not()) is not None:
        return tuple(absent(name, why) for name in FIGURES)
    small, _ = _looked_at(ground, ground.sized(_SMALL), watches=0)
    large, watched = _looked_at(ground, ground.sized(_LARGE), watches=1 if ground.is_quick else _WATCHES)
    return _growth(small, large), _heap(watched), _frame(watched)


def _why_not() -> str | None:
    if shutil.which("chromium") is None:
        return "chromium is not installed: `make test-portal` as root installs it"
    if _driver() is None:
        return "what drives a browser is not installed: `make test-portal` fetches it"
    return None


def _driver() -> str | None:
    if find_spec("playwright"):
        return sys.executable
    return str(_DRIVER) if _DRIVER.exists() else None


def _growth(small: list[dict[str, float]], large: list[dict[str, float]]) -> Figure:
    """The first of each is told apart: it is right after a sign-in, and builds what later ones find."""
    (first_small, *small), (first_large, *large) = small, large
    few, many = ([view["drawn_ms"] for view in views] for views in (small, large))
    note = (
        f"{median(many):.0f} ms : {median(few):.0f} ms; "
        f"the very first {first_large['drawn_ms']:.0f} : {first_small['drawn_ms']:.0f} ms; "
        f"{large[0]['bytes'] / 1024:.0f} : {small[0]['bytes'] / 1024:.0f} KiB"
    )
    samples = {"few_ms": tuple(few), "many_ms": tuple(many)}
    return Figure(name="portal-growth", value=median(many) / median(few), note=note, samples=samples)


def _heap(watched: list[dict[str, Any]]) -> Figure:
    value = max(one["heap"] for one in watched) / 2**20
    return Figure(name="portal-heap", value=value, note=f"after {watched[0]['heard']} changes")


def _frame(watched: list[dict[str, Any]]) -> Figure:
    """Of several watches the usual one: whatever else the machine does holds frames up too."""
    longest = [max(one["gaps"]) for one in watched]
    gaps = [gap for one in watched for gap in one["gaps"]]
    tasks = [task for one in watched for task in one["tasks"]]
    heard = sum(one["heard"] for one in watched) / sum(one["for_s"] for one in watched)
    note = (
        f"{heard:.0f} changes a second; median {median(gaps):.0f}, p99 {percentile(gaps, 0.99):.0f}, "
        f"longest of each watch {', '.join(f'{one:.0f}' for one in longest)} ms; {len(tasks)} long tasks"
    )
    return Figure(name="portal-frame", value=median(longest), note=note, samples={"gaps_ms": tuple(gaps)})


def must_show(count: int, views: list[dict[str, float]]) -> None:
    """AssertionError unless every view had VMs on it: all, or as many as a small fleet has."""
    least, fewest = min(count, _SMALL), min(view["vms"] for view in views)
    assert fewest >= least, f"a view of {count} VMs showed {fewest} of them"


def must_keep_up(watched: list[dict[str, Any]]) -> None:
    """AssertionError unless the changes were heard and drawn while the page was watched."""
    for one in watched:
        least = _SEEN * _CHANGES * one["for_s"]
        told = f"of {_CHANGES} changes a second for {one['for_s']:g} s {one['heard']} were heard, {one['drawn']} drawn"
        assert min(one["heard"], one["drawn"]) >= least, told


def _looked_at(ground: Ground, count: int, *, watches: int) -> tuple[list[dict[str, float]], list[dict[str, Any]]]:
    data = ground.directory / f"portal-{count}"
    ground.tell(f"a fleet of {count} VMs", 0, 1)
    with _service(data, single_vms(count, max(2, count // 40))) as (service, base):
        service.must_serve(count)
        shown = service.ask("GET", "/service")["console"]
        task = {
            "chromium": shutil.which("chromium"),
            "base": base,
            "client": shown["client_id"],
            "secret": Path(shown["admin_secret"]).read_text(encoding="utf-8").strip(),
            "views": 2 if ground.is_quick else _VIEWS,
            "watches": watches,
            "watch_s": 4 if ground.is_quick else _WATCH_S,
        }
        views, watched = _look(ground, service, task)
    must_show(count, views)
    must_keep_up(watched)
    return views, watched


@contextmanager
def _service(data: Path, fleet: str) -> Iterator[tuple[Subject, str]]:
    port = free_port()
    with Subject(data=data, fleet=fleet, environment={"FOREWARN_CONSOLE": f"127.0.0.1:{port}"}) as service:
        assert isinstance(service, Subject)
        yield service, f"http://localhost:{port}"


def _look(
    ground: Ground, service: Subject, task: dict[str, Any]
) -> tuple[list[dict[str, float]], list[dict[str, Any]]]:
    driver = _driver()
    assert driver is not None
    with on_core(CLIENT_CORE):
        child = subprocess.Popen([driver, "-m", "bench.look"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(json.dumps(task))
        child.stdin.close()
        said = map(json.loads, child.stdout)
        views: list[dict[str, float]] = next(said)["views"]
        changes = Changes(service)
        for_s = task["watch_s"] - 1
        watched = []
        for _ in ground.track("changes in view", range(task["watches"])):
            changes.make(next(said)["vms"], for_s)
            watched.append({**next(said), "for_s": for_s})
        return views, watched


class Changes:
    """VMs that are in view become noticed and are let go again, so many a second, one after the other."""

    def __init__(self, service: Subject) -> None:
        self._service = service
        self._pending: dict[str, str] = {}  # VM → its event

    def make(self, vms: list[str], for_s: float) -> None:
        begin = time.perf_counter()
        for number, vm in zip(range(round(for_s * _CHANGES)), cycle(vms), strict=False):
            time.sleep(max(0.0, begin + number / _CHANGES - time.perf_counter()))
            self._change(vm)

    def _change(self, vm: str) -> None:
        if vm in self._pending:
            self._service.withdraw(self._pending.pop(vm))
        else:
            (self._pending[vm],) = self._service.schedule(vm)
