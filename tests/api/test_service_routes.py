"""Routes of the service itself: its description, clock, backup and health checks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from forewarn.base.times import parse_time, time_text
from forewarn.core.decision import Policy
from forewarn.core.history import LastPoll
from forewarn.store.sqlite import SqliteStore

DB = "/subscriptions/sub/resourceGroups/lab/providers/Microsoft.Compute/virtualMachines/db"


def test_the_service_describes_itself(api: Any) -> None:
    assert api.get("/service") == {"version": "0.1.0", "pid": 1, "lab": True, "endpoint": "http://127.0.0.9:8080"}
    assert api.refused("GET", "/service?vm=nobody")[0] == 404


def test_the_clock_is_shown_advanced_and_set_to_another_speed(api: Any) -> None:
    """Spec §12."""
    before = api.get("/clock")
    assert before == {"now": time_text(api.world.now), "speed": 0.0, "lab": True}
    (event,) = api.restart_of("db")
    advanced = api.post("/clock/advance", {"by_s": 3600})
    assert parse_time(advanced["now"]) == parse_time(before["now"]) + 3600
    assert [entry["kind"] for entry in advanced["entries"]] == ["started", "performed", "finished"]
    assert (advanced["polling"], advanced["note"], advanced["entries_omitted"]) == (0, "", 0)
    assert api.get(f"/events/{event['id']}")["ending"] == "finished"
    assert api.post("/clock/speed", {"speed": 60})["speed"] == 60


def test_every_response_tells_the_time_of_the_service(api: Any) -> None:
    assert api.call("GET", "/fleet").headers["forewarn-now"] == time_text(api.world.now)


def enabled_by_a_poll(api_of: Any) -> Any:
    api = api_of(Policy())
    vm = api.world.vm("db")
    api.world.do(api.world.control.guests.enable_scope_of(vm.key))
    poll = LastPoll(vm=vm.key, scope_id=vm.scope_id, at=api.world.now, version="2020-07-01", count=1)
    api.world.do(api.world.store.record_observations([poll], []))
    return api


def test_a_vm_that_polls_counts_as_polling_while_the_clock_advances_and_the_response_says_so(api_of: Any) -> None:
    """Spec §12."""
    api = enabled_by_a_poll(api_of)
    advanced = api.post("/clock/advance", {"by_s": 25 * 3600})
    assert (advanced["polling"], advanced["entries"]) == (1, [])
    assert advanced["note"] == "1 VM counts as polling throughout, so its scope stays enabled"
    assert api.world.scope("db").is_enabled


def test_the_clock_advances_without_polls_so_that_a_scope_becomes_idle(api_of: Any) -> None:
    """Spec §8.2: a scope that makes no request for 24 hours is disabled."""
    api = enabled_by_a_poll(api_of)
    advanced = api.post("/clock/advance", {"by_s": 25 * 3600, "without_polls": True})
    assert (advanced["polling"], advanced["note"]) == (0, "")
    assert [entry["text"] for entry in advanced["entries"]] == [
        "scheduled events of db disabled: no VM of the scope has polled for 24 h"
    ]
    assert not api.world.scope("db").is_enabled
    assert "clock advanced by 1 d 1 h without polls by" in api.get("/history?limit=10")["entries"][-2]["text"]
    (event,) = api.restart_of("db")
    assert event["note"] == "no VM of the scope has polled within 24 h, so scheduled events are disabled there"


def test_a_lab_whose_scopes_are_always_enabled_says_so(api: Any) -> None:
    """Spec §8.3."""
    advanced = api.post("/clock/advance", {"by_s": 25 * 3600, "without_polls": True})
    assert advanced["note"] == "no scope becomes idle, because the setting enablement is always"


def test_the_history_names_who_moved_the_clock_pruned_or_backed_up(tmp_path: Path, api_of: Any) -> None:
    api = api_of(Policy(), store=SqliteStore.open(tmp_path / "forewarn.db"))
    before = api.get("/history")["seq"]
    admin = api.holding("Administrator", "/")
    admin.post("/clock/advance", {"by_s": 3600})
    admin.post("/clock/speed", {"speed": 2.5})
    admin.post("/history/prune", {"older_than_s": 90 * 86400})
    admin.post("/backup", {"path": str(tmp_path / "copy.db")})
    entries = api.get(f"/history?after={before}")["entries"]
    assert [(entry["kind"], entry["actor"], entry["text"]) for entry in entries] == [
        ("clock", "client ci", "clock advanced by 1 h by client ci"),
        ("clock", "client ci", "clock set to speed 2.5 by client ci"),
        ("upkeep", "client ci", "0 history entries older than 90 d pruned by client ci"),
        ("upkeep", "client ci", f"store copied to {str(tmp_path / 'copy.db')!r} by client ci"),
    ]


BAD = [
    ("/clock/advance", {"by_s": 0}, 400),
    ("/clock/advance", {"by_s": -5}, 400),
    ("/clock/advance", {"by_s": 1e12}, 400),
    ("/clock/advance", {"by_s": "1h"}, 400),
    ("/clock/advance", {}, 400),
    ("/clock/speed", {"speed": -1}, 400),
    ("/clock/speed", {"speed": 100_001}, 400),
    ("/clock/speed", {"speed": None}, 400),
    ("/backup", {"path": "backup.db"}, 400),
    ("/backup", {"path": "/nowhere/at/all/backup.db"}, 400),
    ("/backup", {"path": "/"}, 409),
    ("/backup", {"path": ""}, 400),
    ("/backup", {"path": f"/{'x' * 300}"}, 400),
    ("/backup", {"path": "/tmp/a\x00b"}, 400),
]


@pytest.mark.parametrize(("target", "body", "status"), BAD)
def test_invalid_clock_and_backup_calls_are_rejected(api: Any, target: str, body: Any, status: int) -> None:
    assert api.refused("POST", target, body)[0] == status


def test_a_store_that_was_deleted_under_the_service_is_backed_up(tmp_path: Path, api_of: Any) -> None:
    api = api_of(Policy(), store=SqliteStore.open(tmp_path / "forewarn.db"))
    for found in tmp_path.glob("forewarn.db*"):
        found.unlink()
    path = tmp_path / "backup.db"
    assert api.post("/backup", {"path": str(path)}) == {"path": str(path), "bytes": path.stat().st_size}


def test_a_store_in_a_file_is_backed_up_and_a_backup_never_overwritten(tmp_path: Path, api_of: Any) -> None:
    api = api_of(Policy(), store=SqliteStore.open(tmp_path / "forewarn.db"))
    path = tmp_path / "backup.db"
    answer = api.post("/backup", {"path": str(path)})
    assert answer == {"path": str(path), "bytes": path.stat().st_size}
    assert api.refused("POST", "/backup", {"path": str(path)})[:2] == (409, "Refused")
    copy = SqliteStore.open(path)
    assert len(copy.vms()) == 7
    asyncio.run(copy.close())


def test_everything_else_works_on_a_store_in_a_file_too(tmp_path: Path, api_of: Any) -> None:
    api = api_of(Policy(), store=SqliteStore.open(tmp_path / "forewarn.db"))
    api.restart_of("db", "web-0")
    api.world.advance(3600)
    assert [event["ending"] for event in api.get("/events?all=true")["events"]] == ["finished", "finished"]
    assert api.get("/explain/db")["lines"][0]["text"].endswith("finished")
    assert len(api.get("/fleet")["vms"]) == 7


def test_the_health_checks_say_what_is_wrong_and_what_to_do(api: Any) -> None:
    assert api.get("/doctor") == {
        "checks": [{"name": "disk", "ok": False, "text": "1 MiB free", "remedy": "make room"}]
    }


def test_the_root_of_the_api_lists_every_route(api: Any) -> None:
    shown = api.get("/")
    assert shown["openapi"] == "/forewarn/v1/openapi.json"
    assert {(route["method"], route["path"]) for route in shown["routes"]} >= {
        ("GET", "/forewarn/v1/fleet"),
        ("POST", "/forewarn/v1/requests"),
    }
    assert all(route["summary"].endswith(".") for route in shown["routes"])


@pytest.mark.parametrize(
    ("path", "body", "part"),
    [
        ("/requests", {"operation": "restart", "vm": ["db"]}, "field 'vm' is unknown: did you mean 'vms'?"),
        ("/clock/advance", {"minutes": 5}, "field 'minutes' is unknown: the fields are by_s, without_polls"),
        ("/hosts/h1/repair", {"now": True}, "field 'now' is unknown: leave it out, there are no fields"),
    ],
)
def test_an_unknown_field_is_answered_with_the_known_ones(api: Any, path: str, body: Any, part: str) -> None:
    assert part in api.refused("POST", path, body)[2]


@pytest.mark.parametrize(
    ("target", "part"),
    [("/fleet?scope=wep", "did you mean 'web'?"), ("/fleet?scope=pol", "did you mean 'pool'?")],
)
def test_a_name_that_is_nearly_right_is_answered_with_the_right_one(api: Any, target: str, part: str) -> None:
    assert part in api.refused("GET", target)[2]


def test_a_wrong_host_is_answered_with_a_visible_host_only(api: Any) -> None:
    api.post("/fleet/hosts", {"name": "rack-17", "location": "westeurope"})
    assert "did you mean 'rack-17'?" in api.refused("POST", "/hosts/rack17/repair", {})[2]
    assert "rack-17" not in api.holding("Reader", DB).refused("GET", "/fleet?host=rack17")[2]
