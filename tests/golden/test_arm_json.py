"""The part of Azure Resource Manager that the console serves is frozen: each route is called once, over TLS.

Keys, types, codes, headers and words that programs read are compared; sentences for people are masked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.golden.harness import SUBSCRIPTION, Answer, Console, Service, Walk

FLEET = """
[defaults]
resource_group = "shop"
location = "westeurope"
tags = {team = "shop"}

[[hosts]]
name = "host-{n}"
count = 8

[[availability_sets]]
name = "db"
update_domains = 3

[[vms]]
name = "db-{n}"
count = 3
availability_set = "db"

[[vms]]
name = "web-{n}"
count = 14

[[vms]]
name = "spot"
priority = "Spot"

[[scale_sets]]
name = "pool"
count = 14

[[scale_sets]]
name = "cheap"
count = 2
priority = "Spot"

[[scale_sets]]
name = "old"
count = 2

[[scale_sets]]
name = "workers"
count = 2
terminate_notification = 5
"""
VERSION = "api-version=2024-07-01"
IN_SUBSCRIPTION = f"/subscriptions/{SUBSCRIPTION}"
GROUP = f"{IN_SUBSCRIPTION}/resourceGroups/shop"
COMPUTE = f"{GROUP}/providers/Microsoft.Compute"
EVENTS = "providers/Microsoft.Maintenance/scheduledevents"
UNKNOWN = "DEADBEEF-0000-4000-8000-000000000001"
AREAS = ("discovery", "places", "vms", "scale-sets", "instances", "availability-sets", "operations", "maintenance")


class Arm:
    """Calls of the administrator, each noted under its route."""

    def __init__(self, console: Console, walk: Walk) -> None:
        self.console, self.walk, self.token = console, walk, console.token()

    def __call__(
        self, area: str, method: str, template: str, body: Any = None, title: str = "", /, **names: str
    ) -> Answer:
        """Fills the template in, as in `…/virtualMachines/{vm}`; `…` stands for the group's compute provider."""
        target = template.replace("…", COMPUTE).replace("{subscription}", SUBSCRIPTION).replace("{group}", "shop")
        for name, text in names.items():
            target = target.replace(f"{{{name}}}", text)
        answer = self.console.call(method, f"{target}?{VERSION}", body, self.token)
        return self.walk.note(area, f"{method} {template}", answer, title)


def discovery(console: Console, walk: Walk) -> None:
    def told(method: str, template: str, answer: Answer, title: str = "") -> None:
        walk.note("discovery", f"{method} {template}", answer, title)

    tenant = console.shown["tenant_id"]
    for template in (
        "/metadata/endpoints",
        "/metadata/endpoints-list",
        "/adfs/.well-known/openid-configuration",
        "/{tenant}/v2.0/.well-known/openid-configuration",
        "/adfs/{tenant}/v2.0/.well-known/openid-configuration",
        "/adfs/discovery/keys",
    ):
        told("GET", template, console.call("GET", f"{template.format(tenant=tenant)}?{VERSION}"))
    fields = console.fields()
    told("POST", "/adfs/oauth2/token", console.form("/adfs/oauth2/token", fields))
    modern = fields | {"scope": "https://management.azure.com/.default"}
    told("POST", "/{tenant}/oauth2/v2.0/token", console.form(f"/{tenant}/oauth2/v2.0/token", modern))
    for title, changed in (
        ("a wrong secret", {"client_secret": "wrong"}),
        ("an unknown client", {"client_id": "nobody"}),
        ("another grant", {"grant_type": "password"}),
    ):
        told("POST", "/adfs/oauth2/token", console.form("/adfs/oauth2/token", fields | changed), title)


