"""The network of a lab with taps: a namespace per host, with a tap per VM. Needs root."""

from __future__ import annotations

import subprocess
from contextlib import suppress

from forewarn.errors import Rejected
from forewarn.lab.vms.layout import GUESTS, HOSTS, VmLab, guest_address, tap_name
from forewarn.metadata.listeners import METADATA_ADDRESS

# The same on every host: a guest that has moved still has it in its ARP table.
_TAP_MAC = "12:34:56:78:9a:bc"


def create_network(lab: VmLab) -> None:
    """Create a network namespace per host and, in each, a tap per VM and the metadata address."""
    remove_network(lab)
    for host in HOSTS:
        namespace = lab.namespace(host)
        _ip("netns", "add", namespace)
        _ip("-n", namespace, "link", "set", "lo", "up")
        _ip("-n", namespace, "address", "add", f"{METADATA_ADDRESS}/32", "dev", "lo")
        _disable_reverse_path_filter(namespace)
        for number, vm in enumerate(GUESTS):
            tap = tap_name(vm)
            _ip("-n", namespace, "tuntap", "add", tap, "mode", "tap")
            _ip("-n", namespace, "link", "set", tap, "address", _TAP_MAC, "up")
            gateway = guest_address(number).rpartition(".")[0] + ".1"
            _ip("-n", namespace, "address", "add", f"{gateway}/24", "dev", tap)


def remove_network(lab: VmLab) -> None:
    """Remove the network namespaces of both hosts with their taps; ignores all failures of `ip`."""
    for host in HOSTS:
        with suppress(FileNotFoundError):
            subprocess.run(["ip", "netns", "delete", lab.namespace(host)], capture_output=True, check=False)


def _disable_reverse_path_filter(namespace: str) -> None:
    """Let the kernel answer for the metadata address on taps, whose networks do not contain it."""
    command = "for f in all default; do echo 0 > /proc/sys/net/ipv4/conf/$f/rp_filter; done"
    _run("ip", "netns", "exec", namespace, "sh", "-c", command)


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise Rejected(
            f"`ip` cannot be run ({error.strerror}): install iproute2, or use --slirp, which needs no taps"
        ) from error
    if done.returncode != 0:
        raise Rejected(
            f"`{' '.join(command)}` failed ({done.stderr.strip()}): use --slirp, which needs no taps and no root"
        )
