"""The fleet: shown, checked and applied from a file, changed by single VMs and hosts."""

from __future__ import annotations

from typing import Any

import pytest

from forewarn.base.times import time_text
from forewarn.core.history import LastPoll

FILE = """
[defaults]
location = "westeurope"
[[hosts]]
name = "h{n}"
first = 1
count = 3
[[vms]]
name = "cache-{n}"
count = 2
"""


def test_a_fleet_is_shown_with_its_hosts_scopes_and_vms(api: Any) -> None:
    """Spec §7.1: a set and a placement group are one scope each, any other VM is its own."""
    fleet = api.get("/fleet")
    assert [host["name"] for host in fleet["hosts"]] == ["h1", "h2", "h3"]
    assert fleet["hosts"][0]["vms"] == ["web-0", "db", "pool_0", "pool_1"]
    assert [scope["title"] for scope in fleet["scopes"]] == [
        "availability set web",
        "VM db",
        "VM spot",
        "placement group pg-0 of scale set pool",
    ]
    assert fleet["scopes"][0]["update_domains"] == [0, 1, 2]
    assert len(fleet["vms"]) == 7


def test_the_fleet_is_filtered_by_host_and_scope(api: Any) -> None:
    assert [vm["name"] for vm in api.get("/fleet?scope=web")["vms"]] == ["web-0", "web-1", "web-2"]
    assert [vm["name"] for vm in api.get("/fleet?scope=pool")["vms"]] == ["pool_0", "pool_1"]
    assert [vm["name"] for vm in api.get("/fleet?scope=pool/pg-0")["vms"]] == ["pool_0", "pool_1"]
    assert [vm["name"] for vm in api.get("/fleet?scope=lab/web")["vms"]] == ["web-0", "web-1", "web-2"]
    assert [vm["name"] for vm in api.get("/fleet?scope=web-1")["vms"]] == ["web-0", "web-1", "web-2"]
    assert [vm["name"] for vm in api.get("/fleet?scope=set:sub/lab/web")["vms"]] == ["web-0", "web-1", "web-2"]
    narrowed = api.get("/fleet?host=H2")
    assert [vm["name"] for vm in narrowed["vms"]] == ["web-1", "spot"]
    assert [host["name"] for host in narrowed["hosts"]] == ["h2"]
    assert len(api.get("/fleet?limit=2")["vms"]) == 2


def test_a_vm_is_shown_with_its_endpoint_its_polls_and_its_events(api: Any) -> None:
    vm = api.world.vm("db")
    poll = LastPoll(vm=vm.key, scope_id=vm.scope_id, at=api.world.now, version="2020-07-01", count=12)
    api.world.do(api.world.store.record_observations([poll], []))
    api.restart_of("db")
    shown = api.get("/vms/DB")
    assert shown["url"] == "http://127.0.0.9:8080/metadata/scheduledevents"
    assert (shown["last_polled_at"], shown["polled_version"], shown["polls"]) == (
        time_text(api.world.now),
        "2020-07-01",
        12,
    )
    assert shown["pending"] == 1
    assert [event["kind"] for event in shown["events"]] == ["Reboot"]
    assert shown["auto_approve"] == {"restart": False, "redeploy": False}
    assert api.get("/vms/web-0")["url"] is None


def test_checking_a_fleet_file_shows_what_it_would_change(api: Any) -> None:
    before = api.stored()
    difference = api.post("/fleet/check", {"text": FILE, "source": "f.toml"})["difference"]
    assert api.stored() == before
    assert difference["added"] == ["cache-0", "cache-1"]
    assert len(difference["removed"]) == 7
    assert difference["lines"][-1].startswith("VMs: 2 to add, 0 to change, 7 to remove")


