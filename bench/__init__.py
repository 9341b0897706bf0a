"""NUMBERS TO PROVE IT. `make bench` measures the real service from outside, beside nginx where that makes sense, and
says which figures are reached. One file per row of the table; `target.py` holds what each must reach.

Never here: a figure that was not measured in this run or is not named as a quotation, one of something that nobody made
sure has happened, or a way into the service that its users do not have.
"""
