"""Hosts, scopes and VMs as people see them."""

from __future__ import annotations

from collections.abc import Iterator

from forewarn.cli.connection import View
from forewarn.cli.instant import distance, when
from forewarn.cli.invocation import Invocation
from forewarn.cli.screen import Cell, faint, strong, word
from forewarn.cli.wording import EVENT_HEADERS, counted, event_row, names

_EMPTY = "The fleet is empty. Describe one in a file and `forewarn fleet apply FILE`, or `forewarn fleet add VM`."


def show_fleet(call: Invocation, view: View) -> None:
    hosts, vms = view["hosts"], view["vms"]
    if not hosts and not vms:
        call.screen.say(_EMPTY)
        return
    now = call.api.now()
    if hosts:
        call.screen.table(("host", "location", "zone", "health", "VMs"), map(_host_row, hosts))
    if hosts and vms:
        call.screen.say()
    if vms:
        lab = any(vm["url"] for vm in vms)
        headers = ("VM", "scope", "UD", "host", "power", "events", "asked", *(["endpoint"] if lab else []))
        call.screen.table(headers, [_vm_row(vm, now, lab) for vm in vms])
    summary = (counted(len(vms), "VM"), counted(len(view["scopes"]), "scope"), counted(len(hosts), "host"))
    if call.screen.is_terminal:
        call.screen.say()
        call.screen.say(faint(" · ".join(summary)))


def _host_row(host: View) -> list[Cell]:
    return [strong(host["name"]), host["location"], host["zone"] or "-", word(host["health"]), str(len(host["vms"]))]


def _vm_row(vm: View, now: float, lab: bool) -> list[Cell]:
    row: list[Cell] = [
        strong(vm["name"]),
        _scope(vm),
        str(vm["update_domain"]),
        vm["host"] or "-",
        word(vm["power"]),
        str(vm["pending"] or "-"),
        "never" if vm["last_polled_at"] is None else distance(vm["last_polled_at"], now, units=1),
    ]
    return [*row, _endpoint(vm)] if lab else row


def _scope(vm: View) -> str:
    """Short, and as `--scope` takes it; its title is in the VM's own view."""
    sort, _, path = vm["scope"].partition(":")
    return "alone" if sort == "vm" else "/".join(path.split("/")[-2 if sort == "placement" else -1 :])


def _endpoint(vm: View) -> str:
    """Short, for `guest --endpoint`; the whole URL is in the VM's own view."""
    return str(vm["url"] or "-").removeprefix("http://").partition("/")[0]


def show_vm(call: Invocation, vm: View) -> None:
    now = call.api.now()
    call.screen.say(strong(vm["name"]))
    call.screen.facts((name, value) for name, value in _vm_facts(vm, now) if str(value))
    if vm.get("events"):
        call.screen.say()
        call.screen.table(EVENT_HEADERS, [event_row(e, now, call.screen.short(e["id"])) for e in vm["events"]])


def _vm_facts(vm: View, now: float) -> Iterator[tuple[str, Cell]]:
    yield "resource group", vm["resource_group"]
    yield "location", f"{vm['location']}, zone {vm['zone']}" if vm["zone"] else vm["location"]
    yield "scope", vm["title_of_scope"]
    yield "domains", f"update domain {vm['update_domain']}, fault domain {vm['fault_domain']}"
    yield "host", vm["host"] or ""
    yield "power", word(vm["power"])
    yield "size", vm["size"] or ""
    if vm["priority"] == "Spot":
        yield "priority", f"Spot, {vm['eviction_policy']} on eviction"
    if vm["terminate_notice_min"]:
        yield "told of deletion", f"{vm['terminate_notice_min']} minutes before"
    yield "asks for events", _polling(vm, now)
    yield "endpoint", vm["url"] or vm["address"] or ""
    yield "tags", names([f"{name}={value}" for name, value in vm["tags"].items()]) if vm["tags"] else ""


def _polling(vm: View, now: float) -> str:
    if vm["last_polled_at"] is None:
        return "never"
    return f"{when(vm['last_polled_at'], now)}, api-version {vm['polled_version']}, {counted(vm['polls'], 'time')}"


def show_host(call: Invocation, host: View, what: str) -> None:
    if call.screen.as_json:
        call.screen.document(host)
    else:
        call.screen.say(f"Host {host['name']} in {host['location']} is {what}.")