def test_an_invalid_fleet_file_is_rejected_with_every_problem_and_its_line(api: Any) -> None:
    text = '[[hosts]]\nname = "h1"\n[[vms]]\nname = "a"\nhost = "h7"\ncolour = "red"\n'
    for target in ("/fleet/check", "/fleet/apply"):
        before = api.stored()
        answer = api.call("POST", target, {"text": text, "source": "f.toml"})
        assert api.stored() == before
        assert answer.status == 400
        error = answer.json["error"]
        assert error["code"] == "Rejected"
        assert error["message"] == "f.toml has 2 problems: nothing was changed"
        assert [(problem["line"], bool(problem["remedy"])) for problem in error["problems"]] == [(5, True), (6, True)]


def test_a_fleet_file_applied_twice_changes_nothing_the_second_time(api: Any) -> None:
    proposal = {"text": FILE, "source": "f.toml"}
    preview = api.post("/fleet/apply", {**proposal, "dry_run": True})
    assert preview["applied"] is False
    assert len(api.world.store.vms()) == 7

    assert api.post("/fleet/apply", proposal)["applied"] is True
    assert [vm["name"] for vm in api.get("/fleet")["vms"]] == ["cache-0", "cache-1"]
    assert all(vm.vm_id for vm in api.world.store.vms())
    assert api.world.store.history(limit=1)[0].actor == "local user ann"

    again = api.post("/fleet/apply", proposal)
    assert again["applied"] is False
    assert again["difference"]["is_empty"] is True
    assert again["difference"]["lines"] == []


def test_a_deleted_vm_stays_deleted_unless_the_caller_resurrects_it(api: Any) -> None:
    proposal = {"text": FILE, "source": "f.toml"}
    api.post("/fleet/apply", proposal)
    api.delete("/fleet/vms/cache-1")
    kept = api.post("/fleet/apply", proposal)
    assert (kept["applied"], kept["difference"]["stay_deleted"]) == (False, ["cache-1"])
    back = api.post("/fleet/apply", {**proposal, "resurrect": True})
    assert (back["applied"], back["difference"]["resurrected"]) == (True, ["cache-1"])


def test_a_fleet_file_that_removes_a_vm_under_maintenance_is_refused_with_its_event(api: Any) -> None:
    (event,) = api.restart_of("db")
    api.post(f"/events/{event['id']}/approve")
    before = api.stored()
    answer = api.call("POST", "/fleet/apply", {"text": FILE, "source": "f.toml"})
    assert api.stored() == before
    assert answer.status == 409
    (problem,) = answer.json["error"]["problems"]
    assert event["id"] in problem["message"]


def test_applying_a_fleet_file_withdraws_the_events_of_removed_vms(api: Any) -> None:
    """Spec §4.2: an event with no VM left is withdrawn."""
    (event,) = api.restart_of("db")
    api.post("/fleet/apply", {"text": FILE, "source": "f.toml"})
    assert api.get(f"/events/{event['id']}")["ending"] == "withdrawn"


def test_a_new_vm_gets_the_usual_group_and_the_best_host(api: Any) -> None:
    vm = api.post("/fleet/vms", {"name": "new", "tags": {"team": "shop"}, "size": "Standard_B1s"})
    assert (vm["resource_group"], vm["subscription_id"], vm["location"]) == ("lab", "sub", "westeurope")
    assert vm["host"] == "h3"  # the host with the fewest VMs
    assert (vm["tags"], vm["size"]) == ({"team": "shop"}, "Standard_B1s")
    assert api.world.vm("new").vm_id


def test_a_vm_that_joins_a_set_gets_the_settings_of_its_siblings(api: Any) -> None:
    """Spec §6.2: it gets a free update domain, as long as the set may have more."""
    web = api.post("/fleet/vms", {"name": "web-3", "availability_set": "web"})
    assert (web["scope"], web["update_domain"]) == ("set:sub/lab/web", 3)
    pool = api.post("/fleet/vms", {"name": "pool_2", "scale_set": "pool"})
    assert (pool["placement_group"], pool["terminate_notice_min"]) == ("pg-0", 5)


