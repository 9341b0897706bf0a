"""What applying a fleet file would do to the running fleet: shown first, applied when somebody agrees.

The file says what a VM is; the running fleet owns where and how it is now (host, power, health, vm_id), and what the
file left open when the VM was added. Those are kept, never reset.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from forewarn.core.event import Event
from forewarn.core.fleet import Host, Vm
from forewarn.core.objection import objections_to
from forewarn.core.proposal import Problem, Proposal
from forewarn.core.prospect import prospect_of
from forewarn.errors import Refused


class FieldChange(msgspec.Struct, frozen=True, kw_only=True):
    field: str
    old: Any
    new: Any


class VmChange(msgspec.Struct, frozen=True, kw_only=True):
    old: Vm
    new: Vm
    fields: tuple[FieldChange, ...]


class HostChange(msgspec.Struct, frozen=True, kw_only=True):
    old: Host
    new: Host
    fields: tuple[FieldChange, ...]


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """VMs that are added or come back have no vm_id yet; they have a host, unless a problem says why not."""

    source: str
    hosts_added: tuple[Host, ...] = ()
    hosts_changed: tuple[HostChange, ...] = ()
    hosts_removed: tuple[Host, ...] = ()
    hosts_kept: tuple[Host, ...] = ()  # not in the file, and not to be removed
    added: tuple[Vm, ...] = ()
    resurrected: tuple[Vm, ...] = ()  # were deleted, and come back
    changed: tuple[VmChange, ...] = ()
    removed: tuple[Vm, ...] = ()
    kept: tuple[Vm, ...] = ()  # not in the file, and not to be removed
    stay_deleted: tuple[Vm, ...] = ()  # in the file, but deleted since
    unchanged: tuple[Vm, ...] = ()
    problems: tuple[Problem, ...] = ()  # while there is one, nothing of it can be applied

    @property
    def is_empty(self) -> bool:
        """Whether applying it would change nothing."""
        hosts = self.hosts_added or self.hosts_changed or self.hosts_removed
        return not (hosts or self.added or self.resurrected or self.changed or self.removed)

    @property
    def vms_to_set(self) -> tuple[Vm, ...]:
        """What applying writes down: newcomers, and those that change, in their new form."""
        return (*self.added, *self.resurrected, *(change.new for change in self.changed))

    @property
    def hosts_to_set(self) -> tuple[Host, ...]:
        return (*self.hosts_added, *(change.new for change in self.hosts_changed))

    def lines(self, limit: int | None = 20) -> list[str]:
        """For people: one line per host and VM, at most `limit` of each sort, and a summary."""
        sections = (
            [f"+ host {host.name}" for host in self.hosts_added],
            [f"~ host {change.old.name}: {_told(change.fields)}" for change in self.hosts_changed],
            [f"- host {host.name}" for host in self.hosts_removed],
            [f"+ VM {vm.name} on {vm.host or 'no host'}" for vm in self.added],
            [f"+ VM {vm.name} on {vm.host or 'no host'}, deleted before" for vm in self.resurrected],
            [f"~ VM {change.old.name}: {_told(change.fields)}" for change in self.changed],
            [f"- VM {vm.name}" for vm in self.removed],
            [f"  VM {vm.name} was deleted and stays deleted" for vm in self.stay_deleted],
            [f"  VM {vm.name} is not in the file and is kept" for vm in self.kept],
            [f"  host {host.name} is not in the file and is kept" for host in self.hosts_kept],
            [f"! {problem.sentence(self.source)}" for problem in self.problems],
        )
        return [line for section in sections for line in _shortened(section, limit)] + [self.summary()]

    def summary(self) -> str:
        if self.is_empty:
            return "nothing to do" if not self.problems else "cannot be applied"
        vms = len(self.added) + len(self.resurrected), len(self.changed), len(self.removed)
        hosts = len(self.hosts_added), len(self.hosts_changed), len(self.hosts_removed)
        told = "VMs: {} to add, {} to change, {} to remove; ".format(*vms)
        told += "hosts: {} to add, {} to change, {} to remove".format(*hosts)
        return f"{told}; cannot be applied" if self.problems else told

    def builtins(self) -> dict[str, Any]:
        """For JSON."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


def must_be_applicable(difference: Difference) -> None:
    if difference.problems:
        told = "\n".join(problem.sentence(difference.source) for problem in difference.problems)
        raise Refused(f"{difference.source} cannot be applied, and nothing was changed:\n{told}")


def compare(
    proposal: Proposal,
    *,
    hosts: Sequence[Host],
    vms: Sequence[Vm],
    live_events: Sequence[Event],
    resurrect: bool = False,
    remove_missing: bool = True,
) -> Difference:
    """What applying the proposal would do. `vms` are all that were ever there, removed ones too."""
    prospect = prospect_of(
        proposal,
        hosts=hosts,
        vms=vms,
        live_events=live_events,
        resurrect=resurrect,
        remove_missing=remove_missing,
    )
    return Difference(
        source=proposal.source,
        hosts_added=prospect.new_hosts,
        hosts_changed=tuple(HostChange(old=o, new=n, fields=_fields(o, n)) for o, n in prospect.hosts if o != n),
        hosts_removed=prospect.missing_hosts if remove_missing else (),
        hosts_kept=() if remove_missing else prospect.missing_hosts,
        added=prospect.new_vms,
        resurrected=prospect.returning,
        changed=tuple(VmChange(old=o, new=n, fields=_fields(o, n)) for o, n in prospect.vms if o != n),
        removed=prospect.missing if remove_missing else (),
        kept=() if remove_missing else prospect.missing,
        stay_deleted=prospect.deleted,
        unchanged=tuple(old for old, new in prospect.vms if old == new),
        problems=objections_to(prospect),
    )


def _fields(old: msgspec.Struct, new: msgspec.Struct) -> tuple[FieldChange, ...]:
    both = ((name, getattr(old, name), getattr(new, name)) for name in old.__struct_fields__)
    return tuple(
        FieldChange(field=name, old=msgspec.to_builtins(was), new=msgspec.to_builtins(will))
        for name, was, will in both
        if was != will
    )


def _told(fields: Iterable[FieldChange]) -> str:
    return ", ".join(f"{change.field} {_shown(change.old)} → {_shown(change.new)}" for change in fields)


def _shown(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _shortened(lines: list[str], limit: int | None) -> list[str]:
    if limit is None or len(lines) <= limit:
        return lines
    return [*lines[:limit], f"{lines[limit][:1]} … and {len(lines) - limit:,} more of the kind"]
