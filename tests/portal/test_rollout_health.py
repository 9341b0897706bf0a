"""The health checks of a rollout on its page in the portal (spec §13.4, §13.5)."""

from __future__ import annotations

from forewarn.core.commit import Commit
from forewarn.core.health import CheckKind, CheckOutcome, HealthCheck, Measurement, OwnFigure
from forewarn.core.request import Rollout, RolloutImpact
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
