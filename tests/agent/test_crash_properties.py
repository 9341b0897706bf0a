"""The agent ends well however often it is killed, between any two journal writes and within steps.

An ended step never runs again, done steps are undone once, and no record stays open.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from forewarn.agent.actions import (
    AgentAction,
    AgentSnapshot,
    RecordStepEnd,
    ResumeStep,
    RunApprovalCheck,
    SendApproval,
    StartStep,
    StopStep,
    TaskKey,
    record_after_action,
)
from forewarn.agent.approval import has_started
from forewarn.agent.decision import next_actions, resolve_interrupted_step
from forewarn.agent.event_tracking import records_after_changes
from forewarn.agent.model import (
    ApprovalCheckConfig,
    ApprovalCheckRecord,
    ApprovalRecord,
    ApprovalState,
    ApproveWhen,
    Event,
    EventRecord,
    OpenRecords,
    RuleConfig,
    StepPhase,
    StepRun,
    StepState,
)
from forewarn.agent.model import ApprovalPolicy as Approving
from forewarn.client import Gone, Scheduled, Started
from forewarn.client.events import event_key
from tests.agent.conftest import NOW, event, step

STEPS = (
    step("notify", 5, cut=1, shared_by_events=False, undo="never", repeatable=True),
    step("drain", 20, cut=2, undo_tries=1000),
    step("save", 30, undo_tries=1000),
)
RULE = RuleConfig(
    name="all",
    steps=STEPS,
    approve=Approving(when=ApproveWhen.DONE),
    approval_check=ApprovalCheckConfig(command=("may-i",)),
)
ENDS = frozenset({StepState.DONE, StepState.FAILED, StepState.CUT, StepState.SKIPPED})


class Killed(Exception):
    """The process was killed."""


@dataclass
class World:
    """The effects of steps, with counts; `kills` says at which moments the process is killed."""

    kills: list[bool]
    failures: list[bool] = field(default_factory=list)  # a failed step is done in part, a failed undo not at all
    has_failed: bool = False  # then other events may run or undo it as well
    in_effect: set[str] = field(default_factory=set)
    unclear: set[str] = field(default_factory=set)  # journalled as begun, and killed before they had an effect
    interrupted: set[str] = field(default_factory=set)  # by a reboot: counted as failed, so other events run them again
    done: list[str] = field(default_factory=list)
    undone: list[str] = field(default_factory=list)
    approved: list[str] = field(default_factory=list)

    def maybe_kill(self) -> None:
        if self.kills and self.kills.pop():
            raise Killed

    def fails(self) -> bool:
        fails = bool(self.failures and self.failures.pop())
        self.has_failed |= fails
        return fails

    def do(self, name: str) -> None:
        may_repeat = name == "notify" or self.has_failed or name in self.interrupted
        assert name not in self.in_effect or may_repeat, f"{name} is done twice"
        self.in_effect.add(name)
        self.unclear.discard(name)
        self.done.append(name)

    def undo(self, name: str) -> None:
        """An agent that was killed cannot know whether a begun step had an effect, so it undoes that step as well."""
        assert name in self.in_effect or name in self.unclear or self.has_failed, f"{name} is undone twice"
        if name in self.in_effect:
            self.undone.append(name)
        self.in_effect.discard(name)
        self.unclear.discard(name)


@dataclass
class Agent:
    """The journal, which survives a kill, and the running tasks, which do not."""

    world: World
    open_records: OpenRecords = field(default_factory=OpenRecords)
    closed: list[EventRecord] = field(default_factory=list)
    running_tasks: set[TaskKey] = field(default_factory=set)
    boot: int = 1
    now: float = NOW

    def save(self, record: EventRecord) -> None:
        self.world.maybe_kill()
        before = self.open_records.get(record.key)
        for run in before.step_runs if before else ():
            after = record.step_run(run.step, run.phase)
            assert after is not None
            if run.state in ENDS and run.phase is StepPhase.DO:
                assert after == run, "an ended step was changed again"
        if record.closed:
            self.closed.append(record)
        self.open_records = self.open_records.with_records(record)
        self.world.maybe_kill()

    def observe(self, *events: Event) -> None:
        """Records what has changed since the last journal write, as a watcher delivers it: at least once."""
        known = [event_key(record.event) for record in (*self.closed, *self.open_records)]
        listed = {event_key(record.event): record.event for record in self.open_records if record.gone_at is None}
        gone = [Gone(event=event) for key, event in listed.items() if key not in map(event_key, events)]
        for change in (*gone, *(Started(event=e) if has_started(e) else Scheduled(event=e) for e in events)):
            for record in records_after_changes(
                self.open_records,
                [change],
                rules=(RULE,),
                vm="vm",
                now=self.now,
                boot_id=self.boot_id,
                count_records=known.count,
            ):
                self.save(record)

    @property
    def boot_id(self) -> str:
        return f"boot-{self.boot}"

    def reconcile(self) -> bool:
        """Takes all actions; returns whether there was anything to do."""
        actions = next_actions(
            AgentSnapshot(
                open_records=self.open_records,
                rules={"all": RULE},
                steps={each.name: each for each in STEPS},
                vm="vm",
                now=self.now,
                boot_id=self.boot_id,
                running_tasks=frozenset(self.running_tasks),
            )
        )
        acted = [action for action in actions if self.take(action)]
        return bool(acted)

    def take(self, action: AgentAction) -> bool:
        record = self.open_records.get(action.key)
        assert record is not None
        after = record_after_action(record, action, now=self.now, boot_id=self.boot_id)
        if (
            isinstance(action, StartStep)
            and action.phase is StepPhase.DO
            and action.step.name not in self.world.in_effect
        ):
            self.world.unclear.add(action.step.name)
        if isinstance(action, RecordStepEnd) and action.step_run.state is StepState.FAILED:
            self.world.interrupted.add(action.step_run.step)
        if after != record:
            self.save(after)
        match action:
            case StartStep(step=taken, phase=phase):
                self.run(action.key, taken.name, phase)
            case ResumeStep(step=taken, phase=phase, check_first=check_first):
                end = (
                    resolve_interrupted_step(taken, phase, taken.name in self.world.in_effect) if check_first else None
                )
                if end is None:
                    self.run(action.key, taken.name, phase)
                else:
                    self.end(action.key, taken.name, phase, end)
            case SendApproval():
                assert record.approval is None or record.approval.state is ApprovalState.ASKED, "approved twice"
                self.world.maybe_kill()
                self.world.approved.append(action.key)
                self.world.maybe_kill()
                self.save(replace(after, approval=ApprovalRecord(state=ApprovalState.SENT, at=self.now)))
            case RunApprovalCheck():
                self.world.maybe_kill()
                self.save(
                    replace(
                        after, approval_check=ApprovalCheckRecord(first_at=self.now, asked_at=self.now, answer="yes")
                    )
                )
        return (
            isinstance(action, StartStep | ResumeStep | RecordStepEnd | StopStep | SendApproval | RunApprovalCheck)
            or after != record
        )

    def run(self, key: str, name: str, phase: StepPhase) -> None:
        self.world.maybe_kill()
        fails = self.world.fails()
        if phase is StepPhase.DO:
            self.world.do(name)
        elif not fails:
            self.world.undo(name)
        self.world.maybe_kill()
        self.end(key, name, phase, StepState.FAILED if fails else StepState.DONE)

    def end(self, key: str, name: str, phase: StepPhase, state: StepState) -> None:
        record = self.open_records.get(key)
        assert record is not None
        begun = record.step_run(name, phase)
        assert begun is not None
        assert begun.state is StepState.BEGUN
        self.save(record.with_step_run(replace(begun, state=state, ended_at=self.now)))

    def kill(self, *, reboots: bool) -> None:
        self.running_tasks.clear()
        self.boot += reboots


def step_runs_of(agent: Agent) -> list[tuple[str, StepRun]]:
    return [(record.key, run) for record in (*agent.closed, *agent.open_records) for run in record.step_runs]


LISTS = st.lists(st.sampled_from(["", "A", "B", "AB", "BA"]), min_size=1, max_size=5)


@settings(max_examples=400, deadline=None)
@given(
    lists=LISTS,
    kills=st.lists(st.booleans(), max_size=60),
    gaps=st.lists(st.sampled_from([1.0, 15.0, 200.0]), min_size=6, max_size=6),
    left_s=st.sampled_from([None, 20.0, 40.0, 900.0]),
    reboots=st.booleans(),
)
@example(lists=["A", "AB", "A", "AB"], kills=[True, *[False] * 7], gaps=[1.0] * 6, left_s=None, reboots=True)
def test_the_agent_ends_well_however_often_it_is_killed(
    lists: list[str], kills: list[bool], gaps: list[float], left_s: float | None, reboots: bool
) -> None:
    world = World(kills=kills)
    agent = run_agent_through(world, lists, gaps, left_s, reboots=reboots)

    assert world.in_effect <= {"notify"}, "something was not undone"
    for name in {"drain", "save"} - world.interrupted:
        assert world.done.count(name) == world.undone.count(name)
    assert StepState.BEGUN not in {run.state for _, run in step_runs_of(agent)}


@settings(max_examples=200, deadline=None)
@given(
    lists=LISTS,
    kills=st.lists(st.booleans(), max_size=30),
    failures=st.lists(st.booleans(), max_size=12),
    gaps=st.lists(st.sampled_from([1.0, 15.0, 200.0]), min_size=6, max_size=6),
    reboots=st.booleans(),
)
def test_everything_is_undone_although_steps_and_undos_fail(
    lists: list[str], kills: list[bool], failures: list[bool], gaps: list[float], reboots: bool
) -> None:
    world = World(kills=kills, failures=failures)
    run_agent_through(world, lists, gaps, 900.0, reboots=reboots)
    assert world.in_effect <= {"notify"}, "something was not undone"


def run_agent_through(
    world: World, lists: list[str], gaps: list[float], left_s: float | None, *, reboots: bool
) -> Agent:
    """An agent that has seen these documents, then empty ones, until nothing was left to do."""
    agent = Agent(world=world)
    for listed, gap_s in zip([*lists, *[""] * 60], [*gaps, *[300.0] * 60], strict=False):
        events = [event(f"E{name}", left_s=left_s) for name in listed]
        is_settled = False
        while not is_settled:
            try:
                agent.observe(*events)
                is_settled = not agent.reconcile()
            except Killed:
                agent.kill(reboots=reboots)
        agent.now += gap_s
    assert not agent.open_records.records, "a record stays open"
    return agent


def test_without_a_kill_each_event_is_approved_once_and_shared_steps_run_once() -> None:
    agent = Agent(world=World(kills=[]))
    for listed in ("A", "AB", "B", ""):
        agent.observe(*(event(f"E{name}") for name in listed))
        while agent.reconcile():
            agent.now += 1
    assert agent.world.done == ["notify", "drain", "save", "notify"]
    assert agent.world.undone == ["save", "drain"]
    assert agent.world.approved == ["EA", "EB"]
