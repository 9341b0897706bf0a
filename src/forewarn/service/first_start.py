"""The first fleet: a fleet file is a proposal, and only an empty store takes it up by itself."""

from __future__ import annotations

import hashlib
import logging
from importlib import resources
from pathlib import Path

from forewarn.assembly.settings import Settings
from forewarn.control.control import Control
from forewarn.control.fleets import FleetChange
from forewarn.core.proposal import read_fleet
from forewarn.errors import Rejected

log = logging.getLogger(__name__)
_TAKEN_UP = "fleet file"  # the digest of a text whose VMs the store knows, all of them


def sample_fleet() -> str:
    return resources.files("forewarn.assembly").joinpath("sample-fleet.toml").read_text(encoding="utf-8")


async def _warn_of_another(control: Control, settings: Settings) -> None:
    """Whoever names a file expects its VMs: a store that has a fleet already does not take them up by itself."""
    if not settings.fleet:
        return
    try:
        text = _read(Path(settings.fleet))
        if control.store.saved(_TAKEN_UP) == _digest(text):
            return  # a store forgets no VM
        proposal = read_fleet(text, source=settings.fleet)
    except Rejected:
        return  # it is not needed
    known = {vm.key for vm in control.store.vms(removed=True)}
    if all(vm.key in known for vm in proposal.vms):
        await control.store.save(_TAKEN_UP, _digest(text))
    else:
        log.warning(
            "%s is not applied, because %s has a fleet already: `forewarn fleet apply %s` shows the difference and "
            "applies it, or name an empty directory with --data",
            settings.fleet,
            settings.data,
            settings.fleet,
        )


async def apply_first_fleet(control: Control, settings: Settings) -> None:
    there = control.store.counts()
    if there.scopes or there.hosts:
        await _warn_of_another(control, settings)
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
    await control.store.save(_TAKEN_UP, _digest(text))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise Rejected(
            f"fleet file {str(path)!r} cannot be read: {error.strerror}; name another with --fleet"
        ) from error
    except UnicodeDecodeError as error:
        raise Rejected(f"fleet file {str(path)!r} is not UTF-8 text: save it as such") from error
