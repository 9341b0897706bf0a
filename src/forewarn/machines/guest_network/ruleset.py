"""The nftables rules of `forewarn network`: two tables of fixed rules, with VMs in their sets. Pure.

The tables have a name of their own, and one `nft -f` replaces both. All that depends on VMs is in sets and maps, so
that the rules can be compared with those that were loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

METADATA_ADDRESS = "169.254.169.254"  # spec §2.1
TABLE = "forewarn_network"
BRIDGE, IP = "bridge", "ip"  # families of nftables
FAMILIES = (BRIDGE, IP)
# Tables of docs/how-to/network, which an operator may have loaded by hand.
HAND_MADE_TABLES = frozenset({(BRIDGE, "forewarn_marks"), (BRIDGE, "forewarn_guard"), (IP, "forewarn_taps")})

Element: TypeAlias = "tuple[str | int, ...]"  # the parts of a set's element; a device comes first
SetElements: TypeAlias = "Mapping[str, frozenset[Element]]"  # by the name of the set
MARKS = "marks"  # the only map: device → mark

_RULES = {
    BRIDGE: """table bridge forewarn_network {
	map marks {
		type ifname : mark
%(marks)s	}

	set ports {
		type ifname
%(ports)s	}

	set macs {
		type ifname . ether_addr
%(macs)s	}

	set addressed {
		type ifname
%(addressed)s	}

	set addresses {
		type ifname . ipv4_addr
%(addresses)s	}

	chain prerouting {
		type filter hook prerouting priority -300; policy accept;
		iifname @ports jump from_vm
	}

	# A VM uses its own MAC and addresses, is no DHCP server, and has no link-local address.
	chain from_vm {
		ether type { 8021q, 8021ad } drop
		iifname . ether saddr != @macs drop
		ether type arp iifname . arp saddr ether != @macs drop
		ether type arp arp saddr ip 0.0.0.0 accept
		ether type arp arp saddr ip 169.254.0.0/16 drop
		ether type arp iifname @addressed iifname . arp saddr ip != @addresses drop
		ether type ip udp sport 67 drop
		ether type ip ip saddr 0.0.0.0 udp dport 67 accept
		ether type ip ip saddr 169.254.0.0/16 drop
		ether type ip iifname @addressed iifname . ip saddr != @addresses drop
		ether type ip ip daddr 169.254.169.254 meta mark set iifname map @marks
	}

	chain forward {
		type filter hook forward priority -200; policy accept;
		iifname @ports jump between_ports
		oifname @ports jump between_ports
	}

	# Between the ports of a bridge the metadata address does not exist: no ARP and no packets.
	chain between_ports {
		ether type arp arp saddr ip 169.254.0.0/16 drop
		ether type arp arp daddr ip 169.254.0.0/16 drop
		ether type ip ip saddr 169.254.0.0/16 drop
		ether type ip ip daddr 169.254.0.0/16 drop
	}
}
""",
    IP: """table ip forewarn_network {
	map marks {
		type ifname : mark
%(marks)s	}

	set served {
		type ifname
%(served)s	}

	set taps {
		type ifname
%(taps)s	}

	set with_mac {
		type ifname
%(with_mac)s	}

	set macs {
		type ifname . ether_addr
%(macs)s	}

	set addressed {
		type ifname
%(addressed)s	}

	set addresses {
		type ifname . ipv4_addr
%(addresses)s	}

	# Not tracked: connections of two VMs may be equal in everything but the device.
	chain prerouting {
		type filter hook prerouting priority -300; policy accept;
		iifname @taps jump from_vm
		iifname @served ip daddr 169.254.169.254 notrack
	}

	# The mark routes a refusal (RST) back to the tap. ARP needs no rule: each tap has its own neighbours.
	chain from_vm {
		iifname @with_mac iifname . ether saddr != @macs drop
		udp sport 67 drop
		ip saddr 0.0.0.0 udp dport 67 accept
		ip saddr 169.254.0.0/16 drop
		iifname @addressed iifname . ip saddr != @addresses drop
		ip daddr 169.254.169.254 meta mark set iifname map @marks
	}

	chain output {
		type filter hook output priority -300; policy accept;
		oifname @served ip saddr 169.254.169.254 notrack
	}

	chain forward {
		type filter hook forward priority 0; policy accept;
		iifname @served jump link_local
		oifname @served jump link_local
	}

	chain link_local {
		ip saddr 169.254.0.0/16 drop
		ip daddr 169.254.0.0/16 drop
	}
}
""",
}


def render_ruleset(elements: Mapping[str, SetElements]) -> str:
    """Return the input for one `nft -f` that replaces both our tables, with these elements in their sets."""
    replaced = "".join(f"table {family} {TABLE}\ndelete table {family} {TABLE}\n" for family in FAMILIES)
    tables = (
        _RULES[family] % {name: _render_elements(name, values) for name, values in elements[family].items()}
        for family in FAMILIES
    )
    return replaced + "\n" + "\n".join(tables)


def render_removal(families: Iterable[str]) -> str:
    """Return the input for one `nft -f` that deletes our tables of these families (`bridge`, `ip`)."""
    return "".join(f"delete table {family} {TABLE}\n" for family in families)


def _render_elements(name: str, values: Iterable[Element]) -> str:
    texts = [_render_element(name, value) for value in sorted(values)]
    return "\t\telements = { " + ",\n\t\t             ".join(texts) + " }\n" if texts else ""


def _render_element(name: str, value: Element) -> str:
    device, *rest = value
    if name == MARKS:
        return f'"{device}" : {rest[0]:#x}'
    return " . ".join([f'"{device}"', *map(str, rest)])


def read_elements(listing: Iterable[Mapping[str, Any]]) -> dict[str, frozenset[Element]]:
    """Return the elements of a table's sets and maps, by name, from the JSON of `nft -j list table`."""
    found = {}
    for item in listing:
        for kind in ("set", "map"):
            if kind in item:
                found[item[kind]["name"]] = frozenset(map(_read_element, item[kind].get("elem", ())))
    return found


def _read_element(value: Any) -> Element:
    if isinstance(value, dict) and "concat" in value:
        return tuple(value["concat"])
    return tuple(value) if isinstance(value, list) else (value,)


def fixed_part(listing: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the listing without handles, elements and metainfo, so that listings of the same rules are equal."""
    kept = []
    for item in listing:
        if "metainfo" not in item:
            ((kind, value),) = item.items()
            kept.append({kind: {key: part for key, part in value.items() if key not in ("handle", "elem")}})
    return kept
