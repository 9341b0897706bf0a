"""Problems of options are reported with a remedy."""

from __future__ import annotations

from typing import Any

import pytest

from forewarn.agent.reactions import REACTIONS
from forewarn.base.tomlfile import BadValue

MAIL = {"server": "mail.example.org", "from": "a@b.c", "to": ["d@e.f"]}
MISTAKES: list[Any] = [
    ("command", {}, 'run is missing: write run = ["/usr/local/bin/prepare"]'),
    ("command", {"run": []}, 'run = [] is not a command: write run = ["program", "argument"]'),
    ("command", {"run": ["a", 1]}, 'run = [\'a\', 1] is not a command: write run = ["program", "argument"]'),
    ("command", {"run": "a", "undo": " "}, 'undo = \' \' is not a command: write undo = ["program", "argument"]'),
    ("checkpoint", {}, 'save is missing: write save = ["/usr/local/bin/save"]'),
    (
        "checkpoint",
        {"save": "x", "directory": "a"},
        "directory = 'a' is not an absolute path: write directory = \"/…\"",
    ),
    ("drain-haproxy", {"servers": "a/b"}, 'socket is missing: write socket = "/run/haproxy/admin.sock"'),
    (
        "drain-haproxy",
        {"socket": "x"},
        "socket = 'x' is neither a path nor host:port: write socket = \"/run/haproxy/admin.sock\"",
    ),
    ("drain-haproxy", {"socket": "/x"}, 'servers is missing: write servers = ["web/web-0"]'),
    (
        "drain-haproxy",
        {"socket": "/x", "servers": []},
        'servers = [] is not a list of strings: write servers = ["web/web-0"]',
    ),
    (
        "drain-haproxy",
        {"socket": "/x", "servers": "a/b; x"},
        "'a/b; x' is not backend/server: write servers = [\"web/web-0\"]",
    ),
    (
        "drain-haproxy",
        {"socket": "/x", "servers": "a/b", "wait": 1},
        "wait = 1 is neither true nor false: write wait = true",
    ),
    ("readiness", {"ports": [0]}, "ports = [0] is not a list of numbers: write numbers from 1 to 65535"),
    ("readiness", {"notice": "soon"}, "notice = 'soon' is not a duration: write notice = \"20s\""),
    ("failover-patroni", {"url": "db:8008"}, "url = 'db:8008' is not a URL: write url = \"https://host/path\""),
    ("failover-patroni", {"url": "http://u:p@db"}, "url contains a password: put it into a file and give that file"),
    ("failover-patroni", {"user": "ops"}, "user and password_file need each other: write both, or neither"),
    ("leave-pool", {}, 'leave is missing: write leave = { method = "DELETE", url = "https://…/$vm" }'),
    ("leave-pool", {"leave": "x"}, "leave = 'x' is not a table: write leave = { … }"),
    ("leave-pool", {"leave": {}}, 'in leave, url is missing: write url = "https://…"'),
    (
        "leave-pool",
        {"leave": {"url": "http://a", "methud": "x"}},
        "in leave, methud is unknown: write one of method, url, headers, header_files, body, expect",
    ),
    (
        "leave-pool",
        {"leave": {"url": "http://a/$vmm"}},
        "in leave, url has an unknown placeholder: write $vm, $event_id, $kind, $phase, $step, or $$ for a dollar",
    ),
    (
        "leave-pool",
        {"leave": {"url": "http://a", "body": {"x": ["$"]}}},
        "in leave, body has an unknown placeholder: write $vm, $event_id, $kind, $phase, $step, or $$ for a dollar",
    ),
    (
        "leave-pool",
        {"leave": {"url": "http://a", "method": "LIST"}},
        "in leave, method = 'LIST' is unknown: write one of GET, POST, PUT, PATCH, DELETE",
    ),
    (
        "leave-pool",
        {"leave": {"url": "http://a", "headers": {"A": "b\r\nC: d"}}},
        "in leave, 'A' is not a valid header: write one line of plain text",
    ),
    (
        "leave-pool",
        {"leave": {"url": "http://a", "headers": {"A": 1}}},
        'in leave, A = 1 in headers is not a string: write A = "…"',
    ),
    ("log", {"file": "x"}, "file = 'x' is not an absolute path: write file = \"/…\""),
    ("webhook", {}, 'url is missing: write url = "https://host/path"'),
    ("webhook", {"url": "ftp://x"}, "url = 'ftp://x' is not a URL: write url = \"https://host/path\""),
    ("mail", {**MAIL, "server": "x:y"}, "server = 'x:y' is not host or host:port: write server = \"mail.example.org\""),
    ("mail", {**MAIL, "to": ["a b"]}, "'a b' is not a mail address: write to = \"name@example.org\""),
    ("mail", {**MAIL, "from": "a@b>\r\nX"}, "'a@b>\\r\\nX' is not a mail address: write from = \"name@example.org\""),
    (
        "mail",
        {**MAIL, "security": "ssl"},
        'security = \'ssl\' is not one of the choices: write one of "starttls", "tls", "none"',
    ),
    (
        "mail",
        {**MAIL, "security": "none", "user": "a", "password_file": "/x"},
        'the password would be sent unencrypted: write security = "starttls"',
    ),
    ("stop-units", {}, 'units is missing: write units = ["worker.service"]'),
    ("stop-units", {"units": ["--now"]}, "'--now' is not a unit's name: write units = [\"worker.service\"]"),
    ("stop-units", {"units": ["*"]}, "'*' is not a unit's name: write units = [\"worker.service\"]"),
    (
        "stop-units",
        {"units": ["forewarn-agent"]},
        "'forewarn-agent' is the agent itself: remove it: nothing would start it again",
    ),
    ("stop-processes", {}, 'the processes are not specified: write pid_file = "/run/app.pid", or exe, or command'),
    (
        "stop-processes",
        {"pid_file": "/x", "exe": "/y"},
        "pid_file excludes exe, command and user: remove those, or pid_file",
    ),
    (
        "stop-processes",
        {"exe": "/x", "user": "no such"},
        "the user 'no such' does not exist: write the name of an existing user",
    ),
    ("stop-processes", {"exe": "/x", "grace": -1}, 'grace = -1 is not a duration: write grace = "20s"'),
]


