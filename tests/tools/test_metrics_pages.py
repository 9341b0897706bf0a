"""The tables of the metrics pages: every metric once, with its type, its labels and a sentence."""

from __future__ import annotations

import re

import pytest

from tools.docs.__main__ import DOCS
from tools.docs.metrics import with_agent_metrics, with_metrics, with_node_metrics

ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| (.*?) \| (.*) \|$", re.MULTILINE)
SERVICE = with_metrics((DOCS / "reference/metrics.md").read_text(encoding="utf-8"))
NODE = with_node_metrics((DOCS / "reference/node-metrics.md").read_text(encoding="utf-8"))
AGENT = with_agent_metrics((DOCS / "reference/agent-metrics.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", [SERVICE, NODE, AGENT], ids=["service", "node", "agent"])
def test_every_metric_has_one_row_with_a_whole_sentence(page: str) -> None:
    rows = ROW.findall(page)
    names = [name for name, *_ in rows]
    assert len(set(names)) == len(names) > 5
    for name, kind, _, meaning in rows:
        assert kind in ("counter", "gauge", "histogram"), name
        assert re.fullmatch(r"[A-Z0-9].{15,}\.", meaning), f"{name}: {meaning}"


def test_a_row_names_the_values_of_labels_but_not_those_of_this_installation() -> None:
    rows = {name: labels for name, _, labels, _ in ROW.findall(SERVICE)}
    assert rows["forewarn_acts_total"].startswith("`outcome`: performed, failed; `verb`: freeze, ")
    assert rows["forewarn_notice_got_seconds"] == "`kind`"
    assert rows["forewarn_build_info"] == "`python`: its version; `version`: the program's"
    assert rows["forewarn_worker_lag_seconds"] == "`worker`: its number, from 1"


def test_an_old_table_is_replaced_and_the_text_around_it_stays() -> None:
    page = "before\n<!-- metrics: begin agent (x) -->\n| old |\n<!-- metrics: end -->\nafter\n"
    written = with_agent_metrics(page)
    assert written.startswith("before\n<!-- metrics: begin agent (x) -->\n| metric |")
    assert written.endswith("<!-- metrics: end -->\nafter\n")
    assert "| old |" not in written
