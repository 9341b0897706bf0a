"""The tables of the metrics pages: every metric once, with its type, its labels and a sentence."""

from __future__ import annotations

import re

from tools.docs.__main__ import DOCS
from tools.docs.metrics import with_metrics

ROW = re.compile(r"^\| `(\w+)`(?: (.*?))? \| (.*) \|$", re.MULTILINE)
PAGE = with_metrics((DOCS / "reference/metrics.md").read_text(encoding="utf-8"))


def test_every_metric_has_one_row_with_a_whole_sentence() -> None:
    rows = ROW.findall(PAGE)
    names = [name for name, *_ in rows]
    assert len(set(names)) == len(names) > 60
    assert {"forewarn_events", "forewarn_node_vms", "forewarn_lease_held", "forewarn_agent_ready"} <= set(names)
    for name, _, meaning in rows:
        assert re.fullmatch(r"[A-Z0-9].{15,}\.( \(histogram\))?", meaning), f"{name}: {meaning}"


def test_a_row_names_the_values_of_labels_but_not_those_of_this_installation() -> None:
    rows = {name: labels for name, labels, _ in ROW.findall(PAGE)}
    assert rows["forewarn_acts_total"] == "`outcome`: performed, failed; `verb`: [a verb](hypervisors.md)"
    assert rows["forewarn_notice_given_seconds"] == "`kind`"
    assert rows["forewarn_build_info"] == "`python`: its version; `version`: the program's"
    assert rows["forewarn_worker_lag_seconds"] == "`worker`: its number, from 1"


def test_an_old_table_is_replaced_and_the_text_around_it_stays() -> None:
    written = with_metrics("before\n<!-- metrics: begin agent (x) -->\n| old |\n<!-- metrics: end -->\nafter\n")
    assert written.startswith("before\n<!-- metrics: begin agent (x) -->\n| metric and labels |")
    assert written.endswith("<!-- metrics: end -->\nafter\n")
    assert "| old |" not in written