@pytest.mark.parametrize(("use", "options", "says"), MISTAKES)
def test_a_problem_is_reported_with_its_remedy(use: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(BadValue) as error:
        REACTIONS[use].read(options)
    assert str(error.value) == says
    assert error.value.key in ("", *REACTIONS[use].options)


WELL: list[Any] = [
    ("command", {"run": ["a", "b"], "undo": "x | y", "check": ["c"]}),
    ("checkpoint", {"save": ["a"], "restore": ["b"], "check": ["c"], "directory": "/mnt"}),
    ("drain-haproxy", {"socket": "127.0.0.1:9999", "servers": ["web/{vm}"], "wait": True}),
    ("readiness", {"file": "/run/x", "notice": "5s", "ports": [80]}),
    (
        "failover-patroni",
        {
            "url": "https://db:8008",
            "user": "a",
            "password_file": "/x",
            "ca_file": "/ca",
            "candidate": "b",
            "return_leadership": True,
        },
    ),
    (
        "leave-pool",
        {
            "leave": {"url": "https://a/$vm", "method": "delete"},
            "back": {"url": "https://a"},
            "wait": {"url": "https://a", "expect": 404, "every": "1s"},
            "wait_back": {"url": "https://a", "contains": "in"},
            "ca_file": "/ca",
        },
    ),
    ("log", {"file": "/x", "journal": "/y"}),
    ("webhook", {"url": "https://a/b", "secret_file": "/x", "ca_file": "/y"}),
    ("mail", {**MAIL, "security": "tls", "user": "a", "password_file": "/x", "ca_file": "/y"}),
    ("stop-units", {"units": ["a.service", "b@1.service"], "user": False}),
    ("stop-processes", {"exe": "/x", "command": ["x", "y"], "user": "root", "grace": 5, "start": ["z"]}),
    ("stop-processes", {"pid_file": "/x"}),
]


@pytest.mark.parametrize(("use", "options"), WELL)
def test_valid_options_are_accepted(use: str, options: dict[str, Any]) -> None:
    kind = REACTIONS[use]
    assert kind.make(kind.read(options))
    assert set(options) <= set(kind.options)


def test_the_tables_above_cover_every_option_of_every_reaction() -> None:
    make_reaction = {(use, name) for use, options in WELL for name in options}
    assert {(use, name) for use, kind in REACTIONS.items() for name in kind.options} == make_reaction


@pytest.mark.parametrize(("given", "seconds"), [("1h30m", 5400), ("20s", 20), ("500ms", 0.5), ("90", 90), (2.5, 2.5)])
def test_durations_have_the_usual_format(given: object, seconds: float) -> None:
    assert REACTIONS["readiness"].read({"notice": given}).notice_s == seconds
