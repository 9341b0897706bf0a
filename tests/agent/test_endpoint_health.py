"""The endpoint's health: ok while it answers, and through every normal silence (spec §8.1, §11)."""

import pytest

from forewarn.agent.metrics import EndpointHealthTracker


class FakeClock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def watch() -> FakeClock:
    return FakeClock()


def test_the_first_answer_may_take_two_minutes(watch: FakeClock) -> None:
    pulse = EndpointHealthTracker(watch)
    watch.now += 125
    health = pulse.health()
    assert (health.ok, health.text, health.silent_s) == (True, "no answer yet", None)


def test_an_endpoint_that_never_answers_is_unhealthy(watch: FakeClock) -> None:
    pulse = EndpointHealthTracker(watch)
    pulse.record_failure("nothing answers at http://169.254.169.254")
    watch.now += 200
    health = pulse.health()
    assert not health.ok
    assert health.text == ("the endpoint has not answered for 3m 20s (nothing answers at http://169.254.169.254)")


def test_an_outage_of_70_s_is_healthy_but_mentioned(watch: FakeClock) -> None:
    pulse = EndpointHealthTracker(watch)
    pulse.record_answer()
    pulse.record_failure("410")
    watch.now += 75
    health = pulse.health()
    assert (health.ok, health.text, health.silent_s) == (True, "410", 75)


def test_a_long_silence_is_unhealthy_and_one_answer_makes_it_healthy_again(watch: FakeClock) -> None:
    pulse = EndpointHealthTracker(watch)
    pulse.record_answer()
    watch.now += 91
    assert not pulse.health().ok
    assert pulse.health().text == "the endpoint has not answered for 1m 31s"
    pulse.record_answer()
    assert (pulse.health().ok, pulse.health().text) == (True, "")
