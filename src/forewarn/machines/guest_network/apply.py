"""Changes the host to match a plan, and restores it.

A process may be killed after any step: the next command continues from there.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from forewarn.base.link_monitor import LinkMonitor
from forewarn.base.wording import first_names
from forewarn.errors import ForewarnError, Refused, Rejected
from forewarn.machines.guest_network.interfaces import Attachment
from forewarn.machines.guest_network.plan import (
    Changes,
    HostState,
    NetworkPlan,
    build_plan,
    describe_changes,
    former_values,
    pending_changes,
    restorable_sysctls,
)
from forewarn.machines.guest_network.record import (
    PROTOCOL,
    Record,
    read_links,
    read_machine,
    read_record,
    run_program,
    write_record,
    write_sysctl,
)
from forewarn.machines.guest_network.ruleset import (
    FAMILIES,
    METADATA_ADDRESS,
    fixed_part,
    render_removal,
    render_ruleset,
)
from forewarn.machines.guest_network.sources import NamedInterfaces

RULE_PRIORITY = 16925  # after the local table (0), before the main one (32766)


@dataclass(frozen=True, slots=True)
class ApplyOutcome:
    """A plan for this host, and what differed from it, in words, when the host was read."""

    plan: NetworkPlan
    differences: tuple[str, ...]  # clauses without a full stop; only `compare_here` adds missing devices; (): none


def plan_here(named: NamedInterfaces, state_file: Path, *, with_firewall: bool = True) -> NetworkPlan:
    """Return the plan for the named interfaces on this host as it is now; changes nothing."""
    record = read_record(state_file) or Record()
    return build_plan(named.interfaces, read_machine(with_firewall=with_firewall), record.former)


def compare_here(named: NamedInterfaces, state_file: Path) -> ApplyOutcome:
    """Return the plan for the named interfaces, and all differences between it and this host, in words."""
    record, machine = read_record(state_file) or Record(), read_machine()
    plan = build_plan(named.interfaces, machine, record.former)
    changes = pending_changes(plan, machine, former=record.former, loaded=record.loaded)
    return ApplyOutcome(plan, (*plan.missing, *describe_changes(changes, plan, machine)))


def apply_plan(
    named: NamedInterfaces, state_file: Path, *, replace_earlier: bool = False, wait_for_devices: bool = False
) -> ApplyOutcome:
    """Change this host as the plan for the named interfaces says, and return what differed before.

    Writes `state_file`, the record for `remove_plan`, before the first change and after the last. Call it as root,
    within `exclusive_access`. After an error some changes may be made: the next call continues.
    """
    record, machine = read_record(state_file) or Record(), read_machine()
    plan = build_plan(named.interfaces, machine, record.former)
    _check_machine(plan, machine, wait_for_devices=wait_for_devices)
    if not replace_earlier:
        _check_earlier_plan(record, named)
    changes = pending_changes(plan, machine, former=record.former, loaded=record.loaded)
    differences = tuple(describe_changes(changes, plan, machine))
    if not changes and record.interfaces == named.interfaces:
        return ApplyOutcome(plan, differences)
    all_former = former_values(machine, record.former)
    touched = {path: all_former[path] for path in {**record.former, **plan.sysctls} if path in all_former}
    record = replace(
        record,
        interfaces=named.interfaces,
        former=touched,
        has_added_address=record.has_added_address or changes.add_address,
    )
    write_record(state_file, record)
    _carry_out(changes, plan)
    if changes.ruleset:
        loaded = {family: fixed_part(listing) for family, listing in read_machine().tables.items()}
        record = replace(record, loaded=loaded)
    kept = {path: was for path, was in touched.items() if path in plan.sysctls}
    write_record(state_file, replace(record, former=kept))
    return ApplyOutcome(plan, differences)


def remove_plan(state_file: Path) -> bool:
    """Remove what `apply_plan` added here, and restore what it changed; False if there was nothing.

    Without a record of this boot, removes our tables, rules and routes, and leaves sysctls and the address as they are.
    Call it as root, within `exclusive_access`; after an error the next call continues.
    """
    record, machine = read_record(state_file), read_machine()
    if record is None and not (machine.tables or machine.rules or machine.routes):
        return False
    record = record or Record()
    _delete_rules(machine.rules)
    _delete_routes(machine.routes)
    if record.has_added_address and "lo" in machine.address_devices:
        run_program("ip", "addr", "del", f"{METADATA_ADDRESS}/32", "dev", "lo")
    for path, value in restorable_sysctls(machine, record.former).items():
        write_sysctl(path, value)
    if families := [family for family in FAMILIES if family in machine.tables]:
        run_program("nft", "-f", "-", text=render_removal(families))
    state_file.unlink(missing_ok=True)
    return True


def _check_machine(plan: NetworkPlan, machine: HostState, *, wait_for_devices: bool) -> None:
    if machine.hand_made_tables:
        tables = " and ".join(machine.hand_made_tables)
        raise Refused(
            f"the firewall has rules that were loaded by hand (table {tables}): "
            f"delete them first, with `nft delete table {machine.hand_made_tables[0]}`"
        )
    if plan.missing and not wait_for_devices:
        raise Rejected(f"{plan.missing[0]}: {_remedy(plan)}")


def _remedy(plan: NetworkPlan) -> str:
    first = next(each for each in plan.interfaces if each.waits_for)
    if first.link is None:
        return "start the VM first, or wait for it with --follow"
    if first.interface.attachment is Attachment.PORT and not first.link.master:
        return "name it with --tap, or add it to a bridge first"
    return f"run `ip link set {first.interface.device} up`, or wait for it with --follow"


def _check_earlier_plan(record: Record, named: NamedInterfaces) -> None:
    """A file or libvirt may drop what it named itself; options must not drop VMs by accident."""
    kept = {(each.vm, each.device) for each in named.interfaces}
    dropped = [
        each for each in record.interfaces if (each.vm, each.device) not in kept and each.source not in named.sources
    ]
    if dropped:
        names = first_names([each.device for each in dropped], 3)
        raise Refused(
            f"an earlier plan is applied, and this one does not name its {names}: name them too, "
            "or drop them with --replace"
        )


def _carry_out(changes: Changes, plan: NetworkPlan) -> None:
    """The firewall comes first, so that no VM can forge addresses while the kernel's own filter is off."""
    if changes.ruleset:
        run_program("nft", "-f", "-", text=render_ruleset(plan.elements))
    for path, value in (*changes.sysctls.items(), *changes.restored.items()):
        write_sysctl(path, value)
    if changes.add_address:
        run_program("ip", "addr", "add", f"{METADATA_ADDRESS}/32", "dev", "lo")
    _delete_rules(changes.deleted_rules)
    _delete_routes(changes.deleted_routes)
    lines = [
        f"route replace default dev {device} table {table} proto {PROTOCOL}"
        for table, device in sorted(changes.added_routes)
    ]
    lines += [
        f"rule add fwmark {mark:#x} lookup {table} pref {RULE_PRIORITY} protocol {PROTOCOL}"
        for mark, table in sorted(changes.added_rules)
    ]
    _run_ip_lines(lines)


