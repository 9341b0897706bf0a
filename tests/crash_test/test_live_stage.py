"""A case that runs for real: events reach the handler through the proxy, and acts reach its VM."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from email.utils import parsedate_to_datetime
from pathlib import Path

import pytest

from forewarn.crash_test.answers import Concerns, ServiceAnswer, SpoiledAnswer
from forewarn.crash_test.case import Layout
from forewarn.crash_test.claims import HandlerProfile
from forewarn.crash_test.live_stage import LiveStage, StageSetup, open_live_stage
from forewarn.crash_test.preflight import declare_case_fleet, vms_with_handler
from forewarn.crash_test.timeline import (
    Disturbance,
    EventEnded,
    EventPublished,
    EventStarted,
    Impact,
    Polled,
    Poller,
    Probe,
    ProbeAnswered,
    ProgramExited,
    ProgramOutput,
    ProgramStarted,
    Timeline,
)
from forewarn.errors import Refused, Rejected
from tests.support.crash_handlers import APPROVING_HANDLER, WATCHING_HANDLER, make_python_machine

pytestmark = pytest.mark.crash

SPEED = 10.0
WITHIN_S = 600.0  # of the service's clock: a minute
Script = Callable[[LiveStage], Awaitable[None]]

# Asks the service to hold its polls for five minutes while nothing changes.
WAITING_HANDLER = """
import os, time, urllib.error, urllib.request

URL = os.environ["ENDPOINT"] + "/metadata/scheduledevents?api-version=2020-07-01"
headers = {"Metadata": "true", "Prefer": "wait=300"}
while True:
    try:
        with urllib.request.urlopen(urllib.request.Request(URL, headers=headers)) as response:
            headers["If-None-Match"] = response.headers["ETag"]
    except urllib.error.HTTPError as error:
        print(error, flush=True)
    time.sleep(0.2)
