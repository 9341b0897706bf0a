"""However often the agent is killed, between any two writes of its journal and at any point of a step, it ends well:
no step that has an end runs again, what was done is undone once, and nothing stays open.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
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
from forewarn.agent.decision import next_actions, resolve_interrupted_step
from forewarn.agent.event_tracking import record_after_change
from forewarn.agent.model import ApprovalCheckConfig, ApproveWhen, Event, RuleConfig, StepPhase
from forewarn.agent.model import ApprovalPolicy as Approving
from forewarn.agent.records import (
    ApprovalCheckRecord,
    ApprovalRecord,
    ApprovalState,
    EventRecord,
    OpenRecords,
    StepRun,
    StepState,
)
from forewarn.agent.rules import has_started
from forewarn.client import Gone, Scheduled, Started
from forewarn.client.events import event_key
from tests.agent.conftest import NOW, event, step

STEPS = (
    step("tell", 5, cut=1, shared_by_events=False, undo="never", repeatable=True),
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
    """The process is no more."""


@dataclass
class World:
    """What steps really do, and a count of it; killing is drawn from a list of moments."""

    moments: list[bool]
    failures: list[bool] = field(default_factory=list)  # of doing (in part), and of undoing (not at all)
    has_failed: bool = False  # then others may have to do or undo it as well
    in_effect: set[str] = field(default_factory=set)
    done: list[str] = field(default_factory=list)
    undone: list[str] = field(default_factory=list)
    approved: list[str] = field(default_factory=list)

    def moment(self) -> None:
        if self.moments and self.moments.pop():
            raise Killed

    def fails(self) -> bool:
        fails = bool(self.failures and self.failures.pop())
        self.has_failed |= fails
        return fails

    def do(self, name: str) -> None:
        assert name not in self.in_effect or name == "tell" or self.has_failed, f"{name} is done twice"
        self.in_effect.add(name)
        self.done.append(name)

    def undo(self, name: str) -> None:
        assert name in self.in_effect or self.has_failed, f"{name} is undone twice"
        self.in_effect.discard(name)
        self.undone.append(name)


@dataclass
class Agent:
    """The journal, which lasts, and what a process has under way, which does not."""

    world: World
    book: OpenRecords = field(default_factory=OpenRecords)
    closed: list[EventRecord] = field(default_factory=list)
    busy: set[TaskKey] = field(default_factory=set)
    boot: int = 1
    now: float = NOW

    def put(self, record: EventRecord) -> None:
        self.world.moment()
        before = self.book.get(record.key)
        for deed in before.step_runs if before else ():
            after = record.step_run(deed.step, deed.phase)
            assert after is not None
            if deed.state in ENDS and deed.phase is StepPhase.DO:
                assert after == deed, "a step that has an end was touched again"
        if record.closed:
            self.closed.append(record)
        self.book = self.book.with_record(record)
        self.world.moment()

    def see(self, *events: Event) -> None:
        """Hear what has changed since the journal's last word: as a watcher tells it, at least once."""
        known = [event_key(record.event) for record in (*self.closed, *self.book)]
        listed = {event_key(record.event): record.event for record in self.book if record.gone_at is None}
        gone = [Gone(event=event) for key, event in listed.items() if key not in map(event_key, events)]
        for change in (*gone, *(Started(event=e) if has_started(e) else Scheduled(event=e) for e in events)):
            record = record_after_change(
                self.book, change, rules=(RULE,), vm="vm", now=self.now, boot_id=self.boot_id, count_records=known.count
            )
            if record is not None:
                self.put(record)

    @property
    def boot_id(self) -> str:
        return f"boot-{self.boot}"

    def turn(self) -> bool:
        """Make all moves; whether there was anything to do."""
        moves = next_actions(
            AgentSnapshot(
                open_records=self.book,
                rules={"all": RULE},
                steps={each.name: each for each in STEPS},
                vm="vm",
                now=self.now,
                boot_id=self.boot_id,
                running_tasks=frozenset(self.busy),
            )
        )
        acted = [move for move in moves if self.make(move)]
        return bool(acted)

    def make(self, move: AgentAction) -> bool:
        record = self.book.get(move.key)
        assert record is not None
        after = record_after_action(record, move, now=self.now, boot_id=self.boot_id)
        if after != record:
            self.put(after)
        match move:
            case StartStep(step=taken, phase=phase):
                self.run(move.key, taken.name, phase)
            case ResumeStep(step=taken, phase=phase, check_first=check_first):
                end = (
                    resolve_interrupted_step(taken, phase, taken.name in self.world.in_effect) if check_first else None
                )
                if end is None:
                    self.run(move.key, taken.name, phase)
                else:
                    self.end(move.key, taken.name, phase, end)
            case SendApproval():
                assert record.approval is None or record.approval.state is ApprovalState.ASKED, "approved twice"
                self.world.moment()
                self.world.approved.append(move.key)
                self.world.moment()
                self.put(replace(after, approval=ApprovalRecord(state=ApprovalState.SENT, at=self.now)))
            case RunApprovalCheck():
                self.world.moment()
                self.put(
                    replace(
                        after, approval_check=ApprovalCheckRecord(first_at=self.now, asked_at=self.now, answer="yes")
                    )
                )
        return (
            isinstance(move, StartStep | ResumeStep | RecordStepEnd | StopStep | SendApproval | RunApprovalCheck)
            or after != record
        )

    def run(self, key: str, name: str, phase: StepPhase) -> None:
        self.world.moment()
        fails = self.world.fails()
        if phase is StepPhase.DO:
            self.world.do(name)
        elif not fails:
            self.world.undo(name)
        self.world.moment()
        self.end(key, name, phase, StepState.FAILED if fails else StepState.DONE)

    def end(self, key: str, name: str, phase: StepPhase, state: StepState) -> None:
        record = self.book.get(key)
        assert record is not None
        begun = record.step_run(name, phase)
        assert begun is not None
        assert begun.state is StepState.BEGUN
        self.put(record.with_step_run(replace(begun, state=state, ended_at=self.now)))

    def die(self, *, reboots: bool) -> None:
        self.busy.clear()
        self.boot += reboots


