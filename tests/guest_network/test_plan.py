"""A plan says what the host must have; its differences from the host are named one by one."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.errors import Rejected
from forewarn.machines.guest_network.interfaces import Attachment, VmInterface
from forewarn.machines.guest_network.plan import (
    FormerValue,
    HostState,
    Link,
    NetworkPlan,
    build_plan,
    describe_changes,
    listener_tables,
    pending_changes,
    render_listeners,
    sysctl_name,
)
from forewarn.machines.guest_network.record import (
    Record,
    boot_id,
    exclusive_access,
    namespace_cookie,
    read_record,
    run_program,
    write_record,
)
from forewarn.machines.guest_network.ruleset import FAMILIES, fixed_part, render_ruleset
from forewarn.metadata.listener_config import parse_listeners

TAP_MAC = "12:34:56:78:9a:bc"


def link(name: str, index: int = 2, *, master: str = "", kind: str = "tun", mac: str = TAP_MAC) -> Link:
    return Link(name=name, index=index, is_up=True, mac=mac, kind=kind, master=master)


LINKS = [link("tap0"), link("tap1", 3), link("br0", 4, kind="bridge"), link("vnet1", 5, master="br0")]
LINKS += [link("vnet2", 6, master="br0"), link("vnet3", 7, master="ovs"), link("ovs", 8, kind="openvswitch")]
SYSCTLS = {
    "net/ipv4/fwmark_reflect": 0,
    "net/ipv4/tcp_fwmark_accept": 0,
    "net/ipv4/conf/all/rp_filter": 0,
    "net/ipv4/conf/default/rp_filter": 0,
    "net/ipv4/conf/eth0/rp_filter": 0,
    "net/ipv4/conf/tap0/rp_filter": 2,
    "net/ipv4/conf/br0/rp_filter": 2,
}


def machine(**changes: Any) -> HostState:
    usual = HostState(links={each.name: each for each in LINKS}, address_devices=(), sysctls=SYSCTLS)
    return replace(usual, **changes)


def tap(n: int, **values: Any) -> VmInterface:
    return VmInterface(vm=f"web-{n}", device=f"tap{n}", attachment=Attachment.TAP, **values)


def port(n: int, **values: Any) -> VmInterface:
    usual = {"mac": f"52:54:00:00:00:0{n}", "addresses": (f"10.0.0.1{n}",)}
    return VmInterface(vm=f"web-{n}", device=f"vnet{n}", attachment=Attachment.PORT, **{**usual, **values})


def carried_out(plan: NetworkPlan, before: HostState) -> tuple[HostState, dict[str, list[dict[str, Any]]]]:
    """The machine after the plan was applied, and the fixed part of its tables."""
    tables = {
        family: [
            {"table": {"family": family, "name": "forewarn_network", "handle": 1}},
            *(
                {"set": {"name": name, "handle": 2, "elem": [listed(element) for element in elements]}}
                for name, elements in plan.elements[family].items()
            ),
        ]
        for family in FAMILIES
    }
    after = replace(
        before,
        address_devices=("lo",),
        sysctls={**before.sysctls, **plan.sysctls},
        rules=plan.rules,
        routes=plan.routes,
        tables=tables,
    )
    return after, {family: fixed_part(listing) for family, listing in tables.items()}


def listed(element: tuple[str | int, ...]) -> Any:
    """An element as `nft -j` lists it."""
    if len(element) == 1:
        return element[0]
    return list(element) if isinstance(element[1], int) else {"concat": list(element)}


def test_taps_are_identified_by_device_and_ports_by_mark() -> None:
    plan = build_plan([tap(0), port(1), port(2)], machine())
    marks = {each.interface.vm: each.mark for each in plan.interfaces}
    tables = listener_tables(plan)
    assert tables == [
        {"by": "device", "device": "tap0", "vm": "web-0"},
        {"by": "mark", "device": "br0", "marks": {f"{marks[vm]:#x}": vm for vm in ("web-1", "web-2")}},
    ]
    read = tomllib.loads(render_listeners(tables))["listeners"]
    assert read == tables
    assert [spec.name for spec in parse_listeners(read)] == [
        "169.254.169.254:80 by device tap0",
        "169.254.169.254:80 by mark on br0",
    ]


def test_a_mark_belongs_to_a_vm_and_a_bridge_whichever_device_it_has() -> None:
    first = build_plan([port(1), port(2)], machine()).interfaces
    moved = build_plan([replace(port(2), device="vnet1")], machine()).interfaces
    assert moved[0].mark == first[1].mark
    assert moved[0].mark != first[0].mark, "the device of another VM never keeps the former mark"
    chosen = build_plan([port(1, mark=7)], machine())
    assert chosen.interfaces[0].mark == 7


def test_the_ruleset_is_one_transaction_with_the_values_of_each_vm() -> None:
    plan = build_plan([tap(0, mac=TAP_MAC, addresses=("10.0.0.4",)), port(1)], machine())
    text = render_ruleset(plan.elements)
    assert text.startswith("table bridge forewarn_network\ndelete table bridge forewarn_network\n")
    assert text.count("delete table ip forewarn_network\n") == 1
    assert '"vnet1" . 52:54:00:00:00:01' in text
    assert '"tap0" . 10.0.0.4' in text
    assert f'"vnet1" : {plan.interfaces[1].mark:#x}' in text
    assert "%(" not in text


def test_without_ports_connections_need_no_marks() -> None:
    assert "net/ipv4/tcp_fwmark_accept" not in build_plan([tap(0)], machine()).sysctls
    assert build_plan([port(1)], machine()).sysctls["net/ipv4/tcp_fwmark_accept"] == 1


def test_other_devices_are_filtered_as_strictly_as_before() -> None:
    """The larger value of `all` and the device's own counts, and `all` becomes 0."""
    strict = machine(sysctls={**SYSCTLS, "net/ipv4/conf/all/rp_filter": 1})
    plan = build_plan([tap(0)], strict)
    expected = {
        "net/ipv4/conf/all/rp_filter": 0,
        "net/ipv4/conf/tap0/rp_filter": 0,
        "net/ipv4/conf/default/rp_filter": 1,
        "net/ipv4/conf/eth0/rp_filter": 1,
        "net/ipv4/fwmark_reflect": 1,
    }
    assert dict(plan.sysctls) == expected
    former = {path: FormerValue(value=strict.sysctls[path], index=2 * ("tap0" in path)) for path in expected}
    after, _ = carried_out(plan, strict)
    later = replace(after, sysctls={**after.sysctls, "net/ipv4/conf/docker0/rp_filter": 0})
    assert dict(build_plan([tap(0)], later, former).sysctls) == expected, "a later device keeps its own value"