SETS = """
[defaults]
location = "westeurope"
[[hosts]]
name = "h{n}"
first = 1
count = 3
[[availability_sets]]
name = "few"
update_domains = 3
[[availability_sets]]
name = "many"
update_domains = 20
fault_domains = 3
[[vms]]
name = "few-{n}"
count = 2
availability_set = "few"
[[vms]]
name = "many-{n}"
count = 6
availability_set = "many"
[[scale_sets]]
name = "pool"
count = 2
update_domains = 2
"""


@pytest.mark.parametrize(
    ("joined", "update_domains", "fault_domains"),
    [
        ({"availability_set": "few"}, [2, 0, 1], [0, 1, 0]),
        ({"availability_set": "MANY"}, [6, 7, 8], [0, 1, 2]),
        ({"scale_set": "pool"}, [0, 1, 0], [2, 3, 4]),
    ],
    ids=["fewer than the default", "more than the default", "scale set"],
)
def test_a_vm_that_joins_a_set_gets_a_domain_that_the_fleet_file_declares(
    api: Any, joined: dict[str, str], update_domains: list[int], fault_domains: list[int]
) -> None:
    """Spec §6.2: the next domain in turn."""
    api.post("/fleet/apply", {"text": SETS, "source": "f.toml"})
    added = [api.post("/fleet/vms", {"name": f"new-{n}", **joined}) for n in range(3)]
    assert [vm["update_domain"] for vm in added] == update_domains
    assert [vm["fault_domain"] for vm in added] == fault_domains
    refused = api.refused("POST", "/fleet/vms", {"name": "other", **joined, "update_domain": 20})
    assert refused[0] == 400
    assert "'other' cannot be in update domain 20: its set has" in refused[2]


def test_the_declared_domains_of_a_set_outlive_its_vms(api: Any) -> None:
    api.post("/fleet/apply", {"text": SETS, "source": "f.toml"})
    for name in ("few-0", "few-1"):
        api.delete(f"/fleet/vms/{name}")
    added = [api.post("/fleet/vms", {"name": f"new-{n}", "availability_set": "few"}) for n in range(4)]
    assert [vm["update_domain"] for vm in added] == [0, 1, 2, 0]


def test_a_changed_number_of_domains_is_a_change_of_the_fleet(api: Any) -> None:
    api.post("/fleet/apply", {"text": SETS, "source": "f.toml"})
    more = SETS.replace("update_domains = 3", "update_domains = 4")
    assert api.post("/fleet/apply", {"text": more, "source": "f.toml"})["applied"] is True
    added = [api.post("/fleet/vms", {"name": f"new-{n}", "availability_set": "few"}) for n in range(3)]
    assert [vm["update_domain"] for vm in added] == [2, 3, 0]


def test_a_vm_with_a_deleted_name_may_be_added_again(api: Any) -> None:
    old = api.world.vm("db").vm_id
    api.delete("/fleet/vms/db")
    assert api.refused("GET", "/vms/db")[0] == 404
    api.post("/fleet/vms", {"name": "db"})
    assert api.world.vm("db").vm_id != old


BAD_VMS = [
    ({"name": "db"}, 409, "exists already"),
    ({"name": ""}, 400, "name"),
    ({}, 400, "'name'"),
    ({"name": "a/b"}, 400, "contains a slash"),
    ({"name": "a-{n}"}, 400, "braces"),
    ({"name": "a\x7fb"}, 400, "control character"),
    ({"name": "a", "host": "h7"}, 400, "host 'h7' of VM 'a' does not exist: "),
    ({"name": "a", "host": "zz"}, 400, "host 'zz' of VM 'a' does not exist: name one that exists, or leave out host"),
    ({"name": "a", "subscription_id": "x"}, 400, "subscription 'x' does not exist: write its id (a GUID), or name one"),
    ({"name": "a", "zone": "1"}, 400, "has no host to run on"),
    ({"name": "a", "zone": "1", "availability_set": "web"}, 400, "spec §7.1"),
    ({"name": "a", "scale_set": "pool", "availability_set": "web"}, 400, "more than one set or service"),
    ({"name": "a", "priority": "Spot", "terminate_notice_min": 5}, 400, "no terminate notification"),
    ({"name": "a", "terminate_notice_min": 4}, 400, "from 5 to 15"),
    ({"name": "a", "eviction_policy": "Delete"}, 400, "not Spot"),
    ({"name": "a", "address": "127.0.0.9"}, 409, "127.0.0.9"),
    ({"name": "a", "address": "nowhere"}, 400, "not an IP address"),
    ({"name": "a", "auto_approve": {"restart": True}, "availability_set": "web"}, 400, "auto_approve"),
    ({"name": "a", "update_domain": 3}, 400, "update domain 0"),
    ({"name": "a", "priority": "Cheap"}, 400, "priority"),
    ({"name": "a", "tags": {"n": 1}}, 400, "tags"),
]


