"""Links to the forms that a user may submit for a VM, a host or a scope in its current state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from forewarn.core.access import Right
from forewarn.core.fleet import Host, HostHealth, Vm
from forewarn.core.planning import OPERATION_CAUSES, is_applicable, pending_platform_events
from forewarn.core.request import RequestedOperation
from forewarn.core.resource_ids import ROOT_RESOURCE, vm_resource_id
from forewarn.core.scope import Scope
from forewarn.errors import Refused
from forewarn.web.context import RequestContext
from forewarn.web.portal.form_catalog import FORMS
from forewarn.web.views import BaseView

_VM_REQUESTS = (
    RequestedOperation.RESTART,
    RequestedOperation.START,
    RequestedOperation.POWER_OFF,
    RequestedOperation.REAPPLY,
    RequestedOperation.REDEPLOY,
    RequestedOperation.DEALLOCATE,
    RequestedOperation.REIMAGE,
    RequestedOperation.EVICT,
    RequestedOperation.SCALE_IN,
    RequestedOperation.DELETE,
)
_LINK_TITLES = {
    "evict": "Simulate eviction",
    "fault": "Set a fault",
    "rollout": "Start a rollout",
    "degrade": "Predict failure",
    "fail": "Fail host",
}
_FORMS_BY_HEALTH = {
    HostHealth.HEALTHY: ("rollout", "degrade", "fail"),
    HostHealth.DEGRADED: ("repair", "rollout", "fail"),
    HostHealth.FAILED: ("repair",),
}


class FormLink(BaseView, frozen=True, kw_only=True):
    """A button on a page that opens a form."""

    form: str  # its name, a key of FORMS
    title: str  # of the button
    danger: str  # what the form loses for good, in a sentence, which makes the button red; "": nothing


def form_links_for_vm(context: RequestContext, vm: Vm, scope: Scope | None) -> tuple[FormLink, ...]:
    """Return links to the forms that the user may submit for a VM in its current state."""
    if vm.removed_at is not None:
        return ()
    operations = [*_suitable_requests(vm, scope)] if context.principal.may(Right.OPERATE, vm_resource_id(vm)) else []
    return _links_to((*operations, *_platform_forms(context, "fault")))


def form_links_for_host(context: RequestContext, host: Host) -> tuple[FormLink, ...]:
    """Return links to the forms that suit a host in its health; () if the user has no platform right."""
    names = list(_FORMS_BY_HEALTH[host.health])
    if host.confirmed_down and "repair" not in names:
        names.insert(0, "repair")
    is_suspected = host.health is HostHealth.FAILED or host.name in context.control.unreachable_hosts()
    if is_suspected and not host.confirmed_down:
        names.append("confirm-down")
    return _links_to(_platform_forms(context, *names))


def form_links_for_scope(context: RequestContext) -> tuple[FormLink, ...]:
    """Return one link, to the form that starts a rollout, for any scope; () without the platform right."""
    return _links_to(_platform_forms(context, "rollout"))


def _platform_forms(context: RequestContext, *names: str) -> tuple[str, ...]:
    return names if context.principal.may(Right.PLATFORM, ROOT_RESOURCE) else ()


def _suitable_requests(vm: Vm, scope: Scope | None) -> Iterator[RequestedOperation]:
    if scope is not None and _has_pending_maintenance(scope, vm):
        yield RequestedOperation.PERFORM_MAINTENANCE
    for operation in _VM_REQUESTS:
        if is_applicable(vm, OPERATION_CAUSES[operation]) and (
            vm.scale_set or operation is not RequestedOperation.SCALE_IN
        ):
            yield operation


def _has_pending_maintenance(scope: Scope, vm: Vm) -> bool:
    try:
        return bool(pending_platform_events(scope, vm.name))
    except Refused:
        return False


def _links_to(names: Iterable[str]) -> tuple[FormLink, ...]:
    return tuple(sorted(map(_form_link, names), key=lambda link: bool(link.danger)))


def _form_link(name: str) -> FormLink:
    title = _LINK_TITLES.get(name, name.replace("-", " ").capitalize())
    return FormLink(form=name, title=title, danger=FORMS[name].danger)