@pytest.mark.parametrize(
    ("interfaces", "message"),
    [
        ([replace(port(1), attachment=Attachment.TAP)], "tap vnet1 of VM web-1 is a port of br0"),
        ([replace(tap(0), device="br0")], "tap br0 of VM web-0 is a bridge, which all its VMs share"),
        ([port(3)], "port vnet3 of VM web-3 is in ovs, which is not a Linux bridge"),
        ([port(1), port(2, mac="52:54:00:00:00:01")], "have the same MAC 52:54:00:00:00:01 on bridge br0"),
        ([port(1), port(2, addresses=("10.0.0.11",))], "have the same address 10.0.0.11 on bridge br0"),
        ([port(1, mark=7), port(2, mark=7)], "have the same mark 0x7: give one of them another"),
        ([tap(0, mark=7), port(2, mark=7)], "have the same mark 0x7: give one of them another"),
    ],
)
def test_interfaces_that_do_not_fit_the_host_are_rejected(interfaces: list[VmInterface], message: str) -> None:
    with pytest.raises(Rejected) as caught:
        build_plan(interfaces, machine())
    assert message in str(caught.value)


def test_a_device_of_the_host_itself_is_no_tap() -> None:
    with pytest.raises(Rejected, match="tap eth0 of VM web-0 is a device of the host itself"):
        build_plan([replace(tap(0), device="eth0")], machine(links={"eth0": link("eth0", kind="")}))


def test_a_missing_device_gets_its_firewall_now_and_its_routes_later() -> None:
    plan = build_plan([tap(0), port(1)], machine(links={"vnet1": link("vnet1")}))
    assert plan.missing == ("tap tap0 of VM web-0 does not exist", "port vnet1 of VM web-1 is in no bridge")
    assert (plan.rules, plan.routes) == (frozenset(), frozenset())
    assert ("tap0",) in plan.elements["ip"]["taps"]
    assert ("vnet1", "10.0.0.11") in plan.elements["bridge"]["addresses"]
    assert plan.elements["bridge"]["marks"] == frozenset(), "without a bridge there is no mark, so nobody is identified"
    down = build_plan([tap(0)], machine(links={"tap0": replace(link("tap0"), is_up=False)}))
    assert down.missing == ("tap tap0 of VM web-0 is down",)


def test_warnings_name_what_works_badly() -> None:
    links = {"tap0": link("tap0"), "vnet9": link("vnet9", 3, mac="fe:00:00:00:00:01")}
    links |= {"vnet1": link("vnet1", 4, master="br0"), "br0": link("br0", 5, kind="bridge")}
    host = machine(links=links, sysctls={**SYSCTLS, "net/ipv4/conf/all/arp_ignore": 1})
    plan = build_plan([tap(0), replace(tap(1), device="vnet9"), port(1, addresses=())], host)
    first, second, third, fourth = plan.warnings
    assert first.startswith("the taps have 2 different MACs")
    assert second.startswith("tap vnet9 of VM web-1: libvirt gives this name to the next VM")
    assert third.startswith("port vnet1 of VM web-1 has no address here")
    assert fourth.startswith("net.ipv4.conf.all.arp_ignore is 1")
    assert build_plan([tap(0), port(1)], machine()).warnings == ()


INTERFACES = st.lists(st.sampled_from([tap(0), tap(1), port(1), port(2)]), unique=True)


