"""The texts of a lab: its history, and explanations of events and VMs."""

from __future__ import annotations

from typing import Any

from forewarn.lab import Lab


def test_the_history_reads_the_same_in_every_run(guest: Any) -> None:
    with Lab(["web-0"]) as lab:
        event = lab.reboot("web-0")
        guest(lab.vm("web-0")).approve(event.id)
        lab.advance("1m")
        assert lab.history == (
            "+0:00:00  enabled    scheduled events enabled by the service",
            "+0:00:00  fleet      fleet set up from the names of its VMs",
            "+0:00:00  requested  the test requested restart of web-0",
            "+0:00:00  published  Reboot of web-0 scheduled",
            "+0:00:00  approved   web-0 approved Reboot of web-0",
            "+0:00:00  started    Reboot of web-0 started: approved by web-0",
            "+0:00:30  performed  reboot of web-0 performed: reboot took 30 s",
            "+0:00:30  finished   Reboot of web-0 finished",
        )


def test_an_event_explains_itself(guest: Any) -> None:
    with Lab(["web-0"]) as lab:
        event = lab.reboot("web-0")
        guest(lab.vm("web-0")).poll()
        lab.advance("1m")
        guest(lab.vm("web-0")).approve(event.id)
        assert lab.explain(event) == str(event)
        assert str(event).splitlines()[:6] == [
            "Reboot of web-0: user restart",
            "  +0:00:00  the test requested it: user restart; scheduled with 15 min of notice",
            "  +0:00:00  delivered to web-0 as Scheduled (api-version 2020-07-01, incarnation 2)",
            "  +0:01:00  web-0 approved it, 14 min before its notice ended",
            "  +0:01:00  it started: approved by web-0, 1 min into the 15 min of notice",
            "  now  It started less than a second ago; the reboot of web-0 is in progress.",
        ]


def test_the_repr_of_an_event_explains_it_in_one_line() -> None:
    with Lab(["web-0"]) as lab:
        event = lab.reboot("web-0")
        assert repr(event) == (
            "<Reboot of web-0: user restart"
            " · +0:00:00 the test requested it: user restart; scheduled with 15 min of notice"
            " · It is scheduled and waits for an approval, or the end of its notice, at most 15 min.>"
        )
        assert len(repr(event)) < 240  # the length at which pytest cuts a repr


def test_a_vm_explains_what_happened_to_it() -> None:
    with Lab(["web-0"]) as lab:
        event = lab.freeze("web-0")
        lab.run_until(lambda: event.finished)
        text = lab.explain("web-0")
        assert text == str(lab.vm("web-0")) == lab.explain(lab.vm("web-0"))
        assert "Freeze, requested by the test (host update): finished" in text
        assert "delivered to no VM; not approved" in text


def test_the_scope_of_an_instance_is_named_as_everywhere_else() -> None:
    fleet = """
        [[hosts]]
        name = "h"
        [[scale_sets]]
        name = "pool"
        count = 1
    """
    with Lab.from_text(fleet) as lab:
        assert "enabled for placement group pg-0 of scale set pool." in lab.explain("pool_0")


def test_the_event_that_keeps_a_gate_closed_is_named() -> None:
    fleet = """
        [[hosts]]
        name = "h"
        [[vms]]
        name = "a"
        [[vms]]
        name = "b"
    """
    with Lab.from_text(fleet) as lab:
        event = lab.freeze("a")
        lab.approve(event)
        assert not event.started
        assert "waits for b on host h, which is not ready yet" in lab.explain(event)
        lab.approve(lab.events[1])
        assert event.started


def test_the_report_is_the_history_and_then_every_event() -> None:
    with Lab(["web-0"]) as lab:
        event = lab.reboot("web-0")
        assert lab.report == "\n".join([*lab.history, "", str(event)])
