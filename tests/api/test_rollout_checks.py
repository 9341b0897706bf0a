"""Health checks of rollouts over the API and the command line (spec §13.4, §13.5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.fake_prober import FakeProber

HANDLERS = {"name": "handlers", "figure": "vms-without-handler"}
ACTS = {"name": "acts", "figure": "failed-acts", "interval_s": 30}


def test_a_rollout_shows_its_checks_and_what_they_found(api: Any) -> None:
    started = api.post("/rollouts", {"impact": "update", "hosts": ["h1"], "checks": [ACTS]})
    shown = api.get(f"/rollouts/{started['id']}/checks")
    assert shown["unclear"] == ""
    (check,) = shown["checks"]
    assert (check["name"], check["kind"], check["demand"]) == ("acts", "figure", "failed-acts == 0")
    assert (check["interval_s"], check["bad_limit"], check["error_limit"]) == (30, 1, 3)
    assert [m["outcome"] for m in shown["measurements"]] == [check["outcome"]] * len(shown["measurements"])


def test_checks_are_tried_without_starting_a_rollout(api: Any) -> None:
    tried = api.post("/rollouts/check", {"hosts": ["h1"], "checks": [ACTS, HANDLERS]})
    assert [(check["name"], check["outcome"]) for check in tried["checks"]] == [("acts", "good"), ("handlers", "bad")]
    assert api.get("/rollouts")["rollouts"] == []


@pytest.mark.parametrize(
    ("check", "problem"),
    [
        ({"name": "x"}, "check 'x' asks nothing: give one of prometheus, http, command and figure"),
        ({"name": "x", "http": "http://a", "figure": "failed-acts"}, "check 'x' asks http and figure: give one of"),
        ({"name": "x", "figure": "failed-acts", "condition": "few"}, "check 'x': 'few' is not a condition"),
        ({"name": "x", "prometheus": "http://p.example"}, "check 'x' asks Prometheus and has no 'query': give one"),
        ({"name": "x", "command": ["/bin/true"]}, "check 'x' is a command, which this service does not run"),
        ({"name": "x", "http": "http://169.254.169.254/"}, "which the setting 'local_targets' does not allow"),
    ],
)
def test_a_check_that_cannot_be_used_is_refused_and_nothing_is_started(
    api: Any, check: dict[str, Any], problem: str
) -> None:
    answer = api.call("POST", "/rollouts", {"hosts": ["h1"], "checks": [check]})
    assert answer.status in (400, 409, 422)
    assert problem in answer.json["error"]["message"]
    assert api.get("/rollouts")["rollouts"] == []


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (
            "name = 'x'\nfigure = 'failed-acts'\ncondition = 'few'",
            "line 6 of the rollout file: 'few' is not a condition",
        ),
        ("name = 'x'\nfigure = 'mood'", "line 5 of the rollout file: the figure 'mood' is not known"),
        (
            "name = 'x'\nfigure = 'failed-acts'\ninterval = '1s'",
            "line 6 of the rollout file: check 'x' has the interval",
        ),
        ("name = 'x'\nfigure = 'failed-acts'\ntimeout = '9h'", "line 6 of the rollout file: check 'x' has the timeout"),
        ("bad_limit = 0\nname = 'x'\nfigure = 'failed-acts'", "line 4 of the rollout file: check 'x' has bad_limit 0"),
        ("name = 'x'\nhttp = 'ftp://a'", "line 5 of the rollout file: check 'x' has the address 'ftp://a'"),
        ("name = 'x'\nhttp = 'http://a'\nstatus = 7", "line 6 of the rollout file: check 'x' expects status 7"),
        ("name = 'x'\nhttp = 'http://a'\nexit = 1", "line 6 of the rollout file: check 'x' asks an HTTP server, which"),
        ("name = 'x'\nprometheus = 'http://a'", "line 3 of the rollout file: check 'x' asks Prometheus and has no"),
        (
            "name = 'x'\nhttp = 'http://a'\nfigure = 'failed-acts'",
            "line 6 of the rollout file: check 'x' asks http and",
        ),
        (
            "name = 'x'\nfigure = 'failed-acts'\n[[checks]]\nname = 'X'\nfigure = 'failed-acts'",
            "line 7 of the rollout file: two checks have the name",
        ),
        ("figure = 'failed-acts'", "line 3 of the rollout file: a check has no name"),
        ("name = 'x'\nfigure = 'failed-acts'\ninterval = 'often'", "line 6 of the rollout file: interval: 'often'"),
        ("name = 'x'\nurl = 'http://a'", "line 5 of the rollout file: 'url' is not a key of [checks]"),
    ],
)
def test_a_wrong_check_in_a_rollout_file_is_refused_with_its_line(api: Any, lines: str, problem: str) -> None:
    answer = api.call("POST", "/rollouts", {"file": f"[rollout]\nhosts = ['h1']\n[[checks]]\n{lines}\n"})
    assert problem in answer.json["error"]["message"]
    assert api.get("/rollouts")["rollouts"] == []


@pytest.mark.parametrize(
    "body",
    [
        {"hosts": ["h1"], "checks": [{"name": "smoke", "command": ["/bin/true"]}]},
        {"file": "[rollout]\nhosts = ['h1']\n[[checks]]\nname = 'smoke'\ncommand = ['/bin/true']\n"},
    ],
    ids=["fields", "file"],
)
def test_only_an_administrator_may_let_the_service_run_commands(
    api_of: Callable[..., Any], body: dict[str, Any]
) -> None:
    prober = FakeProber()
    api = api_of(prober=prober)
    platform = api.holding("Platform", "/")
    for path in ("/rollouts", "/rollouts/check", "/rollouts/plan", "/rollouts/preview"):
        status, code, message = platform.refused("POST", path, body)
        assert (status, code) == (403, "Forbidden")
        assert "run programs on the service's machine, such as the command of check 'smoke'" in message
    assert prober.asked == []
    assert api.get("/rollouts")["rollouts"] == []
    tried = api.holding("Administrator", "/").post("/rollouts/check", body)
    assert [check["outcome"] for check in tried["checks"]] == ["good"]


DIGITS = "9" * 5000


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"everything": True, "canary": DIGITS[:500]}, "a canary with 500 digits is too large: give at most 9 digits"),
        ({"everything": True, "canary": DIGITS}, "canary: Expected 'str' of length <= 800"),
        ({"everything": True, "max_failures": 10**10}, "max_failures: Expected 'int' <= 1000000000"),
        ({"everything": True, "shares": [1e-300]}, "has a share of 1e-300 %: give 0.01 to 100"),
        ({"everything": True, "checks": [ACTS | {"condition": "< 1e999"}]}, "'< 1e999' is not a condition"),
        (
            {"everything": True, "waves": [{"name": "all", "vms": 10**9}]},
            "the VMs of wave 'all' are too many: give a number of at most 9 digits",
        ),
        (
            {"file": f"[rollout]\neverything = true\n[[waves]]\nvms = {DIGITS}\n"},
            "line 4 of the rollout file: a number has too many digits",
        ),
        (
            {"file": f"[rollout]\neverything = true\nmax_failures = 0x{'f' * 100_000}\n"},
            "line 3 of the rollout file: max_failures: the number has too many digits",
        ),
        (
            {"file": "[rollout]\neverything = true\nmax_failures = 10000000000\n"},
            "line 3 of the rollout file: max_failures is 10000000000, which is not possible",
        ),
        (
            {"file": "[rollout]\neverything = true\n[[waves]]\nshare = inf\n"},
            "line 4 of the rollout file: share: the number is not finite",
        ),
        (
            {"file": "[rollout]\neverything = true\n[[waves]]\nshare = 1e-300\n"},
            "line 4 of the rollout file: wave 'canary' has a share of 1e-300 %",
        ),
        (
            {"file": f"[rollout]\neverything = true\n[[waves]]\nvms = 1\nname = '{'x' * 900}'\n"},
            "line 5 of the rollout file: name is 'xxxxxxxxxxxx...xxxxxxxxxxxxx', which is not possible",
        ),
        (
            {"file": f"[rollout]\neverything = true\n[[checks]]\nname = 'x'\ncommand = {['a'] * 101}\n"},
            "line 5 of the rollout file: command is ['a', 'a', 'a', 'a', 'a', 'a', ...], which is not possible",
        ),
        (
            {"file": f"[rollout]\neverything = true\n[[waves]]\nvms = {DIGITS[:40]}\n"},
            "line 4 of the rollout file: vms: the number has too many digits",
        ),
    ],
)
def test_a_number_or_text_beyond_its_limits_is_rejected(api: Any, body: dict[str, Any], problem: str) -> None:
    answer = api.call("POST", "/rollouts", body)
    assert answer.status == 400
    assert problem in answer.json["error"]["message"]


@pytest.mark.parametrize("as_file", [True, False], ids=["file", "fields"])
def test_a_rollout_says_whether_unclear_checks_hold_its_events_and_needs_checks_for_that(
    api: Any, as_file: bool
) -> None:
    file = "[rollout]\nhosts = ['h1']\nhold_if_unclear = true\n"
    bodies = [{"hosts": ["h1"], "hold_if_unclear": True}, {"hosts": ["h1"], "hold_if_unclear": True, "checks": [ACTS]}]
    if as_file:
        bodies = [{"file": file}, {"file": f"{file}[[checks]]\nname = 'x'\nfigure = 'failed-acts'\n"}]
    answer = api.call("POST", "/rollouts", bodies[0])
    assert "hold_if_unclear is for a rollout with health checks" in answer.json["error"]["message"]
    started = api.post("/rollouts", bodies[1])
    assert api.get(f"/rollouts/{started['id']}/checks")["hold_if_unclear"] is True
