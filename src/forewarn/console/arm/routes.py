"""Every route of Azure's API that is served."""

from __future__ import annotations

from forewarn.console.arm import acknowledgement, action, discovery, operation, reading, sign_in, update
from forewarn.console.arm.route import ArmRoute

ROUTES: tuple[ArmRoute, ...] = (
    *discovery.ROUTES,
    *sign_in.ROUTES,
    *reading.ROUTES,
    *action.ROUTES,
    *update.ROUTES,
    *operation.ROUTES,
    *acknowledgement.ROUTES,
)