def deeds(agent: Agent) -> list[tuple[str, StepRun]]:
    return [(record.key, deed) for record in (*agent.closed, *agent.book) for deed in record.step_runs]


LISTS = st.lists(st.sampled_from(["", "A", "B", "AB", "BA"]), min_size=1, max_size=5)


@settings(max_examples=400, deadline=None)
@given(
    lists=LISTS,
    moments=st.lists(st.booleans(), max_size=60),
    gaps=st.lists(st.sampled_from([1.0, 15.0, 200.0]), min_size=6, max_size=6),
    left_s=st.sampled_from([None, 20.0, 40.0, 900.0]),
    reboots=st.booleans(),
)
def test_the_agent_ends_well_however_often_it_is_killed(
    lists: list[str], moments: list[bool], gaps: list[float], left_s: float | None, reboots: bool
) -> None:
    world = World(moments=moments)
    agent = lived_through(world, lists, gaps, left_s, reboots=reboots)

    assert world.in_effect <= {"tell"}, "something was not undone"
    for name in ("drain", "save"):
        assert world.done.count(name) == world.undone.count(name)
    assert StepState.BEGUN not in {deed.state for _, deed in deeds(agent)}


@settings(max_examples=200, deadline=None)
@given(
    lists=LISTS,
    moments=st.lists(st.booleans(), max_size=30),
    failures=st.lists(st.booleans(), max_size=12),
    gaps=st.lists(st.sampled_from([1.0, 15.0, 200.0]), min_size=6, max_size=6),
    reboots=st.booleans(),
)
def test_the_agent_ends_well_although_steps_and_undos_fail(
    lists: list[str], moments: list[bool], failures: list[bool], gaps: list[float], reboots: bool
) -> None:
    world = World(moments=moments, failures=failures)
    lived_through(world, lists, gaps, 900.0, reboots=reboots)
    assert world.in_effect <= {"tell"}, "something was not undone"


def lived_through(world: World, lists: list[str], gaps: list[float], left_s: float | None, *, reboots: bool) -> Agent:
    """An agent that has seen these documents, then an empty one, until nothing was left to do."""
    agent = Agent(world=world)
    for listed, gap_s in zip([*lists, *[""] * 60], [*gaps, *[300.0] * 60], strict=False):
        events = [event(f"E{letter}", left_s=left_s) for letter in listed]
        is_settled = False
        while not is_settled:
            try:
                agent.see(*events)
                is_settled = not agent.turn()
            except Killed:
                agent.die(reboots=reboots)
        agent.now += gap_s
    assert not agent.book.records, "something stays open"
    return agent


def test_without_any_kill_each_event_is_approved_once_and_steps_that_are_shared_are_taken_once() -> None:
    agent = Agent(world=World(moments=[]))
    for listed in ("A", "AB", "B", ""):
        agent.see(*(event(f"E{letter}") for letter in listed))
        while agent.turn():
            agent.now += 1
    assert agent.world.done == ["tell", "drain", "save", "tell"]
    assert agent.world.undone == ["save", "drain"]
    assert agent.world.approved == ["EA", "EB"]
