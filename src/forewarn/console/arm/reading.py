"""Every route that reads resources."""

from __future__ import annotations

from forewarn.console.arm import availability_set, place, scale_set, vm
from forewarn.console.arm.route import ArmRoute

ROUTES: tuple[ArmRoute, ...] = (*place.ROUTES, *vm.ROUTES, *scale_set.ROUTES, *availability_set.ROUTES)
