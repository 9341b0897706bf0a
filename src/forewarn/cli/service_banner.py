"""Prints what a service is and where it is reached: the banner of `up` and `serve`, and `status`."""

from __future__ import annotations

import os
import time
from pathlib import Path

from forewarn.base.duration import duration_text
from forewarn.cli.api_client import JsonObject
from forewarn.cli.output import Output, bold, clock_time, count_noun, dim, posix_seconds

_MAX_VMS_SHOWN = 16
_MIN_CLOCK_DIFFERENCE_S = 2.0  # less is the time that an answer took
_EVENTS_TARGET = "/metadata/scheduledevents?api-version=2020-07-01"
_PORTAL_HINT = ("forewarn portal", "get a link that opens the portal in a browser, signed in")
_REAL_VM_STEPS = [  # of a lab with real VMs
    ("forewarn restart web-0 --wait", "restart a guest, which sees the event and approves it"),
    ("forewarn rollout start --host host-1 --impact migrate --wait", "move the guests of a host while they run"),
    ("forewarn vm console web-0", "see what a guest prints; Ctrl-] leaves its console"),
]
_AZURE_HINT = ('eval "$(forewarn env)"', "make az and Azure's SDKs in a shell use this service")


def print_running_supervisors(output: Output, pids: list[int]) -> None:
    """Print how many programs in VMs still run, and the command that stops them; nothing for none."""
    if pids:
        programs = f"{count_noun(len(pids), 'program')} in VMs still {'runs' if len(pids) == 1 else 'run'}"
        output.print_line(f"{programs}; to stop: kill {' '.join(map(str, pids))}")


def print_service(output: Output, info: JsonObject, link: str = "") -> None:
    """Print the banner of a service that has started, or `info` as JSON with --json."""
    if output.as_json:
        output.print_json(info)
        return
    _print_facts(output, info)
    if output.is_terminal:
        from forewarn.lab.vms.layout import LAB_MARKER  # needs the extra `server`, which other commands do without

        has_real_vms = (Path(info["data"]) / LAB_MARKER).exists()
        endpoints = [(each["vm"], each["url"]) for each in info["endpoints"]]
        hints = _REAL_VM_STEPS if has_real_vms else _first_steps(endpoints, info["counts"]["vms"])
        if info["api"]:
            hints = [*hints, *([] if link else [_PORTAL_HINT]), _AZURE_HINT]
        output.print_hints(hints)
        output.print_line()
        output.print_line(dim(_stop_text(is_here=info["pid"] == os.getpid(), has_real_vms=has_real_vms)))
    if link and info["api"]:
        # Last, where people look first; unbroken, to be opened.
        output.print_line()
        output.print_labelled(bold("Open the portal, signed in:  "), link)


def _stop_text(*, is_here: bool, has_real_vms: bool) -> str:
    if has_real_vms:
        command = "Ctrl-C" if is_here else "`forewarn lab down`"
        return f"{command} ends the guests, and removes the lab with all its data."
    return f"{'Ctrl-C' if is_here else '`forewarn down`'} stops it; all data is kept."


def print_status(output: Output, info: JsonObject) -> None:
    """Print what the service is and where it is reached, or `info` as JSON with --json.

    `info` is the API's view of the service; for a caller who may not see everything it has little more than the
    version, and only that is printed. At most 16 of the VMs' addresses are shown.
    """
    if output.as_json:
        output.print_json(info)
        return
    _print_facts(output, info, ("VMs", info["hypervisor"]["text"]) if "hypervisor" in info else None)


def _print_facts(output: Output, info: JsonObject, vms: tuple[str, str] | None = None) -> None:
    what = "lab" if info["lab"] else "service"
    output.print_line(bold(f"forewarn {info['version']}"), f": the {what} is up.")
    counts = info.get("counts")
    if counts is None:  # the caller does not see everything
        return
    output.print_line()
    fleet = (
        count_noun(counts["vms"], "VM"),
        count_noun(counts["scopes"], "scope"),
        count_noun(counts["hosts"], "host"),
    )
    output.print_facts(
        [
            ("fleet", ", ".join(fleet)),
            *([vms] if vms else []),
            ("events", f"{counts['events']} pending" if counts["events"] else "none pending"),
            *([("clock", clock)] if (clock := _clock_text(info)) else []),
            *(("VMs use", text) for text in list(dict.fromkeys(map(_listener_text, info["listeners"])))[:4]),
            *([("workers", str(len(info["workers"])))] if info["workers"] else []),
            *([("api", info["api"]["url"])] if info["api"] else []),
            *([("portal", info["api"]["portal"])] if info["api"] else []),
            ("process", str(info["pid"])),
            ("data", info["data"]),
        ]
    )
    if info["identity_on_loopback"]:
        output.print_line()
        output.print_line("identity_on_loopback is on: every program on this machine can get the token of any VM.")
    shown = info["endpoints"][:_MAX_VMS_SHOWN]
    if shown:
        output.print_line()
        output.print_facts([(each["vm"], each["url"]) for each in shown])
        if counts["vms"] > len(shown):
            output.print_line(dim(f"  and {counts['vms'] - len(shown)} more"))


def _first_steps(endpoints: list[tuple[str, str]], vms: int) -> list[tuple[str, str]]:
    if not endpoints and vms:
        return [("forewarn fleet show", "show the VMs"), ("forewarn events --watch", "watch their events")]
    if not endpoints:
        return [("forewarn fleet add NAME", "add a VM"), ("forewarn fleet apply FILE", "load a whole fleet")]
    name, url = endpoints[0]
    return [
        (f"curl -H Metadata:true '{url}{_EVENTS_TARGET}'", f"get the events that {name} sees"),
        (f"forewarn restart {name}", "request a restart; the VM gets notice first"),
        (f"forewarn explain {name}", "show what happened to it, and what it waits for"),
    ]


def _clock_text(info: JsonObject) -> str:
    now, speed = posix_seconds(info["now"]), info["speed"]
    ahead_s = now - time.time()
    differences = []
    if abs(ahead_s) >= _MIN_CLOCK_DIFFERENCE_S:
        where = "ahead of" if ahead_s > 0 else "behind"
        differences.append(f"{duration_text(round(abs(ahead_s)))} {where} real time")
    if speed != 1:
        differences.append(f"{speed:g} times as fast as real time" if speed else "stopped")
    if not info["lab"] or not differences:
        return ""
    return f"{clock_time(now, now, dated=True)}, lab time: {', '.join(differences)}"


def _listener_text(at: JsonObject) -> str:
    if "/" in at["address"]:
        return f"their own addresses in {at['address']}, port {at['port']}"
    host = f"[{at['address']}]" if ":" in at["address"] else at["address"]
    return f"http://{host}:{at['port']}"
