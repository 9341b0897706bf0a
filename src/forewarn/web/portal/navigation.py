"""The pages of the portal that the header links to, with the keys that open them."""

from __future__ import annotations

from typing import NamedTuple

from forewarn.web.portal.context import FLEET_PATH, PORTAL_PREFIX


class NavigationPage(NamedTuple):
    """A page that the header or another page links to, and that the command palette finds."""

    title: str  # the text of its link
    path: str  # from `/portal` on
    keys: str  # keys that open the page, pressed one after the other, such as `g f`; "": none do
    below: tuple[str, ...] = ()  # beginnings of the paths of other pages that belong to it, such as `/portal/vms/`
    summary: str = ""  # what it shows, for the command palette


def _page(title: str, path: str, keys: str, summary: str, *below: str) -> NavigationPage:
    return NavigationPage(
        title, f"{PORTAL_PREFIX}{path}", keys, tuple(f"{PORTAL_PREFIX}{prefix}" for prefix in below), summary
    )


NODES_PATH = f"{PORTAL_PREFIX}/nodes"

# In the order of the header. The second letter of `keys` is one that the title contains.
NAVIGATION = (
    _page("Overview", "/", "g o", "what needs attention, what happens next and now"),
    _page(
        "Fleet",
        FLEET_PATH.removeprefix(PORTAL_PREFIX),
        "g f",
        "all VMs by resource group and scope",
        "/vms/",
        "/scopes/",
    ),
    _page("Timeline", "/timeline", "g t", "events over time", "/events/", "/requests/"),
    _page("Hosts", "/hosts", "g h", "health and VMs of each host", "/hosts/"),
    _page("Nodes", "/nodes", "g n", "control nodes and host nodes of the cluster"),
    _page(
        "Rollouts",
        "/rollouts",
        "g r",
        "platform maintenance and its progress",
        "/rollouts/",
        "/budgets",
        "/standing-order",
    ),
    _page("Clients", "/clients", "g c", "which VMs poll for events"),
    _page("History", "/history", "g y", "everything that happened"),
    _page("Lab", "/lab", "g l", "clock and faults"),
)


# Pages that other pages link to, and the command palette finds; for users who may read everything.
SUBPAGES = (
    _page("Budgets", "/budgets", "", "how many VMs may be out of service at once"),
    _page("Standing order", "/standing-order", "", "visits every host within an interval"),
)


def pages_for(*, is_cluster: bool) -> tuple[NavigationPage, ...]:
    """Return the pages that the header links to, in its order."""
    return NAVIGATION if is_cluster else tuple(page for page in NAVIGATION if page.path != NODES_PATH)


def current_page(path: str) -> NavigationPage | None:
    """Return the page of the header that a path belongs to, such as the Fleet for a VM; None for none."""
    return next((page for page in NAVIGATION if path == page.path or path.startswith(page.below)), None)