@given(INTERFACES, INTERFACES, st.integers(0, 2))
def test_after_any_change_of_plans_nothing_is_pending_and_all_is_restored(
    first: list[VmInterface], second: list[VmInterface], strictness: int
) -> None:
    before = machine(sysctls={**SYSCTLS, "net/ipv4/conf/all/rp_filter": strictness})
    plan = build_plan(first, before)
    assert pending_changes(plan, before, former={}, loaded={})
    after, loaded = carried_out(plan, before)
    former = {
        path: FormerValue(value=before.sysctls[path], index={"tap0": 2, "br0": 4}.get(path.split("/")[-2], 0))
        for path in plan.sysctls
        if path in before.sysctls
    }
    assert not pending_changes(plan, after, former=former, loaded=loaded)
    changed = build_plan(second, after, former)
    changes = pending_changes(changed, after, former=former, loaded=loaded)
    assert bool(describe_changes(changes, changed, after)) == bool(changes)
    restored = {**after.sysctls, **changes.sysctls, **changes.restored}
    kept = {path: value for path, value in restored.items() if path not in changed.sysctls and path in before.sysctls}
    assert kept == {path: before.sysctls[path] for path in kept}


def test_each_difference_is_one_sentence() -> None:
    plan = build_plan([tap(0)], machine())
    after, loaded = carried_out(plan, machine())
    mark = plan.interfaces[0].mark
    broken = replace(
        after,
        address_devices=(),
        sysctls={**after.sysctls, "net/ipv4/conf/tap0/rp_filter": 1},
        rules=frozenset({(5, 6)}),
        routes=frozenset({(6, "tap9")}),
        tables={"bridge": after.tables["bridge"]},
    )
    changes = pending_changes(plan, broken, former={}, loaded=loaded)
    assert describe_changes(changes, plan, broken) == [
        "the firewall has no table ip forewarn_network",
        "net.ipv4.conf.tap0.rp_filter is 1 instead of 0",
        "no device has the address 169.254.169.254",
        f"there is no rule for refusals with mark {mark:#x} (tap0)",
        "there is a rule for mark 0x5 and table 6, which is not in the plan",
        f"there is no route for refusals to tap0 in table {mark}",
        "there is a route to tap9 in table 6, which is not in the plan",
    ]
    assert sysctl_name("net/ipv4/conf/eth0.7/rp_filter") == "net.ipv4.conf.eth0/7.rp_filter"


def test_a_device_that_was_created_again_is_not_given_the_value_of_the_former_one() -> None:
    former = {"net/ipv4/conf/tap0/rp_filter": FormerValue(value=1, index=99)}
    changes = pending_changes(build_plan([tap(1)], machine()), machine(), former=former, loaded={})
    assert changes.restored == {}


def test_a_record_is_read_as_it_was_written_on_this_boot_and_namespace(tmp_path: Path) -> None:
    path = tmp_path / "new" / "network.json"
    assert read_record(path) is None
    record = Record(
        interfaces=(tap(0), port(1)),
        former={"net/ipv4/fwmark_reflect": FormerValue(value=0, index=0)},
        has_added_address=True,
        loaded={"ip": [{"table": {"family": "ip", "name": "forewarn_network"}}]},
    )
    write_record(path, record)
    assert read_record(path) == replace(record, boot=boot_id(), namespace=namespace_cookie())
    text = path.read_text()
    path.write_text(text.replace(f'"namespace": {namespace_cookie()}', '"namespace": 987654321'))
    with pytest.raises(Rejected, match="describes another network namespace"):
        read_record(path)
    path.write_text(text.replace(f'"boot": "{boot_id()}"', '"boot": "an earlier one"'))
    assert read_record(path) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 9}', '{"format": 1, "interfaces": [3]}'])
def test_a_state_file_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "network.json"
    path.write_text(text)
    with pytest.raises(Rejected, match=f"state file {path} cannot be read"):
        read_record(path)


def test_one_command_at_a_time_changes_the_network(tmp_path: Path) -> None:
    path = tmp_path / "network.json"
    message = "another `forewarn network` command is using"
    with exclusive_access(path), pytest.raises(Rejected, match=message), exclusive_access(path):
        pass
    with exclusive_access(path):
        pass


def test_a_program_that_is_not_installed_or_fails_is_named() -> None:
    with pytest.raises(Rejected, match="the program `no-such-program` is not installed"):
        run_program("no-such-program")
    with pytest.raises(Rejected, match=r"`cat /no/such/file` failed: .*cat: /no/such/file: No such file"):
        run_program("cat", "/no/such/file")


def test_a_program_that_cannot_be_executed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "virsh").write_bytes(b"\x7fELF of another machine")
    (tmp_path / "virsh").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Rejected, match=r"`virsh list` cannot be run: Exec format error"):
        run_program("virsh", "list")


def test_the_output_of_a_program_may_be_in_another_encoding() -> None:
    assert run_program("printf", r"caf\351") == "caf\N{REPLACEMENT CHARACTER}"
    with pytest.raises(Rejected, match="failed: caf\N{REPLACEMENT CHARACTER}"):
        run_program("sh", "-c", r"printf 'caf\351' >&2; exit 1")
