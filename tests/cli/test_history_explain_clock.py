"""The commands history, explain and clock."""

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from forewarn.cli.api_client import ApiClient, HttpAnswer
from forewarn.cli.follow import Snapshot, follow
from forewarn.cli.invocation import Invocation
from forewarn.cli.output import column_widths


def test_the_history_is_shown_oldest_first_and_can_be_filtered(lab: Any) -> None:
    lab.good("restart", "web")
    lines = lab.good("history").splitlines()
    assert "requested   local user ann requested restart of web" in lines[-2]
    assert "published   Reboot of web scheduled" in lines[-1]
    assert len(lab.good("history", "--limit", "1").splitlines()) == 1
    assert lab.good("history", "--vm", "db-0") == "The history has no such entries.\n"


class LongHistory:
    """A service whose history has `length` entries, numbered from 1, all of one request."""

    location = "in /nowhere"

    def __init__(self, length: int) -> None:
        self.length, self.calls = length, 0

    def send(self, method: str, target: str, payload: bytes | None, timeout_s: float, headers: object) -> HttpAnswer:
        self.calls += 1
        query = {name: values[0] for name, values in parse_qs(urlsplit(target).query).items()}
        first = int(query["after"]) + 1
        last = min(self.length, first + int(query["limit"]) - 1)
        entries = [{"at": 0, "kind": "noted", "actor": "", "text": f"entry {n}"} for n in range(first, last + 1)]
        return HttpAnswer(200, json.dumps({"entries": entries, "seq": last}).encode(), 0.0)


@pytest.mark.parametrize("length", [3, 500, 1_000, 1_700])
def test_following_prints_every_entry_also_of_something_that_is_over(
    length: int, capsys: pytest.CaptureFixture[str]
) -> None:
    call = Invocation()
    call.api = ApiClient(LongHistory(length))
    over = Snapshot(view={"id": "r1"}, is_over=True, renderable="")
    assert follow(call, lambda: over, entries_of={"request": "r1"}) == {"id": "r1"}
    printed = [line.rpartition("entry ")[2] for line in capsys.readouterr().out.splitlines()]
    assert printed == [str(number) for number in range(1, length + 1)]


def test_following_quietly_does_not_read_all_entries_of_something_that_is_over() -> None:
    call, history = Invocation(), LongHistory(10_000)
    call.api = ApiClient(history)
    follow(call, lambda: Snapshot(view={}, is_over=True, renderable=""), entries_of={"request": "r1"}, quiet=True)
    assert history.calls == 1


def test_pruning_shows_how_many_entries_are_deleted(lab: Any) -> None:
    assert lab.good("history", "prune", "--older-than", "30d") == "0 entries are deleted.\n"


def test_an_explanation_has_a_title_lines_and_the_current_state(lab: Any) -> None:
    event_id = lab.json("restart", "web")["events"][0]["id"]
    text = lab.good("explain", event_id)
    assert text.startswith("Reboot of web: user restart")
    assert "\nnow  " in text
    assert lab.json("explain", "web")["title"] in lab.good("explain", "web")


@pytest.mark.parametrize("thing", ["web", "h1", "db", "set:sub/lab/db", "vm:sub/lab/web"])
def test_vms_hosts_and_scopes_are_explained(lab: Any, thing: str) -> None:
    assert "\nnow  " in lab.good("explain", thing)


def test_advancing_the_clock_prints_what_happened_meanwhile(lab: Any) -> None:
    """Spec §12."""
    lab.good("restart", "web")
    text = lab.good("clock", "advance", "16m")
    assert "started     Reboot of web started" in text
    assert text.splitlines()[-1].startswith("16m later: 2026-")
    assert lab.good("clock", "advance", "1d10m").splitlines()[-1].startswith("1d 10m later: 2026-")


def test_advancing_the_clock_in_json_lists_what_happened_meanwhile(lab: Any) -> None:
    lab.good("restart", "web")
    entries = lab.json("clock", "advance", "16m")["entries"]
    assert [entry["kind"] for entry in entries] == ["started", "performed", "finished"]


def test_the_clock_shows_its_speed(lab: Any) -> None:
    assert lab.good("clock", "show").endswith("lab time, stopped\n")
    assert lab.json("clock", "advance", "1h")["now"] == lab.json("clock", "show")["now"]


COLUMNS = [("event", "1ECD7541"), ("when", "19:58:22 (in 14m 48s)"), ("waits for", "an approval of somebody")]


@pytest.mark.parametrize(
    ("width", "widths"),
    [(80, [8, 21, 23]), (44, [8, 21, 11]), (35, [8, 12, 11]), (20, [])],
    ids=["enough", "the last gives way", "a time is broken before its parenthesis", "too narrow for any of this"],
)
def test_a_table_breaks_no_word_while_the_words_fit(width: int, widths: list[int]) -> None:
    assert column_widths(COLUMNS, width) == widths