@pytest.mark.parametrize(("body", "status", "words"), BAD_VMS, ids=[f"{body}"[:60] for body, _, _ in BAD_VMS])
def test_a_new_vm_is_checked_like_a_fleet_file(api: Any, body: Any, status: int, words: str) -> None:
    found, _, message = api.refused("POST", "/fleet/vms", body)
    assert found == status, message
    assert words in message
    assert not any(word in message for word in ("[[", "the file", "declare", " line "))


def test_a_vm_on_a_degraded_host_is_refused(api: Any) -> None:
    api.post("/hosts/h3/degrade", {"in_s": 86400})
    status, _, message = api.refused("POST", "/fleet/vms", {"name": "a", "host": "h3"})
    assert status == 409
    assert "degraded" in message


def test_a_new_vm_needs_a_location_if_the_fleet_has_several(api: Any) -> None:
    api.post("/fleet/hosts", {"name": "n1", "location": "northeurope"})
    status, _, message = api.refused("POST", "/fleet/vms", {"name": "a"})
    assert status == 400
    assert "'northeurope' or 'westeurope'" in message
    assert api.post("/fleet/vms", {"name": "a", "location": "northeurope"})["host"] == "n1"
    assert api.post("/fleet/vms", {"name": "b", "host": "N1"})["location"] == "northeurope"


def test_the_hundred_and_first_vm_opens_a_new_placement_group(api: Any) -> None:
    """Spec §7.1: at most 100 VMs in a placement group."""
    text = '[defaults]\nlocation = "westeurope"\n[[hosts]]\nname = "h1"\n[[scale_sets]]\nname = "big"\ncount = 100\n'
    api.post("/fleet/apply", {"text": text, "source": "f.toml"})
    assert api.post("/fleet/vms", {"name": "big_100", "scale_set": "big"})["placement_group"] == "pg-1"
    body = {"name": "big_101", "scale_set": "big", "placement_group": "pg-0"}
    assert api.refused("POST", "/fleet/vms", body)[0] == 409


def test_a_vm_with_a_started_event_cannot_be_removed(api: Any) -> None:
    (event,) = api.restart_of("db")
    api.post(f"/events/{event['id']}/approve")
    status, _, message = api.refused("DELETE", "/fleet/vms/db")
    assert status == 409
    assert event["id"] in message


def test_a_host_is_added_and_removed(api: Any) -> None:
    host = api.post("/fleet/hosts", {"name": "h4", "location": "westeurope", "zone": "2"})
    state = {"health": "healthy", "unreachable": False, "confirmed_down": False}
    assert host == {"name": "h4", "location": "westeurope", "zone": "2", **state, "vms": []}
    assert api.delete("/fleet/hosts/h4")["name"] == "h4"
    assert [host["name"] for host in api.get("/fleet")["hosts"]] == ["h1", "h2", "h3"]


def test_a_host_with_vms_on_it_or_moving_to_it_cannot_be_removed(api: Any) -> None:
    assert "still has VM 'web-0'" in api.refused("DELETE", "/fleet/hosts/h1")[2]
    api.post("/fleet/hosts", {"name": "h4", "location": "westeurope"})
    (event,) = api.post("/requests", {"operation": "redeploy", "vms": ["db"]})["events"]
    moving = api.post(f"/events/{event['id']}/approve")
    assert moving["acts"][0]["to_host"] == "h4"
    status, _, message = api.refused("DELETE", "/fleet/hosts/h4")
    assert status == 409
    assert "while VM 'db' is moving to it" in message


