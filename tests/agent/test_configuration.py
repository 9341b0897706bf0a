"""The agent's configuration file: what it may contain, and how its problems are reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from forewarn.agent.approval import PROFILES, find_rule
from forewarn.agent.config import AgentConfig, load_config, parse_config
from forewarn.agent.model import ApprovalCheckConfig, ApprovalPolicy, ApproveWhen
from forewarn.errors import InvalidFile, Rejected
from tests.agent.conftest import NOW, event

STEP = '[steps.drain]\nuse = "command"\nrun = ["drain"]\nbudget = "20s"\n'
NOTIFY = '[steps.notify]\nuse = "log"\nbudget = "5s"\ncut = 1\n'


def problems(text: str) -> list[str]:
    with pytest.raises(InvalidFile) as caught:
        parse_config(text)
    return str(caught.value).replace("agent.toml:", "").splitlines()


def test_a_short_file_is_enough() -> None:
    config = parse_config(f'profile = "fifteen-minutes"\n{STEP}')
    assert config.endpoint is None
    assert (config.vm, config.listen, config.board, config.grace_s) == ("", "127.0.0.1:9258", None, 5.0)
    assert [step.name for step in config.rules[-1].steps] == ["drain"]


def test_every_key_can_be_configured() -> None:
    config = parse_config(
        'endpoint = "127.0.0.1:8254"\nvm = "web-0"\nstate = "/srv/agent"\nlisten = ""\nboard = "/mnt/b"\ngrace = "1m"\n'
        '[steps.drain]\nuse = "command"\nrun = "drain"\nbudget = "1h30m"\ncut = 2\nbegin = "late"\nrepeatable = true\n'
        'unclear = "skip"\nundo_when = "never"\nundo_budget = "2m"\nundo_tries = 5\nsurvives_reboot = false\n'
        '[[rules]]\nname = "r"\nkinds = ["reboot"]\nsources = ["User"]\nvms = "web-*"\nmin_duration = "1s"\n'
        'max_duration = "9s"\nmin_left = "1m"\nmax_left = "7d"\nbegin = "late"\nmargin = "3s"\nno_time = "all"\n'
        'undo_on = ["finished"]\nsteps = ["drain"]\napprove = "when-all-done"\nabsent = "30s"\n'
        'gate = { url = "https://change/42", timeout = "2s", every = "3s", deadline = "4m", on_silence = "approve" }\n'
    )
    (rule,) = config.rules
    (step,) = rule.steps
    assert (config.endpoint, config.vm, config.listen) == ("http://127.0.0.1:8254", "web-0", "")
    assert (config.journal_path, config.board, config.grace_s) == (Path("/srv/agent/journal.db"), Path("/mnt/b"), 60.0)
    assert (step.budget_s, step.cut, step.begin, step.repeatable, step.unclear) == (5400.0, 2, "late", True, "skip")
    assert (step.undo, step.undo_budget_s, step.undo_tries, step.survives_reboot) == ("never", 120.0, 5, False)
    assert (rule.kinds, rule.sources, rule.vms) == (frozenset({"Reboot"}), frozenset({"User"}), "web-*")
    assert (rule.min_duration_s, rule.max_duration_s, rule.min_left_s, rule.max_left_s) == (1.0, 9.0, 60.0, 604_800.0)
    assert (rule.begin, rule.margin_s, rule.no_time, rule.undo_on) == ("late", 3.0, "all", frozenset({"finished"}))
    assert rule.approve == ApprovalPolicy(when=ApproveWhen.ALL_DONE, absent_after_s=30.0)
    assert rule.approval_check == ApprovalCheckConfig(
        url="https://change/42", timeout_s=2.0, every_s=3.0, deadline_s=240.0, on_silence="approve"
    )


def test_a_notification_begins_at_once_for_each_event_and_is_repeatable() -> None:
    step = parse_config(f'profile = "seven-days"\n{NOTIFY}').steps["notify"]
    assert (step.begin, step.shared_by_events, step.repeatable) == ("at-once", False, True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "1: the file has no rules: write profile = \"fifteen-minutes\", or [[rules]]"),
        ("x = ", "1: this is not TOML (Invalid value): correct that line"),
        (f'profle = "x"\n[[rules]]\n{STEP}', "1: the file has no key 'profle': did you mean 'profile'?"),
        (f'profile = "30-seconds"\n{STEP}', "1: there is no profile '30-seconds': did you mean 'thirty-seconds'?"),
        ('profile = "seven-days"', "1: the profile 'seven-days' has no steps to run: add a [steps.NAME] table"),
        (
            'profile = "thirty-seconds"\n[steps.a]\nuse = "command"\nrun = "x"\nbudget = "40s"',
            "1: the steps need 12 s more than the 30 s of the profile 'thirty-seconds': reduce budgets, or mark steps",
        ),
        (f'endpoint = "https://x"\n[[rules]]\n{STEP}', "1: the endpoint 'https://x' is not a plain HTTP address"),
        (f'state = "here"\n[[rules]]\n{STEP}', "1: state = 'here' is not an absolute path: write state = \"/…\""),
        ('[[rules]]\n[steps.a]\nbudget = "1s"', "2: [steps.a] has no use: write use = \"command\" below it"),
        ('[[rules]]\n[steps.a]\nuse = "comand"\nbudget = "1s"', "3: there is no reaction 'comand': did you mean 'com"),
        ('[[rules]]\n[steps.a]\nuse = "command"\nrun = "x"', "2: [steps.a] has no budget: write budget = \"30s\" bel"),
        (f"[[rules]]\n{STEP}bugdet = 1", "6: [steps.drain] has no key 'bugdet': did you mean 'budget'?"),
        (f"[[rules]]\n{STEP}undu = 1", "6: [steps.drain] has no key 'undu': did you mean 'undo'?"),
        (f'[[rules]]\n{STEP}cut = "first"', "6: cut = 'first' is not a whole number: write one from 0 to 1000"),
        (f'[[rules]]\n{STEP}unclear = "go"', "6: unclear = 'go' is not one of the choices: write one of \"report\""),
        ('[[rules]]\n[steps."a b"]\nuse = "log"\nbudget = 1', "2: 'a b' is not a valid name of a step: use letters"),
        ('[[rules]]\n[steps.a]\nuse = "command"\nbudget = "soon"\nrun = "x"', "4: budget = 'soon' is not a duration"),
        ('[[rules]]\n[steps.a]\nuse = "command"\nbudget = "0s"\nrun = "x"', "4: budget = '0s' is not a duration of"),
        ('[[rules]]\n[steps.a]\nuse = "command"\nbudget = true\nrun = "x"', "4: budget = True is not a duration of"),
        (f'[[rules]]\n[steps.a]\nuse = "command"\nbudget = 1{"0" * 400}\nrun = "x"', "4: budget = 100000"),
        ("rules = 3", "1: rules is not a list of tables: write [[rules]] above each of them"),
        ("steps = 3\n[[rules]]", "1: steps is not a table: write steps = { … }"),
        (f'[[rules]]\nkinds = ["Rebot"]\n{STEP}', "2: kinds has 'Rebot', which is unknown: did you mean 'Reboot'?"),
        (f'[[rules]]\nsteps = ["drian"]\n{STEP}', "2: there is no step 'drian': did you mean 'drain'?"),
        ('[[rules]]\nsteps = ["drain"]', "2: there is no step 'drain': add a [steps.drain] table"),
        (f'[[rules]]\nsteps = ["drain", "drain"]\n{STEP}', "2: a step is named twice: name each step once"),
        ('[[rules]]\napprove = "always"', "2: approve = 'always' is not one of the choices: write one of \"never\""),
        ('[[rules]]\napprove = "when-all-done"', "1: approve = \"when-all-done\" needs a board: write board = \"/a/f"),
        ('[[rules]]\nabsent = "30s"', "2: absent has no effect without other VMs: write approve = \"when-all-done\""),
        ('[[rules]]\nmin_left = "9s"\nmax_left = "1s"', "2: min_left is more than max_left: swap them"),
        ('[[rules]]\ngate = { command = ["x"] }', "2: a gate has no effect without an approval: write approve = "),
        ('[[rules]]\napprove = "when-done"\ngate = {}', "3: a gate needs a command or a url: write gate = { command"),
        ('[[rules]]\napprove = "when-done"\ngate = { comand = ["x"] }', "3: gate has no key 'comand': did you mean"),
        ('[[rules]]\nname = "a"\n[[rules]]\nname = "a"', "1: two rules have the name 'a': give each rule its own name"),
        (
            f'profile = "seven-days"\n[[rules]]\nname = "maintenance"\n{STEP}',
            "2: the profile 'seven-days' also has a rule with the name 'maintenance': give your rule another name",
        ),
    ],
)  # fmt: skip
def test_every_problem_is_reported_with_its_line_and_a_remedy(text: str, message: str) -> None:
    assert any(line.startswith(message) for line in problems(text)), problems(text)


def test_the_page_about_the_file_names_every_rule_of_the_profiles() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "agent.md").read_text()
    names = {rule.name for make_rules in PROFILES.values() for rule in make_rules(())}
    assert [name for name in sorted(names) if f"`{name}`" not in page] == []


def test_all_problems_are_reported_at_once_in_the_order_of_their_lines() -> None:
    lines = problems('profil = "x"\n[[rules]]\nkinds = ["Rebot"]\nsteps = ["a"]\n[steps.b]\nuse = "x"\nbudget = "1s"\n')
    assert [line.partition(":")[0] for line in lines] == ["1", "3", "4", "6"]


def test_a_file_that_cannot_be_read_is_rejected_with_a_reason(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="cannot be read"):
        load_config(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b"x = '\xe9'")
    with pytest.raises(Rejected, match="is not UTF-8 text: save it as UTF-8"):
        load_config(tmp_path / "latin.toml")


def profile(name: str) -> AgentConfig:
    return parse_config(f'profile = "{name}"\n{STEP}{NOTIFY}')


@pytest.mark.parametrize("name", PROFILES)
def test_no_profile_runs_steps_for_a_freeze_of_seconds(name: str) -> None:
    rule = find_rule(profile(name).rules, event(kind="Freeze", duration_s=9), "vm", NOW)
    assert rule is not None
    assert rule.steps == ()
    assert rule.approve.when is ApproveWhen.NEVER


@pytest.mark.parametrize(
    ("name", "kind", "left_s", "rule_name", "begin", "when"),
    [
        ("fifteen-minutes", "Reboot", 900, "maintenance", "at-once", ApproveWhen.DONE),
        ("fifteen-minutes", "Freeze", 900, "maintenance", "at-once", ApproveWhen.DONE),
        ("fifteen-minutes", "Preempt", 30, "an eviction", "at-once", ApproveWhen.NEVER),
        ("thirty-seconds", "Preempt", 30, "any event", "at-once", ApproveWhen.NEVER),
        ("seven-days", "Redeploy", 600_000, "days ahead", "late", ApproveWhen.DONE),
        ("seven-days", "Reboot", 900, "maintenance", "at-once", ApproveWhen.DONE),
        ("seven-days", "Preempt", 30, "an eviction", "at-once", ApproveWhen.NEVER),
        ("seven-days", "Preempt", 600_000, "an eviction days ahead", "late", ApproveWhen.NEVER),
    ],
)
def test_each_profile_suits_its_notice(
    name: str, kind: str, left_s: float, rule_name: str, begin: str, when: ApproveWhen
) -> None:
    rule = find_rule(profile(name).rules, event(kind=kind, left_s=left_s), "vm", NOW)
    assert rule is not None
    assert (rule.name, rule.begin, rule.approve.when) == (rule_name, begin, when)
    assert [step.name for step in rule.steps] == ["drain", "notify"]


@pytest.mark.parametrize("name", PROFILES)
def test_only_a_rule_that_names_it_matches_a_rebalance_recommendation(name: str) -> None:
    """Spec §14.4: nothing happens to the VM, so a profile neither runs steps nor approves."""
    recommendation = event(kind="SpotRebalanceRecommendation", left_s=0)
    assert find_rule(profile(name).rules, recommendation, "vm", NOW) is None
    own = '[[rules]]\nname = "move"\nkinds = ["SpotRebalanceRecommendation"]\nsteps = ["drain"]\n'
    rule = find_rule(parse_config(f'profile = "{name}"\n{STEP}{own}').rules, recommendation, "vm", NOW)
    assert rule is not None
    assert rule.name == "move"


def test_rules_of_the_file_come_before_those_of_its_profile() -> None:
    config = parse_config(f'profile = "fifteen-minutes"\n{STEP}[[rules]]\nname = "mine"\nkinds = ["Reboot"]\n')
    assert [rule.name for rule in config.rules] == ["mine", "a short freeze", "an eviction", "maintenance"]
