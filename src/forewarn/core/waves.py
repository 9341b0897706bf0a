"""Waves of a rollout: which VMs each takes, when one has settled, and what comes next (spec §13.1).

Waves follow one another; within a scope, update domains stay one at a time. A rollout that works on whole hosts takes
all its VMs of a host into one wave. Nothing is stored per VM: which VMs belong to the current wave follows from the
rollout's events and the size that the wave had when it began, so a VM that was removed makes room for another one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from itertools import accumulate

from msgspec.structs import replace

from forewarn.base.duration import format_duration
from forewarn.base.times import LabTime
from forewarn.base.wording import first_names, scope_name_from_id
from forewarn.core.event import Event
from forewarn.core.fleet import Vm
from forewarn.core.request import BegunWave, PlannedEvent, Rollout, RolloutState, WaveSpec
from forewarn.core.rollout import InvalidRollout, handled_vms, hosts_in_order, needs_gate, remaining_vms

REST_WAVE = WaveSpec(name="rest")
MAX_WAVES = 100
MAX_NUMBER_DIGITS = 9  # of a number of VMs
MIN_SHARE = 0.01  # percent
MAX_SETTLE_S = 30 * 86_400.0
_DIGITS = re.compile(r"(\d+)", re.ASCII)


class WaveStep(StrEnum):
    """What a rollout does next about its waves."""

    BEGIN = "begin"  # publish the first events of a wave
    WORK = "work"  # on a wave: publish its other events, or wait until they are over
    SETTLE = "settle"  # wait, because the wave is over and its settling time is not
    DONE = "done"  # the last wave has settled, or there was nothing to do


@dataclass(frozen=True, slots=True, kw_only=True)
class WavePhase:
    """How far a rollout is with its waves, and which VMs are left. `wave_phase` computes it."""

    step: WaveStep  # what the rollout does next
    wave: int  # index of the wave that the step is about; for DONE, of the last one
    members: list[Vm] = field(default_factory=list)  # BEGIN, WORK: its VMs without an event, published or planned
    remaining: list[Vm] = field(default_factory=list)  # VMs of all waves without an event; `remaining_vms`
    over_at: LabTime | None = None  # SETTLE, and DONE after a wave: when the wave's last event ended
    settles_until: LabTime | None = None  # SETTLE: when the settling time ends; None: another step


def wave_specs(rollout: Rollout) -> tuple[WaveSpec, ...]:
    """Return the waves of a rollout in their order; the last one is always the rest."""
    waves = rollout.waves
    return waves if waves and waves[-1].is_rest else (*waves, REST_WAVE)


def wave_phase(
    rollout: Rollout, vms: Sequence[Vm], events: Sequence[Event], planned: Sequence[PlannedEvent], now: float
) -> WavePhase:
    """Return what the rollout does next about its waves: begin, work, settle or done.

    A wave is over when it has no VM without an event and none of the rollout's events is planned or live; it settles
    for `rollout.settle_s` after the last end. Does not check whether the rollout is paused, held or has ended.
    """
    remaining = remaining_vms(rollout, vms, events, planned)
    specs = wave_specs(rollout)
    following = rollout.wave
    over_at = None
    if _has_begun(rollout, events, planned):
        members = _current_members(rollout, vms, remaining, events, planned)
        live = [event for event in events if event.is_live]
        if members or planned or live:
            return WavePhase(step=WaveStep.WORK, wave=rollout.wave, members=members, remaining=remaining)
        ended = [event.over_at for event in events if event.over_at is not None]
        over_at = rollout.wave_over_at if rollout.wave_over_at is not None else max(ended, default=now)
        if now < (until := over_at + rollout.settle_s):
            return WavePhase(
                step=WaveStep.SETTLE, wave=rollout.wave, remaining=remaining, over_at=over_at, settles_until=until
            )
        # The wave has settled: the next one that has VMs begins; empty ones are passed over.
        following += 1
    # Shares are of all VMs, with those that are done, so that 50 % means the same in each wave.
    total = len(handled_vms(rollout, events, planned)) + len(remaining)
    for index in range(following, len(specs)):
        if members := _first_members(rollout, specs[index], vms, remaining, total):
            return WavePhase(step=WaveStep.BEGIN, wave=index, members=members, remaining=remaining)
    return WavePhase(step=WaveStep.DONE, wave=len(specs) - 1, remaining=remaining, over_at=over_at)


def _has_begun(rollout: Rollout, events: Sequence[Event], planned: Sequence[PlannedEvent]) -> bool:
    # Without waves nothing is stored about a beginning: the first event is one.
    return rollout.wave_began_at is not None if rollout.waves else bool(events or planned)


def begin_wave(
    rollout: Rollout, phase: WavePhase, events: Sequence[Event], planned: Sequence[PlannedEvent], now: float
) -> Rollout:
    """Return the rollout with the wave of this phase, whose step is BEGIN, as its current wave."""
    if not rollout.waves:
        return rollout
    spec = wave_specs(rollout)[phase.wave]
    base = len(handled_vms(rollout, events, planned))
    return replace(
        rollout,
        wave=phase.wave,
        wave_began_at=now,
        wave_size=len(phase.members) if spec.vms or spec.share else 0,
        wave_base=base,
        wave_over_at=None,
        begun=(*rollout.begun, BegunWave(wave=phase.wave, at=now, base=base)),
    )


def divide_into_waves(rollout: Rollout, vms: Sequence[Vm]) -> list[list[Vm]]:
    """Return the VMs of each wave of a rollout that has not begun, in the order of `wave_specs`."""
    phase = wave_phase(rollout, vms, (), (), 0.0)
    by_wave = waves_to_come(rollout, vms, phase, len(phase.remaining))
    return [by_wave.get(index, []) for index in range(len(wave_specs(rollout)))]


def waves_to_come(rollout: Rollout, vms: Sequence[Vm], phase: WavePhase, total: int) -> dict[int, list[Vm]]:
    """Return the VMs without an event of the current wave and of each later one, by the index of the wave."""
    found = {phase.wave: phase.members} if phase.step is WaveStep.WORK else {}
    first = phase.wave if phase.step is WaveStep.BEGIN else phase.wave + 1
    remaining: Sequence[Vm] = phase.remaining
    for index, spec in enumerate(wave_specs(rollout)):
        if index >= first:
            found[index] = _first_members(rollout, spec, vms, remaining, total)
        taken = {vm.key for vm in found.get(index, ())}
        remaining = [vm for vm in remaining if vm.key not in taken] if taken else remaining
    return found


def _first_members(
    rollout: Rollout, spec: WaveSpec, vms: Sequence[Vm], remaining: Sequence[Vm], total: int
) -> list[Vm]:
    if spec.tag:
        return _tagged(rollout, spec.tag, vms, remaining)
    if spec.is_rest:
        return list(remaining)
    # Rounded before, so that floating point does not add a VM.
    return _first_units(rollout, vms, remaining, spec.vms or math.ceil(round(spec.share * total / 100, 6)))


def _current_members(
    rollout: Rollout,
    vms: Sequence[Vm],
    remaining: Sequence[Vm],
    events: Sequence[Event],
    planned: Sequence[PlannedEvent],
) -> list[Vm]:
    spec = wave_specs(rollout)[rollout.wave]
    if spec.is_rest or not remaining:
        return list(remaining)
    if spec.tag:
        members = _tagged(rollout, spec.tag, vms, remaining)
    else:
        # The size is that of the wave at its beginning: VMs that come later do not make it larger.
        handled = len(handled_vms(rollout, events, planned)) - rollout.wave_base
        members = _first_units(rollout, vms, remaining, rollout.wave_size - handled)
    if needs_gate(rollout):
        # A VM that has arrived on a host under maintenance starts together with the others there (spec §6.4).
        hosts = {event.host for event in events if event.is_live} | {item.host for item in planned}
        members = _on_hosts(remaining, hosts | {vm.host for vm in members})
    return members


def _tagged(rollout: Rollout, tag: str, vms: Sequence[Vm], remaining: Sequence[Vm]) -> list[Vm]:
    if needs_gate(rollout):
        return _on_hosts(remaining, {vm.host for vm in vms if has_tag(vm, tag)})
    return [vm for vm in remaining if has_tag(vm, tag)]


def _on_hosts(vms: Iterable[Vm], hosts: Collection[str]) -> list[Vm]:
    return [vm for vm in vms if vm.host in hosts]


def _first_units(rollout: Rollout, vms: Sequence[Vm], remaining: Sequence[Vm], count: int) -> list[Vm]:
    """Return the first `count` remaining VMs by update domain and name; of whole hosts, at least as many."""
    if count <= 0:
        return []
    if not needs_gate(rollout):
        return sorted(remaining, key=_wave_order)[:count]
    by_host = dict(hosts_in_order(remaining))
    members: list[Vm] = []
    for host, _ in hosts_in_order(vms):  # with the VMs that are done, so that the order does not change meanwhile
        if len(members) >= count:
            break
        members += by_host.get(host, [])
    return members


def _wave_order(vm: Vm) -> tuple[int, list[tuple[int, int, str]], str]:
    """Sort key of VMs: by update domain, then name, in which numbers count as numbers, then key."""
    parts = [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in _DIGITS.split(vm.name.casefold())]
    return vm.update_domain, parts, vm.key


def has_tag(vm: Vm, tag: str) -> bool:
    """Return whether the VM has a tag, given as `name` (with any value) or `name=value`."""
    name, equals, value = tag.partition("=")
    return any(name.casefold() == known.casefold() and (not equals or value == text) for known, text in vm.tags.items())


def covers_vm(rollout: Rollout, vm: Vm) -> bool:
    """Return whether the rollout covers the VM, by the host, scope, tag or location that the VM has now."""
    if rollout.hosts:
        return vm.host in rollout.hosts
    if rollout.scope_id:
        return vm.scope_id == rollout.scope_id
    if rollout.tag:
        return has_tag(vm, rollout.tag)
    return rollout.everything or (bool(rollout.location) and vm.location.casefold() == rollout.location.casefold())


def require_valid_waves(rollout: Rollout, vms: Sequence[Vm]) -> None:
    """Raise InvalidRollout unless the waves and settling time of a rollout over these VMs make sense."""
    if not 0 <= rollout.settle_s <= MAX_SETTLE_S:
        raise InvalidRollout(
            f"a settling time of {rollout.settle_s:.0f} s is not possible: give 0 to {format_duration(MAX_SETTLE_S)}",
            ("settle",),
        )
    if len(rollout.waves) > MAX_WAVES:
        raise InvalidRollout(f"{len(rollout.waves)} waves are too many: give at most {MAX_WAVES}", ("waves",))
    names: set[str] = set()
    for index, spec in enumerate(rollout.waves):
        _require_valid_wave(spec, index, is_last=index == len(rollout.waves) - 1)
        if spec.name.casefold() in names:
            raise InvalidRollout(
                f"two waves are called {spec.name!r}: give each a name of its own", ("waves", index, "name")
            )
        names.add(spec.name.casefold())
        if spec.tag and not any(has_tag(vm, spec.tag) for vm in vms):
            raise InvalidRollout(
                f"wave {spec.name!r} is empty, because no VM of the rollout has the tag {spec.tag!r}: "
                "tag a VM, or give another tag",
                ("waves", index, "tag"),
            )
    if (total := sum(spec.share for spec in rollout.waves)) > 100:
        sums = accumulate(spec.share for spec in rollout.waves)
        first = next(index for index, so_far in enumerate(sums) if so_far > 100)
        raise InvalidRollout(
            f"the shares make {total:g} %, and there are only 100 %: each is in addition to the ones before",
            ("waves", first, "share"),
        )


def _require_valid_wave(spec: WaveSpec, index: int, *, is_last: bool) -> None:
    path = ("waves", index)
    if not spec.name.strip() or len(spec.name) > 100:
        raise InvalidRollout("a wave needs a name of 1 to 100 characters: give it one", (*path, "name"))
    if spec.vms < 0:
        raise InvalidRollout(f"wave {spec.name!r} has {spec.vms} VMs: give a number from 1 on", (*path, "vms"))
    if spec.vms >= 10**MAX_NUMBER_DIGITS:
        text = f"the VMs of wave {spec.name!r} are too many: give a number of at most {MAX_NUMBER_DIGITS} digits"
        raise InvalidRollout(text, (*path, "vms"))
    if spec.share and not MIN_SHARE <= spec.share <= 100:
        text = f"wave {spec.name!r} has a share of {spec.share:g} %: give {MIN_SHARE} to 100"
        raise InvalidRollout(text, (*path, "share"))
    if (spec.vms > 0) + (spec.share > 0) + bool(spec.tag) > 1:
        key = "tag" if spec.tag else "share"  # the last of them
        raise InvalidRollout(f"wave {spec.name!r} has several sizes: give only one of vms, share and tag", (*path, key))
    if spec.is_rest and not is_last:
        text = f"wave {spec.name!r} takes all the rest, so no wave may follow: give it vms, share or tag"
        raise InvalidRollout(text, path)


def make_wave(index: int, name: str, vms: int | None, share: float | None, tag: str | None) -> WaveSpec:
    """Return a wave as a user describes it: a number of VMs, a share, a tag, or without these the rest."""
    for key, value, least in (("vms", vms, 1), ("share", share, "more than 0"), ("tag", tag, "a name")):
        if value is not None and not value:
            raise InvalidRollout(
                f"wave {name!r} is empty, because its {key} is {value!r}: give {least}, or leave it out for the rest",
                ("waves", index, key),
            )
    return WaveSpec(name=name, vms=vms or 0, share=share or 0, tag=tag or "")


def make_waves(canary: str, shares: Sequence[float]) -> tuple[WaveSpec, ...]:
    """Return the waves of a rollout: a canary, one per share (in percent), and the rest.

    `canary` is a number of VMs, such as `2`, or `tag=NAME` or `tag=NAME=VALUE`; "": none. A share is a part of all VMs
    of the rollout, in addition to the waves before it: (10, 50) leaves 40 % or less to the rest.
    """
    waves: list[WaveSpec] = []
    if canary.startswith("tag=") and canary != "tag=":
        waves.append(WaveSpec(name="canary", tag=canary.removeprefix("tag=")))
    elif canary:
        if not canary.isdecimal():
            text = f"{canary!r} is not a canary: give a number of VMs, such as 2, or a tag, such as tag=canary"
            raise InvalidRollout(text, ("canary",))
        if len(canary) > MAX_NUMBER_DIGITS:
            text = f"a canary with {len(canary)} digits is too large: give at most {MAX_NUMBER_DIGITS} digits"
            raise InvalidRollout(text, ("canary",))
        if not int(canary):
            raise InvalidRollout("a canary of 0 VMs is empty: give 1 or more, or no canary", ("canary",))
        waves.append(WaveSpec(name="canary", vms=int(canary)))
    for index, share in enumerate(shares):
        if share == 0:
            text = "a share of 0 % is empty: give more than 0 and at most 100"
            raise InvalidRollout(text, ("shares", index))
        waves.append(WaveSpec(name=_share_name(shares, index), share=share))
    return (*waves, REST_WAVE) if waves else ()


def _share_name(shares: Sequence[float], index: int) -> str:
    name, number = f"{shares[index]:g} %", shares[: index + 1].count(shares[index])
    return name if number == 1 else f"{name} ({number})"


def require_target(rollout: Rollout, vms: Sequence[Vm]) -> None:
    """Raise InvalidRollout unless the rollout has exactly one target, and a tag or location has VMs."""
    targets = (rollout.hosts, rollout.scope_id, rollout.tag, rollout.location, rollout.everything)
    if sum(map(bool, targets)) != 1:
        raise InvalidRollout(
            "a rollout covers hosts, one scope, a tag, a location or everything: give exactly one of them", ()
        )
    if rollout.tag and not vms:
        raise InvalidRollout(f"no VM of the fleet has the tag {rollout.tag!r}: give a tag that VMs have", ("tag",))
    if rollout.location and not vms:
        raise InvalidRollout(
            f"the fleet has no VM in {rollout.location!r}: give a location that VMs are in", ("location",)
        )


def rollout_target_text(rollout: Rollout) -> str:
    """Return what a rollout covers, for people: hosts, a scope, VMs with a tag or in a location, all VMs."""
    if rollout.hosts:
        return first_names(rollout.hosts)
    if rollout.scope_id:
        return scope_name_from_id(rollout.scope_id)
    if rollout.tag:
        return f"VMs with the tag {rollout.tag}"
    return f"VMs in {rollout.location}" if rollout.location else "all VMs"


def wave_title(rollout: Rollout, wave: int) -> str:
    """Return a wave for people, by its index: `wave 1 of 3 (canary)`, or `the only wave`."""
    specs = wave_specs(rollout)
    return f"wave {wave + 1} of {len(specs)} ({specs[wave].name})" if len(specs) > 1 else "the only wave"


def wave_begin_text(rollout: Rollout, phase: WavePhase) -> str:
    """Return that a wave begins, for the history: `wave 1 of 3 (canary) begins with 2 VMs`."""
    count = len(phase.members)
    return f"{wave_title(rollout, phase.wave)} begins with {count} {'VM' if count == 1 else 'VMs'}"


def wave_end_text(rollout: Rollout, phase: WavePhase) -> str:
    """Return that a wave is over and settles, for the history."""
    return f"{wave_title(rollout, phase.wave)} is over and settles for {format_duration(rollout.settle_s)}"


def settles_until(rollout: Rollout, now: float) -> float | None:
    """Return the lab time until which the current wave of a rollout settles; None if none does at `now`."""
    if rollout.closed or rollout.progress not in (RolloutState.RUNNING, RolloutState.PAUSED):
        return None
    until = rollout.wave_over_at + rollout.settle_s if rollout.wave_over_at is not None else now
    return until if until > now else None


def settling_text(rollout: Rollout, now: float) -> str:
    """Return for people until when the wave of a rollout settles."""
    until = settles_until(rollout, now)
    if until is None:
        return ""
    then, today = (datetime.fromtimestamp(at, UTC) for at in (until, now))
    when = f"{then:%H:%M}" if then.date() == today.date() else f"{then:%a %Y-%m-%d %H:%M}"
    return f"until {when} UTC: {wave_title(rollout, rollout.wave)} settles"
