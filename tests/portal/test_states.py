"""One state has one name, one symbol and one colour, on every page; templates spell none of them."""

from __future__ import annotations

import html
import json
import re
from collections import defaultdict
from importlib.resources import files
from pathlib import Path

import pytest

from forewarn.cluster.node_roles import NodeRole
from forewarn.core.event import Ending
from forewarn.core.explain.explanation import VmState
from forewarn.core.explain.polling import EventAwareness, PollingState
from forewarn.core.fleet import HostHealth
from forewarn.core.history import EntryKind
from forewarn.core.request import RolloutState, RolloutTally
from forewarn.core.request_state import RequestState
from forewarn.web.portal.nodes_page import HostNodeState
from forewarn.web.portal.states import STATES, StateFamily, StateLook, state_class, state_element, state_stylesheet
from tests.portal.conftest import PortalUser

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "reference" / "portal.md"
TEMPLATES = {
    file.name: re.sub(r"\{#.*?#\}", "", file.read_text("utf-8"), flags=re.S)
    for file in files("forewarn.web.portal").joinpath("templates").iterdir()
}
ALL_LOOKS = [look for looks in STATES.values() for look in looks.values()]


@pytest.mark.parametrize(
    ("family", "values"),
    [
        (StateFamily.VM, VmState),
        (StateFamily.EVENT, Ending),
        (StateFamily.HOST, HostHealth),
        (StateFamily.ROLLOUT, RolloutState),
        (StateFamily.REQUEST, RequestState),
        (StateFamily.PROGRESS, set(RolloutTally.__struct_fields__) - {"total"}),
        (StateFamily.POLLING, PollingState),
        (StateFamily.DELIVERY, EventAwareness),
        (StateFamily.NODE, [*NodeRole, *HostNodeState]),
        (StateFamily.ENTRY, EntryKind),
    ],
)
def test_every_state_is_in_the_table(family: StateFamily, values: list[str]) -> None:
    assert set(values) <= set(STATES[family])


def test_a_name_has_the_same_symbol_and_colour_everywhere() -> None:
    looks: dict[str, set[StateLook]] = defaultdict(set)
    for look in ALL_LOOKS:
        looks[look.label].add(look)
    assert {label: found for label, found in looks.items() if len(found) > 1} == {}


@pytest.mark.parametrize("family", [family for family in StateFamily if family is not StateFamily.ENTRY])
def test_two_states_of_one_thing_differ_in_more_than_colour(family: StateFamily) -> None:
    looks = STATES[family].values()
    assert len({look.symbol for look in looks}) == len({look.label for look in looks}) == len(looks)
    assert all(len(look.symbol) == 1 for look in looks)


def test_the_style_sheet_has_a_rule_for_every_state_and_cell(portal: PortalUser) -> None:
    sent = portal.get("/portal/static/states.css")
    assert sent.html == state_stylesheet()
    assert sent.headers["content-type"].startswith("text/css")
    colours = files("forewarn.web.portal").joinpath("static", "style.css").read_text("utf-8")
    for family, looks in STATES.items():
        for value, look in looks.items():
            assert f".{family.value}.{state_class(value)} {{ color: var(--{look.tone}); }}" in sent.html
            assert f"  --{look.tone}: #" in colours
    assert '.cell.noticed::before { content: "◇' in sent.html


def test_no_rule_applies_to_a_state_by_its_value_alone() -> None:
    """A state's element has its value as a class, so a rule for a banner of that name would draw a box over it."""
    state_classes = {state_class(value) for looks in STATES.values() for value in looks}
    sheets = (file for file in files("forewarn.web.portal").joinpath("static").iterdir() if file.name.endswith(".css"))
    selectors = [
        selector.strip()
        for sheet in sheets
        for rule in re.findall(r"([^{}]+)\{", re.sub(r"/\*.*?\*/", "", sheet.read_text("utf-8"), flags=re.S))
        for selector in re.sub(r"\([^)]*\)", "", rule).split(",")
    ]
    alone = re.compile(r"\.([\w-]+)(::?[\w-]+)*")
    found = [(text, alone.fullmatch(text)) for text in selectors]
    assert [text for text, match in found if match is not None and match[1] in state_classes] == []


def test_a_browser_loads_the_style_sheet_of_states_once(portal: PortalUser) -> None:
    first = portal.get("/portal/static/states.css")
    again = portal.request("GET", "/portal/static/states.css", headers={"if-none-match": first.headers["etag"]})
    assert (again.status, again.content) == (304, b"")


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_do_not_spell_states_themselves(name: str) -> None:
    text = TEMPLATES[name]
    for family in StateFamily:
        assert f'class="{family.value} ' not in text
        assert f"class='{family.value} " not in text
    labels = {look.label for look in ALL_LOOKS if look.symbol}
    plain = re.sub(r"\{[%{].*?[%}]\}", "", text, flags=re.S)
    spelled = [word for word in re.findall(r"<(?:span|strong|td|li)\b[^>]*>([^<]+)<", plain) if word.strip() in labels]
    assert spelled == []
    symbols = {look.symbol for look in ALL_LOOKS} - {""}
    assert {character for character in text if character in symbols} == set()


def test_scripts_use_the_labels_of_the_server(portal: PortalUser) -> None:
    found = re.search(r'data-vm-states="([^"]*)"', portal.get("/portal/lab").html)
    assert found is not None
    labels = json.loads(html.unescape(found[1]))
    assert labels == {state: STATES[StateFamily.VM][state].label for state in VmState}
    script = files("forewarn.web.portal").joinpath("static", "fleet.js").read_text("utf-8")
    assert "dataset.vmStates" in script
    assert not any(f'"{look.label}"' in script for look in STATES[StateFamily.VM].values())


def test_a_state_element_escapes_what_it_shows() -> None:
    assert state_element("running", "vm", key='a"b') == '<span class="state running" data-vm="a&#34;b">running</span>'
    assert state_element("<b>", "event") == '<span class="event-state &lt;b&gt;">&lt;b&gt;</span>'


def test_the_documentation_lists_every_state_of_vms_and_events() -> None:
    text = DOCUMENTATION.read_text("utf-8")
    for look in (*STATES[StateFamily.VM].values(), *STATES[StateFamily.EVENT].values()):
        assert f"{look.symbol} {look.label}" in text
