"""The tests of forewarn, one directory per package; fakes and harnesses are in `tests.support`."""