def places(arm: Arm) -> None:
    for template in (
        "/tenants",
        "/subscriptions",
        "/subscriptions/{subscription}",
        "/subscriptions/{subscription}/locations",
        "/subscriptions/{subscription}/resourceGroups",
        "/subscriptions/{subscription}/resourceGroups/{group}",
    ):
        arm("places", "GET", template)
    unknown = arm.console.call("GET", f"{IN_SUBSCRIPTION}/resourceGroups/nothing?{VERSION}", token=arm.token)
    arm.walk.note("places", "GET a group", unknown, "unknown")
    unknown = arm.console.call("GET", f"/subscriptions/{UNKNOWN}?{VERSION}", token=arm.token)
    arm.walk.note("places", "GET a subscription", unknown, "unknown")
    arm.walk.note("places", "GET", arm.console.call("GET", f"/nowhere?{VERSION}", token=arm.token), "an unknown path")
    arm.walk.note("places", "GET", arm.console.call("GET", f"/subscriptions?{VERSION}"), "no token")
    arm.walk.note("places", "GET", arm.console.call("GET", f"/subscriptions?{VERSION}", token="x"), "a bad token")
    put = arm.console.call("PUT", f"/subscriptions?{VERSION}", {}, arm.token)
    arm.walk.note("places", "PUT", put, "another method")


def event_of(arm: Arm, vm: str) -> str:
    """The id of an event that was just asked for."""
    told = arm.console.service.ask("restart", vm)
    event_id: str = told["events"][0]["id"]
    return event_id


def approvals(arm: Arm, area: str, resource: str, vms: tuple[str, str], **names: str) -> None:
    arm(area, "POST", f"{resource}/{EVENTS}/{{event}}/acknowledge", event=event_of(arm, vms[0]), **names)
    arm.console.service.advance(60)  # until it is over
    arm(area, "POST", f"{resource}/{EVENTS}", {"value": [event_of(arm, vms[1])]}, **names)
    arm(area, "POST", f"{resource}/{EVENTS}", {"colour": "red"}, "a bad body", **names)
    arm(area, "POST", f"{resource}/{EVENTS}/{{event}}/acknowledge", None, "unknown", event=UNKNOWN, **names)


def vms(arm: Arm) -> None:
    area, one = "vms", "…/virtualMachines/{vm}"
    arm(area, "GET", "/subscriptions/{subscription}/providers/Microsoft.Compute/virtualMachines")
    arm(area, "GET", "…/virtualMachines")
    arm(area, "GET", one, vm="web-0")
    arm(area, "GET", one, None, "of a set", vm="db-0")
    arm(area, "GET", one, None, "unknown", vm="nothing")
    arm(area, "GET", f"{one}/instanceView", vm="web-0")
    arm.console.service.good("POST", "/rollouts", {"impact": "update", "hosts": ["host-7"]})
    shown = arm.console.service.good("GET", "/fleet?host=host-7")["vms"]
    hit = next(vm["name"] for vm in shown if vm["name"].startswith("web-"))
    arm(area, "POST", f"{one}/performMaintenance", vm=hit)
    actions = ("restart", "redeploy", "powerOff", "deallocate", "reimage", "reapply")
    for number, action in enumerate(actions, start=1):
        arm(area, "POST", f"{one}/{action}", vm=f"web-{number}")
    arm.console.service.advance(60)
    arm(area, "GET", f"{one}/instanceView", None, "after a power-off", vm="web-3")
    arm(area, "POST", f"{one}/start", vm="web-3")
    arm(area, "POST", f"{one}/restart", None, "again", vm="web-1")
    arm(area, "POST", f"{one}/simulateEviction", vm="spot")
    arm(area, "POST", f"{one}/simulateEviction", None, "not a Spot VM", vm="web-0")
    arm(area, "DELETE", one, vm="web-8")
    arm(area, "DELETE", one, None, "unknown", vm="nothing")
    changed = {"tags": {"a": "b"}, "properties": {"scheduledEventsProfile": PROFILE}}
    arm(area, "PATCH", one, changed, vm="web-9")
    arm(area, "PATCH", one, {"properties": {"hardwareProfile": {"vmSize": "Big"}}}, "what cannot change", vm="web-9")
    arm(area, "PUT", one, {"location": "westeurope", **changed}, vm="web-9")
    arm(area, "PUT", one, changed, "no location", vm="web-9")
    approvals(arm, area, one, ("web-10", "web-10"), vm="web-10")


