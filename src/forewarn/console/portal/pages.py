"""Every page of the portal, one line each: path under /portal, handler, template, the right it needs and over what."""

from __future__ import annotations

from forewarn.console.portal import clients, event, fleet, history, host, lab, request, rollout, scope, timeline, vm
from forewarn.console.portal.page import PageLine

# A VM's name may hold a slash (group/name), so it is a `:path`; of two paths that fit, the first counts.
PAGES: tuple[PageLine, ...] = (
    PageLine("/", fleet.show, "fleet.html"),
    PageLine("/scopes/{id:path}", scope.show, "scope.html"),
    PageLine("/vms/{name:path}", vm.show, "vm.html"),
    PageLine("/hosts", host.show_all, "hosts.html"),
    PageLine("/hosts/{name}", host.show, "host.html"),
    PageLine("/timeline", timeline.show, "timeline.html"),
    PageLine("/events/{id}", event.show, "event.html"),
    PageLine("/rollouts", rollout.show_all, "rollouts.html"),
    PageLine("/rollouts/{id}", rollout.show, "rollout.html"),
    PageLine("/requests/{id}", request.show, "request.html"),
    PageLine("/lab", lab.show, "lab.html"),
    PageLine("/clients", clients.show, "clients.html"),
    PageLine("/history", history.show, "history.html"),
)