"""


def run_stage(
    directory: Path,
    program: str,
    script: Script,
    *,
    layout: Layout = Layout.SINGLE,
    profile: HandlerProfile = HandlerProfile.MAINTENANCE,
    probes: dict[Probe, str] | None = None,
    in_namespaces: bool = False,
    clock_offset_s: float = 0.0,
    problem: str = "",
) -> Timeline:
    """Run a script on a stage with this handler at ten times the real speed; returns the timeline.

    `problem` is what the stage must report; "": nothing.
    """
    fleet = declare_case_fleet(layout)
    machines = {
        vm: make_python_machine(directory, program, in_namespaces=in_namespaces, vm=vm)
        for vm in vms_with_handler(fleet, profile)
    }

    async def run() -> Timeline:
        setup = StageSetup(
            fleet=fleet, machines=machines, probes=probes or {}, speed=SPEED, clock_offset_s=clock_offset_s
        )
        async with open_live_stage(setup) as stage:
            assert await stage.until_polled(within_s=WITHIN_S), "the handler did not poll"
            await script(stage)
            assert stage.problem == problem
            return stage.finish()

    try:
        return asyncio.run(run())
    finally:
        for machine in machines.values():
            machine.close()


def test_an_approved_freeze_stops_the_handler_and_is_over_afterwards(tmp_path: Path) -> None:
    async def script(stage: LiveStage) -> None:
        event = await stage.publish("Freeze")
        assert await stage.until_delivered(event, within_s=WITHIN_S)
        assert await stage.until_approved(event, within_s=WITHIN_S)
        assert await stage.until_started(event, within_s=WITHIN_S)
        assert await stage.until_over(event, within_s=WITHIN_S)
        assert await stage.until_polled(within_s=WITHIN_S)

    timeline = run_stage(tmp_path, APPROVING_HANDLER, script)

    [published], [started], [ended] = timeline.of(EventPublished), timeline.of(EventStarted), timeline.of(EventEnded)
    assert (published.kind, published.vms) == ("Freeze", ("web-0",))
    assert published.not_before is not None
    assert 899 <= published.not_before - published.at <= 902
    [impact] = timeline.of(Impact)
    assert (impact.verb, impact.vm, impact.event) == ("freeze", "web-0", published.event)
    assert impact.until is not None
    assert impact.until - impact.at >= 8.9
    assert published.at <= started.at <= impact.at < impact.until <= ended.at
    assert not ended.is_withdrawn
    assert timeline.of(ProgramExited) == []


def test_no_poll_is_held_because_azure_holds_none(tmp_path: Path) -> None:
    async def script(stage: LiveStage) -> None:
        assert await stage.until_polled(times=3, within_s=WITHIN_S)

    timeline = run_stage(tmp_path, WAITING_HANDLER, script)

    assert [poll.status for poll in timeline.polls("web-0")][1:4] == [304, 304, 304]


def test_a_freeze_that_lasts_beyond_the_case_is_recorded_without_an_end(tmp_path: Path) -> None:
    async def script(stage: LiveStage) -> None:
        event = await stage.publish("Freeze")
        assert await stage.until_started(event, within_s=WITHIN_S)
        await stage.wait(3.0)

    timeline = run_stage(tmp_path, APPROVING_HANDLER, script)

    assert [(impact.verb, impact.until) for impact in timeline.of(Impact)] == [("freeze", None)]


def test_the_reference_poller_gets_the_event_beside_the_handler(tmp_path: Path) -> None:
    async def script(stage: LiveStage) -> None:
        event = await stage.publish("Freeze")
        assert await stage.until_delivered(event, within_s=WITHIN_S)
        await stage.wait(2 * SPEED)

    timeline = run_stage(tmp_path, WATCHING_HANDLER, script)

    [published] = timeline.of(EventPublished)
    assert timeline.delivered_at(published.event, "web-0", Poller.REFERENCE) is not None
    assert timeline.delivered_at(published.event, "web-0", Poller.HANDLER) is not None
    assert all(poll.status == 200 for poll in timeline.polls("web-0", Poller.REFERENCE))


def test_an_approved_reboot_starts_the_handler_again_while_the_event_is_listed(tmp_path: Path) -> None:
    async def script(stage: LiveStage) -> None:
        event = await stage.publish("Reboot")
        assert await stage.until_over(event, within_s=WITHIN_S)

    timeline = run_stage(tmp_path, APPROVING_HANDLER, script)

    assert [item.is_boot for item in timeline.of(ProgramStarted)] == [True, True]
    assert [item.by_case for item in timeline.of(ProgramExited)] == [True]
    [impact], [ended], [exited] = timeline.of(Impact), timeline.of(EventEnded), timeline.of(ProgramExited)
    assert impact.until is not None
    assert ended.at - impact.until >= 1.5
    [approval] = timeline.approvals("web-0")
    assert approval.status == 200
    assert exited.at - approval.at >= 0.9 * SPEED, (
        "the answer has a second to reach the handler before its VM goes down"
    )


def test_an_evicted_handler_is_not_started_again_and_its_last_preparation_is_seen(tmp_path: Path) -> None:
    async def script(stage: LiveStage) -> None:
        event = await stage.publish("Preempt")
        assert await stage.until_over(event, within_s=WITHIN_S)
        await stage.wait(SPEED)

    timeline = run_stage(
        tmp_path, APPROVING_HANDLER, script, layout=Layout.SPOT, probes={Probe.PREPARED: "test -f prepared"}
    )

    assert len(timeline.of(ProgramStarted)) == 1
    [ended] = timeline.of(ProgramExited)
    assert ended.by_case
    [impact] = timeline.of(Impact)
    assert (impact.verb, impact.until) == ("evict", None)
    assert [(item.probe, item.is_yes) for item in timeline.of(ProbeAnswered)] == [
        (Probe.PREPARED, False),
        (Probe.PREPARED, True),
    ]
    assert timeline.of(ProbeAnswered)[1].at <= ended.at


def test_a_withdrawn_event_ends_without_a_start(tmp_path: Path) -> None:
    async def script(stage: LiveStage) -> None:
        event = await stage.publish("Reboot")
        assert await stage.until_delivered(event, within_s=WITHIN_S)
        await stage.withdraw(event)
        assert await stage.until_over(event, within_s=WITHIN_S)

    timeline = run_stage(tmp_path, WATCHING_HANDLER, script)

    assert [item.is_withdrawn for item in timeline.of(EventEnded)] == [True]
    assert timeline.of(EventStarted) == []


def test_an_event_that_cannot_be_withdrawn_is_a_disturbance_that_says_why(tmp_path: Path) -> None:
    async def script(stage: LiveStage) -> None:
        event = await stage.publish("Freeze", notice_s=5)
        assert await stage.until_started(event, within_s=WITHIN_S)
        await stage.withdraw(event)
        assert await stage.until_over(event, within_s=WITHIN_S)
        await stage.withdraw(event)

    timeline = run_stage(tmp_path, WATCHING_HANDLER, script)

    assert [item.text for item in timeline.of(Disturbance)] == [
        "the event could not be withdrawn, because it had started",
        "the event could not be withdrawn, because it was over",
    ]


def test_an_event_starts_at_the_end_of_a_short_notice_without_an_approval(tmp_path: Path) -> None:
    async def script(stage: LiveStage) -> None:
        event = await stage.publish("Freeze", notice_s=20)
        assert not await stage.until_approved(event, within_s=1.0)
        assert await stage.until_started(event, within_s=WITHIN_S)

    timeline = run_stage(tmp_path, WATCHING_HANDLER, script)

    [published], [started] = timeline.of(EventPublished), timeline.of(EventStarted)
    assert published.not_before is not None
    assert started.at >= published.not_before - 0.001


def test_the_redeploy_after_a_failed_host_is_started_when_it_appears(tmp_path: Path) -> None:
    async def script(stage: LiveStage) -> None:
        event = await stage.fail_host()
        assert event.kind == "Redeploy"
        assert await stage.until_over(event, within_s=WITHIN_S)

    timeline = run_stage(tmp_path, WATCHING_HANDLER, script)

    [published], [ended] = timeline.of(EventPublished), timeline.of(ProgramExited)
    assert published.not_before is None
    assert ended.signal == 9
    assert [item.is_boot for item in timeline.of(ProgramStarted)] == [True, True]


def test_substitute_answers_reach_the_handler_and_appear_as_disturbances(tmp_path: Path) -> None:
    unavailable = SpoiledAnswer(
        name="status 503",
        transform=lambda answer: ServiceAnswer(503, (), b"busy"),
        concerns=Concerns.POLLS,
    )

    async def script(stage: LiveStage) -> None:
        stage.substitute(unavailable)
        assert await stage.until_polled(times=2, within_s=WITHIN_S)
        stage.substitute(None)
        assert await stage.until_polled(times=2, within_s=WITHIN_S)

    timeline = run_stage(tmp_path, WATCHING_HANDLER, script)

    spoiled = [poll for poll in timeline.polls("web-0") if poll.substitute]
    assert spoiled
    assert {(poll.status, poll.substitute) for poll in spoiled} == {(503, "status 503")}
    assert timeline.polls("web-0")[-1].status == 200
    assert not any(poll.substitute for poll in timeline.polls("web-0", Poller.REFERENCE))
    [disturbance] = timeline.of(Disturbance)
    assert (disturbance.text, disturbance.vm) == ("status 503", "web-0")
    assert disturbance.until is not None


def test_a_killed_handler_polls_again_after_its_restart(tmp_path: Path) -> None:
    async def script(stage: LiveStage) -> None:
        await stage.kill_handler(restart_after_s=2.0)
        assert await stage.until_polled(times=2, within_s=WITHIN_S)  # the killed one may have had a poll in flight

    timeline = run_stage(tmp_path, WATCHING_HANDLER, script)

    [ended] = timeline.of(ProgramExited)
    again = timeline.of(ProgramStarted)[1]
    assert again.at - ended.at >= 1.9
    assert [item.text for item in timeline.of(Disturbance)] == ["the handler was killed"]


@pytest.mark.parametrize(
    ("disturb", "problem"),
    [
        pytest.param(
            LiveStage.kill_handler, "the handler on VM 'spot-0' could not be killed: the VM is down", id="kill"
        ),
        pytest.param(LiveStage.reboot_vm, "VM 'spot-0' could not be rebooted: it is down", id="reboot"),
        pytest.param(
            LiveStage.fill_disk,
            "the disk of VM 'spot-0' could not be filled within 20 s: the VM is down, frozen or too slow",
            id="fill the disk",
            marks=pytest.mark.namespaces,
        ),
    ],
)
def test_a_disturbance_that_does_not_happen_is_a_problem_of_the_case(
    tmp_path: Path, disturb: Script, problem: str, request: pytest.FixtureRequest
) -> None:
    async def script(stage: LiveStage) -> None:
        event = await stage.publish("Preempt")
        assert await stage.until_over(event, within_s=WITHIN_S)
        await disturb(stage)

    timeline = run_stage(
        tmp_path,
        APPROVING_HANDLER,
        script,
        layout=Layout.SPOT,
        problem=problem,
        in_namespaces=request.node.get_closest_marker("namespaces") is not None,
    )

    assert timeline.of(Disturbance) == []


def test_copies_of_the_handler_run_on_all_vms_of_a_cluster(tmp_path: Path) -> None:
    async def script(stage: LiveStage) -> None:
        assert stage.neighbours == ("db-1", "db-2")
        event = await stage.publish("Freeze", vm="db-1")
        for vm in ("db-0", "db-1", "db-2"):
            assert await stage.until_delivered(event, vm=vm, within_s=WITHIN_S)
        assert event.vms == ("db-1",)

    timeline = run_stage(tmp_path, WATCHING_HANDLER, script, layout=Layout.SET, profile=HandlerProfile.CLUSTER)

    assert {item.vm for item in timeline.of(ProgramStarted)} == {"db-0", "db-1", "db-2"}


def test_outside_of_a_cluster_the_handler_runs_on_the_first_vm_only(tmp_path: Path) -> None:
    async def script(stage: LiveStage) -> None:
        event = await stage.publish("Reboot", vm="workers_1", notice_s=5)
        assert await stage.until_over(event, within_s=WITHIN_S)
        with pytest.raises(Refused, match="no handler runs on VM 'workers_1'"):
            await stage.kill_handler(vm="workers_1")

    timeline = run_stage(tmp_path, WATCHING_HANDLER, script, layout=Layout.SCALE_SET)

    assert {item.vm for item in timeline.of(ProgramStarted)} == {"workers_0"}
    assert [(item.vm, item.verb) for item in timeline.of(Impact)] == [("workers_1", "reboot")]
    assert timeline.of(ProgramExited) == []


def test_a_case_cannot_publish_an_unknown_kind(tmp_path: Path) -> None:
    async def script(stage: LiveStage) -> None:
        with pytest.raises(Rejected, match="cannot publish 'Explosion': use Freeze, Reboot"):
            await stage.publish("Explosion")

    run_stage(tmp_path, WATCHING_HANDLER, script)


def test_a_probe_that_cannot_run_is_a_problem_of_the_case(tmp_path: Path) -> None:
    async def script(stage: LiveStage) -> None:
        for _ in range(300):
            if not stage.problem:
                await stage.wait(1.0)

    timeline = run_stage(
        tmp_path,
        WATCHING_HANDLER,
        script,
        probes={Probe.RECOVERED: "no-such-probe"},
        problem="the command of --recovered was not found (exit status 127): correct 'no-such-probe'",
    )

    assert timeline.of(ProbeAnswered) == []


def test_the_clock_of_the_service_can_differ_from_the_real_time(tmp_path: Path) -> None:
    printing = "            print(event['NotBefore'], flush=True)\n            if False:"
    program = WATCHING_HANDLER.replace("            if False:", printing)

    async def script(stage: LiveStage) -> None:
        event = await stage.publish("Freeze", notice_s=3600)
        assert await stage.until_delivered(event, within_s=WITHIN_S)
        assert await stage.until_polled(times=2, within_s=WITHIN_S)

    timeline = run_stage(tmp_path, program, script, clock_offset_s=-86400.0)

    not_before = parsedate_to_datetime(timeline.of(ProgramOutput)[0].text).timestamp()
    assert not_before - time.time() == pytest.approx(3600 - 86400, abs=1800)
    assert timeline.ended_at < 1800, "times of the timeline begin with the case"


@pytest.mark.namespaces
def test_a_handler_in_a_vm_finds_the_service_at_the_metadata_address(tmp_path: Path) -> None:
    async def script(stage: LiveStage) -> None:
        event = await stage.publish("Reboot")
        assert await stage.until_over(event, within_s=WITHIN_S)
        await stage.reboot_vm()
        assert await stage.until_polled(within_s=WITHIN_S)

    timeline = run_stage(
        tmp_path,
        APPROVING_HANDLER,
        script,
        layout=Layout.SCALE_SET,
        in_namespaces=True,
        probes={Probe.PREPARED: "test -f prepared"},
    )

    assert [item.is_boot for item in timeline.of(ProgramStarted)] == [True, True, True]
    assert any(item.is_yes for item in timeline.of(ProbeAnswered))
    assert {poll.status for poll in timeline.of(Polled)} <= {200, None}


# Approves first, and prepares as soon as that is answered.
HASTY_HANDLER = """
import json, os, time, urllib.request

