"""The health checks of a rollout on its page in the portal (spec §13.4, §13.5)."""

from __future__ import annotations

from forewarn.core.commit import Commit
from forewarn.core.health import CheckKind, CheckOutcome, HealthCheck, Measurement, OwnFigure
from forewarn.core.request import Rollout, RolloutImpact, RolloutState
from forewarn.core.waves import make_waves
from tests.portal.conftest import PortalUser
from tests.portal.test_event_index import build_index


def start(portal: PortalUser, condition: str) -> str:
    check = HealthCheck(
        name="handlers", kind=CheckKind.FIGURE, figure=OwnFigure.WITHOUT_HANDLER, condition=condition, interval_s=60
    )
    rollout = Rollout(impact=RolloutImpact.REBOOT, scope_id="set:sub/lab/web", checks=(check,))
    request = portal.world.do(portal.world.control.rollout_requests.start(rollout, who="bob"))
    portal.world.settle()
    return request.id


def test_the_page_of_a_rollout_shows_what_its_checks_found(portal: PortalUser) -> None:
    rollout = start(portal, ">= 0")
    portal.world.advance(60)
    page = portal.get(f"/portal/rollouts/{rollout}")
    assert "Health checks" in page.text
    assert "vms-without-handler >= 0" in page.text
    assert page.html.count('class="check-outcome good"') == 2
    (check,) = portal.get(f"/portal/rollouts/{rollout}?as=json").json["checks"]
    assert [found["outcome"] for found in check["recent"]] == ["good", "good"]


def test_the_page_says_why_a_rollout_has_paused_itself(portal: PortalUser) -> None:
    rollout = start(portal, "< 0")
    page = portal.get(f"/portal/rollouts/{rollout}")
    assert "check 'handlers' is bad" in page.text.replace("’", "'")
    assert "check-outcome bad" in page.html
    assert f'href="/portal/forms/rollout-resume?rollout={rollout}"' in page.html


def test_a_rollout_without_checks_has_no_such_part(portal: PortalUser) -> None:
    rollout = Rollout(impact=RolloutImpact.REBOOT, scope_id="set:sub/lab/web")
    request = portal.world.do(portal.world.control.rollout_requests.start(rollout, who="bob"))
    portal.world.settle()
    assert "Health checks" not in portal.get(f"/portal/rollouts/{request.id}").text


def test_vms_whose_events_a_check_has_withdrawn_wait_again_in_the_list(portal: PortalUser) -> None:
    rollout = start(portal, ">= 0")
    before = portal.get("/portal/rollouts?as=json").json["rollouts"][0]["rollout"]["tally"]
    assert before["scheduled"] > 0
    world = portal.world
    request = world.store.request(rollout)
    assert request is not None
    assert request.rollout is not None
    bad = Measurement(request_id=rollout, check="handlers", at=world.now, outcome=CheckOutcome.BAD, text="as it is")
    world.do(world.store.commit(Commit(measurements=(bad,))))
    world.settle()
    after = portal.get("/portal/rollouts?as=json").json["rollouts"][0]["rollout"]["tally"]
    assert (after["scheduled"], after["waiting"], after["total"]) == (0, before["total"], before["total"])
    (tracker,) = build_index(world).rollouts.open_rollouts()
    assert tracker.tally == world.control.rollouts.tally_of(tracker.request, tracker.rollout)


def test_a_canary_that_a_check_withdrew_is_counted_once_after_the_resume(portal: PortalUser) -> None:
    """Spec §13.5: its VMs get new events once a person resumes the rollout."""
    check = HealthCheck(
        name="handlers", kind=CheckKind.FIGURE, figure=OwnFigure.WITHOUT_HANDLER, condition=">= 0", interval_s=60
    )
    waves = make_waves("1", ())
    rollout = Rollout(impact=RolloutImpact.REBOOT, scope_id="set:sub/lab/web", checks=(check,), waves=waves)
    world = portal.world
    request = world.do(world.control.rollout_requests.start(rollout, who="bob"))
    world.settle()
    bad = Measurement(request_id=request.id, check="handlers", at=world.now, outcome=CheckOutcome.BAD, text="as it is")
    world.do(world.store.commit(Commit(measurements=(bad,))))
    world.settle()
    path = f"/portal/rollouts/{request.id}?as=json"
    page = portal.get(path).json
    assert [wave["state"] for wave in page["batches"]] == ["withdrawn"]
    assert page["diagram"]["days"] == []  # no event has started, and none is going to
    assert [domain["state"] for domain in page["scopes"][0]["domains"]] == ["next", "waiting", "waiting"]
    world.advance(600)
    world.do(world.control.rollout_requests.change_state(request.id, RolloutState.RUNNING, who="bob"))
    world.settle()
    page = portal.get(path).json
    assert [wave["vms"] for wave in page["diagram"]["waves"]] == [1, 2]
    starts = [start["times"] for day in page["diagram"]["days"] for start in day["starts"]]
    assert starts == [["12:25"], ["12:40", "12:56"]]
    assert [domain["vms"] for domain in page["scopes"][0]["domains"]] == [1, 1, 1]
    assert [(wave["state"], wave["done"]) for wave in page["batches"]] == [("withdrawn", 0), ("now", 0)]
