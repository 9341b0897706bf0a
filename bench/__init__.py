"""Benchmarks: `make bench` measures the real service from outside, compared with nginx where possible.

One file per row of the table; `target.py` has the target of each figure, and the run says which are reached. Every
figure is measured in this run or named as a quotation. A row checks that what it measures has really happened, and it
uses the service only in ways that users have too. Start reading at `__main__` and `rows`.
"""