def _delete_rules(rules: Iterable[tuple[int, int]]) -> None:
    _run_ip_lines([f"rule del fwmark {mark:#x} lookup {table} protocol {PROTOCOL}" for mark, table in sorted(rules)])


def _delete_routes(routes: Iterable[tuple[int, str]]) -> None:
    _run_ip_lines(
        [f"route del default dev {device} table {table} proto {PROTOCOL}" for table, device in sorted(routes)]
    )


def _run_ip_lines(lines: list[str]) -> None:
    if lines:
        run_program("ip", "-4", "-batch", "-", text="\n".join(lines) + "\n")


# Applies a plan again when devices come and go, until the process is stopped.
#
# A device that is created again has lost its routes and settings. The kernel reports such changes by netlink; every few
# seconds the host is compared with the plan anyway, because other programs may reload the whole firewall.

_CHECK_INTERVAL_S = 5.0
_RETRY_S = 1.0  # after a failure, such as a device that was removed while it was being set up
_DEBOUNCE_S = 0.02  # a new device causes several netlink messages
_SETTLING_S = 30.0  # libvirt lists a domain only some time after it has created its devices

ReadInterfaces = Callable[[bool], NamedInterfaces]  # True: what libvirt said last may be used again


def follow_devices(
    read: ReadInterfaces,
    state_file: Path,
    *,
    replace_earlier: bool,
    on_change: Callable[[ApplyOutcome], None],
    on_error: Callable[[ForewarnError], None],
) -> None:
    """Apply the plan for what `read` returns, now and repeatedly, until SIGINT or SIGTERM.

    Blocks, in the main thread; call it as root, within `exclusive_access`. A pass follows each change of network
    devices, and 5 s after the last pass anyway. Errors of the first pass are raised; later ones go to `on_error`, and
    the pass is repeated.
    """
    asyncio.run(_follow_until_signal(read, state_file, replace_earlier, on_change, on_error))


async def _follow_until_signal(
    read: ReadInterfaces,
    state_file: Path,
    replace_earlier: bool,
    on_change: Callable[[ApplyOutcome], None],
    on_error: Callable[[ForewarnError], None],
) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    monitor = LinkMonitor()
    try:
        outcome = apply_plan(read(False), state_file, replace_earlier=replace_earlier, wait_for_devices=True)
        on_change(outcome)
        known, changed_at, wait_s, reported = _device_set(), loop.time(), _CHECK_INTERVAL_S, ""
        while await _wait(stop, monitor, wait_s):
            wait_s = _CHECK_INTERVAL_S
            try:
                devices = _device_set()
                if devices != known:
                    known, changed_at = devices, loop.time()
                is_settled = loop.time() - changed_at > _SETTLING_S
                latest = apply_plan(read(is_settled), state_file, replace_earlier=True, wait_for_devices=True)
            except ForewarnError as error:
                if str(error) != reported:
                    on_error(error)
                wait_s, reported = _RETRY_S, str(error)
                continue
            reported = ""
            if latest.differences or latest.plan.missing != outcome.plan.missing:
                on_change(latest)
            outcome = latest
    finally:
        monitor.close()


async def _wait(stop: asyncio.Event, monitor: LinkMonitor, timeout_s: float) -> bool:
    waits = [asyncio.create_task(stop.wait()), asyncio.create_task(monitor.wait_for_change(timeout_s))]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for task in waits:
        task.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    if not stop.is_set():
        await asyncio.sleep(_DEBOUNCE_S)
    return not stop.is_set()


def _device_set() -> frozenset[tuple[str, int]]:
    return frozenset((link.name, link.index) for link in read_links().values())
