"""The whole fleet as one heat map: a cell is a VM, or several in a large fleet, coloured by state.

The layout (areas, and the cell of every VM) is cached by the grants of users until VMs are added or removed; a view
then only counts the VMs that are not running. The page draws cells of one row and colour as one rectangle, so that
100,000 VMs take few kilobytes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from urllib.parse import quote, urlencode

from forewarn.base.wording import scope_name_from_id
from forewarn.control.visibility import VisibleDirectory
from forewarn.core.explain.explanation import VmState
from forewarn.core.scope import scope_name_of_vm
from forewarn.web.portal.context import FLEET_PATH, PORTAL_PREFIX, PortalContext
from forewarn.web.portal.fleet_overview import FleetOverview, GroupOverview, VisibleKeys, VmBlock
from forewarn.web.portal.states import state_label
from forewarn.web.views import BaseView

MAX_CELLS = 4_000  # with more VMs, a cell stands for several
MAX_AREAS = 40  # scopes with a title; with more of them, resource groups; with more of these, one area
_MAX_NAMED_CELLS = 200  # VMs that are not running with a tooltip and link of their own
_CELL_SIZES = ((60, 24), (400, 16), (1_500, 11))  # the most cells, and the size of one in pixels
_SMALLEST_CELL = 8
_UNIT = 10  # of the drawing, per cell
_MAX_WIDTH = 1_000  # of an area in pixels
_SHARES = ((0.5, "most"), (0.1, "some"))  # of the VMs of a cell: at least this share is in its state; else "few"


@dataclass(frozen=True, slots=True)
class _Area:
    id: str  # a block id, `group:SUBSCRIPTION/GROUP`, or "fleet"
    first_key: str  # of its VMs
    size: int  # VMs
    first_cell: int  # its cells have the numbers from this one on
    cells: int


@dataclass(frozen=True, slots=True)
class _Layout:
    areas: Sequence[_Area]
    cell_of: dict[str, int]  # by VM key
    vms_per_cell: int  # in the last cell of an area may be fewer

    def vms_in_cell(self, area: _Area, cell: int) -> int:
        return min(self.vms_per_cell, area.size - (cell - area.first_cell) * self.vms_per_cell)


_Part = tuple[str, Iterable[str], int]  # the id of an area, the keys of its VMs, and how many they are


def _make_layout(overview: FleetOverview, directory: VisibleDirectory) -> _Layout:
    parts = _divide(list(overview.visible_groups(directory)))
    total = sum(size for _, _, size in parts)
    per_cell = max(1, math.ceil(total / MAX_CELLS))
    areas: list[_Area] = []
    cell_of: dict[str, int] = {}
    next_cell = 0
    for area_id, keys, size in parts:
        first_key = ""
        for position, key in enumerate(keys):
            first_key = first_key or key
            cell_of[key] = next_cell + position // per_cell
        cells = math.ceil(size / per_cell)
        areas.append(_Area(area_id, first_key, size, next_cell, cells))
        next_cell += cells
    return _Layout(areas, cell_of, per_cell)


def _divide(groups: Sequence[tuple[GroupOverview, VisibleKeys]]) -> list[_Part]:
    if sum(len(group.blocks) for group, _ in groups) <= MAX_AREAS:
        blocks = [(block, _visible_in(block, visible)) for group, visible in groups for block in group.blocks.values()]
        return [(block.id, keys, len(keys)) for block, keys in blocks if keys]
    sizes = [group.size if visible is None else len(visible) for group, visible in groups]
    if len(groups) <= MAX_AREAS:
        return [
            (f"group:{group.id}", _keys_of(group, visible), size)
            for (group, visible), size in zip(groups, sizes, strict=True)
        ]
    return [("fleet", (key for group, visible in groups for key in _keys_of(group, visible)), sum(sizes))]


def _visible_in(block: VmBlock, visible: VisibleKeys) -> Sequence[str]:
    return block.keys if visible is None else [key for key in block.keys if key in visible]


def _keys_of(group: GroupOverview, visible: VisibleKeys) -> Iterator[str]:
    for block in group.blocks.values():
        yield from _visible_in(block, visible)


class HeatMapRun(BaseView, frozen=True, kw_only=True):
    """Neighbouring cells of one row of the heat map that look the same. Positions are in drawing units.

    A cell is 10 units wide and high. A cell of several VMs shows the most frequent state of those that are not running.
    """

    x: int  # of its left edge
    y: int  # of its top
    width: int  # of all its cells together
    state: str  # a VmState; running only if all VMs of the cells are
    share: str  # how many of a cell's VMs are in the state: most (half or more), some (a tenth or more) or few
    vm: str = ""  # the key, if it is a single VM that has a link of its own
    name: str = ""  # the name of that VM


class HeatMapArea(BaseView, frozen=True, kw_only=True):
    """A part of the heat map with a title and link.

    It is a scope, the standalone VMs of a resource group, a resource group, or the fleet. A cell stands for
    `HeatMap.vms_per_cell` VMs.
    """

    id: str  # the id of the area on the page
    title: str  # such as `web` or `workers/pg-0`
    href: str  # a path of the portal: the page of the scope, or the fleet page
    size: int  # VMs
    states: dict[str, int]  # VMs by state, without states of no VM; in the order of VmState, running ones first
    columns: int  # in cells
    rows: int  # in cells
    runs: tuple[HeatMapRun, ...]  # row by row

    @property
    def width(self) -> int:
        """The width of the area's drawing in its units, 10 for each column."""
        return self.columns * _UNIT

    @property
    def height(self) -> int:
        """The height of the area's drawing in its units, 10 for each row."""
        return self.rows * _UNIT

    @property
    def summary(self) -> str:
        """The area's title and its VMs by state, such as `web: 6 VMs, 4 running, 2 moving`."""
        states = ", ".join(f"{count} {state_label(state)}" for state, count in self.states.items())
        return f"{self.title}: {self.size} {'VM' if self.size == 1 else 'VMs'}, {states}"


