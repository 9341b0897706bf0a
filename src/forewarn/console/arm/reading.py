"""Every route that reads resources."""

from __future__ import annotations

from forewarn.console.arm.availability_set import AVAILABILITY_SET_ROUTES
from forewarn.console.arm.place import PLACE_ROUTES
from forewarn.console.arm.route import ArmRoute
from forewarn.console.arm.scale_set import SCALE_SET_ROUTES
from forewarn.console.arm.vm import VM_ROUTES

ROUTES: tuple[ArmRoute, ...] = (*PLACE_ROUTES, *VM_ROUTES, *SCALE_SET_ROUTES, *AVAILABILITY_SET_ROUTES)
