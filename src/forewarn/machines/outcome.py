"""Words the outcome of an act on a real VM: its duration, the downtime, and what was unusual."""

from __future__ import annotations

from forewarn.base.duration import exact_duration_text
from forewarn.core.cause import Verb
from forewarn.machines.steps import End, MachineActRecord, Release, Step

_FORCED = {Step.RESET: "reset", Step.POWER_OFF: "powered off"}  # steps that do not ask the guest


def outcome_note(act: MachineActRecord, end: End, *, real_now: float, acpi_timeout_s: float) -> str:
    """Return what the history says, for people, about an act that ends now."""
    if not end.ok:
        return end.note
    took = exact_duration_text(round(real_now - act.steps[0].real_at, 1))
    parts = [f"{act.verb} took {took}"]
    if (downtime := _downtime_text(act)) is not None:
        parts.append(downtime)
    if act.is_move:
        parts.append(f"now on {act.destination!r}")
    notes = [", ".join(parts), _guest_text(act, acpi_timeout_s), act.detail, end.note]
    return "; ".join(note for note in notes if note)


def _downtime_text(act: MachineActRecord) -> str | None:
    """Return how long the VM was paused or down, as far as the steps show it."""
    held, resumed = act.entry(Step.HOLD), act.entry(Step.RESUME)
    if act.verb is Verb.FREEZE and held is not None and resumed is not None:
        return f"paused for {exact_duration_text(round(resumed.lab_at - held.lab_at, 1))}"
    activated, arrived = act.entry(Step.ACTIVATE), act.entry(Step.CLEAN_UP)
    if not act.is_move or activated is None or arrived is None or act.release is None:
        return None
    if act.stays_off:
        return "off throughout"
    down_s = arrived.real_at - activated.real_at + (act.downtime_ms or 0) / 1000
    return f"{'paused' if act.release is Release.SENT else 'down'} for {exact_duration_text(round(down_s, 2))}"


def _guest_text(act: MachineActRecord, acpi_timeout_s: float) -> str:
    asked = act.entry(Step.SHUT_DOWN)
    forced = next((entry for entry in act.steps if entry.step in _FORCED), None)
    if asked is None or forced is None:
        return ""
    if forced.real_at - asked.real_at < acpi_timeout_s:
        return f"the guest could not be asked through ACPI and was {_FORCED[forced.step]}"
    return f"the guest ignored ACPI for {exact_duration_text(acpi_timeout_s)} and was {_FORCED[forced.step]}"
