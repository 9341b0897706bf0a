"""Every route of Azure's API that is served."""

from __future__ import annotations

from forewarn.console.arm.route import ArmRoute

ROUTES: tuple[ArmRoute, ...] = ()
