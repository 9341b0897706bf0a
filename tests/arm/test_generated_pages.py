"""docs/reference/azure-api.md is generated from the routes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from forewarn.web.arm.routes import ROUTES
from forewarn.web.arm.routing import COMPUTE_PATH, ArmCall, ArmResponse, ArmRoute
from forewarn.web.context import RequestContext
from tools.docs.azure_api import azure_api_markdown

HERE = Path(__file__).parents[2]
SOURCES = HERE / "src" / "forewarn" / "web" / "arm"
ROW = re.compile(r"^- ([A-Z]+)(?: \([^)]+\))? ((?:`\S+`,? ?)+)", re.MULTILINE)
CODE = re.compile(r'(?:ArmError|make_arm_error)\(\s*\d+,\s*"(\w+)"|, \d{3}, "(\w+)"\)')


def test_every_route_has_one_row() -> None:
    items = [(row[1], re.findall("`(.+?)`", row[2])) for row in ROW.finditer(azure_api_markdown(ROUTES))]
    rows = [(method, path.replace("…", COMPUTE_PATH)) for method, paths in items for path in paths]
    assert sorted(rows) == sorted((route.method, route.path) for route in ROUTES)
    assert len(set(rows)) == len(rows)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_every_route_has_a_short_summary(route: ArmRoute) -> None:
    assert route.summary
    assert "|" not in route.summary
    assert not route.summary.endswith(".")


def test_a_new_route_appears_on_the_page() -> None:
    async def polish(context: RequestContext, call: ArmCall) -> ArmResponse:
        return ArmResponse()

    new = ArmRoute("GET", f"{COMPUTE_PATH}/virtualMachines/{{vm}}/polish", polish, summary="polishes a VM")
    assert "- GET `…/virtualMachines/{vm}/polish` polishes a VM\n" in azure_api_markdown([new])


def test_the_page_explains_every_error_code() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in SOURCES.glob("*.py"))
    codes = {found[1] or found[2] for found in CODE.finditer(text)}
    assert {"ResourceNotFound", "MethodNotAllowed", "SubscriptionNotFound"} <= codes  # the pattern still finds them
    missing = sorted(code for code in codes if f"`{code}`" not in azure_api_markdown(ROUTES))
    assert not missing, f"docs/reference/azure-api.md explains no {missing}: add them in tools/docs/azure_api.py"


def test_the_page_explains_every_header_of_an_operation(arm: Any) -> None:
    answer = arm.call(
        "POST", "/subscriptions/sub/resourceGroups/lab/providers/Microsoft.Compute/virtualMachines/db/restart"
    )
    named = {name.lower() for name in re.findall(r"^\| `([\w-]+)` \|", azure_api_markdown(ROUTES), re.MULTILINE)}
    assert set(answer.headers) - {"content-length"} == named


def test_the_page_names_every_member_of_an_operation(arm: Any) -> None:
    answer = arm.call(
        "POST", "/subscriptions/sub/resourceGroups/lab/providers/Microsoft.Compute/virtualMachines/db/restart"
    )
    shown = arm.get(answer.headers["azure-asyncoperation"])
    event = shown["properties"]["events"][0]
    page = azure_api_markdown(ROUTES)
    for name in (*shown, shown["status"], "waitsFor", "approval"):
        assert f"`{name}`" in page
    assert {"waitsFor", "approval"} <= set(event)
