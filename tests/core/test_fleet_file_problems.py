"""Every problem of a fleet file, with its line and its remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forewarn.core.fleetfile.problems import FleetFileProblem, InvalidFleetFile
from forewarn.core.fleetfile.reader import read_fleet_file
from forewarn.errors import Rejected

HOSTS = '[[hosts]]\nname = "h"\ncount = 2\n'  # three lines
SAMPLE = Path(__file__).parents[2] / "src/forewarn/service/sample-fleet.toml"


def problems_of(text: str) -> tuple[FleetFileProblem, ...]:
    with pytest.raises(InvalidFleetFile) as caught:
        read_fleet_file(text)
    return caught.value.problems


# Each: the file after HOSTS, the line, words of what is wrong, words of the remedy.
CASES = {
    "address twice": (
        '[[vms]]\nname = "a"\naddress = "10.0.0.4"\n[[vms]]\nname = "b"\naddress = "10.0.0.4"',
        9,
        "address '10.0.0.4' of VM 'b' belongs to VM 'a' already, from line 6",
        "an address of its own",
    ),
    "address of a count twice": (
        '[[vms]]\nname = "a"\ncount = 3\naddress = "10.0.0.4"\n[[vms]]\nname = "b"\naddress = "10.0.0.6"',
        10,
        "belongs to VM 'a-2' already",
        "an address of its own",
    ),
    "one address written in two ways": (
        '[[vms]]\nname = "a"\naddress = "fd00::1"\n[[vms]]\nname = "b"\naddress = "fd00:0::1"',
        9,
        "address 'fd00::1' of VM 'b' belongs to VM 'a'",
        "an address of its own",
    ),
    "no address": ('[[vms]]\nname = "a"\naddress = "10.0.0"', 6, "'10.0.0' is not an IP address", '"10.0.0.4"'),
    "pattern runs out of addresses": (
        '[[vms]]\nname = "a"\ncount = 300\naddress = "10.0.0.{n}"',
        7,
        "'10.0.0.256' is not an IP address",
        "addresses count up from it",
    ),
    "count runs out of addresses": (
        '[[vms]]\nname = "a"\ncount = 2\naddress = "255.255.255.255"',
        7,
        "address '255.255.255.255' ",
        '"10.0.0.4"',
    ),
    "address of the service": (
        '[[vms]]\nname = "a"\naddress = "169.254.169.254"',
        6,
        "a VM cannot have the address '169.254.169.254'",
        '"10.0.0.4"',
    ),
    "101 VMs in a placement group (spec §7.1)": (
        '[[scale_sets]]\nname = "s"\ncount = 101\nplacement_group = "pg"',
        7,
        "placement group 'pg' of scale set 's' has more than 100 VMs",
        "leave out placement_group",
    ),
    "Spot with terminate notification (spec §6.3)": (
        '[[vms]]\nname = "a"\npriority = "Spot"\nterminate_notification = 5',
        7,
        "VM 'a' is Spot, and a Spot VM gets no terminate notification",
        "leave out one of the two",
    ),
    "Spot scale set with terminate notification (spec §6.3)": (
        '[[scale_sets]]\nname = "s"\ncount = 1\npriority = "Spot"\nterminate_notification = 5',
        8,
        "scale set 's' is Spot",
        "leave out one of the two",
    ),
    "Spot scale set, VM with terminate notification": (
        '[[scale_sets]]\nname = "s"\npriority = "Spot"\n'
        '[[vms]]\nname = "a"\nscale_set = "s"\nterminate_notification = 5',
        10,
        "VM 'a' is Spot",
        "leave out one of the two",
    ),
    "availability set and zone (spec §7.1)": (
        '[[availability_sets]]\nname = "db"\n[[vms]]\nname = "a"\navailability_set = "db"\nzone = "1"',
        9,
        "VM 'a' is in an availability set and in a zone",
        "leave out one of the two",
    ),
    "unknown update domain": (
        '[[availability_sets]]\nname = "db"\n[[vms]]\nname = "a"\navailability_set = "db"\nupdate_domain = 5',
        9,
        "availability set 'db' has no update domain 5: it has 5, counted from 0",
        "write update_domain = 4 or less, or update_domains = 6 on line 4",
    ),
    "unknown fault domain": (
        '[[availability_sets]]\nname = "db"\n[[vms]]\nname = "a"\navailability_set = "db"\nfault_domain = 2',
        9,
        "availability set 'db' has no fault domain 2",
        "write fault_domain = 1 or less",
    ),
    "update domain of a VM alone": (
        '[[vms]]\nname = "a"\nupdate_domain = 1',
        6,
        "VM 'a' is in no set and so in update domain 0, not 1",
        "leave out update_domain",
    ),
    "terminate notification too short (spec §6.3)": (
        '[[vms]]\nname = "a"\nterminate_notification = 4',
        6,
        "terminate_notification = 4 is not a whole number of minutes from 5 to 15",
        "write terminate_notification = 5",
    ),
    "terminate notification too long (spec §6.3)": (
        '[[vms]]\nname = "a"\nterminate_notification = 16',
        6,
        "terminate_notification = 16 is not",
        "write terminate_notification = 5",
    ),
    "eviction policy without Spot": (
        '[[vms]]\nname = "a"\neviction_policy = "Delete"',
        6,
        "VM 'a' has an eviction policy but is not Spot",
        'write priority = "Spot" as well',
    ),
    "in a set and in a service": (
        '[[availability_sets]]\nname = "x"\n[[cloud_services]]\nname = "y"\nroles = [{ name = "R" }]\n'
        '[[vms]]\nname = "a"\navailability_set = "x"\ncloud_service = "y"',
        12,
        "VM 'a' is in more than one set or service: availability_set, cloud_service",
        "keep one of them",
    ),
    "name twice in a group, without case": (
        '[[vms]]\nname = "web"\n[[vms]]\nname = "WEB"',
        7,
        "resource group 'fleet' has a VM 'WEB' already, from line 5",
        "another name or resource_group",
    ),
    "name empty": ('[[vms]]\nname = ""', 5, "the VM name '' is empty", '"web-{n}"'),
    "name too long": (
        f'[[vms]]\nname = "{"x" * 65}"',
        5,
        "is 65 characters long, but the limit is 64",
        "up to 64 characters",
    ),
    "name too long once counted": (
        f'[[vms]]\nname = "{"x" * 62}"\ncount = 11',
        5,
        "is 65 characters long, but the limit is 64",
        "up to 64 characters",
    ),
    "name with a slash": ('[[vms]]\nname = "a/b"', 5, "the VM name 'a/b' contains a slash", "without slashes"),
    "name with a control character": (
        '[[vms]]\nname = "a\\u0007b"',
        5,
        "contains a control character",
        "such as",
    ),
    "braces that are no number": ('[[vms]]\nname = "a-{x}"', 5, "has braces other than {n}", '"web-{n:03}"'),
    "braces in a host": ('[[vms]]\nname = "a"\nhost = "h-{m}"', 6, "host 'h-{m}' has braces", "write {n}"),
    "braces in a set": (
        '[[scale_sets]]\nname = "s{n}"\ncount = 1',
        5,
        "the name 's{n}' contains braces",
        "a plain name",
    ),
    "host unknown": (
        '[[vms]]\nname = "a"\nhost = "h_1"',
        6,
        "host 'h_1' of VM 'a' is not declared",
        "did you mean 'h-1'?",
    ),
    "host twice": ('[[hosts]]\nname = "H-1"', 5, "host 'H-1' is declared again, first on line 2", "a name of its own"),
    "host in another location": (
        '[[vms]]\nname = "a"\nlocation = "moon"\nhost = "h-0"',
        7,
        "host 'h-0' is in location 'local', no zone, but VM 'a' is in location 'moon', no zone",
        "name a host of the same location and zone",
    ),
    "host in another zone": (
        '[[vms]]\nname = "a"\nzone = "2"\nhost = "h-0"',
        7,
        "but VM 'a' is in location 'local', zone '2'",
        "name a host of the same location and zone",
    ),
    "no host where the VM is": (
        '[[vms]]\nname = "a"\nzone = "1"',
        6,
        "VM 'a' has no host to run on: there is no host in location 'local', zone '1'",
        "declare some with [[hosts]]",
    ),
    "one scope in two locations": (
        '[[hosts]]\nname = "m"\nlocation = "moon"\n[[availability_sets]]\nname = "db"\n'
        '[[vms]]\nname = "a"\navailability_set = "db"\n'
        '[[vms]]\nname = "b"\navailability_set = "db"\nlocation = "moon"',
        15,
        "VM 'b' is in location 'moon', but VM 'a' of the same set is in 'local'",
        "the same location for all VMs of a set",
    ),
    "count of none": ('[[vms]]\nname = "a"\ncount = 0', 6, "count = 0 is not a whole number from 1", "write count = 3"),
    "count too large": (
        '[[vms]]\nname = "a"\ncount = 1000001',
        6,
        "is not a whole number from 1 to 1,000,000",
        "write",
    ),
    "unknown availability set": (
        '[[availability_sets]]\nname = "database"\n[[vms]]\nname = "a"\navailability_set = "databse"',
        8,
        "availability set 'databse' is not declared",
        "did you mean 'database'?",
    ),
    "unknown scale set": (
        '[[vms]]\nname = "a"\nscale_set = "s"',
        6,
        "scale set 's' is not declared",
        "declare it with [[scale_sets]]",
    ),
    "a set of another resource group": (
        '[[availability_sets]]\nname = "db"\nresource_group = "x"\n'
        '[[vms]]\nname = "a"\nresource_group = "y"\navailability_set = "db"',
        10,
        "availability set 'db' is not declared in the VM's resource group",
        "it is in resource group 'x'",
    ),
    "auto-approval inside a set (spec §9)": (
        '[[availability_sets]]\nname = "db"\n[[vms]]\nname = "a"\navailability_set = "db"\nauto_approve = ["restart"]',
        9,
        "VM 'a' is in availability set 'db' and has no auto_approve of its own",
        "move auto_approve to the availability set, line 4",
    ),
    "scale set of nothing": ('[[scale_sets]]\nname = "s"', 5, "scale set 's' has no VM", "write count = 3"),
    "service of nothing": ('[[cloud_services]]\nname = "s"', 5, "has no VM", "add [[cloud_services.roles]]"),
    "set declared again": (
        '[[availability_sets]]\nname = "db"\n[[availability_sets]]\nname = "DB"',
        7,
        "availability set 'DB' is declared again, first on line 5",
        "another name",
    ),
    "group declared again": (
        '[[resource_groups]]\nname = "g"\n[[resource_groups]]\nname = "G"',
        7,
        "resource group 'G' is declared again, first on line 5",
        "keep one of them",
    ),
    "placement group without scale set": (
        '[[vms]]\nname = "a"\nplacement_group = "pg"',
        6,
        "VM 'a' has a placement group but no scale set",
        "write scale_set as well",
    ),
    "zone and zones": (
        '[[vms]]\nname = "a"\nhost = "h-0"\nzone = "1"\nzones = ["1"]',
        8,
        "VM 'a' has both zone and zones",
        "keep one of them",
    ),
    "unknown subscription": (
        '[[vms]]\nname = "a"\nsubscription = "prod"',
        6,
        "subscription 'prod' is not declared",
        "write its id (a GUID)",
    ),
    "unknown key": (
        '[[vms]]\nname = "a"\navaliability_set = "x"',
        6,
        "[[vms]] has no key 'avaliability_set'",
        "did you mean 'availability_set'?",
    ),
    "unknown key like no other": (
        '[[vms]]\nname = "a"\nqqq = 1',
        6,
        "[[vms]] has no key 'qqq'",
        "the known keys are name, ",
    ),
    "unknown table": ("[[vm]]", 4, "a fleet file has no key 'vm'", "did you mean 'vms'?"),
    "key of a role": (
        '[[cloud_services]]\nname = "s"\n[[cloud_services.roles]]\nname = "R"\ncuont = 2',
        8,
        "[[cloud_services.roles]] has no key 'cuont'",
        "did you mean 'count'?",
    ),
    "number for a text": ('[[vms]]\nname = "a"\nzone = 1', 6, "zone = 1 is not text in quotes", 'write zone = "1"'),
    "truth for a number": (
        '[[vms]]\nname = "a"\ncount = true',
        6,
        "count = True is not a whole number",
        "write count = 3",
    ),
    "no such priority": (
        '[[vms]]\nname = "a"\npriority = "Low"',
        6,
        'is not "Regular" or "Spot"',
        'write priority = "Spot"',
    ),
    "tags that are no texts": ('[[vms]]\nname = "a"\ntags = { n = 1 }', 6, "is not a table of texts", "write tags = {"),
    "approval of an unknown operation": (
        '[[vms]]\nname = "a"\nauto_approve = ["freeze"]',
        6,
        'is not a list of "restart", "redeploy" or both',
        'write auto_approve = ["restart", "redeploy"]',
    ),
    "no name": ('[[vms]]\nsize = "x"', 4, "[[vms]] has no name", 'write name = "web-{n}" below it'),
    "table for a list of tables": ('[vms]\nname = "a"', 4, "vms is not a list of tables", "write [[vms]]"),
    "list of tables for a table": ('[[defaults]]\nsize = "x"', 4, "defaults is not a table", "write [defaults] once"),
    "long number": (
        f'[[vms]]\nname = "a"\ncount = 0x{"f" * 9999}',
        6,
        "the number has too many digits",
        "correct that",
    ),
    "long text": (
        f'[[vms]]\nname = "a"\nzone = "{"1" * 801}"',
        6,
        "is not text in quotes, not empty and",
        "write zone",
    ),
    "infinite number": ('[[vms]]\nname = "a"\ncount = inf', 6, "count: the number is not finite", "correct that line"),
    "long key": (f'[[vms]]\nname = "a"\ntags{".a" * 3000} = "x"', 6, "a key has more than 16 parts", "correct that"),
    "not TOML": ('[[vms]]\nname = "a\n', 5, "this is not TOML", "correct that line"),
    "key twice": ('[[vms]]\nname = "a"\nname = "b"', 6, "this is not TOML", "correct that line"),
}


@pytest.mark.parametrize(("text", "line", "what", "remedy"), CASES.values(), ids=CASES.keys())
def test_a_problem_has_its_line_and_a_remedy(text: str, line: int, what: str, remedy: str) -> None:
    found = problems_of(HOSTS + text)
    assert len(found) == 1, [problem.sentence("f") for problem in found]
    assert found[0].line == line
    assert what in found[0].message
    assert remedy in found[0].remedy


def test_all_problems_are_reported_together_in_the_order_of_their_lines() -> None:
    texts = [
        '[[vms]]\nname = "a"\nzone = 1',
        '[[vms]]\nname = "b"\npriority = "Spot"\nterminate_notification = 5',
        '[[vms]]\nname = "c"\nhost = "nowhere"\nsise = "x"',
        '[[vms]]\nname = "d"\naddress = "x"',
    ]
    assert [problem.line for problem in problems_of(HOSTS + "\n".join(texts))] == [6, 10, 13, 14, 17]


def test_the_error_message_has_one_sentence_per_problem() -> None:
    with pytest.raises(Rejected) as caught:
        read_fleet_file('[[vms]]\nname = "a"\ncount = 0\nsise = "x"', source="lab.toml")
    assert str(caught.value).splitlines() == [
        "lab.toml:2: VM 'a' has no host to run on: there is no host in location 'local', no zone: "
        "declare some with [[hosts]], or change the location or zone of one of the two",
        "lab.toml:3: count = 0 is not a whole number from 1 to 1,000,000: write count = 3",
        "lab.toml:4: [[vms]] has no key 'sise': did you mean 'size'?",
    ]


def test_the_same_mistake_of_many_vms_is_reported_once() -> None:
    found = problems_of(HOSTS + '[[vms]]\nname = "a"\ncount = 1000\n[[vms]]\nname = "a-{n}"\ncount = 1000')
    assert [problem.line for problem in found] == [8]


@pytest.mark.parametrize(
    "broken",
    [
        '[[availability_sets]]\nname = 5\n[[vms]]\nname = "a"\navailability_set = "db"\nupdate_domain = 2',
        '[[availability_sets]]\nname = "db"\nlocation = 5\n[[vms]]\nname = "a"\navailability_set = "db"',
        '[[vms]]\nname = "a"\navailability_set = 5\nupdate_domain = 3',
        '[[scale_sets]]\nname = "s"\ncount = "many"',
        '[[hosts]]\nname = "z"\nzone = 1\n[[vms]]\nname = "a"\nzone = "1"',
    ],
    ids=["set without name", "set without location", "no set", "no count", "host without zone"],
)
def test_one_mistake_is_reported_as_one_problem_without_its_consequences(broken: str) -> None:
    assert len(problems_of(HOSTS + broken)) == 1


@pytest.mark.parametrize("text", ["a = " + "[" * 5000, "a = " + "9" * 5000, "\x00", "a = 1979-99-99", "="])
def test_invalid_toml_is_reported_as_a_problem(text: str) -> None:
    assert len(problems_of(text)) == 1


TABLES = [
    "[[vms]]",
    "[vms]",
    "[[hosts]]",
    "[[scale_sets]]",
    "[[cloud_services]]",
    "[[cloud_services.roles]]",
    "[defaults]",
]
KEYS = [
    "name",
    "count",
    "zone",
    "zones",
    "address",
    "host",
    "roles",
    "tags",
    "update_domain",
    "scale_set",
    "first",
    "x",
]
TEXTS = ['"a"', '"a-{n}"', '"{"', '"10.0.0.{n}"', '""']
VALUES = [*TEXTS, "3", "0", "-1", "true", "[]", '["1"]', "{}", '{ a = "b" }', "1.5"]
PAIRS = st.builds("{} = {}".format, st.sampled_from(KEYS), st.sampled_from(VALUES))


def problems_if_any(text: str) -> tuple[FleetFileProblem, ...]:
    """The problems of a text, none if it is a valid fleet. Any error but InvalidFleetFile is a crash."""
    try:
        read_fleet_file(text)
    except InvalidFleetFile as bad:
        return bad.problems or (FleetFileProblem(line=0, message="refused", remedy="without a reason"),)
    return ()


@given(st.lists(st.sampled_from(TABLES) | PAIRS))
@settings(max_examples=300, deadline=None)
def test_reading_any_file_gives_a_fleet_or_a_list_of_problems(lines: list[str]) -> None:
    found = problems_if_any("\n".join(lines))
    assert all(1 <= problem.line <= len(lines) for problem in found)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_a_random_change_of_a_valid_file_never_crashes_the_reader(data: st.DataObject) -> None:
    text = SAMPLE.read_text(encoding="utf-8")
    at = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(at, min(len(text), at + 12)))
    changed = text[:at] + data.draw(st.text("abn{}[]=\",.-_ \n#'", max_size=6)) + text[end:]
    assert all(1 <= problem.line <= changed.count("\n") + 1 for problem in problems_if_any(changed))
