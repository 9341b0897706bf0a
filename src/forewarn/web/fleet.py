"""Fleet handlers: show the fleet and its VMs, check and apply a fleet file, add and remove VMs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from forewarn.base.wording import first_names
from forewarn.control.fleet import FleetChange, FleetVersions, NewVm, fleet_file_for, vm_problem_text
from forewarn.control.scope_transactions import retry_on_conflict
from forewarn.core.access import Right
from forewarn.core.explain.preview import Preview, preview_to_confirm
from forewarn.core.fleet import Host, Vm
from forewarn.core.fleet_diff import FleetDiff, HostChange, VmChange, diff_fleet
from forewarn.core.fleetfile.problems import FleetFileProblem, InvalidFleetFile
from forewarn.core.fleetfile.reader import DeclaredFleet, read_fleet_file
from forewarn.core.limits import FleetFileText, Name, NonEmptyLongText, ResultLimit
from forewarn.core.resource_ids import ROOT_RESOURCE
from forewarn.errors import Forbidden, Refused, Rejected
from forewarn.web.api_errors import FleetNotApplicable
from forewarn.web.context import RequestContext
from forewarn.web.queries import live_events
from forewarn.web.request_parsing import HandlerCall, StrictBody
from forewarn.web.views import (
    FieldChangeView,
    FleetApplyView,
    FleetCheckView,
    FleetDifferenceView,
    FleetView,
    ObjectChangeView,
    ViewBuilder,
    VmSupervisorsView,
    VmView,
    VmWithEvents,
    live_events_of_vm,
    vm_supervisor_view,
)


class FleetFileBody(StrictBody, frozen=True, kw_only=True):
    """A fleet file to check, as text."""

    text: FleetFileText  # the content of the file, in TOML
    source: NonEmptyLongText = "fleet.toml"  # the name of the file in messages; no file of this name is read


class ApplyFleetBody(FleetFileBody, frozen=True, kw_only=True):
    """A fleet file to apply (`text`, `source`); VMs and hosts that it does not declare are removed."""

    resurrect: bool = False  # add again deleted VMs that the file declares; False: they stay deleted, without an error
    dry_run: bool = False  # change nothing, only return the difference


class FleetListQuery(StrictBody, frozen=True, kw_only=True):
    """Which part of the fleet to show: one scope, one host, at most `limit` VMs.

    A VM must match both the scope and the host. The letter case of names and ids is ignored.
    """

    scope: Name = ""  # an id or name, or the name of a VM in it; "": every scope
    host: Name = ""  # a name; "": every host
    limit: ResultLimit | None = None  # None: all VMs


async def show_fleet(context: RequestContext, call: HandlerCall, query: FleetListQuery) -> FleetView:
    """Show the hosts, scopes and VMs that the caller may read."""
    await context.dependencies.flush_observations()
    host = context.find_host(query.host) if query.host else None
    scope = context.find_scope(query.scope) if query.scope else None

    visible = [vm for vm in context.store.vms(host=host.name if host else None) if context.can_see(vm)]
    vms = [vm for vm in visible if scope is None or vm.scope_id == scope.id][: query.limit]
    hosts = [host] if host else context.store.hosts()
    if scope is not None or not context.can_see_everything():
        named = {vm.host for vm in (visible if scope is None else vms)}
        hosts = [host for host in hosts if host.name in named]
    return await ViewBuilder(context).fleet(hosts, vms, visible)


async def show_vm(context: RequestContext, call: HandlerCall) -> VmWithEvents:
    """Show one VM with its live events."""
    vm = context.directory.find(call.path_params["name"])
    await context.dependencies.flush_observations()
    view_builder = ViewBuilder(context)
    live = live_events_of_vm(context.control.transactions.load(vm.scope_id), vm.name)
    view = view_builder.vm(vm)
    fields = {name: getattr(view, name) for name in view.__struct_fields__}
    supervisor = context.dependencies.vm_supervisors().get(vm.key)
    supervisor_view = vm_supervisor_view(vm.name, supervisor) if supervisor is not None else None
    return VmWithEvents(events=view_builder.events(live), supervisor=supervisor_view, **fields)


async def check_fleet(context: RequestContext, call: HandlerCall, body: FleetFileBody) -> FleetCheckView:
    """Show what applying a fleet file would change."""
    proposal = await asyncio.to_thread(read_fleet_file, body.text, source=body.source)
    return FleetCheckView(difference=_difference_view(await _compare_with_store(context, proposal)))


async def apply_fleet(context: RequestContext, call: HandlerCall, body: ApplyFleetBody) -> FleetApplyView:
    """Apply a fleet file, as a whole or not at all."""
    proposal = await asyncio.to_thread(read_fleet_file, body.text, source=body.source)

    async def attempt() -> FleetDiff:
        # The reconciler may move VMs between the comparison and the change: then the change conflicts.
        versions = context.control.fleet.versions()
        difference = await _compare_with_store(context, proposal, resurrect=body.resurrect)
        if not body.dry_run:
            text = f"fleet applied from {body.source}: {difference.summary()}"
            await _apply_difference(context, difference, versions, text)
        return difference

    difference = await retry_on_conflict(attempt, "the fleet")
    if not body.dry_run:
        await context.wait_for_reconciler()
    return FleetApplyView(difference=_difference_view(difference), applied=not body.dry_run and not difference.is_empty)


async def preview_apply_fleet(context: RequestContext, call: HandlerCall, body: ApplyFleetBody) -> Preview:
    """Preview the application of a fleet file: how much it would change, and which VMs and hosts it would remove."""
    proposal = await asyncio.to_thread(read_fleet_file, body.text, source=body.source)
    difference = await _compare_with_store(context, proposal, resurrect=body.resurrect)
    gone = {"VM": _names_of(difference.removed), "host": _names_of(difference.hosts_removed)}
    removed = tuple(
        f"Removed from the fleet at once, without an event: {len(names)} {what}{'s' * (len(names) > 1)} "
        f"({first_names(names)})."
        for what, names in gone.items()
        if names and not body.dry_run and not difference.problems  # else nothing is changed
    )
    return replace(preview_to_confirm(context.now(), *removed), summary=(f"{difference.summary()}.", *removed))


async def add_vm(context: RequestContext, call: HandlerCall, body: NewVm) -> VmView:
    """Add a VM to the fleet."""

    async def attempt() -> str:
        versions = context.control.fleet.versions()
        proposal = _propose_vm(context, body)
        key = proposal.vms[0].key
        known = context.store.vm(key)
        if known is not None and known.removed_at is None:
            raise Refused(f"VM {known.name!r} exists already in {known.resource_group!r}: give another name or group")
        # A VM that is added by name is wanted, even if one of that name was deleted before.
        difference = await _compare_with_store(context, proposal, resurrect=True, remove_missing=False)
        if difference.problems:
            raise Refused(f"VM {body.name!r} cannot be added: {_problems_text(difference.problems)}")
        await _apply_difference(context, difference, versions, f"VM {body.name} added")
        return key

    key = await retry_on_conflict(attempt, f"the scope of VM {body.name!r}")
    return ViewBuilder(context).vm(context.directory.find(key))


def _propose_vm(context: RequestContext, body: NewVm) -> DeclaredFleet:
    try:
        return read_fleet_file(_fleet_file_text(body, context), source="the VM")
    except InvalidFleetFile as error:
        raise Rejected(f"VM {body.name!r} cannot be added: {_problems_text(error.problems)}") from error


def _fleet_file_text(body: NewVm, context: RequestContext) -> str:
    group, subscriptions = context.directory.most_common_group(), context.directory.subscriptions()
    return fleet_file_for(body, context.store, usual_group=group, subscriptions=subscriptions)


def _problems_text(problems: Sequence[FleetFileProblem]) -> str:
    return "; ".join(map(vm_problem_text, problems))


async def remove_vm(context: RequestContext, call: HandlerCall) -> VmView:
    """Remove a VM from the fleet."""

    async def attempt() -> Vm:
        versions = context.control.fleet.versions()
        vm = context.directory.find(call.path_params["name"])
        change = FleetChange(removed=(vm,), text=f"VM {vm.name} removed", decided_on=versions)
        await context.control.fleet.apply_change(change, who=context.caller_name)
        return vm

    vm = await retry_on_conflict(attempt, f"VM {call.path_params['name']!r}")
    await context.wait_for_reconciler()
    return ViewBuilder(context).vm(context.store.vm(vm.key) or vm)


async def preview_remove_vm(context: RequestContext, call: HandlerCall) -> Preview:
    """Preview the removal of a VM from the fleet."""
    vm = context.directory.find(call.path_params["name"])
    await context.control.fleet.check_change(FleetChange(removed=(vm,)))
    live = len(live_events_of_vm(context.control.transactions.load(vm.scope_id), vm.name))
    pending = f"; it has {live} pending event{'' if live == 1 else 's'}" if live else ""
    return preview_to_confirm(
        context.now(), f"VM {vm.name} is removed from the fleet at once, without an event{pending}."
    )


async def _compare_with_store(
    context: RequestContext, proposal: DeclaredFleet, *, resurrect: bool = False, remove_missing: bool = True
) -> FleetDiff:
    hosts, vms, live = context.store.hosts(), context.store.vms(removed=True), live_events(context)
    return await asyncio.to_thread(
        diff_fleet, proposal, hosts=hosts, vms=vms, live_events=live, resurrect=resurrect, remove_missing=remove_missing
    )


async def _apply_difference(
    context: RequestContext, difference: FleetDiff, decided_on: FleetVersions, text: str
) -> None:
    if difference.problems:
        raise FleetNotApplicable(difference.problems, source=difference.source)
    if difference.is_empty:
        return
    _require_program_right(difference.vms_to_set, context)
    change = FleetChange(
        hosts=difference.hosts_to_set,
        removed_hosts=tuple(host.name for host in difference.hosts_removed),
        vms=difference.vms_to_set,
        removed=difference.removed,
        text=text,
        decided_on=decided_on,
    )
    await context.control.fleet.apply_change(change, who=context.caller_name)


def _require_program_right(vms: Sequence[Vm], context: RequestContext) -> None:
    # A VM's program runs on this machine as the service's user, and could read every secret of the service.
    if context.principal.may(Right.ADMINISTER, ROOT_RESOURCE):
        return
    known = {_program_identity(vm) for vm in context.store.vms()}
    if new := [vm for vm in vms if vm.program and _program_identity(vm) not in known]:
        raise Forbidden(
            f"{context.caller_name} does not have the right to run programs on the service's machine, such as the "
            f"program of VM {new[0].name!r}: leave it out, or let an administrator apply this"
        )


def _program_identity(vm: Vm) -> tuple[object, ...]:
    return vm.program, tuple(sorted(vm.environment.items())), vm.directory


def _difference_view(difference: FleetDiff) -> FleetDifferenceView:
    return FleetDifferenceView(
        source=difference.source,
        summary=difference.summary(),
        is_empty=difference.is_empty,
        hosts_added=_names_of(difference.hosts_added),
        hosts_changed=tuple(_change_view(change) for change in difference.hosts_changed),
        hosts_removed=_names_of(difference.hosts_removed),
        added=_names_of(difference.added),
        resurrected=_names_of(difference.resurrected),
        changed=tuple(_change_view(change) for change in difference.changed),
        removed=_names_of(difference.removed),
        stay_deleted=_names_of(difference.stay_deleted),
        unchanged=len(difference.unchanged),
        problems=difference.problems,
        lines=_difference_lines(difference),
    )


def _difference_lines(difference: FleetDiff) -> tuple[str, ...]:
    """The difference in words; without the summary if nothing changes."""
    *lines, summary = difference.to_lines()
    return tuple(lines) if difference.is_empty and not difference.problems else (*lines, summary)


def _names_of(objects: tuple[Host, ...] | tuple[Vm, ...]) -> tuple[str, ...]:
    return tuple(one.name for one in objects)


def _change_view(change: HostChange | VmChange) -> ObjectChangeView:
    fields = tuple(FieldChangeView(field=f.field, old=f.old, new=f.new) for f in change.fields)
    return ObjectChangeView(name=change.old.name, fields=fields)


async def list_vm_supervisors(context: RequestContext, call: HandlerCall) -> VmSupervisorsView:
    """List the namespace VMs whose supervisors are connected, with their states and programs."""
    supervisors = sorted(context.dependencies.vm_supervisors().items())
    with_vms = ((context.store.vm(key), supervisor) for key, supervisor in supervisors)
    return VmSupervisorsView(
        supervisors=tuple(
            vm_supervisor_view(vm.name, supervisor)
            for vm, supervisor in with_vms
            if vm is not None and context.can_see(vm)
        )
    )