PROFILE = {"terminateNotificationProfile": {"enable": True, "notBeforeTimeout": "PT5M"}}


def scale_sets(arm: Arm) -> None:
    area, one = "scale-sets", "…/virtualMachineScaleSets/{set}"
    arm(area, "GET", "/subscriptions/{subscription}/providers/Microsoft.Compute/virtualMachineScaleSets")
    arm(area, "GET", "…/virtualMachineScaleSets")
    arm(area, "GET", one, set="pool")
    arm(area, "GET", one, None, "unknown", set="nothing")
    arm(area, "GET", f"{one}/instanceView", set="pool")
    arm.console.service.good("POST", "/rollouts", {"impact": "update", "scope": "pool"})
    arm(area, "POST", f"{one}/performMaintenance", set="pool")
    actions = ("restart", "redeploy", "powerOff", "deallocate", "reimage", "reapply", "reimageall")
    for number, action in enumerate(actions, start=1):
        arm(area, "POST", f"{one}/{action}", {"instanceIds": [str(number)]}, set="pool")
    arm.console.service.advance(60)
    arm(area, "POST", f"{one}/start", {"instanceIds": ["3"]}, set="pool")
    arm(area, "POST", f"{one}/restart", {"instanceIds": ["99"]}, "unknown instance", set="pool")
    arm(area, "POST", f"{one}/delete", {"instanceIds": ["1"]}, set="workers")
    arm(area, "DELETE", one, set="old")
    arm(area, "DELETE", one, None, "an instance is being deleted", set="workers")
    changed = {"tags": {"a": "b"}, "properties": {"virtualMachineProfile": {"scheduledEventsProfile": PROFILE}}}
    arm(area, "PATCH", one, changed, set="pool")
    arm(area, "PATCH", one, {"sku": {"capacity": 99}}, "what cannot change", set="pool")
    arm(area, "PUT", one, {"location": "westeurope", **changed}, set="pool")
    approvals(arm, area, one, ("pool_11", "pool_12"), set="pool")


def instances(arm: Arm) -> None:
    area, one = "instances", "…/virtualMachineScaleSets/{set}/virtualMachines/{instance}"
    arm(area, "GET", "…/virtualMachineScaleSets/{set}/virtualMachines", set="pool")
    arm(area, "GET", one, set="pool", instance="0")
    arm(area, "GET", one, None, "unknown", set="pool", instance="99")
    arm(area, "GET", f"{one}/instanceView", set="pool", instance="0")
    arm(area, "POST", f"{one}/performMaintenance", None, "nothing pending", set="cheap", instance="1")
    arm.console.service.good("POST", "/rollouts", {"impact": "update", "scope": "cheap"})
    arm(area, "POST", f"{one}/performMaintenance", set="cheap", instance="0")
    for number, action in enumerate(("restart", "redeploy", "powerOff", "deallocate", "reimage", "reimageall")):
        arm(area, "POST", f"{one}/{action}", set="pool", instance=str((8, 9, 8, 9, 8, 10)[number]))
        arm.console.service.advance(1200)  # until it is over
    arm(area, "POST", f"{one}/start", set="pool", instance="8")
    arm(area, "POST", f"{one}/simulateEviction", set="cheap", instance="0")
    arm(area, "POST", f"{one}/simulateEviction", None, "not a Spot VM", set="pool", instance="0")
    arm(area, "PUT", one, {"location": "westeurope", "tags": {"a": "b"}}, set="pool", instance="10")
    arm(area, "DELETE", one, set="pool", instance="13")
    arm(area, "DELETE", one, None, "unknown", set="pool", instance="99")


