"""Tables become cards on a phone: every cell carries the name of its column, and no list is without."""

from __future__ import annotations

import html
import re
from importlib.resources import files

import pytest

from tests.portal.conftest import PortalUser
from tests.portal.form_helpers import confirm

_TABLE = re.compile(r'<table class="([^"]*)">(.*?)</table>', re.S)
_CELL = re.compile(r"<(t[hd])\b([^>]*)>(.*?)</\1>", re.S)
_LABEL = re.compile(r'data-label="([^"]*)"')


def plain(text: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split())


def tables_of_cards(text: str) -> list[str]:
    return [body for classes, body in _TABLE.findall(text) if "cards" in classes.split()]


def assert_cells_are_labelled(table: str) -> None:
    head, _, body = table.partition("</thead>")
    columns = [plain(cell) for _, _, cell in _CELL.findall(head)]
    rows = re.findall(r"<tr\b[^>]*>(.*?)</tr>", body, re.S)
    assert rows
    for row in rows:
        cells = _CELL.findall(row)
        assert len(cells) == len(columns)
        for column, (tag, attributes, _) in zip(columns, cells, strict=True):
            label = _LABEL.search(attributes)
            if tag == "td" and column != "Clear":  # the cell of a single link needs no label
                assert label is not None, column
                assert column.startswith(html.unescape(label[1])), column


def test_every_cell_of_a_list_carries_the_name_of_its_column(portal: PortalUser) -> None:
    (event,) = portal.api.restart_of("db")
    rollout = portal.api.post("/rollouts", {"impact": "reboot", "scope": "web"})
    portal.api.post("/faults", {"kind": "slow-body", "vm": "web-1", "duration_s": 86400})
    targets = {
        "/portal/timeline": 1,
        "/portal/history": 1,
        "/portal/clients": 1,
        "/portal/rollouts": 1,
        f"/portal/rollouts/{rollout['id']}": 2,
        f"/portal/events/{event['id']}": 1,
        f"/portal/requests/{event['request_id']}": 1,
        "/portal/scopes/web": 2,
        "/portal/hosts/h1": 2,
        "/portal/vms/db": 1,
        "/portal/lab": 1,
    }
    for target, count in targets.items():
        tables = tables_of_cards(portal.get(target).html)
        assert len(tables) >= count, target
        for table in tables:
            assert_cells_are_labelled(table)
    for table in tables_of_cards(confirm(portal, "redeploy", {"vm": "spot"}).html):
        assert_cells_are_labelled(table)


@pytest.mark.parametrize(
    "name",
    [file.name for file in files("forewarn.web.portal").joinpath("templates").iterdir() if file.name != "base.html"],
)
def test_every_table_becomes_cards_except_the_grid_of_domains(name: str) -> None:
    text = files("forewarn.web.portal").joinpath("templates", name).read_text("utf-8")
    for tag in re.findall(r"<table\b[^>]*>", text):
        assert "cards" in tag or "by-domain" in tag, tag
