"""The composition root: settings, data directory, wiring, start and stop of one service.

It may import every package except `lab`, `conformance`, `crash_test` and `cli`. Nothing else imports it but those.
It decides nothing about events and serves no route itself. Start reading at `wiring.running_service`.
"""