URL = os.environ["ENDPOINT"] + "/metadata/scheduledevents?api-version=2020-07-01"

def call(body=None):
    return urllib.request.urlopen(urllib.request.Request(URL, data=body, headers={"Metadata": "true"})).read()

while True:
    for event in json.loads(call())["Events"]:
        if event["EventStatus"] == "Scheduled":
            call(json.dumps({"StartRequests": [{"EventId": event["EventId"]}]}).encode())
            open("prepared", "w").close()
    time.sleep(0.2)
"""


@pytest.mark.parametrize(
    ("program", "probe", "expected"),
    [
        pytest.param(APPROVING_HANDLER, "test -f prepared", True, id="prepared before"),
        pytest.param(HASTY_HANDLER, "test -f prepared", False, id="prepared milliseconds later"),
        pytest.param(APPROVING_HANDLER, "sleep 60", None, id="probe hangs"),
        pytest.param(APPROVING_HANDLER, "", None, id="no probe"),
    ],
)
def test_an_approval_is_recorded_with_what_the_probe_said_before_it_took_effect(
    tmp_path: Path, program: str, probe: str, expected: bool | None
) -> None:
    async def script(stage: LiveStage) -> None:
        event = await stage.publish("Freeze")
        assert await stage.until_approved(event, within_s=WITHIN_S)

    timeline = run_stage(tmp_path, program, script, probes={Probe.PREPARED: probe} if probe else {})

    approval = timeline.approvals("web-0")[0]
    assert approval.was_prepared is expected
    if expected:
        yes_at = timeline.probe_yes_at(Probe.PREPARED, "web-0")
        assert yes_at is not None
        assert yes_at <= approval.at