def availability_sets(arm: Arm) -> None:
    area, one = "availability-sets", "…/availabilitySets/{set}"
    arm(area, "GET", "/subscriptions/{subscription}/providers/Microsoft.Compute/availabilitySets")
    arm(area, "GET", "…/availabilitySets")
    arm(area, "GET", one, set="db")
    arm(area, "GET", one, None, "unknown", set="nothing")
    arm(area, "PATCH", one, {"tags": {"a": "b"}}, set="db")
    policy = {"scheduledEventsPolicy": {"userInitiatedReboot": {"automaticallyApprove": False}}}
    arm(area, "PUT", one, {"location": "westeurope", "tags": {"a": "b"}, "properties": policy}, set="db")
    arm(area, "PUT", one, {"location": "mars"}, "another location", set="db")
    approvals(arm, area, one, ("db-0", "db-1"), set="db")


def operations(arm: Arm) -> None:
    """An operation while it waits, and after it succeeded, at both of its addresses."""
    template = "/subscriptions/{subscription}/providers/Microsoft.Compute/locations/{location}/operations/{operation}"
    answer = arm.console.call("POST", f"{COMPUTE}/virtualMachines/web-11/restart?{VERSION}", token=arm.token)

    def told(name: str, title: str) -> None:
        at = urlsplit(answer.header(name))
        again = arm.console.call("GET", f"{at.path}?{at.query}", token=arm.token)
        arm.walk.note("operations", f"GET {template}", again, title)

    told("Azure-AsyncOperation", "under way")
    told("Location", "under way, monitored")
    arm.console.service.advance(1200)
    told("Azure-AsyncOperation", "over")
    told("Location", "over, monitored")
    arm("operations", "GET", template, None, "unknown", location="westeurope", operation=UNKNOWN.lower())


def maintenance(arm: Arm) -> None:
    """Maintenance configurations, and assignments to each kind of resource."""
    area, provider = "maintenance", "providers/Microsoft.Maintenance"
    groups = "/subscriptions/{subscription}/resourceGroups/{group}"
    one = f"{groups}/{provider}/maintenanceConfigurations/{{configuration}}"
    name = {"configuration": "weekly"}
    arm(area, "PUT", one, CONFIGURATION, **name)
    arm(area, "PUT", one, {**CONFIGURATION, "tags": {"a": "b"}}, "again", **name)
    arm(area, "PATCH", one, {"properties": {"maintenanceWindow": {"duration": "03:00"}}}, **name)
    arm(area, "PUT", one, {"location": "westeurope"}, "no scope", **name)
    arm(area, "GET", one, **name)
    arm(area, "GET", one, None, "unknown", configuration="nothing")
    for place in (groups, "/subscriptions/{subscription}"):
        arm(area, "GET", f"{place}/{provider}/maintenanceConfigurations")
    arm(area, "GET", f"/subscriptions/{{subscription}}/{provider}/publicMaintenanceConfigurations")
    arm(
        area,
        "GET",
        f"/subscriptions/{{subscription}}/{provider}/publicMaintenanceConfigurations/{{configuration}}",
        **name,
    )

    configuration = f"{GROUP}/{provider}/maintenanceConfigurations/weekly"
    body = {"location": "westeurope", "properties": {"maintenanceConfigurationId": configuration}}
    condition = {"filter": {"locations": ["westeurope"], "tagSettings": {"tags": {"team": ["shop"]}}}}
    places = {
        "…/virtualMachines/{vm}": {"vm": "web-12"},
        "…/virtualMachineScaleSets/{set}": {"set": "pool"},
        "…/virtualMachineScaleSets/{set}/virtualMachines/{instance}": {"set": "pool", "instance": "0"},
        groups: {},
        "/subscriptions/{subscription}": {},
    }
    for place, names in places.items():
        assignment, of = f"{place}/{provider}/configurationAssignments/{{assignment}}", {**names, "assignment": "first"}
        arm(area, "PUT", assignment, body, **of)
        if not names:
            arm(area, "PATCH", assignment, {"properties": condition}, **of)
        arm(area, "GET", assignment, **of)
        if names:
            arm(area, "GET", f"{place}/{provider}/configurationAssignments", **names)
    arm(area, "GET", f"/subscriptions/{{subscription}}/{provider}/configurationAssignments")
    for place, names in places.items():
        assignment = f"{place}/{provider}/configurationAssignments/{{assignment}}"
        arm(area, "DELETE", assignment, **names, assignment="first")
        arm(area, "DELETE", assignment, None, "again", **names, assignment="first")
    run = f"{one}/{provider}/applyUpdates/{{update}}"
    arm(area, "PUT", run, {"properties": {"status": "Cancel"}}, **name, update="20990103010000")
    arm(area, "GET", run, **name, update="20990103010000")
    arm(area, "PUT", run, {"properties": {"status": "Cancel"}}, "no such run", **name, update="x")
    arm(area, "DELETE", one, **name)
    arm(area, "DELETE", one, None, "again", **name)
    updates(arm)


