"""Every route of Azure's API that is served."""

from __future__ import annotations

from forewarn.console.arm import acknowledgement, action, operation
from forewarn.console.arm.route import ArmRoute

ROUTES: tuple[ArmRoute, ...] = (
    *action.ROUTES,
    *operation.ROUTES,
    *acknowledgement.ROUTES,
)
