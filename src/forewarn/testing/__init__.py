"""A WORLD IN A BOX. What tests of forewarn and of its users stand on: fakes of the outside world, and the
conformance suites that say what a store or a hypervisor must do. Public, and tested like everything else.

Never here: anything a running service needs.
"""