class HeatMap(BaseView, frozen=True, kw_only=True):
    """The heat map of the fleet as one user sees it. Field names are JSON keys."""

    vms_per_cell: int  # 1 unless the map has more than MAX_CELLS VMs; the last cell of an area may have fewer
    cell_px: int  # the width and height of a cell on a wide screen, in pixels
    areas: tuple[HeatMapArea, ...]  # scopes, or larger parts of the fleet, in its order

    @property
    def looks(self) -> list[tuple[str, str]]:
        """Each pair of state and share that occurs, once, sorted: the page defines a pattern for each."""
        return sorted({(run.state, run.share) for area in self.areas for run in area.runs})


def heat_map(context: PortalContext) -> HeatMap:
    """Return the heat map of all VMs that the user may see, with their states now."""
    layout = context.overview.cached(_make_layout, context.directory)
    total_cells = sum(area.cells for area in layout.areas)
    cell_px = next((px for most, px in _CELL_SIZES if total_cells <= most), _SMALLEST_CELL)
    counts, keys = _count_by_cell(context, layout)
    named = keys if layout.vms_per_cell == 1 and len(keys) <= _MAX_NAMED_CELLS else {}
    most_columns = _MAX_WIDTH // cell_px
    return HeatMap(
        vms_per_cell=layout.vms_per_cell,
        cell_px=cell_px,
        areas=tuple(_area_view(context, layout, area, counts, named, most_columns) for area in layout.areas),
    )


_CellCounts = dict[int, Counter[VmState]]  # number of a cell → its VMs by state, without running ones


def _count_by_cell(context: PortalContext, layout: _Layout) -> tuple[_CellCounts, dict[int, str]]:
    counts: _CellCounts = {}
    keys: dict[int, str] = {}
    for group, _ in context.overview.visible_groups(context.directory):
        for key, state in group.non_running.items():
            if (cell := layout.cell_of.get(key)) is not None:
                counts.setdefault(cell, Counter())[state] += 1
                keys[cell] = key
    return counts, keys


def _area_view(
    context: PortalContext, layout: _Layout, area: _Area, counts: _CellCounts, named: dict[int, str], most_columns: int
) -> HeatMapArea:
    columns = min(most_columns, max(1, math.ceil(math.sqrt(area.cells * (4 if area.cells > 100 else 2)))))
    states: Counter[VmState] = Counter()
    looks: list[tuple[str, str, str]] = []  # state, share and key of each cell
    for cell in range(area.first_cell, area.first_cell + area.cells):
        found = counts.get(cell)
        if found is None:
            looks.append((VmState.RUNNING, "most", ""))
            continue
        states.update(found)
        (state, count), *_ = found.most_common(1)
        looks.append((state, _share(count, layout.vms_in_cell(area, cell)), named.get(cell, "")))
    running = area.size - states.total()
    ordered = {VmState.RUNNING: running, **{state: states[state] for state in VmState if states[state]}}
    title, href = _title_and_href(context, area)
    return HeatMapArea(
        id=quote(area.id, safe="/:"),
        title=title,
        href=href,
        size=area.size,
        states={str(state): count for state, count in ordered.items() if count},
        columns=columns,
        rows=math.ceil(area.cells / columns),
        runs=tuple(_runs(context, looks, columns)),
    )


def _share(count: int, of: int) -> str:
    return next((name for least, name in _SHARES if count / of >= least), "few")


def _runs(context: PortalContext, looks: Sequence[tuple[str, str, str]], columns: int) -> Iterator[HeatMapRun]:
    for row, start in enumerate(range(0, len(looks), columns)):
        x = 0
        for (state, share, key), cells in groupby(looks[start : start + columns]):
            width = sum(1 for _ in cells)
            vm = context.store.vm(key) if key else None
            yield HeatMapRun(
                x=x * _UNIT,
                y=row * _UNIT,
                width=width * _UNIT,
                state=state,
                share=share,
                vm=key if vm is not None else "",
                name=vm.name if vm is not None else "",
            )
            x += width


def _title_and_href(context: PortalContext, area: _Area) -> tuple[str, str]:
    if area.id == "fleet":
        return "all resource groups", FLEET_PATH
    kind, _, path = area.id.partition(":")
    vm = context.store.vm(area.first_key)
    if kind in ("vms", "group"):
        group = vm.resource_group if vm is not None else path.partition("/")[2]
        title = f"standalone VMs of {group}" if kind == "vms" else f"resource group {group}"
        return title, f"{FLEET_PATH}?{urlencode({'q': group})}"
    title = scope_name_of_vm(vm) if vm is not None else scope_name_from_id(area.id)
    return title, f"{PORTAL_PREFIX}/scopes/{quote(area.id, safe='/:')}"
