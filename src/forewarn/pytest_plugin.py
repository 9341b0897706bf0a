"""The pytest plugin: a lab per test that asks for one, and its report when such a test fails.

pytest loads this wherever forewarn is installed, so nothing is imported before a test asks for a lab.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from forewarn.lab import Lab


_MARKER = "scheduled_events"
_REPORT_TITLE = "what happened in the lab"
_OPEN_LABS = pytest.StashKey[list["Lab"]]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{_MARKER}(vms=…, spot=…, availability_set=…, fleet=…, at=…, enablement=…, simulate=…): "
        "the lab of this test, as Lab() takes it",
    )


@pytest.fixture
def scheduled_events(request: pytest.FixtureRequest, scheduled_events_factory: Callable[..., Lab]) -> Lab:
    """A lab of forewarn, open during the test; the marker of the same name says what is in it."""
    marker = request.node.get_closest_marker(_MARKER)
    return scheduled_events_factory(*(marker.args if marker else ()), **(marker.kwargs if marker else {}))


@pytest.fixture
def scheduled_events_factory(request: pytest.FixtureRequest) -> Iterator[Callable[..., Lab]]:
    """Labs of forewarn, as many as the test opens; all are closed after it."""
    with ExitStack() as stack:

        def make(*arguments: Any, **options: Any) -> Lab:
            lab = stack.enter_context(_lab_class()(*arguments, **options))
            request.node.stash.setdefault(_OPEN_LABS, []).append(lab)
            return lab

        yield make


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and report.when == "call":
        report.sections.extend((_REPORT_TITLE, _lab_report(lab)) for lab in item.stash.get(_OPEN_LABS, []))
    return report


def _lab_report(lab: Lab) -> str:
    """A lab that is out of order must not cost the report of the test."""
    try:
        return lab.story
    except Exception as error:
        return f"it cannot be told: {error}"


def _lab_class() -> type[Lab]:
    try:
        from forewarn.lab import Lab
    except ImportError as error:
        why = str(error)
    else:
        return Lab
    # Out here, so that the report is this sentence and nothing else.
    pytest.fail(why, pytrace=False)