BAD_HOSTS = [
    ({"name": "H1", "location": "westeurope"}, 409),
    ({"name": "a/b", "location": "westeurope"}, 400),
    ({"name": "a"}, 400),
    ({"name": "a", "location": ""}, 400),
    ({"name": 7, "location": "westeurope"}, 400),
]


@pytest.mark.parametrize(("body", "status"), BAD_HOSTS)
def test_an_invalid_host_is_rejected(api: Any, body: Any, status: int) -> None:
    assert api.refused("POST", "/fleet/hosts", body)[0] == status


FLEXIBLE = """\
[defaults]
location = "westeurope"
[[hosts]]
name = "h{n}"
first = 1
count = 3
[[scale_sets]]
name = "flex"
count = 2
orchestration = "Flexible"
fault_domains = 1
narrow_delivery = true
approve_all_down = false
"""


def test_a_vm_that_joins_a_flexible_set_takes_over_its_orchestration_and_delivery(api: Any) -> None:
    """Spec §14.5, §14.6."""
    api.post("/fleet/apply", {"text": FLEXIBLE, "source": "f.toml"})
    joined = api.post("/fleet/vms", {"name": "flex_more", "scale_set": "flex"})
    shown = {key: joined[key] for key in ("orchestration", "placement_group", "narrow_delivery", "approves_all_down")}
    assert shown == {
        "orchestration": "Flexible",
        "placement_group": "",
        "narrow_delivery": True,
        "approves_all_down": False,
    }
    assert joined["scope_title"] == "scale set flex"
    refused = api.refused("POST", "/fleet/vms", {"name": "other", "scale_set": "flex", "placement_group": "a"})
    assert refused[0] == 400
    assert "scale set 'flex' is Flexible and has no placement groups" in refused[2]


def test_a_vm_that_joins_a_set_without_vms_takes_over_the_settings_of_the_last_one(api: Any) -> None:
    """Spec §14.6: one removed earlier, while the set had several fault domains and no narrow delivery, is no model."""
    narrow = "fault_domains = 1\nnarrow_delivery = true\napprove_all_down = false\n"
    policy = 'auto_approve = ["restart"]\n'
    wide = FLEXIBLE.replace("count = 2", "count = 1").replace(narrow, "fault_domains = 3\n")
    api.post("/fleet/apply", {"text": f"{wide}[[vms]]\nname = 'first'\nscale_set = 'flex'", "source": "f.toml"})
    api.delete("/fleet/vms/first")
    api.post("/fleet/apply", {"text": wide.replace("fault_domains = 3\n", narrow + policy), "source": "f.toml"})
    for vm in api.get("/fleet")["vms"]:
        api.world.advance(1.0)
        api.delete(f"/fleet/vms/{vm['name']}")
    joined = api.post("/fleet/vms", {"name": "flex_more", "scale_set": "flex"})
    keys = ("orchestration", "narrow_delivery", "approves_all_down", "fault_domain")
    assert [joined[key] for key in keys] == ["Flexible", True, False, 0]
    assert api.world.vm("flex_more").auto_approve.restart


def test_a_fleet_with_a_flexible_set_can_be_applied_again_and_shown_by_the_name_of_the_set(api: Any) -> None:
    api.post("/fleet/apply", {"text": FLEXIBLE, "source": "f.toml"})
    again = api.post("/fleet/check", {"text": FLEXIBLE, "source": "f.toml"})
    assert "nothing to do" in str(again)
    listed = api.get("/fleet?scope=flex")["vms"]
    assert [vm["orchestration"] for vm in listed] == ["Flexible"] * 2
    assert [vm["name"] for vm in listed] == [vm["name"] for vm in api.get("/fleet")["vms"]]
