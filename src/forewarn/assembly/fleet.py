"""The first fleet: a fleet file is a proposal, and only an empty store takes it up by itself."""

from __future__ import annotations

import logging
from importlib import resources
from pathlib import Path

from forewarn.assembly.settings import Settings
from forewarn.control.control import Control
from forewarn.control.fleets import FleetChange
from forewarn.core.proposal import read_fleet
from forewarn.errors import Rejected

log = logging.getLogger(__name__)


def sample_fleet() -> str:
    return resources.files("forewarn.assembly").joinpath("sample-fleet.toml").read_text(encoding="utf-8")


def _warn_of_another(control: Control, settings: Settings) -> None:
    """Whoever names a file expects its VMs: a store that has a fleet already does not take them up by itself."""
    if not settings.fleet:
        return
    try:
        proposal = read_fleet(_read(Path(settings.fleet)), source=settings.fleet)
    except Rejected:
        return  # it is not needed
    unknown = [vm.name for vm in proposal.vms if control.store.vm(vm.key) is None]
    if unknown:
        log.warning(
            "%s is not applied, because %s has a fleet already: `forewarn fleet apply %s` shows the difference and "
            "applies it, or name an empty directory with --data",
            settings.fleet,
            settings.data,
            settings.fleet,
        )


async def apply_first_fleet(control: Control, settings: Settings) -> None:
    if control.store.scope_ids() or control.store.hosts():
        _warn_of_another(control, settings)
        return
    if settings.fleet:
        text, source = _read(Path(settings.fleet)), settings.fleet
    elif settings.lab:
        text, source = sample_fleet(), "the sample fleet"
    else:
        return
    proposal = read_fleet(text, source=source)
    change = FleetChange(hosts=proposal.hosts, vms=proposal.vms, text=f"fleet set up from {source}")
    await control.fleets.change(change, who="forewarn")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise Rejected(
            f"fleet file {str(path)!r} cannot be read: {error.strerror}; name another with --fleet"
        ) from error
    except UnicodeDecodeError as error:
        raise Rejected(f"fleet file {str(path)!r} is not UTF-8 text: save it as such") from error