def updates(arm: Arm) -> None:
    """Pending updates, and how they are applied."""
    area, provider = "maintenance", "providers/Microsoft.Maintenance"
    groups = "/subscriptions/{subscription}/resourceGroups/{group}"
    arm.console.service.good("POST", "/rollouts", {"impact": "reboot", "scope": "web-13"})
    arm.console.service.good("POST", "/rollouts", {"impact": "update", "scope": "cheap"})
    for place, names in {
        "…/virtualMachines/{vm}": {"vm": "web-13"},
        "…/virtualMachineScaleSets/{set}": {"set": "cheap"},
        "…/virtualMachineScaleSets/{set}/virtualMachines/{instance}": {"set": "cheap", "instance": "1"},
    }.items():
        arm(area, "GET", f"{place}/{provider}/updates", **names)
        one = f"{place}/{provider}/applyUpdates/{{update}}"
        applied = arm(area, "PUT", one, **names, update="default")
        arm(area, "GET", one, **names, update=applied.json["name"])
        arm(area, "GET", one, None, "unknown", **names, update="x")
    arm.console.service.advance(3600)
    arm(area, "PUT", "…/virtualMachines/{vm}/providers/Microsoft.Maintenance/applyUpdates/{update}", None, "again",
        vm="web-13", update="default")  # fmt: skip
    for place in (groups, "/subscriptions/{subscription}"):
        arm(area, "GET", f"{place}/{provider}/applyUpdates")
    arm(area, "GET", f"/{provider}/operations")


CONFIGURATION = {
    "location": "westeurope",
    "properties": {
        "maintenanceScope": "Host",
        "maintenanceWindow": {
            "startDateTime": "2099-01-01 02:00",
            "duration": "02:00",
            "timeZone": "W. Europe Standard Time",
            "recurEvery": "Week Saturday",
        },
    },
}


def refusals(arm: Arm) -> None:
    """What a client gets that has a role over one VM only."""
    service = arm.console.service
    made = service.good("POST", "/access/clients", {"id": "bot"})
    service.good("POST", "/access/grants", {"role": "Reader", "principal": "bot", "resource": "web-12"})
    token = arm.console.token("bot", made["secret"])
    for method, target in (
        ("GET", "/virtualMachines"),
        ("GET", "/virtualMachines/web-12"),
        ("GET", "/virtualMachines/web-0"),
        ("POST", "/virtualMachines/web-12/restart"),
    ):
        answer = arm.console.call(method, f"{COMPUTE}{target}?{VERSION}", token=token)
        arm.walk.note("operations", f"{method} …{target}", answer, "a Reader of web-12")


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    """Every route, called in a fixed order."""
    with Service(tmp_path_factory.mktemp("arm") / "data", fleet=FLEET, has_api=True) as service:
        service.stop_the_clock()
        walk, console = Walk(service.masks()), Console(service)
        arm = Arm(console, walk)
        discovery(console, walk)
        places(arm)
        vms(arm)
        scale_sets(arm)
        instances(arm)
        availability_sets(arm)
        operations(arm)
        refusals(arm)
        maintenance(arm)
        yield walk


@pytest.mark.parametrize("area", AREAS)
def test_the_answers_of_azures_api_keep_their_shape(walk: Walk, area: str) -> None:
    walk.check("arm", area)
