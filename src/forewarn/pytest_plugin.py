"""The pytest plugin: a lab per test that asks for one, and its report when such a test fails.

pytest loads this wherever forewarn is installed, so nothing is imported before a test asks for a lab.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from difflib import get_close_matches
from inspect import signature
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from forewarn.lab import Lab


_MARKER = "scheduled_events"
_REPORT_TITLE = "what happened in the lab"
_OPEN_LABS = pytest.StashKey[list["Lab"]]()


def pytest_configure(config: pytest.Config) -> None:
    """Hook of pytest: register the marker `scheduled_events`, whose arguments are those of `Lab`."""
    config.addinivalue_line(
        "markers",
        f"{_MARKER}(vms=…, spot=…, availability_set=…, fleet=…, at=…, enablement=…, simulate=…): "
        "arguments of Lab() for the lab of this test",
    )


@pytest.fixture
def scheduled_events(request: pytest.FixtureRequest, scheduled_events_factory: Callable[..., Lab]) -> Lab:
    """Fixture: a lab of forewarn, open during the test; the marker of the same name gives its arguments.

    Without the marker it is `Lab()`.
    """
    marker = request.node.get_closest_marker(_MARKER)
    if marker is None:
        return scheduled_events_factory()
    if problem := _marker_problem(marker):
        pytest.fail(problem, pytrace=False)
    return scheduled_events_factory(*marker.args, **marker.kwargs)


def _marker_problem(marker: pytest.Mark) -> str:
    known = list(signature(_lab_class()).parameters)
    for name in marker.kwargs:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            remedy = f"did you mean {close[0]!r}?" if close else f"its arguments are {', '.join(known)}"
            return f"the marker {_MARKER} has no argument {name!r}: {remedy}"
    if len(marker.args) + (known[0] in marker.kwargs) > 1:
        return f"the marker {_MARKER} takes only {known[0]} without a name: name the other arguments"
    return ""


@pytest.fixture
def scheduled_events_factory(request: pytest.FixtureRequest) -> Iterator[Callable[..., Lab]]:
    """Fixture: a function that opens a lab and returns it, with the arguments of `Lab`.

    A test may call it several times; all labs close after the test, and the report of a failed test shows what happened
    in each. If the [server] extra is missing, the test fails with a sentence that says so.
    """
    with ExitStack() as stack:

        def make(*arguments: Any, **options: Any) -> Lab:
            lab = stack.enter_context(_lab_class()(*arguments, **options))
            request.node.stash.setdefault(_OPEN_LABS, []).append(lab)
            return lab

        yield make


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Hook of pytest: add the report of each lab (`Lab.report`) to the report of a test that failed.

    Failures of setup or teardown get none. Returns the report of the other hooks.
    """
    report = yield
    if report.failed and report.when == "call":
        report.sections.extend((_REPORT_TITLE, _lab_report(lab)) for lab in item.stash.get(_OPEN_LABS, []))
    return report


def _lab_report(lab: Lab) -> str:
    """The lab's report; a broken lab must not cost the report of the test."""
    try:
        return lab.report
    except Exception as error:
        return f"the lab cannot be read: {error}"


def _lab_class() -> type[Lab]:
    try:
        from forewarn.lab import Lab
    except ImportError as error:
        why = str(error)
    else:
        return Lab
    # Outside the except block, so that the report shows only this sentence.
    pytest.fail(why, pytrace=False)
