"""The composition root: settings, data directory, wiring, start and stop of one service.

It may import every package except `lab`, `conformance`, `crash_test` and `cli`, which alone import it.
It decides nothing about events and serves no route itself. Start reading at `wiring.running_service`.
"""
